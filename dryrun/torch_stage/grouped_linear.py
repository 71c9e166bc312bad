"""Grouped GEMMs: one an expert over its own rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.counter import fused
from taylor.dryrun.torch_stage.kernels import GradientQueue
from taylor.dryrun.torch_stage.weights import Weight


class GroupedLinear(torch.autograd.Function):
    """One GEMM an expert over its own rows: x [n, i] with weights [e, o, i], rows spread evenly.

    Saves x, unless the weight is frozen.
    A bias [e, o] is added in place.
    """

    @staticmethod
    @fused
    def forward(
        ctx: Any, x: Tensor, weight: Weight, queue: GradientQueue, bias: Weight | None = None,
        kept_elsewhere: bool = False,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(weight.saved_input(x, kept_elsewhere=kept_elsewhere) if weight.trains else None)
        ctx.weight, ctx.queue, ctx.bias, ctx.shape = weight, queue, bias, x.shape
        y = torch.bmm(_grouped(x, weight.shape[0]), weight.read().transpose(1, 2))
        if bias is not None:
            y.add_(bias.read()[:, None])
        return _flat(y, x.shape[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (saved,) = ctx.saved_tensors
        weight, shape = ctx.weight, ctx.shape
        dy, casts = weight.cast_gradient(dy)
        dx = _grouped_input_gradient(dy, weight)
        if weight.trains:
            ctx.queue.add(weight, lambda: _grouped_weight_gradient(saved, casts, dy, weight, shape))
        if ctx.bias is not None:
            ctx.bias.add_gradient(lambda: _grouped(dy, weight.shape[0]).sum(1))
        return dx, None, None, None, None


@fused
def _grouped_input_gradient(dy: Tensor, weight: Weight) -> Tensor:
    return _flat(torch.bmm(_grouped(dy, weight.shape[0]), weight.read()), dy.shape[0])


@fused
def _grouped_weight_gradient(
    saved: Tensor, casts: Tensor | None, dy: Tensor, weight: Weight, shape: tuple[int, ...]
) -> Tensor:
    experts, x = weight.shape[0], weight.restored(saved, shape)
    return torch.bmm(_grouped(dy, experts).transpose(1, 2), _grouped(x, experts))


def _grouped(x: Tensor, experts: int) -> Tensor:
    """[n, f] as [experts, n/experts, f], padded where n is no multiple."""
    each = -(-x.shape[0] // experts)
    missing = each * experts - x.shape[0]
    if missing:
        x = torch.cat([x, x.new_zeros((missing, x.shape[1]))])
    return x.reshape(experts, each, x.shape[1])


def _flat(x: Tensor, rows: int) -> Tensor:
    y = x.reshape(-1, x.shape[2])
    return y if y.shape[0] == rows else y[:rows].clone()
