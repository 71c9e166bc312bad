"""Timeline of a step: every task of every stage with its start and end, planned or measured alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.pipeline_solver.model.solution import BubbleShares
from taylor.report.host_link import HostTransfers
from taylor.report.intervals import Activity, FloatArray, merged

OPTIMIZER, COMMUNICATION, OTHER = 3, 4, 5
"""Kinds of job in addition to the schedule's directions: the optimizer ends a step, the others are measured only."""

DIRECTION_NAMES = ("forward", "backward", "weight gradient", "optimizer", "communication", "other")

RECEIVE_LABELS = ("recv", "receive", "send and receive")
"""Beginnings of the labels of communication that receives."""

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class MemorySteps:
    """Memory of one stage over time: `mib[i]` applies from `time[i]` on.

    Parameters
    ----------
    time : float [k]
        Ascending, in the timeline's units.
    mib : float [k]
    limit_mib : float or None
    """

    time: FloatArray
    mib: FloatArray
    limit_mib: float | None = None

    @property
    def peak_mib(self) -> float:
        """The highest step."""
        return float(self.mib.max()) if len(self.mib) else 0.0


@dataclass(frozen=True)
class Timeline:
    """Every task of a step, planned or measured.

    Parameters
    ----------
    title : str
        Subject of the timeline, for headings.
    row_names : tuple of str [S]
        Name of every stage or device, top to bottom.
    stage, direction, interleave, micro_batch, split : int [n]
        One entry for each task; −1 in `interleave`, `micro_batch` or `split` where the task has none.
    start, end : float [n]
        In units; ``unit_ms`` ms each when known (measured sources use ms, ``unit_ms`` = 1).
    recompute : float [n], optional
        Leading part of a backward that repeats the forward, in the same units.
    lane : int [n], optional
        Lane within the row, > 0 where jobs of one device overlap.
    labels : tuple of str [n] or empty
        Names of the tasks where direction and micro-batch do not suffice.
    flows : int [k, 2], optional
        Task pairs (from, to): a micro-batch's transfer between rows.
    memory : tuple of MemorySteps, [S] or empty
    dryrun : tuple of MemorySteps, [S] or empty
        Memory by a dry-run of the same plan, task by task; no steps where a row has none.
    host : tuple of MemorySteps, [S] or empty
        Memory that one device of each row keeps on its host.
    transfers : HostTransfers or None
        Transfers of that memory to the host and back.
    lent : HostTransfers or None
        Transfers to other stages, which keep the memory, and back.
    marks : tuple of (float, str)
        Moments to mark by a line: the steps of a measurement.
    plan : PipelinePlan or None
        The plan, for layers and recompute by stage.
    sources : tuple of str
        Heading of every timeline that was merged into this one, when there are several.
    notes : tuple of str
        Caveats of the source (lines dropped, clocks moved).
    activity : tuple of Activity, [S] or empty
        Activity of each row, where the source has it more finely than the tasks.
    apart : bool
        Whether the rows were measured at different times, so that only times of one row compare.
    """

    title: str
    row_names: tuple[str, ...]
    stage: IntArray
    direction: IntArray
    interleave: IntArray
    micro_batch: IntArray
    split: IntArray
    start: FloatArray
    end: FloatArray
    recompute: FloatArray = field(default_factory=lambda: np.zeros(0))
    lane: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    labels: tuple[str, ...] = ()
    flows: IntArray = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    unit_ms: float | None = None
    memory: tuple[MemorySteps, ...] = ()
    dryrun: tuple[MemorySteps, ...] = ()
    host: tuple[MemorySteps, ...] = ()
    transfers: HostTransfers | None = None
    lent: HostTransfers | None = None
    bubble: BubbleShares | None = None
    plan: PipelinePlan | None = None
    sources: tuple[str, ...] = ()
    marks: tuple[tuple[float, str], ...] = ()
    notes: tuple[str, ...] = ()
    activity: tuple[Activity, ...] = ()
    apart: bool = False

    def __post_init__(self) -> None:
        n = len(self.start)
        for name, default in (("recompute", np.zeros(n)), ("lane", np.zeros(n, dtype=np.int64))):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, default)
        for name in ("stage", "direction", "interleave", "micro_batch", "split", "end", "recompute", "lane"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"{name} must have one entry a task ({n}), found {len(getattr(self, name))}")
        if self.labels and len(self.labels) != n:
            raise ValueError(f"labels must be empty or have one entry a task ({n}), found {len(self.labels)}")
        if any(curves and len(curves) != len(self.row_names) for curves in (self.memory, self.dryrun)):
            raise ValueError("memory must be empty or have one entry a row")
        if self.activity and len(self.activity) != len(self.row_names):
            raise ValueError("activity must be empty or have one entry a row")
        if n and (self.stage.min() < 0 or self.stage.max() >= len(self.row_names)):
            raise ValueError("a task's stage has no row name")
        if n and bool((self.end < self.start).any()):
            raise ValueError("a task ends before it starts")

    def __len__(self) -> int:
        return len(self.start)

    @property
    def rows(self) -> int:
        """Stages or devices."""
        return len(self.row_names)

    @property
    def begin(self) -> float:
        """Start of the first task, units."""
        return float(self.start.min()) if len(self) else 0.0

    @property
    def finish(self) -> float:
        """End of the last task, units."""
        return float(self.end.max()) if len(self) else 0.0

    @property
    def span(self) -> float:
        """From the first start to the last end, units; a plan's step time."""
        return self.finish - self.begin

    @property
    def heading(self) -> str:
        """Title, step time and bubble: ``name: 1,132.66 ms, bubble 12.3%``; of each source where there are several."""
        if self.sources:
            return "  |  ".join(self.sources)
        span = f"{self.span:,.2f} units" if self.span_ms is None else f"{self.span_ms:,.2f} ms"
        return f"{self.title}: {span}" + ("" if self.bubble is None else f", bubble {self.bubble.total:.1%}")

    @property
    def span_ms(self) -> float | None:
        """`span` in ms; None when the unit's real time is not known."""
        return None if self.unit_ms is None else self.span * self.unit_ms

    def doing(self, row: int) -> Activity:
        """Times in which a row computes and communicates, overlapping jobs counted once."""
        if self.activity:
            return self.activity[row]
        mine = self.stage == row
        talks = mine & (self.direction == COMMUNICATION)
        receives = talks.copy()
        if self.labels:
            receives[talks] = [self.labels[i].lower().startswith(RECEIVE_LABELS) for i in np.flatnonzero(talks)]
        spans = (merged(self.start[part], self.end[part]) for part in (mine & ~talks, talks, receives))
        return Activity(*spans)

    def in_ms(self) -> Timeline:
        """Timeline with ms as its unit (itself when the real time is not known)."""
        if self.unit_ms is None or self.unit_ms == 1.0:
            return self
        scale = self.unit_ms
        return replace(
            self,
            start=self.start * scale,
            end=self.end * scale,
            recompute=self.recompute * scale,
            unit_ms=1.0,
            memory=tuple(replace(steps, time=steps.time * scale) for steps in self.memory),
            dryrun=tuple(replace(steps, time=steps.time * scale) for steps in self.dryrun),
            marks=tuple((time * scale, name) for time, name in self.marks),
            activity=tuple(one.scaled(scale) for one in self.activity),
        )

    def window(self, begin: float, end: float) -> Timeline:
        """Tasks that run at some time in [begin, end], whole, and the marks of that time."""
        marks = tuple(mark for mark in self.marks if begin <= mark[0] <= end)
        return replace(self.select(np.flatnonzero((self.end > begin) & (self.start < end))), marks=marks)

    def step(self, number: int) -> Timeline:
        """One step of a measurement, by its place among the marks: the tasks that start from its mark to the next.

        Raises
        ------
        ValueError
            When there is no such step.
        """
        return self.steps(number, number)

    def steps(self, first: int, last: int) -> Timeline:
        """Some steps of a measurement, by their places among the marks, from the first through the last.

        Raises
        ------
        ValueError
            When one of the two does not exist.
        """
        for number in (first, last):
            if not 0 <= number < len(self.marks):
                raise ValueError(f"step {number} of {len(self.marks)} does not exist")
        begin = self.marks[first][0] if first else -np.inf
        end = self.marks[last + 1][0] if last + 1 < len(self.marks) else np.inf
        chosen = self.select(np.flatnonzero((self.start >= begin) & (self.start < end)))
        return replace(chosen, marks=self.marks[first : last + 1])

    def select(self, index: IntArray) -> Timeline:
        """Some of the tasks, by index; flows between dropped tasks go with them."""
        place = np.full(len(self), -1, dtype=np.int64)
        place[index] = np.arange(len(index))
        flows = place[self.flows] if len(self.flows) else self.flows
        per_task = ("stage", "direction", "interleave", "micro_batch", "split", "start", "end", "recompute", "lane")
        changes: dict[str, Any] = {name: getattr(self, name)[index] for name in per_task}
        return replace(
            self,
            **changes,
            flows=flows[(flows >= 0).all(axis=1)] if len(flows) else flows,
            labels=tuple(self.labels[i] for i in index) if self.labels else (),
        )

    def task_names(self) -> list[str]:
        """Name of every task for a reader: ``forward 3``, ``backward 3.1 (interleave 1)``."""
        if self.labels:
            return list(self.labels)
        splits, interleaves = self.split.max(initial=0) > 0, self.interleave.max(initial=0) > 0
        names = []
        columns = (self.direction, self.micro_batch, self.split, self.interleave)
        for direction, micro_batch, split, interleave in zip(*(column.tolist() for column in columns), strict=True):
            name = DIRECTION_NAMES[direction]
            if micro_batch >= 0:
                name += f" {micro_batch}.{split}" if splits and split >= 0 else f" {micro_batch}"
            names.append(f"{name} (virtual stage {interleave})" if interleaves and interleave >= 0 else name)
        return names


