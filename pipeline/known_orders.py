"""The known orders that tasks may run in, with separate weight gradients, as starts of a search."""

from __future__ import annotations

from dataclasses import replace

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import (
    BACKWARD,
    SEARCHED,
    SEARCHED_FREE,
    SEARCHED_V,
    WEIGHT_GRADIENT,
    Schedule,
    ScheduleSpec,
)
from taylor.pipeline.words import word_of

STRAIGHT = ("1f1b", "zb-h1", "zb-h2", "interleaved", "megatron-interleaved", "torch-interleaved", "interleaved-zb")
FOLDED = ("zbv", "dualpipev", "zero_bubble_v")


def known_orders(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> dict[str, ScheduleSpec]:
    """`spec`, a searched one, with the order of each generator that exists for the numbers, by its name.

    Where a generator runs backwards whole, each is followed by its weight gradient: the stage is as busy and keeps as
    much, and the stage before it goes on the earlier (`Schedule.whole` says which generator runs them so).
    """
    found: dict[str, ScheduleSpec] = {}
    names = {SEARCHED: STRAIGHT, SEARCHED_V: FOLDED, SEARCHED_FREE: (*STRAIGHT, *FOLDED)}[spec.name]
    for name in names:
        try:
            schedule = build_schedule(ScheduleSpec(name), stages, interleaves, micro_batches)
        except ValueError:
            continue
        shaped = schedule.placement.stage_of if spec.name == SEARCHED_FREE else ()
        order = replace(spec, words=tuple(_words(schedule)), stage_of=shaped)
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
