"""Without virtual stages, the best plan by its busiest stage: a bound for each, by dynamic programming over stages.

A path of the event graph bounds the step time. The one that matters runs through all tasks of the busiest stage: down
the pipeline with the first micro-batch and back up to that stage, through its tasks, down once more with the last
micro-batch and all the way back. The index of that stage and its work split all plans into parts. In each part the
path's length is a sum over the stages, so a dynamic programme over the layers before each stage gives the least length
exactly, and with it a plan. Parts are split, the one of the lowest bound first, until the bound meets the best plan's
step time.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.stage_runs import StageRuns
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, TreeParams
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.event_graph import EventGraph

SAME_WORK = 1e-9
"""Works that differ by less, as a fraction of the greatest, are equal."""

CLOSED = 1e-10
"""Fraction of the step time by which a part's bound may lie below it while the part counts as closed."""


class StagePath(NamedTuple):
    """A path through a stage's tasks.

    Parameters
    ----------
    own : float64 [D]
        Number of tasks of the stage itself on it, by direction.
    before, after : tuple of float [D]
        The same for each stage before and after it.
    constant : float
        Transfers, and the tail after its last task.
    """

    own: NDArray[np.float64]
    before: tuple[float, ...]
    after: tuple[float, ...]
    constant: float


class Part(NamedTuple):
    """The plans whose busiest stage, the last one of them, is one of `first` … `last`, with work `low` … `high`.

    Works are indices into the sorted list of all.
    """

    low: int
    high: int
    first: int
    last: int

    def halves(self) -> list[Part]:
        """Two halves by work, or else by stage; none where neither can be split."""
        low, high, first, last = self
        if low < high:
            middle = (low + high) // 2
            return [Part(low, middle, first, last), Part(middle + 1, high, first, last)]
        if first < last:
            middle = (first + last) // 2
            return [Part(low, high, first, middle), Part(low, high, middle + 1, last)]
        return []


