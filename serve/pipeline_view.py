"""A plan's pipeline for the page: what every stage does over the step, and the memory that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.report.palette import COLOURS, RECOMPUTE
from taylor.report.planned import planned_timeline
from taylor.report.timeline import DIRECTION_NAMES, DrawingWindow, Timeline, drawing_windows, window_shares
from taylor.serve.question import Models, Question

MOST_PASSES = 2**16
"""Forward passes of a step above which it isn't drawn: drawing takes longer than the answer."""

MOST_ROWS = 32
"""Stages drawn; of more, evenly chosen ones with the first, the last and the fullest."""

GAP = 0.02
"""Share of the drawing's width between two of its windows."""


def pipeline_view(problem: PipelineProblem, plan: PipelinePlan) -> dict[str, Any] | None:
    """Drawing of a plan's step as plain data; None where it has more than `MOST_PASSES`.

    Returns
    -------
    dict or None
        ``unit``; ``kinds``: name and colour of each kind of task, recompute being -1; ``stages``: their number;
        ``windows``: the stretches of time drawn side by side, each with ``name``, ``begin``, ``end`` and its place
        ``left`` to ``right`` as shares of the width; ``rows``: for each stage drawn its number, ``spans`` (left, right,
        kind, micro-batch), its memory ``mib`` as (place, MiB) of each window, its ``peak`` and ``limit``.
    """
    if problem.stages * problem.interleaves * problem.micro_batches * problem.schedule.seq_splits > MOST_PASSES:
        return None
    timeline = planned_timeline(problem, plan).in_ms()
    windows = drawing_windows(timeline)
    places = _places(windows)
    peaks = [steps.peak_mib for steps in timeline.memory]
    stages = _drawn(len(peaks), int(np.argmax(peaks)))
    spans = {
        stage: [span for at, window in enumerate(windows) for span in _spans(timeline, stage, window, places[at])]
        for stage in stages
    }
    rows = [
        {
            "stage": stage,
            "spans": spans[stage],
            "mib": [_curve(timeline, stage, window, places[at]) for at, window in enumerate(windows)],
            "peak": peaks[stage],
            "limit": timeline.memory[stage].limit_mib,
        }
        for stage in stages
    ]
    used = {kind for each in spans.values() for _, _, kind, _ in each}
    names = {RECOMPUTE: "recompute"} | dict(enumerate(DIRECTION_NAMES))
    return {
        "unit": "units" if timeline.unit_ms is None else "ms",
        "kinds": {kind: [name, COLOURS[kind]] for kind, name in names.items() if kind in used},
        "stages": timeline.rows,
        "windows": [
            {"name": window.name, "begin": window.begin, "end": window.end, "left": left, "right": right}
            for window, (left, right) in zip(windows, places, strict=True)
        ],
        "rows": rows,
    }


def _places(windows: tuple[DrawingWindow, ...]) -> list[tuple[float, float]]:
    """Left and right end of each window, as shares of the width."""
    shares = np.array(window_shares(windows)) * (1.0 - GAP * (len(windows) - 1))
    lefts = np.concatenate([[0.0], np.cumsum(shares + GAP)[:-1]])
    return [(float(left), float(left + share)) for left, share in zip(lefts, shares, strict=True)]


def _drawn(count: int, fullest: int) -> list[int]:
    """Stages drawn, top to bottom."""
    if count <= MOST_ROWS:
        return list(range(count))
    return sorted({fullest, *np.linspace(0, count - 1, MOST_ROWS - 1).round().astype(int).tolist()})


def _placed(times: Any, window: DrawingWindow, place: tuple[float, float]) -> Any:
    left, right = place
    share = (np.clip(times, window.begin, window.end) - window.begin) / (window.end - window.begin or 1.0)
    return np.round(left + share * (right - left), 5)


def _spans(
    timeline: Timeline, stage: int, window: DrawingWindow, place: tuple[float, float]
) -> list[tuple[float, float, int, int]]:
    """Tasks of a stage in a window, a backward's recompute first; micro-batch -1 where a task has none."""
    mine = np.flatnonzero((timeline.stage == stage) & (timeline.end > window.begin) & (timeline.start < window.end))
    works = timeline.start[mine] + timeline.recompute[mine] * (timeline.direction[mine] == BACKWARD)
    bounds = [_placed(times, window, place).tolist() for times in (timeline.start[mine], works, timeline.end[mine])]
    spans = []
    kinds, numbers = timeline.direction[mine].tolist(), timeline.micro_batch[mine].tolist()
    for begin, work, end, kind, number in zip(*bounds, kinds, numbers, strict=True):
        spans += [(begin, work, RECOMPUTE, number), (work, end, kind, number)]
    return [span for span in spans if span[1] > span[0]]


def _curve(timeline: Timeline, stage: int, window: DrawingWindow, place: tuple[float, float]) -> list[list[float]]:
    """Memory of a stage in a window: each level with the place from which it applies."""
    steps = timeline.memory[stage]
    first, last = np.searchsorted(steps.time, [window.begin, window.end], side="right")
    kept = slice(max(int(first) - 1, 0), int(last))
    return [
        list(point)
        for point in zip(
            _placed(steps.time[kept], window, place).tolist(), steps.mib[kept].round(1).tolist(), strict=True
        )
    ]


def even_pipeline(models: Models, ask: Question) -> dict[str, Any]:
    """Drawing of a question's even plan, under ``pipeline``; None there where it has more than `MOST_PASSES`.

    Raises
    ------
    InputError
        When the strategy cannot run.
    """
    stated = models.stated(ask)
    return {"pipeline": pipeline_view(stated.problem, stated.plan)}
