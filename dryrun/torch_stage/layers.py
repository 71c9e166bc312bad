"""Attention blocks and whole layers, in the operators of each framework."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.attention import FlashAttention, SplitFeatures, unfused_attention
from taylor.dryrun.torch_stage.experts import Experts
from taylor.dryrun.torch_stage.kernels import Bias, DropoutAdd, Gather, GradientQueue, Linear, Norm, Recompute, Rotate
from taylor.dryrun.torch_stage.mlp import Mlp
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs, SavedResults
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import LATENT, REPLICATED, SPLIT, Weight
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.frameworks import (
    ATTENTION_CORE,
    DENSE_ACTIVATION,
    DENSE_MLP,
    EXPERT_ACTIVATION,
    EXPERT_BLOCK,
    LATENT_UP,
    NORMS,
    UNSAVED_OPERATORS,
)
from taylor.register.model import DENSE

DROPOUT_RATE = 0.1
"""Any rate above 0 keeps the same masks."""


class NormLayer:
    """RMSNorm or LayerNorm with its weights; gives the compute type."""

    def __init__(self, site: Site, width: int | None = None) -> None:
        self.site = site
        size = site.model.hidden if width is None else width
        self.weight = Weight(site, (size,), REPLICATED)
        self.bias = Weight(site, (size,), REPLICATED) if site.model.norm_bias and width is None else None

    def weights(self) -> list[Weight]:
        """Every weight of the norm."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def __call__(self, x: Tensor) -> Tensor:
        return Norm.apply(x, self.weight, self.bias, self.site.dtype)


class _AttentionBase:
    """What the two kinds of attention share: the core and the output projection."""

    def __init__(self, site: Site, queue: GradientQueue, value_dim: int) -> None:
        self.site, self.queue = site, queue
        plain = not site.model.output_bias
        self.out = Weight(site, (site.model.hidden, site.heads * value_dim), SPLIT, counted=plain)
        self.out_bias = Weight(site, (site.model.hidden,), REPLICATED) if site.model.output_bias else None

    def _gathered(self, x: Tensor) -> tuple[Tensor, int]:
        """The projections' input and the ways in which they gather it themselves.

        Under `ActivationRules.saves_gathered_inputs` the input is gathered once, before the projections,
        which then save it whole.
        """
        ways = self.site.shard_ways
        if self.site.framework.activations.saves_gathered_inputs and ways > 1:
            return Gather.apply(x, ways), 1
        return x, ways

    def _core(self, q: Tensor, k: Tensor, v: Tensor, again: Collection[str]) -> Tensor:
        """Context [tokens, heads·value dim] of q, k, v [s, b, heads, dim]."""
        rules = self.site.rules
        rows = self.site.framework.activations.attention_statistics
        ring = 2 if self.site.strategy.cp > 1 else 0
        rate = DROPOUT_RATE if rules.dropout else 0.0

        def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if rules.flash_attention:
                return FlashAttention.apply(q, k, v, rows, ring, self.queue.saved)
            return unfused_attention(q, k, v, rate)

        context = Recompute.apply(core, q, k, v) if ATTENTION_CORE in again else core(q, k, v)
        return context.reshape(self.site.tokens, -1)

    def _project(self, context: Tensor) -> Tensor:
        y = Linear.apply(context, self.out, self.queue, 1, self.site.shard_ways)
        return y if self.out_bias is None else Bias.apply(y, self.out_bias)

    def _by_head(self, x: Tensor, heads: int) -> Tensor:
        return x.view(self.site.sequence, self.site.strategy.mbs, heads, -1)


