"""Kernels of linear attention: short convolution, norms, gates and the chunked scans of flash-linear-attention.

A scan's arithmetic is omitted, its tensors are not: every buffer that outlives one of its device kernels is made and
dropped where the scan makes and drops it (fla-org/flash-linear-attention bc3b101d). Tensors of one value a head within
a scan are omitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.counter import empty_of, fused, only_shapes
from taylor.dryrun.torch_stage.mamba import add_shapeless, empty
from taylor.dryrun.torch_stage.weights import Weight

CHUNK = 64
"""Tokens of a chunk.

fla/ops/gated_delta_rule/chunk.py:278-279, fla/ops/kda/chunk.py:393, fla/ops/simple_gla/chunk.py:160.
"""

_EPSILON = 1e-6


class CausalConv(torch.autograd.Function):
    """silu(causal convolution) of x [n, c] by channel, weights [c, taps], tokens in the order (position, sample).

    Saves x, a view of a larger projection maybe; backward makes the result before the activation again
    (fla/modules/conv/triton/ops.py:380 and :147).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, samples: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.samples = weight, samples
        return _convolved(x, weight.read(), samples)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        again = empty(x, *x.shape)
        dx, dweight = _convolution_gradients(x, ctx.weight.read(), ctx.samples, dy)
        del again
        ctx.weight.add_gradient(lambda: dweight)
        return dx, None, None


@fused
def _convolved(x: Tensor, weight: Tensor, samples: int) -> Tensor:
    return empty(x, *x.shape) if only_shapes(x) else _convolve(x, weight, samples)


def _convolve(x: Tensor, weight: Tensor, samples: int) -> Tensor:
    channels, taps = weight.shape
    rows = torch.nn.functional.pad(x.reshape(-1, samples, channels).permute(1, 2, 0), (taps - 1, 0))
    y = torch.nn.functional.conv1d(rows, weight[:, None].to(x.dtype), groups=channels)
    return torch.nn.functional.silu(y).permute(2, 0, 1).reshape(x.shape)


@fused
def _convolution_gradients(x: Tensor, weight: Tensor, samples: int, dy: Tensor) -> tuple[Tensor, Tensor]:
    if only_shapes(x):
        return empty(x, *x.shape), empty_of(weight)
    inputs = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
    with torch.enable_grad():
        y = _convolve(inputs[0], inputs[1], samples)
    dx, dweight = torch.autograd.grad(y, inputs, dy)
    return dx.contiguous(), dweight


class L2Norm(torch.autograd.Function):
    """x / |x| over the last dimension of [n, heads, d]. Saves its result and an fp32 statistic a row and head.

    fla/modules/l2norm.py:240.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().square().sum(-1, keepdim=True) + _EPSILON)
        y = (x.float() * scale).to(x.dtype)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        y, scale = ctx.saved_tensors
        wide = y.float()
        return ((dy - wide * (dy * wide).sum(-1, keepdim=True)) * scale).to(y.dtype)


class GatedNorm(torch.autograd.Function):
    """RMSNorm(x)·sigmoid(gate) over the last dimension of [n, heads, d]. Saves both and an fp32 statistic a row.

    fla/modules/fused_norm_gate.py:685.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Weight) -> Tensor:
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + _EPSILON)
        ctx.save_for_backward(x, gate, scale)
        ctx.weight = weight
        return (x.float() * scale * weight.read() * torch.sigmoid(gate.float())).to(x.dtype)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        x, gate, scale = ctx.saved_tensors
        unit, open_ = x.float() * scale, torch.sigmoid(gate.float())
        dnormed = dy.float() * open_
        ctx.weight.add_gradient(lambda: (dnormed * unit).reshape(-1, unit.shape[-1]).sum(0))
        dgate = dy.float() * unit * ctx.weight.read() * open_ * (1 - open_)
        dunit = dnormed * ctx.weight.read()
        dx = (dunit - unit * (dunit * unit).mean(-1, keepdim=True)) * scale
        return dx.to(x.dtype), dgate.to(gate.dtype), None


