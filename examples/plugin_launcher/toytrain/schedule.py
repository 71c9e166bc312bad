"""Eager 1F1B: a stage warms up with two forwards more than the next one, so that transfers overlap.

Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism", arXiv:2211.05322.
"""

from __future__ import annotations

from taylor.pipeline.plugged import OwnSchedule
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleTraits


def eager_order(stages: int, interleaves: int, micro_batches: int) -> list[list[tuple[int, int, int, int]]]:
    """Tasks (direction, virtual stage, micro-batch, 0) of every stage, in order."""
    orders = []
    for stage in range(stages):
        ahead = min(2 * (stages - 1 - stage), micro_batches)
        tasks = [(FORWARD, 0, i, 0) for i in range(ahead)]
        for i in range(micro_batches):
            if ahead + i < micro_batches:
                tasks.append((FORWARD, 0, ahead + i, 0))
            tasks.append((BACKWARD, 0, i, 0))
        orders.append(tasks)
    return orders


EAGER = OwnSchedule(eager_order, ScheduleTraits(most_interleaves=1, fixed_interleaves=1))
