"""Task orders of V-shaped schedules: two virtual stages folded on the stages like a V, separate weight gradients.

The three follow Qi et al. 2024 (arXiv:2405.15362) in shape and differ in how they fill and drain. Virtual stage 0 runs
down the stages, virtual stage 1 back up, so that the first stage holds embedding and head.

A backward without a separate weight gradient runs whole, as one call: the stage before it gets the gradient when all of
it is done. Such a one is written as its input gradient with the weight gradient behind it, and marked (`VOrder.whole`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from taylor.pipeline.orders import Task
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT


@dataclass(frozen=True)
class VOrder:
    """The tasks of every stage, and its backwards that run whole: (interleave, micro-batch)."""

    tasks: list[list[Task]]
    whole: list[frozenset[tuple[int, int]]]

    @classmethod
    def of(cls, stages: list[_Stage]) -> VOrder:
        """The order of stages whose tasks are all called for."""
        return cls([stage.tasks for stage in stages], [frozenset(stage.whole) for stage in stages])


class _Stage:
    """The tasks of one stage as they are called for; each kind runs its micro-batches in order."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.done: Counter[tuple[int, int]] = Counter()
        self.waiting: list[Task] = []
        """Weight gradients that were put off, oldest first."""
        self.whole: set[tuple[int, int]] = set()

    def forward(self, v: int) -> None:
        self._next(FORWARD, v)

    def backward(self, v: int) -> None:
        """A backward that runs whole."""
        self.apart(v)
        self.whole.add((v, self.done[BACKWARD, v] - 1))

    def apart(self, v: int, *, put_off: bool = False) -> None:
        """The input gradient, handed over at once, and the weight gradient behind it unless that is put off."""
        task = self._next(BACKWARD, v)
        weight = (WEIGHT_GRADIENT, v, task[2], 0)
        (self.waiting if put_off else self.tasks).append(weight)

    def weight(self, v: int | None = None) -> None:
        """The oldest weight gradient that was put off, of one interleave or of both."""
        task = next(task for task in self.waiting if v in (None, task[1]))
        self.waiting.remove(task)
        self.tasks.append(task)

    def _next(self, direction: int, v: int) -> Task:
        task = (direction, v, self.done[direction, v], 0)
        self.done[direction, v] += 1
        self.tasks.append(task)
        return task


def zero_bubble_v_order(stages: int, micro_batches: int) -> VOrder:
    """MindSpore's zero-bubble V (``ProcessStep1`` to ``8`` in pipeline_transformer/zero_bubble_v.cc); m >= 2S - 1.

    ``InferNeedDetachInfo`` in detach_backward.cc chooses the weight gradients that run separately:
    those of virtual stage 1's first S - s - 1 and last (s+1)/2 micro-batches, and those of virtual stage 0's last
    S - (s+1)/2. ``ZBV_offset`` is taken as unset. The others are one cell, whose output is sent behind it.
    """
    return VOrder.of([_zero_bubble_v_stage(s, stages, micro_batches) for s in range(stages)])


def _zero_bubble_v_stage(s: int, stages: int, micro_batches: int) -> _Stage:
    stage, below, half = _Stage(), stages - 1 - s, (s + 1) // 2

    def backward(v: int) -> None:
        apart = half if v == 1 else stages - half
        if stage.done[BACKWARD, v] >= micro_batches - apart:
            stage.apart(v, put_off=True)
        else:
            stage.backward(v)

    _fill(stage, s, stages)
    for _ in range(micro_batches - 2 * stages + s + 1):
        backward(1)
        stage.forward(0)
        backward(0)
        stage.forward(1)
    for _ in range(below):
        backward(1)
        backward(0)
        stage.forward(1)
    for _ in range(s + 1):
        backward(1)
        backward(0)
    for _ in range(below):
        # The first stage keeps its weight gradients to the end (``CalculateOffset``).
        if s > 0:
            stage.weight(0)
        backward(0)
    for v in (0, 1):
        stage.tasks += [task for task in stage.waiting if task[1] == v]
    return stage


