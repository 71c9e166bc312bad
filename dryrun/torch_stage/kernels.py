"""Dense kernels, one autograd function each: tensors saved for backward, and tensors alive for a moment.

Activations are [tokens, features], tokens in the order (position, sample); under sequence parallelism the residual
stream is 1/TP of them. There is no process group: a gather makes a tensor of the gathered size, a scatter one of the
scattered size. The arithmetic is real, so that on real tensors without parallelism gradients can be compared with an
ordinary implementation's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.counter import empty_of, fused, only_shapes
from taylor.dryrun.torch_stage.rebuilt import SavedResults
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import Weight

_EPSILON = 1e-5


class GradientQueue:
    """Weight gradients of GEMMs: made at once, or kept for a separate task (zero bubble).

    A postponed one keeps the GEMM's input and the gradient of its output alive. `saved` is set while a block runs that
    is recomputed except for some operators' results.
    """

    def __init__(self, postpone: bool = False) -> None:
        self.postpone = postpone
        self.saved: SavedResults | None = None
        self.waiting: list[tuple[Weight, Callable[[], Tensor]]] = []

    def add(self, weight: Weight, make: Callable[[], Tensor]) -> None:
        """Make a weight's gradient now, or keep it until `take` is called."""
        if self.postpone:
            self.waiting.append((weight, make))
        else:
            weight.add_gradient(make)

    def take(self) -> list[tuple[Weight, Callable[[], Tensor]]]:
        """The waiting ones; the queue is empty afterwards."""
        waiting, self.waiting = self.waiting, []
        return waiting


def gathered(x: Tensor, ways: int) -> Tensor:
    """All-gather along tokens: [n, f] -> [n·ways, f]; the same tensor where `ways` is 1."""
    return x if ways == 1 else x.repeat(ways, *[1] * (x.dim() - 1))


