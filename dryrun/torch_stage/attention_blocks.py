"""Softmax attention with its projections, in the operators of each framework."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from taylor.cost_model.job.strategy_table import ulysses_ranks
from taylor.dryrun.torch_stage.adapters import Beside
from taylor.dryrun.torch_stage.attention import FlashAttention, SplitFeatures, unfused_attention
from taylor.dryrun.torch_stage.counter import fused
from taylor.dryrun.torch_stage.kernels import (
    Bias,
    Gather,
    GradientQueue,
    Linear,
    Recompute,
    Reshard,
    Rotate,
    gathered_once,
)
from taylor.dryrun.torch_stage.norms import NormLayer
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import LATENT, REPLICATED, SPLIT, Weight
from taylor.register.adapters import JOINED_QKV, KEY, LATENTS, OUTPUT, QUERY, VALUE
from taylor.register.frameworks import ATTENTION_CORE, LATENT_UP
from taylor.register.layers import AttentionSpec, LayerSpec


class OutputGate(torch.autograd.Function):
    """x·sigmoid(gate), or x·silu(gate), the gate one value a channel or one a head: a compiled kernel that saves both.

    Megatron-LM d98e8a64 megatron/core/transformer/attention.py:1635 (``_apply_output_gate``) and
    megatron/core/ssm/gated_delta_net/common.py:370 (``_apply_gated_norm``).
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, gate: Tensor, swish: bool) -> Tensor:
        ctx.save_for_backward(x, gate)
        ctx.swish = swish
        wide = gate.float()[..., None]
        factor = torch.sigmoid(wide) * (wide if swish else 1)
        return (x.view(*gate.shape, -1) * factor).to(x.dtype).view(x.shape)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        x, gate = ctx.saved_tensors
        wide = gate.float()[..., None]
        open_, factor = torch.sigmoid(wide), wide if ctx.swish else 1
        dy = dy.reshape(*gate.shape, -1).float()
        slope = open_ * (1 - open_) * factor + (open_ if ctx.swish else 0)
        dgate = (dy * x.view(*gate.shape, -1) * slope).sum(-1)
        return (dy * open_ * factor).to(x.dtype).view(x.shape), dgate.to(gate.dtype), None


