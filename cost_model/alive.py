"""How many micro-batches a stage keeps alive at its worst moment, interleave by interleave."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import ScheduleSpec

ONE_FORWARD_ONE_BACKWARD = ScheduleSpec()
"""Plain 1F1B: what is meant where no schedule is named."""

CLOSED_FORMS = ("1f1b", "gpipe", "interleaved", "megatron-interleaved")
"""Schedules whose worst moment has a closed form here; the others are read off the schedule itself."""


def schedule_for(schedule: ScheduleSpec, interleaves: int) -> ScheduleSpec:
    """The schedule that runs with a number of interleaves: 1F1B and interleaved take each other's place."""
    if interleaves > 1 and schedule.name == "1f1b":
        return replace(schedule, name="interleaved")
    if interleaves == 1 and schedule.name in ("interleaved", "megatron-interleaved"):
        return replace(schedule, name="1f1b")
    return schedule


def alive_lower_bound(
    schedule: ScheduleSpec, stages: int, interleaves: int, stage: int, micro_batches: Any
) -> list[Any]:
    """Micro-batches alive on a stage, by interleave, at one heavy moment of its order.

    For the closed forms it is the start of the first backward. 1F1B keeps min(S − s, m) alive, GPipe
    all m. Interleaved orders run micro-batches in rounds (the first of d₀ = S + m mod S, the others
    of S), interleave by interleave, and warm up (V−1)·d₀ + (S−1−s) forwards with low memory on,
    (V−1)·d₀ + 2(S−1−s) with it off and in Megatron's order (Narayanan et al. 2021, arXiv:2104.04473
    §2.2). Any moment bounds the peak from below; with V = 1 this one is the peak itself. Other orders
    are walked, with no more micro-batches than it takes to fill them.

    Parameters
    ----------
    micro_batches : int or int array [n]

    Returns
    -------
    list of scalar or array [n], one an interleave
    """
    m = np.asarray(micro_batches)
    if schedule.name == "gpipe":
        return [m] * interleaves
    if schedule.name not in CLOSED_FORMS:
        return _walked_lower_bound(schedule, stages, interleaves, stage, m)
    if schedule.name == "1f1b":
        return [np.minimum(stages - stage, m)]
    low_memory = schedule.low_memory and schedule.name != "megatron-interleaved"
    first_round = np.minimum(stages + m % stages, m)
    ahead = (stages - 1 - stage) * (1 if low_memory else 2)
    forwards = np.minimum((interleaves - 1) * first_round + ahead + 1, interleaves * m)
    later = np.maximum(forwards - interleaves * first_round, 0)
    return [
        np.clip(forwards - v * first_round, 0, first_round) + np.clip(later - v * stages, 0, stages)
        for v in range(interleaves)
    ]


def alive_micro_batches(
    schedule: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> list[list[tuple[float, ...]]]:
    """Pareto-maximal vectors of alive micro-batches of every stage, one entry an interleave.

    Exact: 1F1B and GPipe by their closed form, every other order by walking it.
    """
    schedule = schedule_for(schedule, interleaves)
    if schedule.name in ("1f1b", "gpipe") and interleaves == 1:
        return [
            [tuple(float(a) for a in alive_lower_bound(schedule, stages, 1, stage, micro_batches))]
            for stage in range(stages)
        ]
    return [list(rows) for rows in _walked(schedule, stages, interleaves, micro_batches)]


@lru_cache(maxsize=256)
def _walked(
    schedule: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> tuple[tuple[tuple[float, ...], ...], ...]:
    vectors = alive_vectors(build_schedule(schedule, stages, interleaves, micro_batches))
    return tuple(tuple(tuple(float(a) for a in row) for row in rows) for rows in vectors)


def _walked_lower_bound(
    schedule: ScheduleSpec, stages: int, interleaves: int, stage: int, micro_batches: Any
) -> list[Any]:
    result = np.empty((interleaves, *micro_batches.shape))
    for count in np.unique(micro_batches):
        enough = int(min(count, 3 * stages + count % stages))
        try:
            heaviest = max(_walked(schedule, stages, interleaves, enough)[stage], key=sum)
        except ValueError:
            # The schedule cannot run so; a rule will say that, here one piece a chunk is a safe bound.
            heaviest = (1 / schedule.seq_splits,) * interleaves
        for v in range(interleaves):
            result[v][micro_batches == count] = heaviest[v]
    return list(result)
