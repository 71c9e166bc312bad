"""Number of micro-batches that keep their activations on a stage while it runs its order of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from taylor.base.sized_cache import sized_cache
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule

KEPT_BYTES = 2**26
"""Memory of the results that are kept, with the orders that they are of."""


def alive_vectors(schedule: Schedule) -> tuple[NDArray[np.float64], ...]:
    """The Pareto-maximal numbers of alive micro-batches, stage by stage.

    A micro-batch is alive in a chunk from the start of its forward until the end of its last task
    there: the backward, or the weight gradient where the schedule has such tasks (it still needs the
    layer inputs). One that runs again in the bubble counts as the fraction that it keeps. A piece of a
    split sequence counts 1/splits.

    Returns
    -------
    tuple of float64 [n, interleaves]
        One array a stage. Memory that grows with every count peaks at one of the rows.
    """
    spec = schedule.spec
    vectors = _alive_vectors(schedule.order.tobytes(), schedule.order.shape, schedule.interleaves, spec.seq_splits)
    if spec.bubble_share is None:
        return vectors
    inputs_alone = [max(0, len(vectors) - 1 - 2 * s) for s in range(len(vectors))]
    pairs = zip(vectors, inputs_alone, strict=True)
    return tuple(_with_inputs_alone(alive, len(vectors), most, spec.bubble_share) for alive, most in pairs)


def _with_inputs_alone(alive: NDArray[np.float64], stages: int, most: int, share: float) -> NDArray[np.float64]:
    """The same where some micro-batches in the first virtual stage count as a fraction (`ScheduleSpec.bubble_share`).

    Parameters
    ----------
    most : int
        Micro-batches that keep their inputs alone at the moments of most memory.
    """
    inputs_alone = np.clip(alive[:, :1] - stages, 0, most)
    return np.concatenate([alive[:, :1] - (1 - share) * inputs_alone, alive[:, 1:]], axis=1)


@sized_cache(most_entries=64, most_bytes=KEPT_BYTES)
def _alive_vectors(
    order_bytes: bytes, shape: tuple[int, ...], interleaves: int, seq_splits: int
) -> tuple[NDArray[np.float64], ...]:
    order = np.frombuffer(order_bytes, dtype=np.int32).reshape(shape)
    release = WEIGHT_GRADIENT if (order[:, :, 0] == WEIGHT_GRADIENT).any() else BACKWARD
    vectors = []
    for tasks in order:
        change = np.zeros((len(tasks), interleaves), dtype=np.int64)
        rows = np.arange(len(tasks))
        change[rows, tasks[:, 1]] = (tasks[:, 0] == FORWARD).astype(np.int64) - (tasks[:, 0] == release)
        reached = _distinct(np.cumsum(change, axis=0))
        result = _undominated(reached) / seq_splits
        result.setflags(write=False)
        vectors.append(result)
    return tuple(vectors)


@dataclass(frozen=True)
class BackwardStart:
    """A heavy moment at which a backward begins on a stage.

    Parameters
    ----------
    interleave : int
        Virtual stage of the backward.
    alive : tuple of float [interleaves]
        Micro-batches alive (`alive_vectors`).
    begun : tuple of bool [interleaves]
        Virtual stages that have had a backward before.
    """

    interleave: int
    alive: tuple[float, ...]
    begun: tuple[bool, ...]


def backward_starts(schedule: Schedule) -> tuple[tuple[BackwardStart, ...], ...]:
    """The Pareto-maximal moments at which a backward begins, of every stage."""
    spec = schedule.spec
    if spec.bubble_share is not None:
        # The order does not say which micro-batches keep their inputs alone.
        every = (True,) * schedule.interleaves
        return tuple(
            tuple(BackwardStart(v, tuple(row), every) for row in rows.tolist() for v in range(len(row)) if row[v])
            for rows in alive_vectors(schedule)
        )
    return _backward_starts(schedule.order.tobytes(), schedule.order.shape, schedule.interleaves, spec.seq_splits)


@sized_cache(most_entries=64, most_bytes=KEPT_BYTES)
def _backward_starts(
    order_bytes: bytes, shape: tuple[int, ...], interleaves: int, seq_splits: int
) -> tuple[tuple[BackwardStart, ...], ...]:
    order = np.frombuffer(order_bytes, dtype=np.int32).reshape(shape)
    release = WEIGHT_GRADIENT if (order[:, :, 0] == WEIGHT_GRADIENT).any() else BACKWARD
    result = []
    for tasks in order:
        kinds, places, rows = tasks[:, 0], tasks[:, 1], np.arange(len(tasks))
        change = np.zeros((len(tasks), interleaves), dtype=np.int64)
        change[rows, places] = (kinds == FORWARD).astype(np.int64) - (kinds == release)
        backwards = np.zeros_like(change)
        backwards[rows, places] = kinds == BACKWARD
        alive = np.cumsum(change, axis=0) - change
        begun = np.cumsum(backwards, axis=0) - backwards > 0
        of_stage: list[BackwardStart] = []
        for v in range(interleaves):
            starts = (kinds == BACKWARD) & (places == v)
            reached = _undominated(_distinct(np.concatenate([alive, begun], axis=1)[starts]))
            of_stage += [
                BackwardStart(v, tuple(row[:interleaves] / seq_splits), tuple(row[interleaves:] > 0)) for row in reached
            ]
        result.append(tuple(of_stage))
    return tuple(result)


def _distinct(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct rows of counts, each >= 0, in lexicographic order."""
    sizes = counts.max(axis=0, initial=0) + 1
    if prod(sizes.tolist()) > np.iinfo(np.int64).max:
        return np.unique(counts, axis=0)
    # One number a row, in the rows' order: to sort whole rows takes ten times as long, and np.unique imports numpy.ma.
    keys = np.sort(np.ravel_multi_index(tuple(counts.T), tuple(sizes)))
    return np.stack(np.unravel_index(keys[np.diff(keys, prepend=-1) > 0], tuple(sizes)), axis=1)


def _undominated(vectors: NDArray[np.int64]) -> NDArray[np.int64]:
    dominated = [bool(((vectors >= row).all(axis=1) & (vectors > row).any(axis=1)).any()) for row in vectors]
    result: NDArray[np.int64] = vectors[~np.array(dominated)]
    return result
