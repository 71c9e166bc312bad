"""The task orders of the known schedules, one function each, as rows (direction, virtual stage, micro-batch, split)."""

from __future__ import annotations

from typing import Sequence

from taylor.pipeline.chunks import Placement
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT

Task = tuple[int, int, int, int]
"""(direction, virtual stage, micro-batch, sequence split)."""


def gpipe_order(stages: int, interleaves: int, micro_batches: int) -> list[list[Task]]:
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965); virtual stages one after the other."""
    forwards = [(FORWARD, v, i, 0) for v in range(interleaves) for i in range(micro_batches)]
    backwards = [(BACKWARD, v, i, 0) for v in reversed(range(interleaves)) for i in range(micro_batches)]
    return [forwards + backwards] * stages


def one_forward_one_backward_order(stages: int, micro_batches: int) -> list[list[Task]]:
    """1F1B (Narayanan et al. 2021, arXiv:2104.04473, figure 4 top): stage s warms up with S - 1 - s forwards."""
    forwards = [(FORWARD, 0, i, 0) for i in range(micro_batches)]
    backwards = [(BACKWARD, 0, i, 0) for i in range(micro_batches)]
    return [_alternate(forwards, backwards, stages - 1 - s) for s in range(stages)]


def rounds_order(
    stages: int, interleaves: int, sizes: Sequence[int], *, step: int, seq_splits: int = 1, ahead: int = 0
) -> list[list[Task]]:
    """The interleaved orders of MindSpore, Megatron-LM and torch, and with `seq_splits` > 1 MindSpore's seqpipe.

    Micro-batches go in rounds of the given sizes. A round passes through the virtual stages one after the other,
    backwards through them in reverse. With sequence splits a micro-batch's pieces go forward in order and backward in
    reverse order, because of causal attention (Seq1F1B, arXiv:2406.03488), and the warm-up grows by the n - 1 pieces
    that precede the first backward.

    The warm-up of stage s, in pieces, is (V-1)·d0·n + (n-1) + k·(S-1-s) + a: d0 the first round's size, n
    the splits, k the step, a how many it runs ahead.
    """
    forwards: list[Task] = []
    backwards: list[Task] = []
    start = 0
    for size in sizes:
        members = range(start, start + size)
        forwards += [(FORWARD, v, i, q) for v in range(interleaves) for i in members for q in range(seq_splits)]
        backwards += [
            (BACKWARD, v, i, q)
            for v in reversed(range(interleaves))
            for i in members
            for q in reversed(range(seq_splits))
        ]
        start += size
    filled = (interleaves - 1) * sizes[0] * seq_splits + seq_splits - 1 + ahead
    return [_alternate(forwards, backwards, filled + step * (stages - 1 - s)) for s in range(stages)]


def zero_bubble_order(stages: int, interleaves: int, sizes: Sequence[int], *, put_off: int) -> list[list[Task]]:
    """Zero-bubble orders on straight stages: weight gradients fill the gaps of 1F1B.

    Rounds of micro-batches as in `rounds_order`, with `put_off` more warm-up forwards for every stage that follows.
    Stage s puts its first put_off·s weight gradients off; from then on every backward is followed by the oldest
    remaining one, and the rest stand at the end. With `put_off` 1 every stage keeps as much as 1F1B's first one does:
    ZB-H1 of Qi et al. 2023 (arXiv:2401.10241, figure 2), and with several virtual stages
    ``torch.distributed.pipelining.schedules.ScheduleInterleavedZeroBubble`` (torch 2.13, ``_get_1f1b_rank_ops`` with
    ``enable_zero_bubble``). With 2 it is ZB-H2 (figure 3), which keeps 2S - 1.
    """
    rounds = rounds_order(stages, interleaves, sizes, step=put_off)
    return [_with_weights(tasks, put_off * s) for s, tasks in enumerate(rounds)]


def _with_weights(tasks: list[Task], put_off: int) -> list[Task]:
    """The tasks with a weight gradient after each backward but the first `put_off`, oldest first."""
    waiting = [(WEIGHT_GRADIENT, v, i, q) for direction, v, i, q in tasks if direction == BACKWARD]
    result, met, taken = [], 0, 0
    for task in tasks:
        result.append(task)
        if task[0] == BACKWARD:
            met += 1
            if met > put_off:
                result.append(waiting[taken])
                taken += 1
    return result + waiting[taken:]


def one_by_one_order(placement: Placement, micro_batches: int) -> list[list[Task]]:
    """Each micro-batch when the one before it is over: the order of least memory, for chunks on any stages."""
    ahead = [(FORWARD, v, s) for v, s in placement.chunks]
    back = [(part, v, s) for v, s in reversed(placement.chunks) for part in (BACKWARD, WEIGHT_GRADIENT)]
    return [
        [(part, v, i, 0) for i in range(micro_batches) for part, v, s in (*ahead, *back) if s == stage]
        for stage in range(placement.stages)
    ]


def _alternate(forwards: list[Task], backwards: list[Task], warm_up: int) -> list[Task]:
    """`warm_up` forwards, then one forward and one backward alternately, then the remaining backwards."""
    warm_up = min(warm_up, len(forwards))
    steady = [task for pair in zip(forwards[warm_up:], backwards, strict=False) for task in pair]
    return forwards[:warm_up] + steady + backwards[len(forwards) - warm_up :]