class Attention(_AttentionBase):
    """Multi-head and grouped-query attention.

    Where one product gives Q, K and V, values stay views of it, and it stays alive beside the rotated queries
    and keys (`ActivationRules.joined_qkv`).
    """

    def __init__(self, site: Site, queue: GradientQueue) -> None:
        model = site.model
        super().__init__(site, queue, model.head_dim)
        self.sizes = (site.heads * model.head_dim, site.kv_heads * model.head_dim, site.kv_heads * model.head_dim)
        rows = (sum(self.sizes),) if site.framework.activations.joined_qkv else self.sizes
        self.qkv = [Weight(site, (n, model.hidden), SPLIT, counted=not model.attention_bias) for n in rows]
        self.qkv_bias = [Weight(site, (n,), SPLIT) for n in rows] if model.attention_bias else []
        self.qk_norms = [NormLayer(site, model.head_dim) for _ in range(2)] if model.qk_norm else []

    def weights(self) -> list[Weight]:
        """Every weight of the block."""
        norms = [weight for norm in self.qk_norms for weight in norm.weights()]
        return [*self.qkv, *self.qkv_bias, *norms, self.out, *([self.out_bias] if self.out_bias else [])]

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        return self._project(self._core(*self._qkv(x), again))

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, gather = self._gathered(x)
        products = [Linear.apply(x, weight, self.queue, gather) for weight in self.qkv]
        del x
        for i, bias in enumerate(self.qkv_bias):
            products[i] = Bias.apply(products[i], bias)
        parts = SplitFeatures.apply(products[0], self.sizes) if len(products) == 1 else products
        counts = (self.site.heads, self.site.kv_heads, self.site.kv_heads)
        q, k, v = (self._by_head(part, heads) for part, heads in zip(parts, counts, strict=True))
        del parts, products
        if self.qk_norms:
            q, k = (norm(part) for norm, part in zip(self.qk_norms, (q, k), strict=True))
        if not self.site.model.learned_positions:
            q, k = Rotate.apply(q, 0, False), Rotate.apply(k, 0, False)
        if self.site.framework.activations.copies_grouped_kv:
            k, v = (_repeated(part, self.site.heads) for part in (k, v))
        return q, k, v


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Keys or values [s, b, g, d] copied for every query head (``repeat_kv``)."""
    ways = heads // x.shape[2]
    return x if ways == 1 else x.unsqueeze(3).expand(-1, -1, -1, ways, -1).flatten(2, 3)


class Reshard(torch.autograd.Function):
    """From features split over TP to tokens split over TP, [n, f/t] -> [n/t, f]: the same size, a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, width: int) -> Tensor:
        ctx.shape = x.shape
        return torch.empty((rows, width), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device), None, None


class LatentAttention(_AttentionBase):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1).

    Queries, keys (assembled from the up-projection and the shared rotary part), the key/value
    up-projection (values are views of it) and the context stay; so do both latents and their norms.
    """

    def __init__(self, site: Site, queue: GradientQueue) -> None:
        model = site.model
        mla = model.mla
        assert mla is not None
        super().__init__(site, queue, mla.v_head_dim)
        self.mla = mla
        self.qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        self.latent_ways = site.strategy.tp if site.framework.states.splits_latent_projections else 1
        rank = mla.q_lora_rank
        self.q_down = None
        if rank is not None:
            self.q_down = Weight(site, (share(rank, self.latent_ways), model.hidden), LATENT)
            self.q_norm = NormLayer(site, rank)
        self.q_up = Weight(site, (site.heads * self.qk_dim, model.hidden if rank is None else rank), SPLIT)
        self.kv_width = mla.kv_lora_rank + mla.qk_rope_head_dim
        self.kv_down = Weight(site, (share(self.kv_width, self.latent_ways), model.hidden), LATENT)
        self.kv_norm = NormLayer(site, mla.kv_lora_rank)
        self.kv_up = Weight(site, (site.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank), SPLIT)

    def weights(self) -> list[Weight]:
        """Every weight of the block."""
        query = [] if self.q_down is None else [self.q_down, *self.q_norm.weights()]
        return [*query, self.q_up, self.kv_down, *self.kv_norm.weights(), self.kv_up, self.out]

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        x, gather = self._gathered(x)
        if LATENT_UP in again:
            query, latent = self._query_latent(x, gather), self._down(x, self.kv_down, self.kv_width, gather)

            def up(query: Tensor, latent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                return self._query(query, gather), *self._key_value(latent, gather)

            q, k, v = given_up.run(up, query, latent)
            del query, latent
        else:
            q = self._query(self._query_latent(x, gather), gather)
            k, v = self._key_value(self._down(x, self.kv_down, self.kv_width, gather), gather)
        del x
        return self._project(self._core(q, k, v, again))

    def _down(self, x: Tensor, weight: Weight, width: int, gather: int) -> Tensor:
        """A latent of the input's tokens: computed where they are, or, split by features, gathered and resharded."""
        if self.latent_ways == 1:
            return Linear.apply(x, weight, self.queue)
        return Reshard.apply(Linear.apply(x, weight, self.queue, gather), x.shape[0], width)

    def _normed(self, latent: Tensor, norm: NormLayer) -> Tensor:
        """A latent's norm; where the framework casts its input to fp32 first, the cast is kept."""
        return norm(latent.float() if self.site.framework.activations.fp32_norm_input else latent)

    def _query_latent(self, x: Tensor, gather: int) -> Tensor:
        if self.q_down is None:
            return x
        assert self.mla.q_lora_rank is not None
        return self._down(x, self.q_down, self.mla.q_lora_rank, gather)

    def _query(self, x: Tensor, gather: int) -> Tensor:
        if self.q_down is not None:
            x = self._normed(x, self.q_norm)
        q = self._by_head(Linear.apply(x, self.q_up, self.queue, gather), self.site.heads)
        return Rotate.apply(q, self.mla.qk_nope_head_dim, self.site.framework.activations.keeps_unrotated_queries)

    def _key_value(self, latent: Tensor, gather: int) -> tuple[Tensor, Tensor]:
        mla, heads = self.mla, self.site.heads
        compressed, rotary = SplitFeatures.apply(latent, (mla.kv_lora_rank, mla.qk_rope_head_dim))
        del latent
        rotary = Gather.apply(rotary, gather) if gather > 1 else rotary
        rotary = Rotate.apply(self._by_head(rotary, 1), 0, False)
        up = self._by_head(Linear.apply(self._normed(compressed, self.kv_norm), self.kv_up, self.queue, gather), heads)
        del compressed
        still, v = SplitFeatures.apply(up, (mla.qk_nope_head_dim, mla.v_head_dim))
        return torch.cat([still, rotary.expand(-1, -1, heads, -1)], -1), v