def scattered(x: Tensor, ways: int) -> Tensor:
    """Reduce-scatter along tokens: [n, f] -> [n/ways, f]; the same tensor where `ways` is 1."""
    return x if ways == 1 else x[: -(-x.shape[0] // ways)].clone()


class Begin(torch.autograd.Function):
    """A tensor from which on gradients are made: the result of layers that none reaches. `root` carries the graph."""

    @staticmethod
    def forward(ctx: Any, root: Tensor, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return None, None


class Gather(torch.autograd.Function):
    """All-gather of a sequence-parallel tensor; backward reduce-scatters. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: int) -> Tensor:
        ctx.ways = ways
        return gathered(x, ways)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return scattered(dy, ctx.ways), None


class Scatter(torch.autograd.Function):
    """Reduce-scatter into a sequence-parallel tensor; backward gathers. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ways: int, saved: SavedResults | None = None) -> Tensor:
        ctx.ways = ways
        return scattered(x, ways) if saved is None else saved.kept(lambda: scattered(x, ways))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return gathered(dy, ctx.ways), None, None


class Reshard(torch.autograd.Function):
    """From features split over TP to tokens split over TP, [n, f/t] -> [n/t, f]: the same size, a new tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int, width: int) -> Tensor:
        ctx.shape = x.shape
        return torch.empty((rows, width), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return torch.empty(ctx.shape, dtype=dy.dtype, device=dy.device), None, None


def gathered_once(x: Tensor, ways: int, site: Site) -> tuple[Tensor, int]:
    """A block's input as its GEMMs take it, and the ways in which they gather it themselves.

    Under `ActivationRules.saves_gathered_inputs` the input is gathered once, before the GEMMs, which then save it
    whole.

    Parameters
    ----------
    x : Tensor [tokens/ways, features]
    """
    if site.framework.activations.saves_gathered_inputs and ways > 1:
        return Gather.apply(x, ways), 1
    return x, ways


def _product(x: Tensor, weight: Weight, gather: int) -> Tensor:
    return gathered(x, gather) @ weight.read().t()


class Linear(torch.autograd.Function):
    """y = x·Wᵀ, split over TP by columns or rows.

    Saves its input (its shard, under sequence parallelism; in its own type where that has fewer than 16 bits), none
    where the weight is frozen, and no weight. `kept_elsewhere`: something else keeps the input too. Column-parallel:
    the gathered input lives during the GEMM, and again in backward beside the gradient to be scattered. Row-parallel:
    the GEMM's result before its reduce-scatter, and in backward the gathered gradient. `gather` and `scatter` are the
    ways, 1 for none.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Weight, queue: GradientQueue, gather: int = 1, scatter: int = 1,
        out_dtype: torch.dtype | None = None, kept_elsewhere: bool = False,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(weight.saved_input(x, kept_elsewhere=kept_elsewhere) if weight.trains else None)
        ctx.shape, ctx.dtype = x.shape, x.dtype
        ctx.weight, ctx.queue, ctx.gather, ctx.scatter = weight, queue, gather, scatter
        saved = queue.saved
        if saved is None:
            y = scattered(gathered(x, gather) @ weight.read().t(), scatter)
            return y if out_dtype is None else y.to(out_dtype)
        make = partial(_product, x, weight, gather)
        y = saved.product(make) if weight.counted and weight.kept_result else make()
        if scatter > 1:
            y = saved.kept(partial(scattered, y, scatter)) if weight.kept_result else scattered(y, scatter)
        return y if out_dtype is None else y.to(out_dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (saved,) = ctx.saved_tensors
        weight, gather = ctx.weight, ctx.gather
        dy, casts = weight.cast_gradient(dy.to(ctx.dtype), ctx.scatter)
        dy = dy if casts is not None else gathered(dy, ctx.scatter)
        # The input's gradient first; its scatter overlaps the weight's gradient, which needs the gathered input.
        dx = dy @ weight.read()
        if weight.trains:
            ctx.queue.add(weight, partial(_weight_gradient, dy, (casts, saved), weight, ctx.shape, gather))
        return scattered(dx, gather), None, None, None, None, None, None


def _weight_gradient(
    dy: Tensor, kept: tuple[Tensor | None, Tensor], weight: Weight, shape: tuple[int, ...], gather: int
) -> Tensor:
    """Weight gradient of a GEMM; the kept parts of dy and input, in their narrow types, live until it is made."""
    return dy.t() @ weight.restored(kept[1], shape, gather)


class Bias(torch.autograd.Function):
    """Add a vector in place to the first columns of a GEMM's result, as a GEMM's epilogue does. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight) -> Tensor:
        ctx.weight = weight
        ctx.mark_dirty(x)
        x[:, : weight.shape[0]].add_(weight.read())
        return x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        ctx.weight.add_gradient(lambda: dy[:, : ctx.weight.shape[0]].sum(0))
        return dy, None


class Norm(torch.autograd.Function):
    """RMSNorm, or LayerNorm where there is a bias, over the last dimension.

    Saves its input and one or two fp32 statistics a row; gives the compute type.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Weight | None, out_dtype: torch.dtype) -> Tensor:
        wide = x.float()
        mean = wide.mean(-1, keepdim=True) if bias is not None else None
        centred = wide if mean is None else wide - mean
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + _EPSILON)
        y = centred * scale * weight.read()[: x.shape[-1]]
        if bias is not None:
            y = y + bias.read()
        ctx.save_for_backward(x, mean, scale)
        ctx.weight, ctx.bias = weight, bias
        # A cast that changes nothing would return a view of the wide input's buffer.
        return y.to(out_dtype)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        x, mean, scale = ctx.saved_tensors
        wide, dwide = x.float(), dy.float()
        unit = (wide if mean is None else wide - mean) * scale
        rows = unit.shape[-1]
        if ctx.bias is not None:
            ctx.bias.add_gradient(lambda: dwide.reshape(-1, rows).sum(0))
        ctx.weight.add_gradient(lambda: _padded((dwide * unit).reshape(-1, rows).sum(0), ctx.weight.shape[0]))
        dunit = dwide * ctx.weight.read()[:rows]
        inner = dunit - unit * (dunit * unit).mean(-1, keepdim=True)
        if mean is not None:
            inner = inner - dunit.mean(-1, keepdim=True)
        return (inner * scale).to(x.dtype), None, None, None


def _padded(gradient: Tensor, size: int) -> Tensor:
    """The gradient of a weight's first elements as one of all of them."""
    return torch.nn.functional.pad(gradient, (0, size - len(gradient)))


class Rotate(torch.autograd.Function):
    """Rotary position embedding of [s, b, heads, d] over the last dimension, into a new tensor.

    Saves nothing (the angles are constants), or, where `keep`, its input, as an unfused rotation does.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, start: int, keep: bool) -> Tensor:
        ctx.start = start
        if keep:
            ctx.save_for_backward(x)
        return _rotate(x, start, 1.0)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return _rotate(dy, ctx.start, -1.0), None, None


def _rotate(x: Tensor, start: int, sign: float) -> Tensor:
    """Rotate the pairs (i, i + n/2) of the dimensions from `start` on; the ones before it are copied."""
    if only_shapes(x):
        return empty_of(x)
    still, turned = x[..., :start].float(), x[..., start:].float()
    half = turned.shape[-1] // 2
    speed = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = torch.arange(x.shape[0], device=x.device, dtype=torch.float32)[:, None] * torch.exp(-speed * math.log(1e4))
    cos, sin = angle.cos()[:, None, None], sign * angle.sin()[:, None, None]
    left, right = turned[..., :half], turned[..., half:]
    return torch.cat([still, left * cos - right * sin, left * sin + right * cos], -1).to(x.dtype)


class SwiGLU(torch.autograd.Function):
    """silu(gate)·up of one joined tensor [n, 2f], optionally weighted by a probability a row.

    Saves the joined input (and the probabilities); nothing else lives beside the result.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, joined: Tensor, probability: Tensor | None) -> Tensor:
        ctx.save_for_backward(joined, probability)
        gate, up = joined.float().chunk(2, -1)
        y = torch.nn.functional.silu(gate) * up
        if probability is not None:
            y = y * probability[:, None]
        return y.to(joined.dtype)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        joined, probability = ctx.saved_tensors
        gate, up = joined.float().chunk(2, -1)
        dwide, shape = dy.float(), torch.sigmoid(gate)
        silu = gate * shape
        dprobability = None
        if probability is not None:
            dprobability = (dwide * silu * up).sum(-1).to(probability.dtype)
            dwide = dwide * probability[:, None]
        dgate = dwide * up * (shape + silu * (1 - shape))
        return torch.cat([dgate, dwide * silu], -1).to(joined.dtype), dprobability