class GroupLinear(torch.autograd.Function):
    """One GEMM a group of features: x [n, g, i] with weights [g, o, i] to [n, g, o].

    Saves x, a view as it is, unless the weight is frozen.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, weight: Weight, queue: GradientQueue) -> Tensor:
        ctx.save_for_backward(x if weight.trains else None)
        ctx.weight, ctx.queue = weight, queue
        return torch.einsum("ngi,goi->ngo", x, weight.read()).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        weight = ctx.weight
        if weight.trains:
            ctx.queue.add(weight, lambda: _group_weight_gradient(x, dy))
        return _group_input_gradient(dy, weight), None, None


@fused
def _group_input_gradient(dy: Tensor, weight: Weight) -> Tensor:
    return torch.einsum("ngo,goi->ngi", dy, weight.read())


@fused
def _group_weight_gradient(x: Tensor, dy: Tensor) -> Tensor:
    return torch.einsum("ngo,ngi->goi", dy, x)


class _AttentionBase:
    """Common parts of the two kinds of attention: the core, the gate and the output projection.

    A window and a sink change values and no size but the sink's own, so the core omits them.
    """

    def __init__(self, site: Site, queue: GradientQueue, attention: AttentionSpec) -> None:
        self.site, self.queue, self.attention = site, queue, attention
        self.beside = Beside(site, queue, LayerSpec("attention", attention))
        hidden, tp = site.model.hidden, site.strategy.tp
        self.heads = share(attention.n_heads, tp)
        # Copied where TP exceeds their number.
        self.kv_heads = max(1, share(attention.n_kv_heads, tp))
        self.gate_width = share(attention.gate, tp)
        self.latent_ways = tp if site.framework.states.splits_latent_projections else 1
        width = self.heads * attention.v_width
        self.out_low = None
        if attention.output_rank is not None:
            groups = share(attention.output_groups, tp)
            self.out_low = Weight(site, (groups, attention.output_rank, width // groups), SPLIT)
            width = groups * attention.output_rank
        self.out = Weight(site, (hidden, width), SPLIT, counted=not attention.output_bias)
        self.out_bias = Weight(site, (hidden,), REPLICATED) if attention.output_bias else None
        self.sinks = Weight(site, (self.heads,), SPLIT) if attention.sinks else None
        self.indexer = None
        if attention.indexer is not None and attention.indexer.parameters:
            self.indexer = Weight(site, (attention.indexer.parameters,), REPLICATED)

    def _common_weights(self) -> list[Weight]:
        own = [self.out_low, self.out, self.out_bias, self.sinks, self.indexer]
        return [weight for weight in own if weight is not None] + self.beside.weights()

    def _core(self, q: Tensor, *kv: Tensor, again: Collection[str]) -> Tensor:
        """Context [tokens, heads·value dim] of q, k, v [s, b, heads, dim]."""
        rules = self.site.rules
        rows = self.site.framework.activations.attention_statistics
        ring = 2 if self.site.strategy.cp > ulysses_ranks(self.site.strategy, rules) else 0
        rate = self.site.dropout_rate

        def core(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if rules.flash_attention:
                return FlashAttention.apply(q, k, v, rows, ring, self.queue.saved)
            return unfused_attention(q, k, v, rate)

        context = Recompute.apply(core, q, *kv) if ATTENTION_CORE in again else core(q, *kv)
        return context.reshape(self.site.tokens, -1)

    def _project(self, context: Tensor, gate: Tensor | None) -> Tensor:
        if gate is not None:
            context = OutputGate.apply(context, gate, False)
        if self.out_low is not None:
            context = GroupLinear.apply(context.view(len(context), self.out_low.shape[0], -1), self.out_low, self.queue)
            context = context.flatten(1)
        # Without a gate the attention kernel keeps the same tensor.
        y = Linear.apply(context, self.out, self.queue, 1, self.site.shard_ways, None, gate is None)
        y = self.beside.added(y, context, OUTPUT, scatter=self.site.shard_ways)
        return y if self.out_bias is None else Bias.apply(y, self.out_bias)

    def _down(self, x: Tensor, weight: Weight, width: int, gather: int, place: int = 0) -> Tensor:
        """A latent of the input's tokens: computed where they are, or, split by features, gathered and resharded."""
        if self.latent_ways == 1:
            return self.beside.added(Linear.apply(x, weight, self.queue), x, LATENTS, place=place)
        return Reshard.apply(Linear.apply(x, weight, self.queue, gather), x.shape[0], width)

    def _by_head(self, x: Tensor, heads: int) -> Tensor:
        return x.view(self.site.sequence, self.site.strategy.mbs, heads, -1)