class TransformerLayer:
    """Attention and MLP or experts with their norms around a residual stream [tokens, hidden] of one rank.

    Parameters
    ----------
    kind : str
        ``dense`` or ``moe``.
    mode : str
        Recompute mode: ``full`` keeps the layer's input alone; ``select`` runs the job's parts again
        (`TrainingRules.recomputed_parts`).
    """

    def __init__(self, site: Site, queue: GradientQueue, kind: str, mode: str) -> None:
        self.site, self.queue, self.mode = site, queue, mode
        self.again = site.rules.recomputed_parts if mode == SELECT else ()
        self.norms = [NormLayer(site), NormLayer(site)]
        self.attention = Attention(site, queue) if site.model.mla is None else LatentAttention(site, queue)
        self.mlp = Mlp(site, queue, site.model.ffn_hidden) if kind == DENSE else None
        self.experts = Experts(site, queue) if kind != DENSE else None
        self.rate = DROPOUT_RATE if site.rules.dropout else 0.0
        fused = site.rules.fused_norms
        self.gives_up = not {NORMS, LATENT_UP, EXPERT_ACTIVATION}.isdisjoint(self.again)
        self.own_norms = not fused or site.model.mla is not None, not fused or kind != DENSE

    def weights(self) -> list[Weight]:
        """Every weight of the layer."""
        block = self.mlp if self.mlp is not None else self.experts
        assert block is not None
        norms = [weight for norm in self.norms for weight in norm.weights()]
        return [*norms, *self.attention.weights(), *block.weights()]

    def __call__(self, x: Tensor) -> Tensor:
        if self.mode == FULL:
            return Recompute.apply(self._run, x)
        if UNSAVED_OPERATORS in self.again:
            return Recompute.apply(self._but_for_saved(SavedResults()), x)
        return self._run(x)

    def _but_for_saved(self, saved: SavedResults) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            self.queue.saved = saved
            saved.start(again=torch.is_grad_enabled())
            try:
                return self._run(x)
            finally:
                self.queue.saved = None

        return run

    def _run(self, x: Tensor) -> Tensor:
        given_up = GivenUpOutputs()
        with given_up.saving() if self.gives_up else nullcontext():
            y = self.attention(self._norm(0, x, given_up), self.again, given_up)
            x = DropoutAdd.apply(y, x, self.rate)
            del y
            y = self._block(x, given_up)
            return DropoutAdd.apply(y, x, self.rate)

    def _norm(self, place: int, x: Tensor, given_up: GivenUpOutputs) -> Tensor:
        norm = self.norms[place]
        if NORMS in self.again and self.own_norms[place]:
            return given_up.run(lambda x: (norm(x),), x)[0]
        return norm(x)

    def _block(self, x: Tensor, given_up: GivenUpOutputs) -> Tensor:
        """MLP or experts behind their norm."""
        ways = self.site.shard_ways
        if self.mlp is not None:
            mlp, rebuild = self.mlp, DENSE_ACTIVATION in self.again
            if DENSE_MLP not in self.again:
                return mlp(self._norm(1, x, given_up), rebuild=rebuild, ways=ways)
            if self.own_norms[1]:
                return Recompute.apply(lambda x: mlp(x, rebuild=False, ways=ways), self._norm(1, x, given_up))
            return Recompute.apply(lambda x: mlp(self.norms[1](x), rebuild=False, ways=ways), x)
        assert self.experts is not None
        experts, x = self.experts, self._norm(1, x, given_up)
        if EXPERT_BLOCK in self.again:
            return Recompute.apply(lambda x: experts(x, (), GivenUpOutputs()), x)
        return experts(x, self.again, given_up)