@dataclass(frozen=True)
class DrawingWindow:
    """Stretch of time that a drawing shows, with its name."""

    name: str
    begin: float
    end: float


def drawing_windows(timeline: Timeline, most_tasks: int = 1600, *, per_row: int = 24) -> tuple[DrawingWindow, ...]:
    """Stretches of a timeline worth drawing: all of it, or warm-up, steady window and cool-down of a big one.

    Parameters
    ----------
    most_tasks : int
        Up to this many tasks the whole step is one window.
    per_row : int
        Approximate tasks of a row in each of the three windows otherwise.
    """
    begin, finish = timeline.begin, timeline.finish
    if len(timeline) <= most_tasks or timeline.span <= 0:
        return (DrawingWindow("whole step", begin, finish),)
    working = timeline.direction <= WEIGHT_GRADIENT
    chosen = working if working.any() else np.ones(len(timeline), dtype=bool)
    busiest = int(np.bincount(timeline.stage[chosen]).max())
    width = min(timeline.span / 3, timeline.span * per_row / busiest)
    # Warm-up and cool-down are drawn whole where they are longer than the usual window: from the first start
    # to the last row's first backward, from the first row's last forward to the end.
    backs = [timeline.start[(timeline.stage == row) & (timeline.direction == BACKWARD)] for row in range(timeline.rows)]
    fronts = [timeline.end[(timeline.stage == row) & (timeline.direction == FORWARD)] for row in range(timeline.rows)]
    filled = max((float(times.min()) for times in backs if len(times)), default=begin)
    emptied = min((float(times.max()) for times in fronts if len(times)), default=finish)
    warm = min(timeline.span / 3, max(width, (filled - begin) * 1.05))
    drain = min(timeline.span / 3, max(width, (finish - emptied) * 1.05))
    middle = (begin + finish - width) / 2
    # A measurement has several steps, each with its own warm-up and cool-down.
    names = ("beginning", "middle", "end") if len(timeline.marks) > 1 else ("warm-up", "steady state", "drain")
    return (
        DrawingWindow(names[0], begin, begin + warm),
        DrawingWindow(names[1], middle, middle + width),
        DrawingWindow(names[2], finish - drain, finish),
    )