class Decay(torch.autograd.Function):
    """Write strength and fp32 decay [n, heads] each, from their projections [n, 2·heads]: a compiled kernel.

    Saves its input (Megatron-LM d98e8a64 megatron/core/ssm/gated_delta_net/gdn.py:92, ``_compute_gates``).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, decay: Weight, bias: Weight) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.weights = decay, bias
        n, heads = x.shape[0], decay.shape[0]
        return empty(x, n, heads), empty(x, n, heads, dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        add_shapeless(list(ctx.weights), x)
        return empty(x, *x.shape), None, None


@dataclass(frozen=True)
class ScanSizes:
    """One rank's heads of a scan, and their sizes in elements."""

    key_heads: int
    heads: int
    key: int
    value: int

    @property
    def keys(self) -> int:
        """Queries, or keys, of every head of values."""
        return self.heads * self.key

    @property
    def values(self) -> int:
        """Values of every head."""
        return self.heads * self.value

    def states(self, tokens: int) -> int:
        """Elements of the states at the chunks' starts."""
        return -(-tokens // CHUNK) * self.keys * self.value


class GatedDeltaScan(torch.autograd.Function):
    """The gated delta rule: q, k [n, keys], v [n, values], decay and write strength [n, heads] to [n, values].

    Saves its inputs, the decay summed up in each chunk (fp32) and each chunk's inverted matrix
    (fla/ops/gated_delta_rule/chunk.py:310, fla/ops/gated_delta_rule/chunk_fwd.py:385). Backward: fla/ops/
    gated_delta_rule/chunk.py:126-250, fla/ops/common/chunk_delta_h.py:715-780, fla/ops/common/chunk_o.py:674-742,
    fla/ops/gated_delta_rule/wy_fast.py:273-321.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, strength: Tensor, decay: Tensor, sizes: ScanSizes) -> Tensor:
        n = len(q)
        summed = torch.empty_like(decay)
        chunks = empty(q, n, sizes.heads * CHUNK)
        _w, u = empty(q, n, sizes.keys), empty(q, n, sizes.values)
        _states, _new = empty(q, sizes.states(n)), torch.empty_like(u)
        ctx.save_for_backward(q, k, v, strength, summed, chunks)
        ctx.sizes = sizes
        return torch.empty_like(u)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        q, _, v, strength, summed, _ = ctx.saved_tensors
        n, sizes = len(q), ctx.sizes
        w, u = empty(q, n, sizes.keys), torch.empty_like(v)
        states, new = empty(q, sizes.states(n)), torch.empty_like(v)
        dnew = torch.empty_like(v)
        dstates = empty(q, sizes.states(n))
        dnew = torch.empty_like(v)
        dq, dk, dw = (empty(q, n, sizes.keys) for _ in range(3))
        further = empty(q, n, sizes.keys)
        dv = torch.empty_like(v)
        del w, u, states, new, dnew, dstates, dw, further
        return dq, dk, dv, torch.empty_like(strength), torch.empty_like(summed), None


class KimiDeltaScan(torch.autograd.Function):
    """Kimi's delta rule with decays by channel: queries and keys before their norms, decays before their activation.

    Saves the normed queries and keys with their statistics, the values, decays and write strengths with their inputs,
    and two matrices a chunk (fla/ops/kda/chunk.py:109; fla/ops/kda/chunk_fwd.py:125 drops all else, the decays too).
    Backward works in fp32: fla/ops/kda/chunk_bwd.py:341-399 and :463-606, fla/ops/kda/chunk_intra.py:924-927.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, strength: Tensor, decay: Tensor, sizes: ScanSizes,
        small: list[Weight],
    ) -> Tensor:  # fmt: skip
        n, wide = len(q), torch.float32
        q, k = torch.empty_like(q), torch.empty_like(k)
        scales = [empty(q, n, sizes.key_heads, dtype=wide) for _ in range(2)]
        opened = torch.empty_like(strength)
        _decays = empty(q, n, sizes.keys, dtype=wide)
        chunks = [empty(q, n, sizes.heads * CHUNK) for _ in range(2)]
        _w, _kg, u = empty(q, n, sizes.keys), empty(q, n, sizes.keys), empty(q, n, sizes.values)
        _states, _new = empty(q, sizes.states(n)), torch.empty_like(u)
        ctx.save_for_backward(q, k, v, strength, opened, decay, *scales, *chunks)
        ctx.sizes, ctx.small = sizes, small
        return torch.empty_like(u)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        q, k, v, strength, _, decay, *_ = ctx.saved_tensors
        n, sizes, wide = len(q), ctx.sizes, torch.float32
        decays = empty(q, n, sizes.keys, dtype=wide)
        rebuilt = [*(empty(q, n, sizes.keys) for _ in range(3)), torch.empty_like(v)]
        rebuilt += [empty(q, sizes.states(n)), torch.empty_like(v)]
        dchunks = [empty(q, n, sizes.heads * CHUNK, dtype=wide)]
        dnew = torch.empty_like(v)
        dstates = empty(q, sizes.states(n))
        dnew = torch.empty_like(v)
        gradients = [empty(q, n, sizes.keys, dtype=wide) for _ in range(2)]
        dnew = torch.empty_like(v)
        gradients.append(empty(q, n, sizes.keys, dtype=wide))
        dchunks.append(empty(q, n, sizes.heads * CHUNK, dtype=wide))
        # The contributions of the chunks' insides to the gradients are written beside them.
        gradients = [torch.empty_like(each) for each in gradients]
        summed = torch.empty_like(gradients[2])
        gradients[2] = torch.empty_like(summed)
        del summed, decays, rebuilt, dchunks, dstates
        dq, dk = (torch.empty_like(each) for each in (q, k))
        ddecay = torch.empty_like(decay)
        del gradients
        add_shapeless(ctx.small, q)
        return dq, dk, dnew, torch.empty_like(strength), ddecay, None, None


class LightningScan(torch.autograd.Function):
    """Linear attention with one decay a head: q, k [n, keys], v [n, values] to [n, values]. Saves its inputs.

    fla/ops/simple_gla/chunk.py:196; backward :61-118, its states fp32.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sizes: ScanSizes) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.sizes = sizes
        _states = empty(q, sizes.states(len(q)))
        return torch.empty_like(v)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        q, k, v = ctx.saved_tensors
        _states = [empty(q, ctx.sizes.states(len(q)), dtype=torch.float32) for _ in range(2)]
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None
