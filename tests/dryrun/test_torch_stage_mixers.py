"""The small kernels of mixers and of latent experts have the gradients that autograd gives plain operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.dryrun.torch_stage.attention_blocks import GroupLinear, OutputGate  # noqa: E402
from taylor.dryrun.torch_stage.experts import GroupedLinear  # noqa: E402
from taylor.dryrun.torch_stage.kernels import Bias, GradientQueue, Linear  # noqa: E402
from taylor.dryrun.torch_stage.linear_kernels import CausalConv, GatedNorm, L2Norm  # noqa: E402
from taylor.dryrun.torch_stage.mamba import GroupNorm  # noqa: E402
from taylor.dryrun.torch_stage.site import Site  # noqa: E402
from taylor.dryrun.torch_stage.weights import ROUTED, SPLIT, Weight  # noqa: E402
from taylor.register import frameworks  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

F = torch.nn.functional
EXACT = TrainingRules(
    framework=frameworks.MEGATRON, param_bytes=4, compute_bytes=4, seq_length=24, parallel_optimizer=False
)
SITE = Site(cases.LLAMA, Strategy(1, 1, 1, mbs=2), EXACT)
SAMPLES, ROWS = 2, 12


def sigmoid_gate(x, gate):  # type: ignore[no-untyped-def]
    return (x.view(*gate.shape, -1) * torch.sigmoid(gate)[..., None]).view(x.shape)


def silu_gate(x, gate):  # type: ignore[no-untyped-def]
    return x * F.silu(gate)


def unit(x):  # type: ignore[no-untyped-def]
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def gated_norm(x, gate, weight):  # type: ignore[no-untyped-def]
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight * torch.sigmoid(gate)


def group_norm(x, weight):  # type: ignore[no-untyped-def]
    wide = x.view(len(x), 4, -1)
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).view(x.shape) * weight


def convolved(x, weight):  # type: ignore[no-untyped-def]
    """Position t of a sample sees the taps' last positions of the same sample, tap by tap."""
    taps, rows = weight.shape[1], x.view(-1, SAMPLES, x.shape[1])
    padded = torch.cat([rows.new_zeros(taps - 1, *rows.shape[1:]), rows])
    y = sum(padded[tap : tap + len(rows)] * weight[:, tap] for tap in range(taps))
    return F.silu(y).view(x.shape)


def group_linear(x, weight):  # type: ignore[no-untyped-def]
    return torch.cat([part @ each.t() for part, each in zip(x.chunk(len(weight), -1), weight, strict=True)], -1)


def biased_experts(x, weight, bias):  # type: ignore[no-untyped-def]
    parts = zip(x.chunk(len(weight)), weight, bias, strict=True)
    return torch.cat([part @ each.t() + offset for part, each, offset in parts])


def partly_biased(x, weight, bias):  # type: ignore[no-untyped-def]
    return x @ weight.t() + F.pad(bias, (0, len(weight) - len(bias)))


Case = tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
CASES: dict[str, Case] = {
    "gate a channel": (lambda x, g: OutputGate.apply(x, g, False), sigmoid_gate, ((ROWS, 16), (ROWS, 16)), ()),
    "gate a head": (lambda x, g: OutputGate.apply(x, g, False), sigmoid_gate, ((ROWS, 16), (ROWS, 4)), ()),
    "silu gate": (lambda x, g: OutputGate.apply(x, g, True), silu_gate, ((ROWS, 16), (ROWS, 16)), ()),
    "unit length": (L2Norm.apply, unit, ((ROWS, 4, 8),), ()),
    "gated norm": (GatedNorm.apply, gated_norm, ((ROWS, 4, 8), (ROWS, 4, 8)), ((8,),)),
    "norm by group": (lambda x, w: GroupNorm.apply(x, w, 4), group_norm, ((ROWS, 32),), ((32,),)),
    "convolution": (lambda x, w: CausalConv.apply(x, w, SAMPLES), convolved, ((ROWS, 10),), ((10, 4),)),
    "groups of features": (
        lambda x, w: GroupLinear.apply(x.view(ROWS, 3, 8), w, GradientQueue()).flatten(1), group_linear, ((ROWS, 24),),
        ((3, 5, 8),),
    ),
    "experts with biases": (
        lambda x, w, b: GroupedLinear.apply(x, w, GradientQueue(), b), biased_experts, ((ROWS, 8),),
        ((3, 5, 8), (3, 5)),
    ),
    "bias of the first columns": (
        lambda x, w, b: Bias.apply(Linear.apply(x, w, GradientQueue()), b), partly_biased, ((ROWS, 8),),
        ((10, 8), (6,)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kernel", "plain", "inputs", "weights"), CASES.values(), ids=CASES)
def test_a_kernel_has_the_gradients_of_plain_operators(
    kernel: Callable[..., Any],
    plain: Callable[..., Any],
    inputs: tuple[tuple[int, ...], ...],
    weights: tuple[tuple[int, ...], ...],
) -> None:
    generator = torch.Generator().manual_seed(7)
    values = [torch.randn(shape, generator=generator) for shape in inputs]
    held = [Weight(SITE, shape, ROUTED if len(shape) == 3 else SPLIT) for shape in weights]
    for weight in held:
        assert weight.tensor is not None
        weight.tensor.normal_(0, 1, generator=generator)
    mine = [value.clone().requires_grad_() for value in values]
    exact = [value.double().requires_grad_() for value in (*values, *(weight.tensor for weight in held))]
    y, expected = kernel(*mine, *held), plain(*exact)
    direction = torch.randn(y.shape, generator=generator)
    y.backward(direction)
    expected.backward(direction.double())
    found = [y.detach(), *(each.grad for each in mine), *(weight.main_grad for weight in held)]
    for one, other in zip(found, (expected.detach(), *(each.grad for each in exact)), strict=True):
        assert float((one.double() - other).norm()) <= 2e-6 * max(1.0, float(other.norm()))