def window_shares(windows: Sequence[DrawingWindow], least: float = 0.22) -> list[float]:
    """Fraction of the drawing's width for each window: by its length, but at least `least` so that it stays
    readable.
    """
    spans = [max(window.end - window.begin, 1e-300) for window in windows]
    raised = [max(span / sum(spans), least) for span in spans]
    return [share / sum(raised) for share in raised]


def side_by_side(timelines: Mapping[str, Timeline] | Sequence[Timeline], title: str = "") -> Timeline:
    """Lay several timelines under each other on one clock, each from its own first start.

    Each source keeps its rows, named ``NAME: row``. When all sources know their real time, ms is the common unit;
    otherwise the units are taken as equal.

    Raises
    ------
    ValueError
        When there is no timeline, or only some of the sources know their real time.
    """
    named = list(timelines.items()) if isinstance(timelines, Mapping) else [(t.title, t) for t in timelines]
    if not named:
        raise ValueError("side_by_side needs at least one timeline")
    if len({t.unit_ms is None for _, t in named}) > 1:
        raise ValueError("a timeline in plain units cannot lie beside one in ms: give the plan a unit_ms")
    shown = [(name, t.in_ms()) for name, t in named]
    first_row, first_task = 0, 0
    parts: dict[str, list[Any]] = {key: [] for key in ("stage", "start", "end", "flows")}
    rows: list[str] = []
    memory: list[MemorySteps] = []
    dryrun: list[MemorySteps] = []
    marks: list[tuple[float, str]] = []
    activity: list[Activity] = []
    for name, one in shown:
        parts["stage"].append(one.stage + first_row)
        parts["start"].append(one.start - one.begin)
        parts["end"].append(one.end - one.begin)
        parts["flows"].append(one.flows + first_task)
        rows += [f"{name}: {row}" for row in one.row_names]
        empty = MemorySteps(np.zeros(0), np.zeros(0))
        memory += [replace(m, time=m.time - one.begin) for m in one.memory] or [empty] * one.rows
        dryrun += [replace(m, time=m.time - one.begin) for m in one.dryrun] or [empty] * one.rows
        marks += [(time - one.begin, f"{name}: {mark}") for time, mark in one.marks]
        activity += [one.doing(row).shifted(-one.begin) for row in range(one.rows)]
        first_row, first_task = first_row + one.rows, first_task + len(one)
    for key in ("direction", "interleave", "micro_batch", "split", "recompute", "lane"):
        parts[key] = [getattr(one, key) for _, one in shown]
    labels = tuple(name for _, one in shown for name in one.task_names())
    per_task: dict[str, Any] = {key: np.concatenate(values) for key, values in parts.items()}
    return Timeline(
        title=title or " / ".join(name for name, _ in shown),
        row_names=tuple(rows),
        labels=labels,
        **per_task,
        unit_ms=shown[0][1].unit_ms,
        memory=tuple(memory) if any(len(m.time) for m in memory) else (),
        dryrun=tuple(dryrun) if any(len(m.time) for m in dryrun) else (),
        sources=tuple(replace(one, title=name).heading for name, one in shown),
        marks=tuple(sorted(marks)),
        notes=tuple(f"{name}: {note}" for name, one in shown for note in one.notes),
        activity=tuple(activity),
    )
