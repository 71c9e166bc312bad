"""Latent attention over chosen keys, in the space of its latents (`cost_model.job.sparse_latent`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from taylor.cost_model.job.sparse_latent import SparseLatent
from taylor.dryrun.torch_stage.attention import SplitFeatures
from taylor.dryrun.torch_stage.attention_blocks import GroupLinear, LatentAttention
from taylor.dryrun.torch_stage.counter import empty_of, fused
from taylor.dryrun.torch_stage.kernels import Gather, GradientQueue, Linear, Recompute, Rotate
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import SPLIT, Weight
from taylor.register.adapters import LATENTS
from taylor.register.frameworks import ATTENTION_CORE
from taylor.register.layers import AttentionSpec


class SparseCore(torch.autograd.Function):
    """Attention of q [s, b, a, d] over `top_k` chosen ones of k [s, b, 1, d] into [s, b, a, e]; arithmetic is omitted.

    Saves q, k, the numbers of the chosen keys, the result, and `statistics` fp32 values a row and head
    (Megatron-LM d98e8a64 megatron/core/transformer/experimental_attention_variant/dsa_cudnn_kernels.py:2547).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, width: int, top_k: int, statistics: int) -> Tensor:
        s, b, heads, _ = q.shape
        out = q.new_zeros((s, b, heads, width))
        chosen = torch.zeros((s, b, top_k), dtype=torch.int32, device=q.device)
        rows = torch.zeros((s, b, heads, statistics), dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, chosen, out, rows)
        return out

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        q, k, *_ = ctx.saved_tensors
        return empty_of(q), empty_of(k), None, None, None


class IndexerGradients(torch.autograd.Function):
    """The context as it is; saves the gradients [s, b, n] of an indexer's loss, which its forward makes (2468)."""

    @staticmethod
    def forward(ctx: Any, context: Tensor, width: int) -> Tensor:
        ctx.save_for_backward(context.new_zeros((*context.shape[:2], width)))
        return context.view_as(context)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return dy, None


class SparseLatentAttention(LatentAttention):
    """Latent attention whose keys an indexer chooses: queries, one key a token and contexts as wide as the latent.

    The indexer's own operations are omitted but for what outlives them.
    """

    def __init__(self, site: Site, queue: GradientQueue, attention: AttentionSpec, sparse: SparseLatent) -> None:
        super().__init__(site, queue, attention)
        if self.beside.reaches(LATENTS):
            problem = "adapters beside latent projections that sparse attention absorbs"
            raise ValueError(f"{problem} are not modelled by torch's stage model")
        self.sparse = sparse

    def _up_projections(self) -> list[Weight]:
        """Of keys, multiplied with the queries, and of values, multiplied with the context."""
        mla, heads = self.mla, self.heads
        keys = (heads, mla.kv_lora_rank, mla.qk_nope_head_dim)
        return [Weight(self.site, shape, SPLIT) for shape in (keys, (heads, mla.v_head_dim, mla.kv_lora_rank))]

    def _query(self, x: Tensor, gather: int) -> Tensor:
        if self.q_down is not None:
            x = self._normed(x, self.q_norm)
        q = self._by_head(Linear.apply(x, self.q_up, self.queue, gather), self.heads)
        still, turned = SplitFeatures.apply(q, (self.mla.qk_nope_head_dim, self.mla.qk_rope_head_dim))
        del q
        absorbed = GroupLinear.apply(still.flatten(0, 1), self.ups[0], self.queue)
        return torch.cat([absorbed.view(*still.shape[:-1], -1), Rotate.apply(turned, 0, False)], -1)

    def _key_value(self, latent: Tensor, gather: int) -> tuple[Tensor, ...]:
        compressed, rotary = self._key_parts(latent, gather)
        compressed = self._normed(compressed, self.kv_norm)
        compressed = Gather.apply(compressed, gather) if gather > 1 else compressed
        return (torch.cat([self._by_head(compressed, 1), rotary], -1),)

    def _core(self, q: Tensor, *kv: Tensor, again: Collection[str]) -> Tensor:
        rules, own = self.site.rules, self.sparse.indexer
        top_k = min(own.top_k, rules.seq_length)
        rows = self.site.framework.activations.attention_statistics
        trained = rules.trains_indexer and not own.reused

        def core(q: Tensor, k: Tensor) -> Tensor:
            context = SparseCore.apply(q, k, self.sparse.value_width, top_k, rows)
            if trained:
                context = IndexerGradients.apply(context, own.n_heads * (own.head_dim + 1) + own.head_dim)
            return GroupLinear.apply(context.flatten(0, 1), self.ups[1], self.queue)

        context = Recompute.apply(core, q, *kv) if ATTENTION_CORE in again else core(q, *kv)
        return context.reshape(self.site.tokens, -1)
