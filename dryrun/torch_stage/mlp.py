"""The dense MLP block, gated or not, in the operators of each framework."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.adapters import Beside
from taylor.dryrun.torch_stage.counter import fused
from taylor.dryrun.torch_stage.kernels import (
    GELU,
    Bias,
    GradientQueue,
    Linear,
    SiLU,
    SwiGLU,
    gathered,
    gathered_once,
    scattered,
)
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import REPLICATED, SPLIT, Weight
from taylor.register.adapters import DOWN, GATE, JOINED_UP, UP
from taylor.register.layers import LayerSpec, MlpSpec


class RebuiltLinear(torch.autograd.Function):
    """A row-parallel GEMM whose input, an activation function's result, is rebuilt in backward.

    Saves the function's inputs alone (MindSpeed's ``--recompute-activation-function``, MindFormers' selective one).
    """

    @staticmethod
    def forward(
        ctx: Any, activation: Callable[..., Tensor], weight: Weight, queue: GradientQueue, scatter: int,
        *inputs: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(*inputs)
        ctx.activation, ctx.weight, ctx.queue, ctx.scatter = activation, weight, queue, scatter
        return scattered(activation(*inputs) @ weight.read().t(), scatter)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            product = ctx.activation(*inputs)
        dy = gathered(dy.to(product.dtype), ctx.scatter)
        dproduct = dy @ ctx.weight.read()
        if ctx.weight.trains:
            ctx.queue.add(ctx.weight, partial(_weight_gradient, dy, product.detach()))
        edge = torch.autograd.graph.get_gradient_edge(product)
        del product
        torch.autograd.backward(edge, dproduct)
        return None, None, None, None, *(x.grad for x in inputs)


def _weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    return dy.t() @ x


def _joined_swiglu(joined: Tensor) -> Tensor:
    return SwiGLU.apply(joined, None)


def _silu_and_product(gate: Tensor, up: Tensor) -> Tensor:
    return SiLU.apply(gate) * up


class _CompiledProduct(torch.autograd.Function):
    """silu(gate)·up as one compiled kernel: saves the two, and makes the gate's SiLU again."""

    @staticmethod
    @fused
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate) * up

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        gate, up = ctx.saved_tensors
        shape = torch.sigmoid(gate)
        silu = gate * shape
        return dy * up * (shape + silu * (1 - shape)), dy * silu


def _compiled_product(gate: Tensor, up: Tensor) -> Tensor:
    return _CompiledProduct.apply(gate, up)


def _gelu(x: Tensor) -> Tensor:
    return GELU.apply(x)


class Mlp:
    """[n, h] of the residual stream's tokens to the same shape.

    Gated: one joined GEMM and a fused SwiGLU, or gate and up separately, with SiLU and multiplication as operators
    (`ActivationRules.fused_swiglu`), or with both in one kernel where a compiler fuses them.

    Parameters
    ----------
    ends_unkept : bool
        Recompute by operator does not keep the last GEMM's result (`saved_operators.ends_unkept`).
    """

    def __init__(self, site: Site, queue: GradientQueue, mlp: MlpSpec, *, ends_unkept: bool = False) -> None:
        self.site, self.queue, self.gated = site, queue, mlp.gated
        model, part = site.model, share(mlp.width, site.strategy.tp)
        parts = [part]
        if mlp.gated:
            parts = [2 * part] if site.framework.activations.fused_swiglu else [part, part]
        plain = not mlp.bias
        self.up = [Weight(site, (rows, model.hidden), SPLIT, counted=plain) for rows in parts]
        self.down = Weight(site, (model.hidden, part), SPLIT, counted=plain, kept_result=not ends_unkept)
        self.up_bias = [Weight(site, (rows,), SPLIT) for rows in parts] if mlp.bias else []
        self.down_bias = Weight(site, (model.hidden,), REPLICATED) if mlp.bias else None
        self.beside = Beside(site, queue, LayerSpec("mlp", mlp=mlp))

    def weights(self) -> list[Weight]:
        """Every weight of the block."""
        own = [*self.up, self.down, *self.up_bias, *([self.down_bias] if self.down_bias else [])]
        return own + self.beside.weights()

    def __call__(self, x: Tensor, *, rebuild: bool, ways: int, kept_elsewhere: bool = False) -> Tensor:
        """`rebuild`: the activation function runs again in backward. `ways`: ranks over which x's tokens are split."""
        x, gather = gathered_once(x, ways, self.site)
        x, gather = self.beside.gathered(x, gather, JOINED_UP, GATE, UP)
        parts = [Linear.apply(x, weight, self.queue, gather, 1, None, kept_elsewhere) for weight in self.up]
        parts = self.beside.added_to_parts(parts, x, JOINED_UP, (GATE, UP) if self.gated else (UP,), gather)
        del x
        for i, bias in enumerate(self.up_bias):
            parts[i] = Bias.apply(parts[i], bias)
        activation = _gelu
        if self.gated:
            apart = _compiled_product if self.site.rules.compiled else _silu_and_product
            activation = _joined_swiglu if len(parts) == 1 else apart  # type: ignore[assignment]
        if rebuild and self.beside.reaches(DOWN):
            y = self._down_of_rebuilt(activation, parts, ways)
        elif rebuild:
            y = RebuiltLinear.apply(activation, self.down, self.queue, ways, *parts)
        else:
            product = activation(*parts)
            del parts
            y = self._down(product, ways)
        return y if self.down_bias is None else Bias.apply(y, self.down_bias)

    def _down_of_rebuilt(self, activation: Callable[..., Tensor], parts: list[Tensor], ways: int) -> Tensor:
        """The last GEMM and its adapter, which keeps the way to make its input again."""
        given_up = GivenUpOutputs()
        with given_up.saving():
            (product,) = given_up.run(lambda *parts: (activation(*parts),), *parts)
            return self._down(product, ways)

    def _down(self, product: Tensor, ways: int) -> Tensor:
        y = Linear.apply(product, self.down, self.queue, 1, ways)
        return self.beside.added(y, product, DOWN, scatter=ways)
