"""Number of micro-batches that a stage keeps alive at its worst moment, by virtual stage."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy_table import Quantity
from taylor.pipeline.alive import BackwardStart, alive_vectors, backward_starts
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import ScheduleSpec

ONE_FORWARD_ONE_BACKWARD = ScheduleSpec()
"""Plain 1F1B: the default where no schedule is named."""


def alive_lower_bound(
    schedule: ScheduleSpec, stages: int, interleaves: int, stage: int, micro_batches: Quantity
) -> list[Quantity]:
    """Micro-batches alive on a stage, by interleave, at one heavy moment of its order.

    By formula, where there is one: at the start of the first backward. GPipe keeps all m alive. 1F1B in any number of
    virtual stages runs micro-batches in rounds (`ScheduleSpec.rounds`, the first of d₀), virtual stage by virtual
    stage, and warms up (V−1)·d₀·n + n − 1 + k·(S−1−s) + a pieces, n being the sequence splits, k
    `ScheduleSpec.warm_up_step` and a `ScheduleSpec.ahead` (Narayanan et al. 2021, arXiv:2104.04473 §2.2): min(S − s, m)
    alive where V = n = 1. Any moment bounds the peak from below; with V = 1 this one is the peak itself. Other orders
    are simulated, with no more micro-batches than it takes to fill them.

    Parameters
    ----------
    schedule : x with these virtual stages (`ScheduleSpec.for_interleaves`). micro_batches : int or int array [n]

    Returns
    -------
    list of scalar or array [n], one a virtual stage
    """
    m: NDArray[Any] = np.asarray(micro_batches)
    if schedule.traits.keeps_all:
        return [m] * interleaves
    step = schedule.warm_up_step(interleaves)
    if step is None:
        return _swept_lower_bound(schedule, stages, interleaves, stage, m)
    pieces = schedule.seq_splits
    first, second = (pieces * size for size in _first_two_rounds(schedule, stages, m))
    ahead = (stages - 1 - stage) * step + pieces - 1 + schedule.ahead
    forwards = np.minimum((interleaves - 1) * first + ahead + 1, interleaves * m * pieces)
    later = np.maximum(forwards - interleaves * first, 0)
    alive = [
        np.clip(forwards - v * first, 0, first) + np.clip(later - v * second, 0, second) for v in range(interleaves)
    ]
    return alive if pieces == 1 else [each / pieces for each in alive]


def _first_two_rounds(schedule: ScheduleSpec, stages: int, micro_batches: NDArray[Any]) -> tuple[Quantity, Quantity]:
    """Micro-batches of the first and the second round, each int [n]; with one round the second is never begun."""
    counts, places = np.unique(micro_batches, return_inverse=True)
    first_two = []
    for count in counts:
        (first, times), *rest = schedule.rounds(stages, int(count))
        first_two.append((first, rest[0][0] if times == 1 and rest else first))
    sizes = np.array(first_two)[places.reshape(micro_batches.shape)]
    return sizes[..., 0], sizes[..., 1]


def alive_micro_batches(
    schedule: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> list[list[tuple[float, ...]]]:
    """Pareto-maximal vectors of alive micro-batches of every stage, one entry an interleave.

    Exact: with one virtual stage by formula where there is one, every other order by simulation.
    `schedule` is the one that runs with these virtual stages (`ScheduleSpec.for_interleaves`).
    """
    closed = schedule.traits.keeps_all or schedule.warm_up_step(interleaves) is not None
    if closed and interleaves == 1:
        return [[row] for row in _by_formula(schedule, stages, micro_batches)]
    return [list(rows) for rows in _swept(schedule, stages, interleaves, micro_batches)]


def heavy_backwards(
    schedule: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> list[list[BackwardStart]]:
    """Pareto-maximal moments of every stage at which a backward begins; see `alive_micro_batches`."""
    closed = schedule.traits.keeps_all or schedule.warm_up_step(interleaves) is not None
    if not (closed and interleaves == 1 and schedule.seq_splits == 1):
        return [list(starts) for starts in _swept_backwards(schedule, stages, interleaves, micro_batches)]
    result = []
    for ((most,),) in alive_micro_batches(schedule, stages, 1, micro_batches):
        # The first backward, and one behind it.
        later = most - 1 if schedule.traits.keeps_all else min(most, micro_batches - 1)
        starts = [BackwardStart(0, (most,), (False,))] + [BackwardStart(0, (later,), (True,))] * (later >= 1)
        result.append(starts)
    return result


@lru_cache(maxsize=256)  # asked for all stages by each stage
def _by_formula(schedule: ScheduleSpec, stages: int, micro_batches: int) -> tuple[tuple[float, ...], ...]:
    bounds = (alive_lower_bound(schedule, stages, 1, stage, micro_batches) for stage in range(stages))
    return tuple(tuple(float(a) for a in bound) for bound in bounds)


@lru_cache(maxsize=256)
def _swept_backwards(
    schedule: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> tuple[tuple[BackwardStart, ...], ...]:
    return backward_starts(build_schedule(schedule, stages, interleaves, micro_batches))


@lru_cache(maxsize=256)
def _swept(
    schedule: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    vectors = alive_vectors(build_schedule(schedule, stages, interleaves, micro_batches))
    return tuple(tuple(tuple(float(a) for a in row) for row in rows) for rows in vectors)


def _swept_lower_bound(
    schedule: ScheduleSpec, stages: int, interleaves: int, stage: int, micro_batches: NDArray[Any]
) -> list[Quantity]:
    result = np.empty((interleaves, *micro_batches.shape))
    for count in np.unique(micro_batches):
        enough = int(min(count, 3 * stages + count % stages))
        try:
            heaviest = max(_swept(schedule, stages, interleaves, enough)[stage], key=sum)
        except ValueError:
            # The schedule cannot run so; a rule will say that, here one piece a chunk is a safe bound.
            heaviest = (1 / schedule.seq_splits,) * interleaves
        for v in range(interleaves):
            result[v, micro_batches == count] = heaviest[v]
    return list(result)
