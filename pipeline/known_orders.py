"""The known orders that tasks of one placement may run in, with separate weight gradients, as starts of a search."""

from __future__ import annotations

from dataclasses import replace

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import BACKWARD, WEIGHT_GRADIENT, Schedule, ScheduleSpec
from taylor.pipeline.words import word_of

STRAIGHT = ("1f1b", "zb-h1", "zb-h2", "interleaved", "megatron-interleaved", "torch-interleaved", "interleaved-zb")
FOLDED = ("zbv", "dualpipev", "zero_bubble_v")


def known_orders(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> dict[str, ScheduleSpec]:
    """`spec`, a searched one, with the order of each generator that exists for the numbers, by its name.

    Where a generator runs backwards whole, each is followed by its weight gradient: the stage is as busy and keeps as
    much, and the stage before it goes on the earlier (`Schedule.whole` says which generator runs them so).
    """
    found: dict[str, ScheduleSpec] = {}
    for name in FOLDED if spec.v_shape else STRAIGHT:
        try:
            schedule = build_schedule(ScheduleSpec(name), stages, interleaves, micro_batches)
        except ValueError:
            continue
        order = replace(spec, words=tuple(_words(schedule)))
        if order not in found.values():
            found[name] = order
    return found


def _words(schedule: Schedule) -> list[str]:
    orders = schedule.order.tolist()
    if schedule.directions <= WEIGHT_GRADIENT:
        orders = [
            [
                part
                for task in tasks
                for part in ([task, [WEIGHT_GRADIENT, *task[1:]]] if task[0] == BACKWARD else [task])
            ]
            for tasks in orders
        ]
    return [word_of(tasks) for tasks in orders]
