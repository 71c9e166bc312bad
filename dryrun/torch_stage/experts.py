"""Mixture-of-experts kernels and block: router, permutation, exchange over EP.

A token's experts are unknown without data, so tokens are spread evenly and the busiest rank receives
capacity or imbalance times the even number, as `cost_model.memory.activations.routed_slots` says.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.adapters import Beside
from taylor.dryrun.torch_stage.counter import fused
from taylor.dryrun.torch_stage.grouped_linear import GroupedLinear
from taylor.dryrun.torch_stage.kernels import Bias, Gather, GradientQueue, Linear, Recompute, Reshard, Scatter, SwiGLU
from taylor.dryrun.torch_stage.mlp import Mlp
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs, SavedResults
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import LATENT, REPLICATED, ROUTED, Weight
from taylor.register.adapters import DOWN, GATE, JOINED_UP, ROUTERS, UP
from taylor.register.frameworks import EXPERT_ACTIVATION, EXPERT_ROWS, SHARED_ACTIVATION, SHARED_EXPERTS
from taylor.register.layers import LayerSpec, MlpSpec, MoeSpec


class Permute(torch.autograd.Function):
    """Rows of x [n, h] in the order of `index` [n·k]: a copy a slot. Saves the index."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[0]
        return x[index]

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (index,) = ctx.saved_tensors
        return _summed(dy, index, ctx.rows), None


class Unpermute(torch.autograd.Function):
    """Sums slots [n·k, h] into their tokens' rows [n, h]. Saves the index."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(index)
        return _summed(x, index, rows)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (index,) = ctx.saved_tensors
        return dy[index], None, None


def _summed(slots: Tensor, index: Tensor, rows: int) -> Tensor:
    wide = torch.zeros((rows, *slots.shape[1:]), dtype=torch.float32, device=slots.device)
    return wide.index_add(0, index, slots.float()).to(slots.dtype)


class Exchange(torch.autograd.Function):
    """All-to-all over EP: rows leave, `rows` of them arrive, in a new tensor. Saves nothing."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, rows: int, saved: SavedResults | None = None) -> Tensor:
        ctx.rows = x.shape[0]
        return _exchanged(x, rows) if saved is None else saved.kept(lambda: _exchanged(x, rows))

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return _exchanged(dy, ctx.rows), None, None


def _exchanged(x: Tensor, rows: int) -> Tensor:
    if rows <= x.shape[0]:
        return x[:rows].clone()
    return torch.cat([x, x.new_zeros((rows - x.shape[0], *x.shape[1:]))])


