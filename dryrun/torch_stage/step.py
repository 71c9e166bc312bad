"""Run of the tasks of one stage in its schedule's order, as far as they can change the peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from taylor.cost_model.memory.statics import MIB
from taylor.dryrun.stage_memory import Moment
from taylor.dryrun.torch_stage.chunk import StageChunk, activations_of
from taylor.dryrun.torch_stage.counter import LiveCounter
from taylor.dryrun.torch_stage.kernels import GradientQueue
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import BUFFERS, Weight, charged
from taylor.pipeline.orders import Task
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.register.model import MTP

FULL_ACTIVATIONS, WAITING_GRADIENTS = 0, 1
"""Memory that a piece holds of a chunk: everything its backward needs, or what its weight gradients wait for."""


@dataclass
class _Piece:
    """One micro-batch (or a piece of its sequence) between its forward and its last task on a chunk."""

    received: Tensor | None
    edge: torch.autograd.graph.GradientEdge
    sent: Tensor | None = None
    logits: list[Tensor] = field(default_factory=list)
    mask: Tensor | None = None
    waiting: list[tuple[Weight, Callable[[], Tensor]]] = field(default_factory=list)


@dataclass(frozen=True)
class _Situation:
    """State that the memory around a task depends on.

    Parameters
    ----------
    task : (direction, interleave)
    begun : frozenset of (direction, interleave)
        Tasks that have run once: their buffers, and gathered weights, stay.
    alive_counts : tuple of ((interleave, what), count), sorted
        Pieces alive in each chunk, and what they hold.
    output_leaves : bool
        The task before was a forward, whose output may still be on its way.
    """

    task: tuple[int, int]
    begun: frozenset[tuple[int, int]]
    alive_counts: tuple[tuple[tuple[int, int], int], ...]
    output_leaves: bool

    def covers(self, other: _Situation) -> bool:
        """Return whether all that is alive around `other` is alive around this one too."""
        mine = dict(self.alive_counts)
        return (
            self.task == other.task
            and other.output_leaves <= self.output_leaves
            and other.begun <= self.begun
            and all(count <= mine.get(key, 0) for key, count in other.alive_counts)
        )


def situations(order: Sequence[Task], has_weight_gradients: bool) -> list[_Situation]:
    """The situation of every task of an order."""
    alive: Counter[tuple[int, int]] = Counter()
    begun: set[tuple[int, int]] = set()
    result = []
    output_leaves = False
    for direction, v, _, _ in order:
        alive_counts = tuple(sorted((key, count) for key, count in alive.items() if count))
        result.append(_Situation((direction, v), frozenset(begun), alive_counts, output_leaves))
        output_leaves = direction == FORWARD
        begun.add((direction, v))
        if direction == FORWARD:
            alive[v, FULL_ACTIVATIONS] += 1
        elif direction == BACKWARD:
            alive[v, FULL_ACTIVATIONS] -= 1
            if has_weight_gradients:
                alive[v, WAITING_GRADIENTS] += 1
        else:
            alive[v, WAITING_GRADIENTS] -= 1
    return result


def tasks_worth_running(order: Sequence[Task], has_weight_gradients: bool) -> int:
    """Number of an order's tasks to run before no later one can reach a new peak.

    Memory grows with every count of a situation, so a task needs no run when an earlier one had a situation
    that covers its own.
    """
    seen: dict[tuple[int, int], list[_Situation]] = {}
    last = 0
    for index, situation in enumerate(situations(order, has_weight_gradients)):
        known = seen.setdefault(situation.task, [])
        if any(other.covers(situation) for other in known):
            continue
        known[:] = [other for other in known if not situation.covers(other)]
        known.append(situation)
        last = index + 1
    return last


class StageStep:
    """The tasks of one stage, one after the other.

    Tensors between stages live as the framework keeps them. Usually a stage receives into new tensors, frees
    a sent output when the next task has received, and overwrites the gradients received and sent before
    with the next ones. Under `StaticRules.buffers_every_micro_batch` it owns a buffer for every
    micro-batch's input and gradient from the start, and keeps outputs until their backward.
    """

    def __init__(
        self, site: Site, counter: LiveCounter, queue: GradientQueue, chunks: Sequence[StageChunk], pieces: int
    ) -> None:
        self.site, self.counter, self.queue, self.chunks = site, counter, queue, chunks
        self.boundary = (site.shard_tokens, site.model.hidden)
        self.alive: dict[tuple[int, int, int], _Piece] = {}
        self.sent_output: Tensor | None = None
        self.sent_gradient: Tensor | None = None
        self.received_gradient: Tensor | None = None
        self.buffers: dict[tuple[int, int, int, int], Tensor] = {}
        self.buffered = site.framework.statics.buffers_every_micro_batch
        if self.buffered:
            self._own_buffers(pieces)

    def run(self, task: Task) -> Moment:
        """Run one task."""
        direction, v, batch, piece = task
        self.counter.start_window()
        if direction == FORWARD:
            self._forward(v, batch, piece)
        elif direction == BACKWARD:
            self._backward(v, batch, piece)
        else:
            self._weight_gradients(v, batch, piece)
        return Moment(direction, v, batch, self.counter.total / MIB, self.counter.window_peak / MIB)

    def _weight_gradients(self, v: int, batch: int, piece: int) -> None:
        with torch.no_grad():
            for weight, make in self.alive.pop((v, batch, piece)).waiting:
                weight.add_gradient(make)

    def _own_buffers(self, micro_batches: int) -> None:
        with charged(BUFFERS):
            for v, chunk in enumerate(self.chunks):
                for batch in range(micro_batches):
                    for direction, needed in ((FORWARD, not chunk.first), (BACKWARD, not chunk.last)):
                        if needed:
                            self.buffers[direction, v, batch, 0] = self._boundary_tensor()

    def _boundary_tensor(self) -> Tensor:
        return torch.empty(self.boundary, dtype=self.site.residual_dtype, device=self.site.device)

    def _mask(self) -> Tensor | None:
        """The mask that comes with a micro-batch (`cost_model.memory.statics.mask_bytes`); layers that run again
        keep it.
        """
        site = self.site
        if not site.rules.loads_masks:
            return None
        shape = (site.strategy.mbs, 1, site.rules.seq_length // site.strategy.cp, site.rules.seq_length)
        return torch.empty(shape, dtype=torch.bool, device=site.device)

    def _receive(self, direction: int, v: int, batch: int, piece: int) -> Tensor:
        if self.buffered:
            return self.buffers[direction, v, batch, piece].detach()
        with charged(BUFFERS):
            return self._boundary_tensor()

    def _forward(self, v: int, batch: int, piece: int) -> None:
        chunk = self.chunks[v]
        received = None
        if not chunk.first:
            received = self._receive(FORWARD, v, batch, piece).requires_grad_()
        self.sent_output = None
        with charged(BUFFERS):
            tokens = torch.zeros(self.site.tokens, dtype=torch.int64, device=self.site.device)
            mask = self._mask() if chunk.first or chunk.last else None
        y = chunk(received, tokens)
        kept = _Piece(received, torch.autograd.graph.get_gradient_edge(y))
        kept.mask = mask if chunk.recomputes else None
        if not chunk.last:
            self.counter.move(y, BUFFERS)
            if self.buffered:
                kept.sent = y
            else:
                self.sent_output = y
        elif chunk.head is not None:
            kept.logits, chunk.head.logits = chunk.head.logits, []
        self.alive[v, batch, piece] = kept

    def _backward(self, v: int, batch: int, piece: int) -> None:
        chunk = self.chunks[v]
        kept = self.alive.pop((v, batch, piece))
        gradient = None
        if not chunk.last:
            gradient = self._receive(BACKWARD, v, batch, piece)
            self.received_gradient = None if self.buffered else gradient
        self.sent_output = None
        # What a postponed weight gradient waits for outlives the task.
        with self.counter.survivors(activations_of(chunk.kinds[-1] if chunk.kinds else MTP)):
            torch.autograd.backward(kept.edge, gradient)
        if kept.received is not None:
            self.sent_gradient = kept.received.grad
            if self.sent_gradient is not None:
                self.counter.move(self.sent_gradient, BUFFERS)
        if self.buffered and kept.received is not None:
            self.counter.move(kept.received, BUFFERS)
        if self.queue.postpone:
            self.alive[v, batch, piece] = _Piece(None, kept.edge, waiting=self.queue.take())
