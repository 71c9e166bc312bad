"""A timeline in equal slices of time: the amount of each kind of job, and the main kind of each slice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.report.intervals import FloatArray
from taylor.report.timeline import COMMUNICATION, OPTIMIZER, OTHER, Timeline

MARKS = {FORWARD: "F", BACKWARD: "B", WEIGHT_GRADIENT: "W", OPTIMIZER: "O", COMMUNICATION: "C", OTHER: "x"}
RECOMPUTE_MARK, IDLE_MARK = "r", "."
"""Character for each kind of job, for the leading part of a backward, and for idle."""


def slice_marks(timeline: Timeline, rows: Sequence[int], begin: float, end: float, count: int) -> list[str]:
    """Mark of each of `count` equal slices, for every row: its main kind of job; idle where half of it is free."""
    marks = np.array([*MARKS.values(), RECOMPUTE_MARK, IDLE_MARK])
    edges = np.linspace(begin, end, count + 1)
    result = []
    for row in rows:
        mine = np.flatnonzero(timeline.stage == row)
        starts, works, ends = timeline.start[mine], (timeline.start + timeline.recompute)[mine], timeline.end[mine]
        kinds = timeline.direction[mine]
        filled = np.stack(
            [
                *(_filled(works[kinds == kind], ends[kinds == kind], edges) for kind in MARKS),
                _filled(starts, works, edges),
            ]
        )
        best = filled.argmax(axis=0)
        best[filled.sum(axis=0) < 0.5 * (end - begin) / count] = len(marks) - 1
        result.append("".join(marks[best]))
    return result


def _filled(start: FloatArray, end: FloatArray, edges: FloatArray) -> NDArray[np.float64]:
    """Time of each slice that the stretches fill, overlaps counted as often as they occur."""
    covered: NDArray[np.float64] = np.diff(_after(start, edges) - _after(end, edges))
    return covered


def _after(times: FloatArray, edges: FloatArray) -> NDArray[np.float64]:
    """Sum over all times t of the distance of each edge behind t."""
    ordered = np.sort(times)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    before = np.searchsorted(ordered, edges)
    behind: NDArray[np.float64] = before * edges - sums[before]
    return behind
