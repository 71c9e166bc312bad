"""Schedules by name, checked when they are made: every task there once, and no deadlock."""

from __future__ import annotations

from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.base.sized_cache import sized_cache
from taylor.pipeline.orders import (
    Task,
    gpipe_order,
    one_by_one_order,
    one_forward_one_backward_order,
    rounds_order,
    zero_bubble_order,
)
from taylor.pipeline.plugged import plugged_schedules
from taylor.pipeline.schedule import (
    BACKWARD,
    FORWARD,
    SCHEDULES,
    SEARCHED,
    SEARCHED_FREE,
    SEARCHED_V,
    WEIGHT_GRADIENT,
    Schedule,
    ScheduleSpec,
)
from taylor.pipeline.v_orders import VOrder, dual_pipe_v_order, torch_zbv_order, zero_bubble_v_order
from taylor.pipeline.words import tasks_of

MOST_PASSES = 2**20
"""Forward passes of a step (stages x VPP x micro-batches x sequence splits) whose order is built, at most. Evaluating
that many takes 0.5 GB."""


KEPT_BYTES = 2**26
"""Memory of the schedules that are kept; the largest one takes half of it."""


@sized_cache(most_entries=64, most_bytes=KEPT_BYTES)
def build_schedule(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> Schedule:
    """The task order of every stage under a schedule.

    Parameters
    ----------
    spec : ScheduleSpec
    stages, interleaves, micro_batches : int
        S, V and m, each >= 1.

    Returns
    -------
    Schedule
        Checked by `check_schedule`; its `order` is read-only.

    Raises
    ------
    ValueError
        When the schedule is unknown or cannot run with these numbers, or has more than `MOST_PASSES`.
    """
    if min(stages, interleaves, micro_batches, spec.seq_splits) < 1:
        raise ValueError("stages, virtual stages, micro-batches and sequence splits must be >= 1")
    if (passes := stages * interleaves * micro_batches * spec.seq_splits) > MOST_PASSES:
        raise ValueError(f"{micro_batches:,} micro-batches make {passes:,} forward passes, above {MOST_PASSES:,}")
    traits = spec.traits
    if spec.seq_splits > 1 and not traits.sequence_splits:
        able = ", ".join(name for name in SCHEDULES if ScheduleSpec(name).traits.sequence_splits)
        raise ValueError(f"sequence splits belong to {able}, not to {spec.name}")
    if not spec.fits_pieces(stages, micro_batches):
        split = f"{micro_batches} micro-batches of {spec.seq_splits} pieces on {stages} stages"
        raise ValueError(f"{spec.name} {spec.pieces_wanted}, found {split}")
    if traits.piece_rounds and interleaves < traits.least_interleaves:
        raise ValueError(f"{spec.name} runs two virtual stages or more, found {interleaves}")
    if traits.fixed_interleaves not in (None, interleaves):
        wanted = {1: "one virtual stage", 2: "two virtual stages"}[traits.fixed_interleaves]
        others = [name for name in SCHEDULES if ScheduleSpec(name).name_without_interleaves == spec.name != name]
        cure = f"; use {' or '.join(others)}" if others else ""
        raise ValueError(f"{spec.name} runs {wanted}, found {interleaves}{cure}")
    if not spec.fits_rounds(stages, micro_batches):
        raise ValueError(f"{spec.name} {spec.rounds_wanted(stages)}, found {micro_batches}")
    if micro_batches < (least := traits.least_micro_batches(stages)):
        raise ValueError(f"{spec.name} needs at least {least} micro-batches on {stages} stages, found {micro_batches}")
    if spec.name in _ORDERS:
        found = _ORDERS[spec.name](spec, stages, interleaves, micro_batches)
    else:
        found = plugged_schedules()[spec.name].tasks(stages, interleaves, micro_batches)
    order = np.array(found.tasks if isinstance(found, VOrder) else found, dtype=np.int32)
    order.setflags(write=False)
    whole = _whole(found) if isinstance(found, VOrder) and any(found.whole) else None
    schedule = Schedule(spec, stages, interleaves, micro_batches, order, whole)
    check_schedule(schedule)
    return schedule


def _whole(order: VOrder) -> NDArray[np.bool_]:
    """Mask of tasks that are input gradients of backwards that run whole, bool [S, tasks]."""
    marks = [
        [direction == BACKWARD and (v, micro_batch) in whole for direction, v, micro_batch, _ in tasks]
        for tasks, whole in zip(order.tasks, order.whole, strict=True)
    ]
    found = np.array(marks, dtype=np.bool_)
    found.setflags(write=False)
    return found


def _rounds(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> list[list[Task]]:
    step = spec.warm_up_step(interleaves)
    if step is None:
        raise AssertionError(f"{spec.name} has no rounds")
    sizes = spec.round_sizes(stages, micro_batches)
    return rounds_order(stages, interleaves, sizes, step=step, seq_splits=spec.seq_splits, ahead=spec.ahead)


def _zero_bubble(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> list[list[Task]]:
    put_off = spec.traits.put_off
    if put_off is None:
        raise AssertionError(f"{spec.name} does not delay weight gradients")
    sizes = spec.round_sizes(stages, micro_batches) if interleaves > 1 else [micro_batches]
    return zero_bubble_order(stages, interleaves, sizes, put_off=put_off)


def _searched(spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int) -> list[list[Task]]:
    if spec.name == SEARCHED_FREE and interleaves == 1:
        raise ValueError(f"{spec.name} places two chunks or more a stage, found one virtual stage; -vpp 2 has two")
    placed = spec.placement(stages, interleaves) if spec.stage_of else None
    if placed is not None and (
        spec.name != SEARCHED_FREE or (placed.stages, placed.interleaves) != (stages, interleaves)
    ):
        raise ValueError(f"{spec.name} on {stages} stages cannot have its chunks on the stages {list(spec.stage_of)}")
    if placed is not None and not spec.words:
        return one_by_one_order(placed, micro_batches)
    if not spec.words:
        if spec.v_shape:
            return torch_zbv_order(stages, micro_batches).tasks
        sizes = spec.round_sizes(stages, micro_batches) if interleaves > 1 else [micro_batches]
        return zero_bubble_order(stages, interleaves, sizes, put_off=1)
    tasks = 3 * interleaves * micro_batches
    if len(spec.words) != stages or any(word.count(" ") + 1 != tasks for word in spec.words):
        raise ValueError(f"the order of a {spec.name} schedule must have {stages} words of {tasks} tasks")
    return [tasks_of(word) for word in spec.words]


_ORDERS: dict[str, Callable[[ScheduleSpec, int, int, int], list[list[Task]] | VOrder]] = {
    "gpipe": lambda spec, S, V, m: gpipe_order(S, V, m),
    "1f1b": lambda spec, S, V, m: one_forward_one_backward_order(S, m),
    "interleaved": _rounds,
    "megatron-interleaved": _rounds,
    "seqpipe": _rounds,
    "seqvpp": _rounds,
    "seqsmartvpp": _rounds,
    "torch-interleaved": _rounds,
    "zero_bubble_v": lambda spec, S, V, m: zero_bubble_v_order(S, m),
    "dualpipev": lambda spec, S, V, m: dual_pipe_v_order(S, m, whole_drain=spec.whole_drain),
    "zbv": lambda spec, S, V, m: torch_zbv_order(S, m),
    "zb-h1": _zero_bubble,
    "zb-h2": _zero_bubble,
    "interleaved-zb": _zero_bubble,
    SEARCHED: _searched,
    SEARCHED_V: _searched,
    SEARCHED_FREE: _searched,
}
"""The task order of each schedule, from (spec, S, V, m)."""


def check_schedule(schedule: Schedule) -> None:
    """Refuse a schedule unless every stage has each task once and the orders can run to their end.

    A forward needs the same piece's forward one chunk earlier, a backward the one of the next chunk
    (on the last chunk: its own forward), a weight gradient its own backward. Pieces of one sequence
    must go forward in order and backward in reverse within a chunk: causal attention reads the keys
    of earlier pieces.

    Raises
    ------
    ValueError
        With the first fault.
    """
    S, V, m, n = schedule.stages, schedule.interleaves, schedule.micro_batches, schedule.spec.seq_splits
    order = schedule.order
    if order.ndim != 3 or order.shape[0] != S or order.shape[2] != 4:
        raise ValueError(f"a schedule's order must have the shape [{S}, tasks, 4], found {list(order.shape)}")
    directions = schedule.directions
    expected = directions * V * m * n
    limits = np.array([directions, V, m, n])
    if order.shape[1] != expected or (order < 0).any() or (order >= limits).any():
        raise ValueError(f"each stage must have {expected} tasks of {directions} directions, {V} x {m} x {n}")
    ids = ((order[:, :, 0] * V + order[:, :, 1]) * m + order[:, :, 2]) * n + order[:, :, 3]
    for s in range(S):
        if (np.bincount(ids[s], minlength=expected) != 1).any():
            raise ValueError(f"stage {s} runs a task twice")
    if schedule.whole is not None:
        _check_whole(order, schedule.whole)
    if n > 1:
        _check_pieces(ids, S, V, m, n)
    _check_runs(schedule, ids.tolist(), directions)


def _check_whole(order: NDArray[np.int32], whole: NDArray[np.bool_]) -> None:
    """The weight gradient follows every input gradient of a whole backward."""
    behind = np.roll(order, -1, axis=1)
    follows = (behind[:, :, 0] == WEIGHT_GRADIENT) & (behind[:, :, 1:] == order[:, :, 1:]).all(axis=2)
    if whole.shape != order.shape[:2] or (whole & ~((order[:, :, 0] == BACKWARD) & follows)).any():
        raise ValueError("a backward that is whole must be followed by its weight gradient")


def _check_pieces(ids: np.ndarray, S: int, V: int, m: int, n: int) -> None:
    """Forward pieces of a sequence in order, backward pieces in reverse order, on every stage."""
    for s in range(S):
        place = np.empty(ids.shape[1], dtype=np.int64)
        place[ids[s]] = np.arange(ids.shape[1])
        steps = np.diff(place.reshape(-1, V, m, n), axis=-1)
        if (steps[FORWARD] < 0).any() or (steps[BACKWARD] > 0).any():
            raise ValueError(f"stage {s} runs the pieces of a sequence out of order")


def _check_runs(schedule: Schedule, ids: list[list[int]], directions: int) -> None:
    """Simulate the orders; ValueError when no stage can continue before all are done."""
    S, V = schedule.stages, schedule.interleaves
    pieces = schedule.micro_batches * schedule.spec.seq_splits
    block = V * pieces
    last = schedule.chunks - 1
    # Place of the needed task: (stage, id offset) by direction, virtual stage and stage.
    needs: list[list[tuple[int, int] | None]] = []
    for s in range(S):
        row: list[tuple[int, int] | None] = []
        for direction in range(directions):
            for v in range(V):
                k = schedule.position(v, s)
                if direction == WEIGHT_GRADIENT:
                    row.append((s, BACKWARD * block + v * pieces))
                elif direction == FORWARD and k == 0:
                    row.append(None)
                elif direction == BACKWARD and k == last:
                    row.append((s, FORWARD * block + v * pieces))
                else:
                    v2, s2 = schedule.chunk_at(k - 1 if direction == FORWARD else k + 1)
                    row.append((s2, direction * block + v2 * pieces))
        needs.append(row)
    done = [bytearray(len(ids[0])) for _ in range(S)]
    at = [0] * S
    moved = True
    while moved:
        moved = False
        for s in range(S):
            k, own, mine, need = at[s], ids[s], done[s], needs[s]
            while k < len(own):
                task = own[k]
                part = need[task // pieces]
                if part is not None and not done[part[0]][part[1] + task % pieces]:
                    break
                mine[task] = 1
                k += 1
            moved |= k > at[s]
            at[s] = k
    stuck = [s for s in range(S) if at[s] < len(ids[s])]
    if stuck:
        s = stuck[0]
        raise ValueError(f"the schedule deadlocks: stage {s} never runs its task {schedule.order[s, at[s]].tolist()}")