def dual_pipe_v_order(stages: int, micro_batches: int, *, whole_drain: bool = False) -> VOrder:
    """DeepSeek's DualPipeV (github.com/deepseek-ai/DualPipe, dualpipe/dualpipev.py, ``step``); m >= 2S - 1.

    Without the overlap of a forward with a backward. MindSpeed's ``--schedules-method dualpipev`` runs it; with
    `whole_drain` the weight gradients of its drain run with their backward, as MindSpeed does without
    ``--dualpipev-dw-detach`` (master mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py:1521-1538).
    Backwards of the fill are split in both and sent before their weight gradient (MindSpeed 028de58c, the same file,
    "1b1w1f"; dualpipev.py ``step`` "Step 3", torch's ``I``); those from there on are whole until the drain puts weight
    gradients off (torch's ``FULL_BACKWARD``).
    """
    return VOrder.of([_dual_pipe_v_stage(s, stages, micro_batches, whole_drain) for s in range(stages)])


def _dual_pipe_v_stage(s: int, stages: int, micro_batches: int, whole_drain: bool) -> _Stage:
    stage, below = _Stage(), stages - 1 - s
    _fill(stage, s, stages)
    for _ in range(micro_batches - 2 * stages + s + 1):
        stage.forward(0)
        stage.backward(1)
        stage.forward(1)
        stage.backward(0)
    for _ in range(below):
        stage.backward(1)
        stage.forward(1)
        stage.backward(0)
    # The drain: from the middle of this phase on, weight gradients wait and fill the gaps behind.
    turn = (s + 1) // 2 if not whole_drain else stages
    for k in range(s + 1):
        _drain(stage, 1, apart=k > turn or (k == turn and s % 2 == 1))
        _drain(stage, 0, apart=k >= turn)
    for _ in range(below):
        if not whole_drain:
            stage.weight()
        _drain(stage, 0, apart=not whole_drain)
    stage.tasks += stage.waiting
    return stage


def _drain(stage: _Stage, v: int, *, apart: bool) -> None:
    """A backward of the drain, whole or with its weight gradient put off."""
    if apart:
        stage.apart(v, put_off=True)
    else:
        stage.backward(v)


def _fill(stage: _Stage, s: int, stages: int) -> None:
    """The common warm-up of MindSpore's order and DualPipeV."""
    for _ in range(2 * (stages - 1 - s)):
        stage.forward(0)
    for _ in range(s + 1):
        stage.forward(0)
        stage.forward(1)
    for _ in range(stages - 1 - s):
        stage.apart(1)
        stage.forward(1)


def torch_zbv_order(stages: int, micro_batches: int) -> VOrder:
    """Torch's ZBV (``torch.distributed.pipelining.schedules.ScheduleZBVZeroBubble``).

    All of its backwards are an ``I`` and a ``W``, and the result of an ``I`` is sent at once, before the ``W`` behind
    it (torch 2.13 schedules.py:3268-3368 and ``has_comms`` of ``_add_send_recv``, :1417): none is whole.

    With fewer than 2S - 1 micro-batches the order for that number is built and the surplus ones are omitted,
    as torch does.
    """
    enough = max(micro_batches, 2 * stages - 1)
    orders = [_torch_zbv_stage(s, stages, enough) for s in range(stages)]
    return VOrder([[task for task in tasks if task[2] < micro_batches] for tasks in orders], [frozenset()] * stages)


def _torch_zbv_stage(s: int, stages: int, micro_batches: int) -> list[Task]:
    stage = _Stage()
    for _ in range(2 * (stages - s) - 1):
        stage.forward(0)
    for _ in range(s):
        stage.forward(1)
        stage.forward(0)
    for _ in range(stages - s):
        stage.forward(1)
        stage.apart(1)
    while stage.done[FORWARD, 1] < micro_batches:
        if stage.done[FORWARD, 0] < micro_batches:
            stage.forward(0)
        stage.apart(0)
        stage.forward(1)
        stage.apart(1)
    for _ in range(s):
        stage.apart(0, put_off=True)
        stage.apart(1, put_off=True)
    for _ in range(stages - s):
        stage.apart(0, put_off=True)
        stage.weight(0)
    return stage.tasks + sorted(stage.waiting, key=lambda task: -task[1])
