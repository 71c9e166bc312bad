"""The schedules: each a generator of one thing, the fixed task order of every stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from pipeline.dependencies import stuck_tasks
from pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule, ScheduleSpec

Task = tuple[int, int, int, int]
"""(direction, interleave, micro-batch, sequence split)."""

Order = list[list[Task]]
"""Tasks of every stage, in the order of execution."""


@lru_cache(maxsize=32)
def build_schedule(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Schedule:
    """The task order of every stage under a schedule, checked: complete, and free of deadlock.

    Parameters
    ----------
    stages, interleaves, micro_batches : int
        S, V and m, each at least 1.

    Raises
    ------
    ValueError
        When the schedule does not exist for these numbers; says which number is wrong.
    """
    if min(stages, interleaves, micro_batches, spec.seq_splits) < 1:
        raise ValueError("stages, interleaves, micro-batches and sequence splits must be >= 1")
    if spec.name not in _GENERATORS:
        raise ValueError(f"unknown schedule {spec.name!r}; known are {', '.join(_GENERATORS)}")
    if spec.seq_splits > 1 and spec.name != "seqpipe":
        raise ValueError(f"{spec.name} does not split sequences; seqpipe does")
    order = _GENERATORS[spec.name](spec, stages, interleaves, micro_batches)
    table = np.array(order, dtype=np.int32).reshape(stages, -1, 4)
    table.setflags(write=False)
    schedule = Schedule(spec, stages, interleaves, micro_batches, table, v_shape=spec.name == "zero_bubble_v")
    _check(schedule)
    return schedule


def _check(schedule: Schedule) -> None:
    directions = int(schedule.order[:, :, 0].max()) + 1
    sizes = (directions, schedule.interleaves, schedule.micro_batches, schedule.spec.seq_splits)
    for stage in range(schedule.stages):
        codes = np.ravel_multi_index(tuple(schedule.order[stage].T), sizes)
        if not np.array_equal(np.sort(codes), np.arange(np.prod(sizes))):
            raise ValueError(f"{schedule.spec.name}: stage {stage} does not run every task exactly once")
    stuck = stuck_tasks(schedule)
    if stuck:
        raise ValueError(f"{schedule.spec.name}: deadlock, {stuck} tasks never become ready")


def _gpipe(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Order:
    # Huang et al. 2019 (arXiv:1811.06965) fig. 2: all forwards, then the backwards in reverse.
    _need_one_interleave(spec, interleaves)
    forwards = [(FORWARD, 0, i, 0) for i in range(micro_batches)]
    backwards = [(BACKWARD, 0, i, 0) for i in reversed(range(micro_batches))]
    return [forwards + backwards] * stages


def _one_forward_one_backward(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Order:
    # Narayanan et al. 2021 (arXiv:2104.04473) §2.2.1.
    _need_one_interleave(spec, interleaves)
    forwards = [(FORWARD, 0, i, 0) for i in range(micro_batches)]
    backwards = [(BACKWARD, 0, i, 0) for i in range(micro_batches)]
    return [_alternate(forwards, backwards, stages - 1 - s) for s in range(stages)]


def _interleaved(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Order:
    # MindSpore's rounds: micro-batches go in rounds of S, the first of which takes the remainder too.
    step = 1 if spec.low_memory else 2
    return _in_rounds(stages, interleaves, micro_batches, 1, step)


def _megatron_interleaved(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Order:
    # Narayanan et al. 2021 §2.2.2: groups of S micro-batches an interleave.
    if micro_batches % stages:
        raise ValueError(
            f"megatron-interleaved needs a multiple of the {stages} stages as micro-batches, found {micro_batches}"
        )
    return _in_rounds(stages, interleaves, micro_batches, 1, 2)


def _seqpipe(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Order:
    # Seq1F1B (Ao et al. 2024, arXiv:2406.03488): pieces of a sequence go forward in order and backward in
    # reverse, so a micro-batch's backward can begin only after its last piece's forward.
    return _in_rounds(stages, interleaves, micro_batches, spec.seq_splits, 1)


def _in_rounds(stages: int, interleaves: int, micro_batches: int, splits: int, step: int) -> Order:
    """Rounds of S micro-batches, interleave by interleave; backwards take the interleaves in reverse."""
    first = stages + micro_batches % stages if micro_batches >= stages else micro_batches
    forwards: list[Task] = []
    backwards: list[Task] = []
    begin = 0
    while begin < micro_batches:
        size = first if begin == 0 else stages
        for v in range(interleaves):
            for i in range(begin, begin + size):
                forwards += [(FORWARD, v, i, q) for q in range(splits)]
                backwards += [(BACKWARD, interleaves - 1 - v, i, q) for q in reversed(range(splits))]
        begin += size
    warm_up = (interleaves - 1) * first * splits + splits - 1
    return [_alternate(forwards, backwards, warm_up + step * (stages - 1 - s)) for s in range(stages)]


def _alternate(forwards: list[Task], backwards: list[Task], warm_up: int) -> list[Task]:
    """Warm-up forwards, then one forward and one backward by turns, then the backwards left."""
    warm_up = min(warm_up, len(forwards))
    steady = [task for pair in zip(forwards[warm_up:], backwards, strict=False) for task in pair]
    return forwards[:warm_up] + steady + backwards[len(forwards) - warm_up :]


def _zero_bubble_v(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Order:
    # Qi et al. 2024 (arXiv:2405.15362) §4, ZB-V: two chunks a stage placed in a V, weight gradients apart.
    if interleaves != 2:
        raise ValueError(f"zero_bubble_v needs 2 interleaves, found {interleaves}")
    return [_zero_bubble_v_stage(s, stages, micro_batches) for s in range(stages)]


def _zero_bubble_v_stage(stage: int, stages: int, micro_batches: int) -> list[Task]:
    # The pattern is laid out for at least 2S − 1 micro-batches; fewer leave gaps, not another order.
    many = max(2 * stages - 1, micro_batches)
    tasks: list[Task] = []
    done = {(direction, v): 0 for direction in (FORWARD, BACKWARD, WEIGHT_GRADIENT) for v in (0, 1)}

    def run(direction: int, v: int) -> None:
        tasks.append((direction, v, done[direction, v], 0))
        done[direction, v] += 1

    def run_backward(v: int) -> None:
        run(BACKWARD, v)
        run(WEIGHT_GRADIENT, v)

    for _ in range(2 * (stages - stage) - 1):
        run(FORWARD, 0)
    for _ in range(stage):
        run(FORWARD, 1)
        run(FORWARD, 0)
    for _ in range(stages - stage):
        run(FORWARD, 1)
        run_backward(1)
    while done[FORWARD, 1] < done[FORWARD, 0] or done[FORWARD, 0] < many:
        if done[FORWARD, 0] < many:
            run(FORWARD, 0)
        run_backward(0)
        run(FORWARD, 1)
        run_backward(1)
    for _ in range(stage):
        run(BACKWARD, 0)
        run(BACKWARD, 1)
    for _ in range(stages - stage):
        run_backward(0)
    for v in (1, 0):
        while done[BACKWARD, v] < many:
            run(BACKWARD, v)
        while done[WEIGHT_GRADIENT, v] < many:
            run(WEIGHT_GRADIENT, v)
    return [task for task in tasks if task[2] < micro_batches]


def _need_one_interleave(spec: ScheduleSpec, interleaves: int) -> None:
    if interleaves != 1:
        raise ValueError(f"{spec.name} has one interleave, found {interleaves}; interleaved takes more")


_GENERATORS: dict[str, Callable[[ScheduleSpec, int, int, int], Order]] = {
    "gpipe": _gpipe,
    "1f1b": _one_forward_one_backward,
    "interleaved": _interleaved,
    "megatron-interleaved": _megatron_interleaved,
    "seqpipe": _seqpipe,
    "zero_bubble_v": _zero_bubble_v,
}
