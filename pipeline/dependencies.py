"""What a task waits for, and whether a schedule can run to its end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.schedule import BACKWARD, FORWARD, Schedule


def dependencies(schedule: Schedule) -> NDArray[np.int64]:
    """The task on which each task depends besides the one before it on its stage, int64 [S, tasks].

    Tasks are numbered stage · tasks + index in the stage's order; −1 where there is none. A forward
    needs the same piece's forward one chunk earlier, a backward its backward one chunk later, the
    last chunk's backward its own forward, a weight gradient its own backward.
    """
    stages, per_stage = schedule.order.shape[:2]
    direction, v, i, q = (schedule.order[:, :, column].astype(np.int64) for column in range(4))
    sizes = (3, schedule.interleaves, schedule.micro_batches, schedule.spec.seq_splits)
    number = np.full((stages, int(np.prod(sizes))), -1, dtype=np.int64)
    codes = np.ravel_multi_index((direction, v, i, q), sizes)
    own = np.arange(stages * per_stage).reshape(stages, per_stage)
    np.put_along_axis(number, codes, own, axis=1)

    at = [schedule.chunk_at(position) for position in range(schedule.chunks)]
    chunk_v = np.array([chunk[0] for chunk in at])
    chunk_s = np.array([chunk[1] for chunk in at])
    position = np.empty((schedule.interleaves, stages), dtype=np.int64)
    position[chunk_v, chunk_s] = np.arange(schedule.chunks)
    here = position[v, np.arange(stages)[:, None]]

    last = here == schedule.chunks - 1
    step = np.where(direction == FORWARD, -1, np.where((direction == BACKWARD) & ~last, 1, 0))
    needed = np.clip(here + step, 0, schedule.chunks - 1)
    # At the last chunk a backward turns round at its own forward; a weight gradient follows its backward.
    needed_direction = np.where(
        direction == FORWARD, FORWARD, np.where(direction == BACKWARD, np.where(last, FORWARD, BACKWARD), BACKWARD)
    )
    found = number[chunk_s[needed], np.ravel_multi_index((needed_direction, chunk_v[needed], i, q), sizes)]
    result: NDArray[np.int64] = np.where((direction == FORWARD) & (here == 0), -1, found)
    return result


def levels(schedule: Schedule) -> NDArray[np.int64]:
    """Topological level of every task, int64 [S, tasks]; −1 for a task that can never run."""
    stages, per_stage = schedule.order.shape[:2]
    needs = dependencies(schedule)
    level = np.full(stages * per_stage, -1, dtype=np.int64)
    pointer = [0] * stages
    moved = True
    while moved:
        moved = False
        for s in range(stages):
            k = pointer[s]
            row = needs[s]
            while k < per_stage:
                need = row[k]
                if need >= 0 and level[need] < 0:
                    break
                before = level[s * per_stage + k - 1] if k else -1
                level[s * per_stage + k] = 1 + max(before, level[need] if need >= 0 else -1)
                k += 1
            moved = moved or k != pointer[s]
            pointer[s] = k
    return level.reshape(stages, per_stage)


def stuck_tasks(schedule: Schedule) -> int:
    """Tasks that can never run, because the order waits for itself; 0 for a sound schedule."""
    return int((levels(schedule) < 0).sum())