class Attention(_AttentionBase):
    """Multi-head and grouped-query attention.

    If one GEMM gives Q, K, V and the gate, values stay views of its result, which stays alive beside the rotated
    queries and keys (`ActivationRules.joined_qkv`); queries of low rank come from separate GEMMs.
    """

    def __init__(self, site: Site, queue: GradientQueue, attention: AttentionSpec) -> None:
        super().__init__(site, queue, attention)
        hidden, rank, size = site.model.hidden, attention.q_rank, attention.head_dim
        q, k, v = self.heads * size, self.kv_heads * size, self.kv_heads * attention.v_width
        keys = () if attention.reused_kv else (k,)
        values = () if attention.reused_kv or attention.shared_kv else (v,)
        gate = (self.gate_width,) if attention.gate else ()
        self.q_down = None
        if rank is None:
            self.sizes: tuple[int, ...] = (q, *keys, *values, *gate)
        else:
            self.sizes = (*keys, *values, *gate)
            self.q_down = Weight(site, (share(rank, self.latent_ways), hidden), LATENT)
            self.q_norm = NormLayer(site, rank)
            self.q_up = Weight(site, (q, rank), SPLIT, counted=not attention.bias)
            self.q_up_bias = [Weight(site, (q,), SPLIT)] if attention.bias else []
        rows = (sum(self.sizes),) if site.framework.activations.joined_qkv else self.sizes
        plain = not attention.bias
        self.qkv = [Weight(site, (n, hidden), SPLIT, counted=plain) for n in rows]
        self.qkv_bias = [Weight(site, (n,), SPLIT) for n in self._biased(rows)] if attention.bias else []
        self.qk_norms: list[NormLayer] = []
        if attention.qk_norm:
            norm_size = attention.qk_norm_weights
            shared = None if norm_size is None else Weight(site, (norm_size,), REPLICATED)
            self.qk_norms = [NormLayer(site, size, shared) for _ in range(2)]

    def _biased(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Elements of each GEMM's bias, up to which it is added; the gate has none."""
        if not self.attention.gate:
            return rows
        return (rows[0] - self.gate_width,) if len(rows) == 1 else rows[:-1]

    def weights(self) -> list[Weight]:
        """Every weight of the block."""
        norms = {id(weight): weight for norm in self.qk_norms for weight in norm.weights()}
        low = [] if self.q_down is None else [self.q_down, *self.q_norm.weights(), self.q_up, *self.q_up_bias]
        return [*low, *self.qkv, *self.qkv_bias, *norms.values(), *self._common_weights()]

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        q, k, v, gate = self._qkv(x)
        context = self._core(q, k, v, again=again)
        del q, k, v
        return self._project(context, gate)

    def _qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        x, gather = gathered_once(x, self.site.shard_ways, self.site)
        x, gather = self.beside.gathered(x, gather, JOINED_QKV, QUERY, KEY, VALUE)
        parts: list[Tensor] = [] if self.q_down is None else [self._low_rank_query(x, self.q_down, gather)]
        products = [Linear.apply(x, weight, self.queue, gather) for weight in self.qkv]
        products = self.beside.added_to_parts(products, x, JOINED_QKV, (QUERY, KEY, VALUE), gather)
        del x
        for i, bias in enumerate(self.qkv_bias):
            products[i] = Bias.apply(products[i], bias)
        parts += SplitFeatures.apply(products[0], self.sizes) if len(products) == 1 < len(self.sizes) else products
        del products
        gate = parts.pop() if self.attention.gate else None
        if gate is not None and self.kv_heads > 1:
            # The groups of heads are separate in a joined GEMM's result: a gate in the order of the heads is a copy.
            gate = gate.contiguous()
        counts = (self.heads, self.kv_heads, self.kv_heads)
        q, *others = (self._by_head(part, heads) for part, heads in zip(parts, counts, strict=False))
        del parts
        if self.attention.reused_kv:
            k, v = self._of_an_earlier_layer(q)
            return self._turned(q, 0), k, v, gate
        k, v = others[0], others[-1]
        del others
        q, k = self._turned(q, 0), self._turned(k, 1)
        return q, k, v, gate

    def _turned(self, x: Tensor, place: int) -> Tensor:
        """Queries or keys behind their norm and their rotation."""
        x = self.qk_norms[place](x) if self.qk_norms else x
        return x if self.site.model.learned_positions else Rotate.apply(x, 0, False)

    def _of_an_earlier_layer(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that an earlier layer keeps: they take no memory here."""
        rows = (self.site.sequence, self.site.strategy.mbs, self.kv_heads)
        width = self.attention.head_dim, self.attention.v_width
        k, v = (torch.empty((), dtype=q.dtype, device=q.device).expand(*rows, size) for size in width)
        return k, v

    def _low_rank_query(self, x: Tensor, down: Weight, gather: int) -> Tensor:
        assert self.attention.q_rank is not None
        latent = self.q_norm(self._down(x, down, self.attention.q_rank, gather))
        q = Linear.apply(latent, self.q_up, self.queue, gather)
        return Bias.apply(q, self.q_up_bias[0]) if self.q_up_bias else q


class LatentAttention(_AttentionBase):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1).

    Queries, keys (assembled from the up-projection and the shared rotary part), the key/value
    up-projection (values are views of it) and the context stay; so do both latents and their norms.
    """

    def __init__(self, site: Site, queue: GradientQueue, attention: AttentionSpec) -> None:
        super().__init__(site, queue, attention)
        model, mla = site.model, attention.latent
        assert mla is not None
        self.mla = mla
        self.qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        self.gate = Weight(site, (self.gate_width, model.hidden), SPLIT) if attention.gate else None
        rank = mla.q_lora_rank
        self.q_down = None
        if rank is not None:
            self.q_down = Weight(site, (share(rank, self.latent_ways), model.hidden), LATENT)
            self.q_norm = NormLayer(site, rank)
        self.q_up = Weight(site, (self.heads * self.qk_dim, model.hidden if rank is None else rank), SPLIT)
        self.kv_width = mla.kv_lora_rank + mla.qk_rope_head_dim
        self.kv_down = Weight(site, (share(self.kv_width, self.latent_ways), model.hidden), LATENT)
        self.kv_norm = NormLayer(site, mla.kv_lora_rank)
        self.ups = self._up_projections()

    def _up_projections(self) -> list[Weight]:
        mla = self.mla
        shape = (self.heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank)
        return [Weight(self.site, shape, SPLIT)]

    def weights(self) -> list[Weight]:
        """Every weight of the block."""
        query = [] if self.q_down is None else [self.q_down, *self.q_norm.weights()]
        gate = [] if self.gate is None else [self.gate]
        return [*query, self.q_up, self.kv_down, *self.kv_norm.weights(), *self.ups, *gate, *self._common_weights()]

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        x, gather = gathered_once(x, self.site.shard_ways, self.site)
        if LATENT_UP in again:
            query, latent = self._query_latent(x, gather), self._key_latent(x, gather)

            def up(query: Tensor, latent: Tensor) -> tuple[Tensor, ...]:
                return self._query(query, gather), *self._key_value(latent, gather)

            q, *kv = given_up.run(up, query, latent)
            del query, latent
        else:
            q = self._query(self._query_latent(x, gather), gather)
            kv = list(self._key_value(self._key_latent(x, gather), gather))
        gate = None if self.gate is None else Linear.apply(x, self.gate, self.queue, gather)
        del x
        context = self._core(q, *kv, again=again)
        del q, kv
        return self._project(context, gate)

    def _normed(self, latent: Tensor, norm: NormLayer) -> Tensor:
        """A latent's norm; where the framework casts its input to fp32 first, the cast is kept."""
        return norm(latent.float() if self.site.framework.activations.fp32_norm_input else latent)

    def _query_latent(self, x: Tensor, gather: int) -> Tensor:
        if self.q_down is None:
            return x
        assert self.mla.q_lora_rank is not None
        return self._down(x, self.q_down, self.mla.q_lora_rank, gather)

    def _key_latent(self, x: Tensor, gather: int) -> Tensor:
        return self._down(x, self.kv_down, self.kv_width, gather, self.query_matrices)

    @property
    def query_matrices(self) -> int:
        """GEMMs of the queries, in front of those of keys and values."""
        return 1 if self.q_down is None else 2

    def _query(self, x: Tensor, gather: int) -> Tensor:
        if self.q_down is not None:
            x = self._normed(x, self.q_norm)
        y = Linear.apply(x, self.q_up, self.queue, gather)
        q = self._by_head(self.beside.added(y, x, LATENTS, gather, place=self.query_matrices - 1), self.heads)
        del x, y
        return Rotate.apply(q, self.mla.qk_nope_head_dim, self.site.framework.activations.keeps_unrotated_queries)

    def _key_parts(self, latent: Tensor, gather: int) -> tuple[Tensor, Tensor]:
        """The keys' latent as it was before its norm, and their rotated part, one for all heads."""
        mla = self.mla
        compressed, rotary = SplitFeatures.apply(latent, (mla.kv_lora_rank, mla.qk_rope_head_dim))
        del latent
        rotary = Gather.apply(rotary, gather) if gather > 1 else rotary
        return compressed, Rotate.apply(self._by_head(rotary, 1), 0, False)

    def _key_value(self, latent: Tensor, gather: int) -> tuple[Tensor, ...]:
        mla, heads = self.mla, self.heads
        compressed, rotary = self._key_parts(latent, gather)
        normed = self._normed(compressed, self.kv_norm)
        y = Linear.apply(normed, self.ups[0], self.queue, gather)
        up = self._by_head(self.beside.added(y, normed, LATENTS, gather, place=self.query_matrices + 1), heads)
        del compressed, normed, y
        still, v = SplitFeatures.apply(up, (mla.qk_nope_head_dim, mla.v_head_dim))
        return torch.cat([still, rotary.expand(-1, -1, heads, -1)], -1), v
