"""Dependences of a task other than on the task before it on its stage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule


def feeders(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Source of the output that a task needs: its stage and its block, both int64 [S, D·V].

    A block is direction · V + virtual stage, D the schedule's number of directions; −1 = nothing is
    needed. A forward needs the same piece's forward one chunk earlier, a backward its backward one
    chunk later (where that runs whole, `Schedule.whole`, its weight gradient too), the last chunk's
    backward its own forward, a weight gradient its own backward.
    """
    S, V = schedule.stages, schedule.interleaves
    stage = np.full((S, schedule.directions * V), -1, dtype=np.int64)
    block = np.full((S, schedule.directions * V), -1, dtype=np.int64)
    chunks = [schedule.chunk_at(position) for position in range(schedule.chunks)]
    for k, (v, s) in enumerate(chunks):
        if k > 0:
            earlier_v, stage[s, FORWARD * V + v] = chunks[k - 1]
            block[s, FORWARD * V + v] = FORWARD * V + earlier_v
        if k < len(chunks) - 1:
            later_v, stage[s, BACKWARD * V + v] = chunks[k + 1]
            block[s, BACKWARD * V + v] = BACKWARD * V + later_v
        else:
            stage[s, BACKWARD * V + v], block[s, BACKWARD * V + v] = s, FORWARD * V + v
        if schedule.directions > WEIGHT_GRADIENT:
            stage[s, WEIGHT_GRADIENT * V + v], block[s, WEIGHT_GRADIENT * V + v] = s, BACKWARD * V + v
    return stage, block


def dependencies(schedule: Schedule) -> NDArray[np.int64]:
    """The task on which each task depends, apart from the one before it on its stage, int64 [S, tasks].

    Tasks are numbered stage · tasks + index in the stage's order; −1 where there is none.
    """
    stages, per_stage = schedule.order.shape[:2]
    blocks, pieces = schedule.blocks(), schedule.pieces()
    feeder_stage, feeder_block = feeders(schedule)
    number = np.full((stages, feeder_block.shape[1], int(pieces.max()) + 1), -1, dtype=np.int64)
    row = np.arange(stages)[:, None]
    number[row, blocks, pieces] = np.arange(stages * per_stage).reshape(stages, per_stage)
    source = feeder_stage[row, blocks]
    found = number[source, feeder_block[row, blocks], pieces]
    if schedule.whole is not None:  # the result of a whole backward comes with its weight gradient, the next task
        found = found + ((source != row) & schedule.whole.reshape(-1)[found])
    result: NDArray[np.int64] = np.where(source < 0, -1, found)
    return result
