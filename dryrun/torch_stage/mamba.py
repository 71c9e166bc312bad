"""Mamba mixers: projection, the kernel of convolution and scan, gated norm, output projection.

A kernel's arithmetic is omitted, its tensors are not: every buffer of a scan that outlives one of its device kernels
is made and dropped where the scan makes and drops it. Omitted are tensors of one value a head within a scan, and with
several samples the copies that transpose [position, sample].
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.adapters import Beside
from taylor.dryrun.torch_stage.counter import fused
from taylor.dryrun.torch_stage.kernels import Bias, GradientQueue, Linear, Scatter, gathered_once
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import REPLICATED, SPLIT, Weight
from taylor.register.adapters import MIXER_IN, MIXER_OUT
from taylor.register.layers import LayerSpec, MambaSpec

SCAN_CHUNK = 128
"""Tokens of a chunk of Mamba-2's scan (Megatron-LM d98e8a64 megatron/core/ssm/mamba_mixer.py:188)."""

SELECTIVE_CHUNK = 2048
"""Tokens between kept states of Mamba-1's scan (state-spaces/mamba e9594ce1 csrc/selective_scan/selective_scan.cpp)."""

_EPSILON = 1e-5


def empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """A buffer of a kernel."""
    return torch.empty(shape, dtype=like.dtype if dtype is None else dtype, device=like.device)


def add_shapeless(weights: list[Weight], like: Tensor) -> None:
    """Gradients of the small weights that a kernel reads."""
    for weight in weights:
        weight.add_gradient(lambda shape=weight.shape: empty(like, *shape))  # type: ignore[misc]