class SiLU(torch.autograd.Function):
    """silu(x), a separate operator. Saves its input."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.silu(x)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        shape = torch.sigmoid(x.float())
        return (dy * (shape + x * shape * (1 - shape))).to(x.dtype)


class GELU(torch.autograd.Function):
    """gelu(x), bias included in x. Saves its input."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.nn.functional.gelu(x)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        wide = x.float()
        normal = 0.5 * (1 + torch.erf(wide / math.sqrt(2)))
        density = torch.exp(-0.5 * wide.square()) / math.sqrt(2 * math.pi)
        return (dy * (normal + wide * density)).to(x.dtype)


class DropoutAdd(torch.autograd.Function):
    """residual + dropout(x) in the residual's type. Saves the mask, one byte an element; none without dropout."""

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, residual: Tensor, rate: float) -> Tensor:
        mask = None
        if rate:
            mask = torch.rand(x.shape, device=x.device) >= rate
            x = x * mask / (1 - rate)
        ctx.save_for_backward(mask)
        ctx.rate, ctx.dtype = rate, x.dtype
        return residual + x

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        # Without dropout and a cast both gradients are the one that came in.
        dx = dy if mask is None else dy * mask / (1 - ctx.rate)
        return dx.to(ctx.dtype), dy, None


class Recompute(torch.autograd.Function):
    """Recomputed block: run without a graph, and run again in backward. Saves the block's inputs alone.

    In backward the rebuilt block lives beside the gradient of its output, as in Megatron's checkpoint.
    """

    @staticmethod
    def forward(ctx: Any, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(*inputs)
        with torch.no_grad():
            return block(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        inputs = [x.detach().requires_grad_(x.is_floating_point()) for x in ctx.saved_tensors]
        with torch.enable_grad():
            y = ctx.block(*inputs)
        edge = torch.autograd.graph.get_gradient_edge(y)
        del y
        torch.autograd.backward(edge, dy)
        return None, *(x.grad for x in inputs)