class JoinedSwiGLU(torch.autograd.Function):
    """The activation of unfused experts: the joined GEMM's result is split into copies of gate and up.

    Saves the joined result and both copies.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        gate, up = (half.clone() for half in joined.chunk(2, -1))
        ctx.save_for_backward(joined, gate, up)
        return (torch.nn.functional.silu(gate.float()) * up).to(joined.dtype)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        joined, gate, up = ctx.saved_tensors
        wide, shape = gate.float(), torch.sigmoid(gate.float())
        dgate = dy * up * (shape + wide * shape * (1 - shape))
        return torch.cat([dgate, dy * wide * shape], -1).to(joined.dtype)


def _latent_projections(site: Site, latent: int | None) -> list[Weight]:
    """Projections to the experts' width and back (Megatron-LM d98e8a64
    megatron/core/transformer/moe/moe_layer.py:266-302).

    No framework that recomputes by operator has them.
    """
    if latent is None:
        return []
    ways = site.strategy.tp if site.framework.states.splits_latent_projections else 1
    hidden = site.model.hidden
    shapes = ((share(latent, ways), hidden), (share(hidden, ways), latent))
    return [Weight(site, shape, LATENT, counted=False) for shape in shapes]


class Experts:
    """Router, routed experts and shared experts; [n, h] of the residual stream's tokens to the same shape.

    Kept for backward: the router's scores (fp32) and choices, and, a slot, the expert's input, its joined GEMM's result
    and the activation. The copies that leave for other ranks and come back live for a moment.
    """

    def __init__(self, site: Site, queue: GradientQueue, moe: MoeSpec) -> None:
        self.site, self.queue, self.moe = site, queue, moe
        tp, ep = site.strategy.tp, site.strategy.ep
        h = site.model.hidden
        split = int(site.rules.experts_over(tp))
        width = -(-moe.expert_hidden // split)
        local = -(-moe.n_experts // ep)
        outer, joined = h if moe.latent is None else moe.latent, width * (2 if moe.gated else 1)
        routing = site.of_part(ROUTERS)
        self.router = Weight(routing, (moe.router_rows, h), REPLICATED, counted=False)
        self.router_bias = Weight(site, (moe.router_rows,), REPLICATED) if moe.router_bias else None
        self.correction = Weight(site, (moe.router_rows,), REPLICATED) if moe.correction_bias else None
        self.gate = Weight(routing, (1, h), REPLICATED) if moe.shared_gate else None
        self.w1 = Weight(site, (local, joined, outer), ROUTED)
        self.w2 = Weight(site, (local, outer, width), ROUTED)
        self.biases = [Weight(site, (local, n), ROUTED) if moe.expert_bias else None for n in (joined, outer)]
        self.beside = Beside(site, queue, LayerSpec("routed", moe=replace(moe, n_shared=0)))
        self.latents = _latent_projections(site, moe.latent)
        # Megatron-LM d98e8a64 megatron/core/transformer/moe/shared_experts.py:124: they have no biases.
        shared = moe.shared_width
        self.shared = Mlp(site, queue, MlpSpec(shared, moe.gated)) if shared else None
        factor = site.rules.capacity_factor if site.rules.capacity_factor is not None else site.rules.imbalance
        # Split experts see the tokens of every rank that they are split over: gathered before the block, or slot by
        # slot.
        self.gathers = site.framework.activations.saves_gathered_inputs and site.shard_ways > 1
        routed = site.tokens if self.gathers and not site.rules.whole_experts else site.shard_tokens
        self.sent = round(routed * moe.visited)
        self.received = math.ceil(self.sent * factor)
        self.tp_ways = 1 if self.gathers or site.shard_ways == 1 else split

    def weights(self) -> list[Weight]:
        """Every weight of the block."""
        own = [self.router, self.router_bias, self.correction, self.gate, *self.latents, self.w1, self.w2, *self.biases]
        shared = self.shared.weights() if self.shared else []
        return [w for w in own if w is not None] + self.beside.weights() + shared

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        """`again`: parts of the block that run again in backward; `given_up` takes those whose output is not kept."""
        if self.gathers:
            return self._on_gathered(Gather.apply(x, self.site.shard_ways), again, given_up)
        probability, index = self._route(x)
        y = self._routed(x, probability[: self.sent], index[: self.sent], again, given_up)
        if self.moe.n_empty:
            y = y + self._returned(x, probability[self.sent :], index[self.sent :])
        return y if self.shared is None else y + self._shared(x, self.site.shard_ways, again)

    def _on_gathered(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        """Router and shared experts work on every token of the TP group, and save them.

        Whole experts take this rank's part of the slots; split ones take all, and their results are partial.
        """
        probability, index = self._route(x)
        y = self._routed(x, probability[: self.sent], index[: self.sent], again, given_up)
        if self.shared is not None:
            y = y + self._shared(x, 1, again)
        return Scatter.apply(y, self.site.shard_ways, self.queue.saved)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of the slots [n·k] in the order of `index` [n·k], the tokens sorted by expert."""
        k, experts, rows = self.moe.top_k, self.moe.router_rows, x.shape[0]
        logits = Linear.apply(x, self.router, self.queue, 1, 1, torch.float32)
        if self.router_bias is not None:
            logits = Bias.apply(logits, self.router_bias)
        scores = torch.softmax(logits, -1) if self.correction is None else torch.sigmoid(logits)
        del logits
        choice = (torch.arange(rows, device=x.device)[:, None] * k + torch.arange(k, device=x.device)) % experts
        picked = scores.gather(1, choice)
        picked = picked / picked.sum(-1, keepdim=True)
        order = torch.argsort(choice.reshape(-1), stable=True)
        return picked.reshape(-1)[order], order // k

    def _routed(
        self, x: Tensor, probability: Tensor, index: Tensor, again: Collection[str], given_up: GivenUpOutputs
    ) -> Tensor:
        unfused = self.site.framework.activations.unfused_experts
        rows = x.shape[0]
        if self.latents:
            x = self._projected(x, 0)
        if EXPERT_ROWS in again:
            (slots,) = given_up.run(lambda x: (self._dispatch(Permute.apply(x, index)),), x)
        else:
            slots = self._dispatch(Permute.apply(x, index))
        del x
        joined = GroupedLinear.apply(slots, self.w1, self.queue, self.biases[0], EXPERT_ROWS in again)
        (joined,) = self.beside.added_to_parts([joined], slots, JOINED_UP, (GATE, UP), 1)
        del slots
        if EXPERT_ACTIVATION in again:
            weights = self._dispatch(probability)
            (product,) = given_up.run(lambda joined, weights: (self._activated(joined, weights),), joined, weights)
        else:
            product = self._activated(joined, None if unfused else self._dispatch(probability))
        del joined
        # Dropped tensors come back, as they were, for the backward.
        y = GroupedLinear.apply(product, self.w2, self.queue, self.biases[1], EXPERT_ACTIVATION in again)
        y = self.beside.added(y, product, DOWN)
        del product
        y = self._combine(y)
        if unfused:
            # Weighted where the tokens come together: the unweighted result is kept.
            y = y * probability[:, None].to(y.dtype)
        y = Unpermute.apply(y, index, rows)
        return self._projected(y, 1) if self.latents else y

    def _returned(self, x: Tensor, probability: Tensor, index: Tensor) -> Tensor:
        """The tokens of experts that hold nothing, weighted (`MoeSpec.n_empty`)."""
        rows = Permute.apply(x, index)
        if self.tp_ways > 1:
            rows, probability = (Gather.apply(each, self.tp_ways) for each in (rows, probability))
        y = rows * probability[:, None].to(x.dtype)
        y = Scatter.apply(y, self.tp_ways) if self.tp_ways > 1 else y
        return Unpermute.apply(y, index, x.shape[0])

    def _projected(self, x: Tensor, place: int) -> Tensor:
        """Tokens at the experts' width, or back at the model's; where TP splits the GEMM, gathered and resharded."""
        assert self.moe.latent is not None
        weight, width = self.latents[place], (self.moe.latent, self.site.model.hidden)[place]
        if weight.shape[0] == width:
            return Linear.apply(x, weight, self.queue)
        return Reshard.apply(Linear.apply(x, weight, self.queue, self.site.shard_ways), x.shape[0], width)

    def _activated(self, joined: Tensor, weights: Tensor | None) -> Tensor:
        """The activation function's result, weighted where the framework does it there."""
        if self.moe.gated and self.site.framework.activations.unfused_experts:
            return JoinedSwiGLU.apply(joined)
        if self.moe.gated:
            return SwiGLU.apply(joined, weights)
        return torch.nn.functional.gelu(joined)

    @property
    def _exchanges(self) -> bool:
        return self.site.strategy.ep > 1 or self.received != self.sent

    def _dispatch(self, slots: Tensor) -> Tensor:
        if self._exchanges:
            slots = Exchange.apply(slots, self.received, self._saved)
        return slots if self.tp_ways == 1 else Gather.apply(slots, self.tp_ways)

    def _combine(self, slots: Tensor) -> Tensor:
        if self.tp_ways > 1:
            slots = Scatter.apply(slots, self.tp_ways)
        return Exchange.apply(slots, self.sent, self._saved) if self._exchanges else slots

    @property
    def _saved(self) -> SavedResults | None:
        return self.queue.saved if self.site.strategy.ep > 1 and self.site.rules.saves_exchanges else None

    def _shared(self, x: Tensor, ways: int, again: Collection[str]) -> Tensor:
        assert self.shared is not None
        shared = self.shared
        if SHARED_EXPERTS in again:
            y = Recompute.apply(lambda x: shared(x, rebuild=False, ways=ways), x)
        else:
            # The router keeps the input too.
            y = shared(x, rebuild=SHARED_ACTIVATION in again, ways=ways, kept_elsewhere=True)
        if self.gate is None:
            return y
        return y * torch.sigmoid(Linear.apply(x, self.gate, self.queue))