@dataclass(frozen=True)
class Mamba2Sizes:
    """One rank's part of a Mamba-2 mixer, elements."""

    inner: int
    heads: int
    groups: int
    state: int

    @property
    def convolved(self) -> int:
        """Channels of the convolution: the inner stream, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def columns(self) -> int:
        """Columns of the projection: gate, convolution's input, time steps."""
        return self.inner + self.convolved + self.heads

    def states(self, tokens: int) -> int:
        """Elements of the states at the chunks' ends."""
        return -(-tokens // SCAN_CHUNK) * self.inner * self.state

    def products(self, tokens: int) -> int:
        """Elements of the products of B and C within the chunks."""
        return -(-tokens // SCAN_CHUNK) * SCAN_CHUNK * self.groups * SCAN_CHUNK


class Mamba2Scan(torch.autograd.Function):
    """Convolution, scan and gate of a projection [n, columns] to [n, inner] in one kernel.

    Saves the projection and the result before the gate; all else is made again (state-spaces/mamba e9594ce1
    mamba_ssm/ops/triton/ssd_combined.py:818 and :436, ``MambaSplitConv1dScanCombinedFn`` without a norm, as
    Megatron-LM d98e8a64 megatron/core/ssm/mamba_mixer.py:707 calls it, states between chunks in the weights' type).
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, sizes: Mamba2Sizes, small: list[Weight]) -> Tensor:
        n = len(projected)
        convolved = empty(projected, n, sizes.convolved)
        times = [empty(projected, n, sizes.heads, dtype=torch.float32) for _ in range(2)]
        raw = empty(projected, sizes.states(n), dtype=torch.float32)
        states = empty(projected, sizes.states(n))
        del raw
        products = empty(projected, sizes.products(n), dtype=torch.float32)
        out, before_gate = empty(projected, n, sizes.inner), empty(projected, n, sizes.inner)
        del convolved, times, states, products
        ctx.save_for_backward(projected, before_gate)
        ctx.sizes, ctx.small = sizes, small
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        projected, _ = ctx.saved_tensors
        sizes, n, wide = ctx.sizes, len(projected), torch.float32
        convolved = empty(projected, n, sizes.convolved)
        dprojected, dconvolved = empty(projected, n, sizes.columns), empty(projected, n, sizes.convolved)
        times = [empty(projected, n, sizes.heads), *(empty(projected, n, sizes.heads, dtype=wide) for _ in range(2))]
        products = empty(projected, sizes.products(n), dtype=wide)
        raw = empty(projected, sizes.states(n), dtype=wide)
        states = empty(projected, sizes.states(n), dtype=wide)
        del raw
        before_gate = empty(projected, n, sizes.inner)
        dstates = empty(projected, sizes.states(n), dtype=wide)
        narrow = [empty(projected, sizes.states(n)) for _ in range(2)]
        del states, dstates
        # Of B, of C and of their products, each summed over the programs of a group's heads into a new one.
        sums = [_summed(empty(projected, n, sizes.groups * sizes.state, dtype=wide)) for _ in range(2)]
        sums.append(_summed(empty(projected, sizes.products(n), dtype=wide)))
        del sums, narrow, before_gate, products, times
        add_shapeless(ctx.small, projected)
        del convolved, dconvolved
        return dprojected, None, None


def _summed(parts: Tensor) -> Tensor:
    return torch.empty_like(parts)


class GroupNorm(torch.autograd.Function):
    """RMSNorm over groups of features [n, g·f]. Saves its input and an fp32 statistic a row and group.

    state-spaces/mamba e9594ce1 mamba_ssm/ops/triton/layernorm_gated.py, ``LayerNormFn`` without a gate.
    """

    @staticmethod
    @fused
    def forward(ctx: Any, x: Tensor, weight: Weight, groups: int) -> Tensor:
        wide = x.float().view(len(x), groups, -1)
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + _EPSILON)
        ctx.save_for_backward(x, scale)
        ctx.weight = weight
        return ((wide * scale).view(x.shape) * weight.read()).to(x.dtype)

    @staticmethod
    @fused
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        x, scale = ctx.saved_tensors
        unit = x.float().view(*scale.shape[:2], -1) * scale
        ctx.weight.add_gradient(lambda: (dy.float() * unit.view(x.shape)).sum(0))
        dunit = (dy.float() * ctx.weight.read()).view(unit.shape)
        inner = dunit - unit * (dunit * unit).mean(-1, keepdim=True)
        return (inner * scale).view(x.shape).to(x.dtype), None, None


class Mamba2:
    """A Mamba-2 mixer (Dao & Gu 2024, arXiv:2405.21060 §7), heads and groups split over TP."""

    def __init__(self, site: Site, queue: GradientQueue, mamba: MambaSpec) -> None:
        self.site, self.queue = site, queue
        tp, hidden, bias = site.strategy.tp, site.model.hidden, mamba.projection_bias
        sizes = Mamba2Sizes(
            share(mamba.inner, tp), share(mamba.n_heads, tp), share(mamba.n_groups, tp), mamba.state
        )  # fmt: skip
        self.sizes = sizes
        self.beside = Beside(site, queue, LayerSpec("mixer", mamba=mamba))
        self.project = Weight(site, (sizes.columns, hidden), SPLIT, counted=not bias)
        self.project_bias = Weight(site, (sizes.columns,), SPLIT) if bias else None
        self.small = [Weight(site, (sizes.convolved, mamba.conv_kernel), SPLIT)]
        if mamba.conv_bias:
            self.small.append(Weight(site, (sizes.convolved,), SPLIT))
        # Decay, skip and the time step's bias of a head.
        self.small += [Weight(site, (sizes.heads,), SPLIT) for _ in range(3)]
        self.norm = Weight(site, (sizes.inner,), SPLIT) if mamba.gate_norm else None
        self.out = Weight(site, (hidden, sizes.inner), SPLIT, counted=not bias)
        self.out_bias = Weight(site, (hidden,), REPLICATED) if bias else None

    def weights(self) -> list[Weight]:
        """Every weight of the mixer."""
        own = [self.project, self.project_bias, *self.small, self.norm, self.out, self.out_bias]
        return [weight for weight in own if weight is not None] + self.beside.weights()

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        ways = self.site.shard_ways
        x, gather = gathered_once(x, ways, self.site)
        x, gather = self.beside.gathered(x, gather, MIXER_IN)
        projected = Linear.apply(x, self.project, self.queue, gather)
        projected = self.beside.added(projected, x, MIXER_IN, gather)
        if self.project_bias is not None:
            projected = Bias.apply(projected, self.project_bias)
        y = Mamba2Scan.apply(projected, self.sizes, self.small)
        del x, projected
        if self.norm is not None:
            y = GroupNorm.apply(y, self.norm, self.sizes.groups)
        y = self.beside.added(Linear.apply(y, self.out, self.queue, 1, ways), y, MIXER_OUT, scatter=ways)
        return y if self.out_bias is None else Bias.apply(y, self.out_bias)


class Mamba1Inner(torch.autograd.Function):
    """Everything of a Mamba-1 mixer behind its first projection [n, 2·inner] in one function, to [n, hidden].

    Saves the projection, the small GEMM's result, B and C as the scan takes them, its result before the gate and its
    states at every `SELECTIVE_CHUNK`; convolution and time steps are made again (state-spaces/mamba e9594ce1
    mamba_ssm/ops/selective_scan_interface.py:186 and :285, ``MambaInnerFn`` at its ``checkpoint_lvl`` 1;
    csrc/selective_scan/selective_scan.cpp: gradients of B and C are fp32).
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, mixer: Mamba1) -> Tensor:
        n, (inner, rank, state) = len(projected), mixer.sizes
        saved = mixer.queue.saved
        convolved = empty(projected, n, inner)
        small, delta = (
            make() if saved is None else saved.product(make)
            for make in (partial(empty, projected, n, width) for width in (rank + 2 * state, inner))
        )
        b, c = (empty(projected, n, state) for _ in range(2))
        samples = mixer.site.strategy.mbs
        chunks = samples * -(-n // samples // SELECTIVE_CHUNK)
        states = empty(projected, chunks, inner, 2 * state, dtype=torch.float32)
        out, gated = empty(projected, n, inner), empty(projected, n, inner)
        ctx.save_for_backward(projected, small, b, c, out, states)
        del convolved, delta
        ctx.mixer = mixer
        last = partial(torch.matmul, gated, mixer.out.read().t())
        return last() if saved is None else saved.product(last)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        projected, small, _, _, _, _ = ctx.saved_tensors
        mixer, n = ctx.mixer, len(projected)
        inner, _, state = mixer.sizes
        convolved, delta = empty(projected, n, inner), empty(projected, n, inner)
        dprojected = torch.empty_like(projected)
        dout = dy @ mixer.out.read()
        dconvolved, ddelta, gated = (empty(projected, n, inner) for _ in range(3))
        dbc = [empty(projected, n, state, dtype=torch.float32) for _ in range(2)]
        mixer.queue.add(mixer.out, lambda: dy.t() @ gated)
        dsmall = torch.empty_like(small)
        del dbc
        add_shapeless(mixer.small, projected)
        mixer.queue.add(mixer.up, lambda: ddelta.t() @ small[:, : mixer.up.shape[1]])
        mixer.queue.add(mixer.down, lambda: dsmall.t() @ convolved)
        del delta, dout, dconvolved
        return dprojected, None


class Mamba1:
    """A Mamba-1 mixer (Gu & Dao 2023, arXiv:2312.00752 §3), channels split over TP, norms inside where it has them."""

    def __init__(self, site: Site, queue: GradientQueue, mamba: MambaSpec) -> None:
        assert mamba.dt_rank is not None
        if site.rules.adapters is not None and site.rules.adapters.reaches(MIXER_IN, MIXER_OUT):
            raise ValueError("adapters beside the GEMMs in Mamba-1's kernel are not modelled by torch's stage model")
        self.site, self.queue = site, queue
        hidden, rank, bias = site.model.hidden, mamba.dt_rank, mamba.projection_bias
        inner, state = share(mamba.inner, site.strategy.tp), mamba.state
        self.sizes = inner, rank, state
        self.project = Weight(site, (2 * inner, hidden), SPLIT, counted=not bias)
        self.project_bias = Weight(site, (2 * inner,), SPLIT) if bias else None
        self.down = Weight(site, (rank + 2 * state, inner), SPLIT)
        self.up = Weight(site, (inner, rank), SPLIT)
        # The convolution; the time step's bias, decays and skip of a channel.
        self.small = [Weight(site, (inner, mamba.conv_kernel), SPLIT)]
        if mamba.conv_bias:
            self.small.append(Weight(site, (inner,), SPLIT))
        self.small += [Weight(site, shape, SPLIT) for shape in ((inner,), (inner, state), (inner,))]
        if mamba.inner_norms:
            self.small.append(Weight(site, (rank + 2 * state,), REPLICATED))
        self.out = Weight(site, (hidden, inner), SPLIT, counted=not bias)
        self.out_bias = Weight(site, (hidden,), REPLICATED) if bias else None

    def weights(self) -> list[Weight]:
        """Every weight of the mixer."""
        own = [self.project, self.project_bias, self.down, self.up, *self.small, self.out, self.out_bias]
        return [weight for weight in own if weight is not None]

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        ways = self.site.shard_ways
        x, gather = gathered_once(x, ways, self.site)
        projected = Linear.apply(x, self.project, self.queue, gather)
        if self.project_bias is not None:
            projected = Bias.apply(projected, self.project_bias)
        y = Mamba1Inner.apply(projected, self)
        del x, projected
        if ways > 1:
            y = Scatter.apply(y, ways, self.queue.saved)
        return y if self.out_bias is None else Bias.apply(y, self.out_bias)
