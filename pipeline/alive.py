"""How many micro-batches each stage keeps alive at its worst moments."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule


def alive_vectors(schedule: Schedule) -> tuple[NDArray[np.float64], ...]:
    """Pareto-maximal numbers of micro-batches alive per interleave, for each stage float64 [n, V].

    A forward makes its micro-batch alive in its chunk; the backward (the weight gradient, where it
    is a task of its own) ends it. A sequence piece counts 1/splits. Only these vectors need a memory
    row: every other moment is dominated by one of them.
    """
    return tuple(_pareto(_counts(schedule, s)) / schedule.spec.seq_splits for s in range(schedule.stages))


def _counts(schedule: Schedule, stage: int) -> NDArray[np.int64]:
    direction, v = schedule.order[stage, :, 0], schedule.order[stage, :, 1]
    last = WEIGHT_GRADIENT if (direction == WEIGHT_GRADIENT).any() else BACKWARD
    change = np.zeros((len(direction), schedule.interleaves), dtype=np.int64)
    change[np.arange(len(direction)), v] = np.where(direction == FORWARD, 1, np.where(direction == last, -1, 0))
    return np.unique(np.cumsum(change, axis=0), axis=0)


def _pareto(vectors: NDArray[np.int64]) -> NDArray[np.float64]:
    kept: list[NDArray[np.int64]] = []
    for vector in sorted(vectors, key=lambda row: -int(row.sum())):
        if not any((vector <= other).all() for other in kept):
            kept.append(vector)
    return np.array(kept, dtype=np.float64)
