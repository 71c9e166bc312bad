"""Attention cores: the flash kernel, and the one made of GEMMs, softmax and dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.counter import empty_of, fused, only_shapes
from taylor.dryrun.torch_stage.rebuilt import SavedResults


class FlashAttention(torch.autograd.Function):
    """Causal attention of q [s, b, a, d], k [s, b, g, d], v [s, b, g, e] into [s, b, a, e].

    Saves q, k, v (views keep the whole storage alive), the result, and `statistics` fp32 values a row and
    head (`register.frameworks.ActivationRules.attention_statistics`). With context parallelism, `ring`
    blocks of the other ranks' keys and values live while it runs, and twice as many in backward. `saved` keeps
    the result where the block around it is recomputed but for such results.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, statistics: int, ring: int, saved: SavedResults | None = None
    ) -> Tensor:
        ctx.ring = ring
        ring_blocks = _ring_blocks(k, v, ring)
        if saved is None:
            out, rows = _attend(q, k, v, statistics)
        else:
            out, rows = saved.kept(lambda: _attend(q, k, v, statistics))
        ctx.save_for_backward(q, k, v, out, rows)
        del ring_blocks
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        q, k, v, out, rows = ctx.saved_tensors
        ring_blocks = _ring_blocks(k, v, 2 * ctx.ring)
        gradients = _attend_backward(q, k, v, out, rows, dy)
        del ring_blocks
        return *gradients, None, None, None


def _ring_blocks(k: Tensor, v: Tensor, count: int) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(count) for x in (k, v)]


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Masked, scaled scores [b, a, s, s], fp32."""
    s, _, heads, d = q.shape
    wide = k.float().repeat_interleave(heads // k.shape[2], 2)
    scores = torch.einsum("sbad,tbad->bast", q.float(), wide) / math.sqrt(d)
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf"))


@fused
def _attend(q: Tensor, k: Tensor, v: Tensor, statistics: int) -> tuple[Tensor, Tensor]:
    if only_shapes(q):
        s, b, heads, _ = q.shape
        wanted = (b, heads, s) if statistics == 1 else (b, heads, s, statistics)
        return empty_of(q, (s, b, heads, v.shape[3])), torch.empty(wanted, dtype=torch.float32, device=q.device)
    scores = _scores(q, k)
    rows = torch.logsumexp(scores, -1)
    wide = v.float().repeat_interleave(q.shape[2] // v.shape[2], 2)
    out = torch.einsum("bast,tbae->sbae", torch.exp(scores - rows[..., None]), wide)
    kept = rows if statistics == 1 else rows[..., None].repeat(1, 1, 1, statistics)
    return out.to(q.dtype).contiguous(), kept


@fused
def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, rows: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if only_shapes(q):
        return empty_of(q), empty_of(k), empty_of(v)
    groups, d = q.shape[2] // k.shape[2], q.shape[3]
    rows = rows if rows.dim() == 3 else rows[..., 0]
    probability = torch.exp(_scores(q, k) - rows[..., None])
    wide_v, wide_k = (x.float().repeat_interleave(groups, 2) for x in (v, k))
    wide_dy = dy.float()
    dv = torch.einsum("bast,sbae->tbae", probability, wide_dy)
    dp = torch.einsum("sbae,tbae->bast", wide_dy, wide_v)
    inner = (wide_dy * out.float()).sum(-1).permute(1, 2, 0)[..., None]
    ds = probability * (dp - inner) / math.sqrt(d)
    dq = torch.einsum("bast,tbad->sbad", ds, wide_k)
    dk = torch.einsum("bast,sbad->tbad", ds, q.float())
    dk, dv = (x.unflatten(2, (k.shape[2], groups)).sum(3) for x in (dk, dv))
    return dq.to(q.dtype).contiguous(), dk.to(k.dtype).contiguous(), dv.to(v.dtype).contiguous()


class SplitFeatures(torch.autograd.Function):
    """Views of [..., f] along the last dimension; backward joins their gradients into one tensor. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        return x.split(list(sizes), -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.cat(gradients, -1), None


class MaskedSoftmax(torch.autograd.Function):
    """Scale, causal mask and softmax of scores [n, s, s] in one kernel, backward in place. Saves its output."""

    @staticmethod
    @fused
    def forward(ctx: Any, scores: Tensor, scale: float) -> Tensor:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        y = torch.softmax((scores.float() * scale).masked_fill(hidden, float("-inf")), -1).to(scores.dtype)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        wide = y.float()
        # The kernel writes over the gradient that it gets.
        return dy.copy_(wide * (dy - (dy * wide).sum(-1, keepdim=True)) * ctx.scale), None


class Dropout(torch.autograd.Function):
    """Dropout as a separate operator. Saves the mask, one byte an element."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask = torch.rand(x.shape, device=x.device) >= rate
        ctx.save_for_backward(mask)
        ctx.rate = rate
        return x * mask / (1 - rate)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        return dy * mask / (1 - ctx.rate), None


def unfused_attention(q: Tensor, k: Tensor, v: Tensor, rate: float) -> Tensor:
    """Attention by batched GEMMs: keeps q, k, v, the probabilities and, with dropout, mask and result.

    Keys and values of grouped heads are repeated first, as batched GEMMs need them.
    """
    s, b, heads, d = q.shape
    if k.shape[2] != heads:
        k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    q, k, v = (x.reshape(s, b * heads, x.shape[3]).transpose(0, 1) for x in (q, k, v))
    probability = MaskedSoftmax.apply(torch.bmm(q, k.transpose(1, 2)), 1 / math.sqrt(d))
    if rate:
        probability = Dropout.apply(probability, rate)
    out = torch.bmm(probability, v)
    return out.transpose(0, 1).reshape(s, b, heads, -1)
