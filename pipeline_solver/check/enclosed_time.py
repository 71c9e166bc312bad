"""The step time of a large schedule between two bounds that are proven in exact arithmetic.

For the checker, which simulates small schedules in fractions: a quarter of a million tasks would take seconds. A
compiled simulation proposes the end of every task, in whole numbers of a unit so small that the step takes 62 bits,
durations rounded up. It is not trusted. Every edge is checked in whole numbers: no task begins before its inputs, so
the step takes at most as long. Then the exact durations along its longest path are summed: the step takes at least as
long. Nothing of the solver or its event graph is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule

BITS = 61
"""Most bits of the work of all stages together: no sum of a simulation overflows 64."""

FEW_TASKS = 500_000
"""Most tasks for which a plain simulation takes less time than compiling it."""

Durations = Mapping[tuple[int, int, int, int], Fraction]
"""Time of one task by (direction, virtual stage, stage, virtual stage of the combined task or -1)."""


@dataclass(frozen=True)
class Waits:
    """Inputs of every task apart from the previous task of its stage, tasks numbered stage by stage.

    Parameters
    ----------
    needed : int64 [tasks]
        The task whose output it needs; -1 for none.
    boundary : int64 [tasks]
        The boundary between chunks in model order that the output crosses; -1 inside a stage.
    task_class : int64 [tasks]
        ((direction * B + beside + 1) * V + v) * S + s, with B = 1 + V.
    """

    needed: NDArray[np.int64]
    boundary: NDArray[np.int64]
    task_class: NDArray[np.int64]


def enclosed_step_time(
    schedule: Schedule,
    durations: Durations,
    lags: Sequence[Fraction],
    tail: Sequence[Fraction],
    beside: NDArray[np.int64] | None = None,
) -> tuple[Fraction, Fraction]:
    """Exact bounds on the step time; they differ by less than a unit of the simulation a task of the longest path.

    Parameters
    ----------
    durations : mapping of (direction, virtual stage, stage, virtual stage beside or -1) to Fraction
    lags : sequence of Fraction [chunks - 1]
        Transfer time at each boundary between chunks in model order.
    tail : sequence of Fraction [S]
        Time after a stage's last task.
    beside : int64 [S, tasks], optional
        Virtual stage of the combined task of each one, -1 where it runs alone; None where all do.

    Raises
    ------
    ValueError
        If the schedule cannot be simulated to its end.
    """
    stages, tasks = schedule.order.shape[:2]
    waits = _waits(schedule, beside)
    exact = [
        durations.get((direction, v, s, other), Fraction(0))
        for direction in range(1 + int(schedule.order[:, :, 0].max()))
        for other in range(-1, 0 if beside is None else schedule.interleaves)
        for v in range(schedule.interleaves)
        for s in range(stages)
    ]
    counts = np.bincount(waits.task_class, minlength=len(exact)).tolist()
    work = sum(
        (count * one for count, one in zip(counts, exact, strict=True)),
        stages * tasks * max(lags, default=Fraction(0)) + max(tail),
    )
    unit = Fraction(2) ** (BITS - ceil(work).bit_length())
    takes = np.array([ceil(one * unit) for one in exact], dtype=np.int64)[waits.task_class]
    late = np.array([*(ceil(lag * unit) for lag in lags), 0], dtype=np.int64)[waits.boundary]
    ends = _play_for(stages * tasks)(waits.needed, takes, late, stages, tasks)
    _verify(ends, takes, late, waits.needed, stages)
    closing = [int(end) + ceil(wait * unit) for end, wait in zip(ends.reshape(stages, tasks)[:, -1], tail, strict=True)]
    latest = closing.index(max(closing))
    path, crossings = _longest_path(ends, takes, waits, tasks, latest)
    lower = sum(
        (count * exact[of] for of, count in path.items()),
        sum((count * lags[at] for at, count in crossings.items()), tail[latest]),
    )
    return lower, max(closing) / unit


def play(needed, takes, late, stages, tasks):  # type: ignore[no-untyped-def]
    """End of every task, int64 [tasks]; -1 where a task never begins."""
    ends = np.full(stages * tasks, -1, dtype=np.int64)
    at = np.zeros(stages, dtype=np.int64)
    moved = True
    while moved:
        moved = False
        for s in range(stages):
            while at[s] < tasks:
                task = s * tasks + at[s]
                start = ends[task - 1] if at[s] > 0 else 0
                if needed[task] >= 0:
                    if ends[needed[task]] < 0:
                        break
                    start = max(start, ends[needed[task]] + late[task])
                ends[task] = start + takes[task]
                at[s] += 1
                moved = True
    return ends


def _play_for(tasks: int) -> Any:
    """The quickest simulation for `tasks` tasks: compiled where it is already, or where compiling takes less."""
    from taylor.base.compiled import are_kept  # here: the compiler takes longer than a small schedule

    compiled_play = _compiled_play()
    return play if tasks <= FEW_TASKS and are_kept((compiled_play,)) is False else compiled_play


@cache
def _compiled_play() -> Any:
    from taylor.base.compiled import compiled

    return compiled(play)


def _waits(schedule: Schedule, beside: NDArray[np.int64] | None = None) -> Waits:
    stages, tasks = schedule.order.shape[:2]
    interleaves, micro_batches = schedule.interleaves, schedule.micro_batches
    direction, v, micro_batch, split = (schedule.order[:, :, column].astype(np.int64) for column in range(4))
    s = np.broadcast_to(np.arange(stages)[:, None], (stages, tasks))
    directions, splits = 1 + int(direction.max()), 1 + int(split.max())
    # Index of each task: by direction, position in the model, micro-batch and split.
    place = np.array([[schedule.position(v, s) for s in range(stages)] for v in range(interleaves)])[v, s]
    stands = np.full((directions, schedule.chunks, micro_batches, splits), -1, dtype=np.int64)
    number = np.arange(stages * tasks).reshape(stages, tasks)
    stands[direction, place, micro_batch, split] = number
    backward, weight = direction == BACKWARD, direction == WEIGHT_GRADIENT
    # A task's earlier half in the same chunk runs on the same stage, so only its place in the order distinguishes them.
    half = np.where(weight, BACKWARD, FORWARD)
    own = stands[half, place, micro_batch, split]
    if (stands < 0).any() or ((backward | weight) & (own >= number)).any():
        raise ValueError("the schedule cannot be played: a task is missing, or stands before one that it needs")
    ahead = np.clip(place + np.where(backward, 1, -1), 0, schedule.chunks - 1)
    kind = np.where(backward, BACKWARD, FORWARD)
    if schedule.whole is not None:  # by chunk and micro-batch: the output of a whole backward comes at its end
        whole = np.zeros((schedule.chunks, micro_batches), dtype=np.bool_)
        whole[place[schedule.whole], micro_batch[schedule.whole]] = True
        kind = np.where(backward & whole[ahead, micro_batch], WEIGHT_GRADIENT, kind)
    needed = np.where(ahead == place, -1, stands[kind, ahead, micro_batch, split])
    needed = np.where(weight, -1, needed).reshape(-1)
    crosses = (needed >= 0) & (needed // tasks != s.reshape(-1))
    boundary = np.where(crosses, np.minimum(place, ahead).reshape(-1), -1)
    if beside is not None:
        direction = direction * (1 + interleaves) + beside + 1
    return Waits(needed, boundary, ((direction * interleaves + v) * stages + s).reshape(-1))


def _verify(
    ends: NDArray[np.int64], takes: NDArray[np.int64], late: NDArray[Any], needed: NDArray[np.int64], stages: int
) -> None:
    """Compare every task's start with the ends of those before it: a valid simulation bounds the step from above.

    Raises
    ------
    ValueError
        If remaining tasks wait for each other.
    AssertionError
        If the simulation begins a task too early, which is a mistake in the program.
    """
    if (ends < 0).any():
        raise ValueError(f"the schedule stops with {int((ends < 0).sum())} tasks left: each waits for another")
    starts = ends - takes
    in_turn = np.diff(ends.reshape(stages, -1), axis=1, prepend=0) >= takes.reshape(stages, -1)
    arrived = (needed < 0) | (starts >= ends[needed] + late)
    if not (in_turn.all() and arrived.all()):
        raise AssertionError("the compiled play begins a task before what it waits for has ended")


def _longest_path(
    ends: NDArray[np.int64], takes: NDArray[np.int64], waits: Waits, tasks: int, stage: int
) -> tuple[Counter[int], Counter[int]]:
    """Counts of each class of task, and of each boundary, on a path that ends with the stage's last task."""
    path: Counter[int] = Counter()
    crossings: Counter[int] = Counter()
    task = stage * tasks + tasks - 1
    while True:
        path[int(waits.task_class[task])] += 1
        start = ends[task] - takes[task]
        if task % tasks and ends[task - 1] == start:
            task -= 1
        elif waits.needed[task] >= 0:
            if waits.boundary[task] >= 0:
                crossings[int(waits.boundary[task])] += 1
            task = int(waits.needed[task])
        else:
            return path, crossings