@dataclass
class BusiestStage:
    """The search over the parts.

    Parameters
    ----------
    stopper : Stopper
        Checked between parts.
    params : TreeParams
    """

    runs: StageRuns
    graph: EventGraph
    stopper: Stopper
    params: TreeParams = DEFAULT_PARAMS.tree

    def __post_init__(self) -> None:
        self.time: float = np.inf
        self.plan: PipelinePlan | None = None
        self.bound = 0.0
        self.parts = 0
        work = self.runs.work
        known = np.unique(work[np.isfinite(work)])
        self.same = SAME_WORK * float(known[-1]) if len(known) else 0.0
        self.works = known[np.diff(known, prepend=-np.inf) > self.same]
        self.paths = stage_paths(self.graph, self.runs)
        # A table shifted by each number of layers changes places before a stage into places behind it.
        behind = np.arange(work.shape[2]) - self.runs.counts[:, None]
        self._shifted = np.where(behind >= 0, behind, 0)
        self._outside = behind < 0
        ahead = np.arange(work.shape[2]) + self.runs.counts[:, None]
        self._ahead = np.minimum(ahead, work.shape[2])
        self._places = np.arange(work.shape[2])
        self._finite = np.where(np.isfinite(self.runs.blocks), self.runs.blocks, 0.0)
        self._tables: dict[tuple[float, ...], NDArray[np.float64]] = {}

    def offer(self, plan: PipelinePlan) -> None:
        """Take a plan that is better than the best one by more than rounding."""
        time = self.graph.longest_path(chunk_durations(self.runs.problem, plan))
        if time < self.time * (1.0 - 1e-12):
            self.time, self.plan = time, plan

    def search(self) -> bool:
        """Split parts until the bound meets the best plan; return whether there is a plan at all.

        Raises
        ------
        OutOfTime, KeyboardInterrupt
            From the stopper; `bound` and `plan` stay valid.
        """
        everything = Part(0, len(self.works) - 1, 0, self.runs.problem.stages - 1)
        bound = self._look_at(everything) if len(self.works) else np.inf
        if np.isinf(bound):
            return False
        queue = [(bound, everything)]
        while queue:
            bound, part = heapq.heappop(queue)
            self.bound = max(self.bound, min(bound, self.time))
            halves = part.halves()
            if self._closed(bound) or not halves or self.parts >= self.params.most_parts:
                return True
            for half in halves:
                self.stopper.check()
                value = max(bound, self._look_at(half))
                if not self._closed(value):
                    heapq.heappush(queue, (value, half))
        self.bound = max(self.bound, min(self.time, self.stopper.cutoff()))
        return True

    def cuts(self) -> tuple[tuple[float, ...], ...]:
        """The paths as cuts of the step time: counts of the graph's duration classes [R], then the constant."""
        stages = len(self.paths)
        return tuple(
            (
                *np.array([path.before] * s + [tuple(path.own)] + [path.after] * (stages - s - 1)).T.ravel().tolist(),
                *[0.0] * stages,
                path.constant,
            )
            for s, path in enumerate(self.paths)
        )

    def _closed(self, bound: float) -> bool:
        # The first parts are evaluated whatever the cutoff, so that a solve that is cut off has a good plan as well.
        to_beat = self.stopper.cutoff() if self.parts >= self.params.looked_at else np.inf
        return bound >= min(self.time * (1.0 - CLOSED), to_beat)

    def _look_at(self, part: Part) -> float:
        """Bound a part (inf where it has no plan) and offer the plan that attains the bound."""
        self.parts += 1
        least: float = np.inf
        chosen: list[tuple[int, int]] = []
        most = float(self.works[part.high]) + self.same
        # The last of the stages with the same work counts, so those behind it have less.
        most_after = most if part.low < part.high else most - 2 * self.same
        for (before, after), stages in self._groups(part).items():
            tables = self._table(before), self._table(after)
            ahead = self._ahead_of(tables[0], stages[-1], most)
            behind = self._behind(tables[1], stages[0], most_after)
            for s in stages:
                path = self.paths[s]
                total = self._own(s) + path.constant + ahead.value[s] + self._padded(behind.value[s + 1])[self._ahead]
                total[(self.runs.work[s] > most) | (self.runs.work[s] < self.works[part.low] - self.same)] = np.inf
                best = int(total.argmin())
                if total.flat[best] < least:
                    least = float(total.flat[best])
                    c, place = divmod(best, total.shape[1])
                    chosen = [*ahead.runs(s, place, self.runs.counts), (c, place)]
                    chosen += behind.runs_after(s, place + int(self.runs.counts[c]), self.runs.counts)
        if np.isfinite(least) and not self._closed(least):
            self.offer(self.runs.plan(chosen))
        return least

    def _groups(self, part: Part) -> dict[tuple[tuple[float, ...], tuple[float, ...]], list[int]]:
        """Stages of a part by the counts of their paths before them and after them."""
        groups: dict[tuple[tuple[float, ...], tuple[float, ...]], list[int]] = {}
        for s in range(part.first, part.last + 1):
            groups.setdefault((self.paths[s].before, self.paths[s].after), []).append(s)
        return groups

    def _table(self, counts: tuple[float, ...]) -> NDArray[np.float64]:
        """Time of each run on a path with `counts` tasks of each direction of its stage, float64 [S, C, L + 1]."""
        if counts not in self._tables:
            self._tables[counts] = np.tensordot(np.array(counts), self._finite, axes=1)
        return self._tables[counts]

    def _own(self, s: int) -> NDArray[np.float64]:
        """Time of a stage's runs on its own path, float64 [C, L + 1]."""
        own: NDArray[np.float64] = np.tensordot(self.paths[s].own, self._finite[:, s], axes=1)
        return own

    def _ahead_of(self, table: NDArray[np.float64], last: int, most: float) -> _Ahead:
        """Least cost of the stages before each one up to `last`, by their number of layers."""
        places = table.shape[2]
        value = np.full(places, np.inf)
        value[0] = 0.0
        values, choices = [value], []
        for s in range(last):
            total = np.where(self.runs.work[s] <= most, table[s] + value, np.inf)
            total = np.take_along_axis(total, self._shifted, axis=1)
            total[self._outside] = np.inf
            choice = total.argmin(axis=0)
            value = total[choice, self._places]
            values.append(value)
            choices.append(choice)
        return _Ahead(values, choices)

    def _behind(self, table: NDArray[np.float64], first: int, most: float) -> _Behind:
        """Least cost of the stages after each one from `first` on, by the layers before them."""
        stages, _, places = table.shape
        value = np.full(places, np.inf)
        value[-1] = 0.0
        values, choices = {stages: value}, {}
        for s in range(stages - 1, first, -1):
            total = np.where(self.runs.work[s] <= most, table[s] + self._padded(value)[self._ahead], np.inf)
            choices[s] = total.argmin(axis=0)
            values[s] = value = total[choices[s], self._places]
        return _Behind(values, choices)

    @staticmethod
    def _padded(value: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.append(value, np.inf)


class _Ahead(NamedTuple):
    """For the stages before each one: least cost by their number of layers, and the last stage's run of it."""

    value: list[NDArray[np.float64]]
    choice: list[NDArray[np.int64]]

    def runs(self, s: int, place: int, counts: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The runs of the stages before `s` with `place` layers together at the least cost."""
        chosen = []
        for stage in range(s - 1, -1, -1):
            c = int(self.choice[stage][place])
            place -= int(counts[c])
            chosen.append((c, place))
        return chosen[::-1]


class _Behind(NamedTuple):
    """For each stage and all after it: least cost by the layers before it, and its run of it."""

    value: dict[int, NDArray[np.float64]]
    choice: dict[int, NDArray[np.int64]]

    def runs_after(self, s: int, place: int, counts: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The cheapest runs of the stages after `s` from a layer on."""
        chosen = []
        for stage in range(s + 1, max(self.value)):
            c = int(self.choice[stage][place])
            chosen.append((c, place))
            place += int(counts[c])
        return chosen


def stage_paths(graph: EventGraph, runs: StageRuns) -> list[StagePath]:
    """A path through the tasks of each stage, the longest at the mean task times.

    It enters the stage at its first task of a direction, through the tasks that this one needs, and leaves it after the
    last task of a direction, through those that need that one. All tasks between belong to the stage.
    """
    problem = runs.problem
    S, D = problem.stages, graph.directions
    known = np.isfinite(runs.forward)
    mean = np.array([float(block[known].mean()) if known.any() else 1.0 for block in runs.blocks])
    feeds = np.zeros(len(graph.before) + 1, dtype=np.int64)
    feeds[graph.needed] = np.arange(1, len(graph.before) + 1)
    feeds[0] = 0
    tails = problem.tail or (0.0,) * S
    result = []
    for s in range(S):
        order = graph.place[s]
        direction = graph.task_class[order - 1] // S
        firsts = [int(np.argmax(direction == d)) for d in range(D)]
        lasts = [len(order) - 1 - int(np.argmax(direction[::-1] == d)) for d in range(D)]
        ways: list[tuple[float, StagePath]] = []
        into = [(k, *_chain(graph, int(order[k]), graph.needed, D)) for k in firsts]
        out = [(k, *_chain(graph, int(order[k]), feeds, D)) for k in lasts]
        for k, counts_in, crossings_in, _ in into:
            for j, counts_out, crossings_out, end in out:
                if k > j:
                    continue
                counts = counts_in + counts_out
                counts[:, s] += np.bincount(direction[k : j + 1], minlength=D)
                before = {tuple(column) for column in counts[:, :s].T.tolist()} or {(0.0,) * D}
                after = {tuple(column) for column in counts[:, s + 1 :].T.tolist()} or {(0.0,) * D}
                if len(before) == 1 and len(after) == 1:
                    constant = graph.lag_of(crossings_in + crossings_out) + tails[end]
                    path = StagePath(counts[:, s].copy(), before.pop(), after.pop(), constant)
                    ways.append((float(mean @ counts.sum(axis=1)) + constant, path))
        result.append(max(ways, key=lambda way: way[0])[1])
    return _alike(result)


def _chain(
    graph: EventGraph, node: int, following: NDArray[np.integer], directions: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """The chain from a task on, without it: tasks by direction and stage, transfers by their lag, its last stage."""
    S = len(graph.last)
    counts = np.zeros(directions * S)
    crossings = np.zeros(len(graph.lags), dtype=np.int64)
    backward = following is graph.needed
    while (other := int(following[node - 1 if backward else node])) > 0:
        level = graph.level[(node if backward else other) - 1]
        if level >= 0:
            crossings[level] += 1
        node = other
        counts[graph.task_class[node - 1]] += 1.0
    return counts.reshape(directions, S), crossings, int(graph.task_class[node - 1]) % S


def _alike(paths: list[StagePath]) -> list[StagePath]:
    """The paths with counts for the missing stages, before the first and after the last, as their neighbours'."""
    first, last = paths[0], paths[-1]
    if len(paths) > 1:
        paths[0] = first._replace(before=paths[1].before)
        paths[-1] = last._replace(after=paths[-2].after)
    return paths
