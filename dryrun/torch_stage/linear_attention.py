"""Linear attention as a layer's mixer: gated delta net, Kimi delta attention, lightning attention."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from taylor.dryrun.torch_stage.adapters import Beside
from taylor.dryrun.torch_stage.attention import SplitFeatures
from taylor.dryrun.torch_stage.attention_blocks import OutputGate
from taylor.dryrun.torch_stage.kernels import GradientQueue, Linear, Norm, SiLU, gathered_once
from taylor.dryrun.torch_stage.linear_kernels import (
    CausalConv,
    Decay,
    GatedDeltaScan,
    GatedNorm,
    KimiDeltaScan,
    L2Norm,
    LightningScan,
    ScanSizes,
)
from taylor.dryrun.torch_stage.mamba import GroupNorm
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import REPLICATED, SPLIT, Weight
from taylor.register.adapters import MIXER_IN, MIXER_OUT
from taylor.register.layers import LayerSpec, LinearAttentionSpec


class _LinearBase:
    """Common parts of all of them: sizes, output projection, gathered input."""

    def __init__(self, site: Site, queue: GradientQueue, linear: LinearAttentionSpec) -> None:
        self.site, self.queue = site, queue
        tp = site.strategy.tp
        self.sizes = ScanSizes(
            share(linear.key_heads, tp), share(linear.value_heads, tp), linear.key_head_dim, linear.value_head_dim
        )
        # Queries and keys before they are repeated for heads of values.
        self.keys, self.values = self.sizes.key_heads * linear.key_head_dim, self.sizes.values
        self.out = Weight(site, (site.model.hidden, self.values), SPLIT)
        self.beside = Beside(site, queue, LayerSpec("mixer", linear=linear))

    def _entered(self, x: Tensor) -> tuple[Tensor, int]:
        """The input as the entering GEMMs take it, and the ways in which they gather it themselves."""
        return self.beside.gathered(*gathered_once(x, self.site.shard_ways, self.site), MIXER_IN)

    def _entering(self, x: Tensor, weight: Weight, gather: int, place: int = 0) -> Tensor:
        """The result of one of the entering GEMMs, with its adapter's."""
        return self.beside.added(Linear.apply(x, weight, self.queue, gather), x, MIXER_IN, gather, place=place)

    def _left(self, context: Tensor) -> Tensor:
        ways = self.site.shard_ways
        return self.beside.added(Linear.apply(context, self.out, self.queue, 1, ways), context, MIXER_OUT, scatter=ways)


class GatedDeltaNet(_LinearBase):
    """Gated delta net (Yang et al. 2024, arXiv:2412.06464) as Megatron-LM runs it.

    d98e8a64 megatron/core/ssm/gated_delta_net/gdn.py:109-265 and common.py:383-442: one projection, whose parts for
    queries, keys and values are convolved; the kernel takes copies in its own layout, queries and keys repeated for
    every head of values; a norm by head, and a gate.
    """

    def __init__(self, site: Site, queue: GradientQueue, linear: LinearAttentionSpec) -> None:
        super().__init__(site, queue, linear)
        heads, channels = self.sizes.heads, 2 * self.keys + self.values
        self.parts = (channels, self.values, 2 * heads)
        self.project = Weight(site, (sum(self.parts), site.model.hidden), SPLIT)
        self.convolution = Weight(site, (channels, linear.conv_kernel), SPLIT) if linear.conv_kernel else None
        self.decay, self.time_bias = (Weight(site, (heads,), SPLIT) for _ in range(2))
        self.norm = Weight(site, (linear.value_head_dim,), REPLICATED)

    def weights(self) -> list[Weight]:
        """Every weight of the mixer."""
        own = [self.project, self.convolution, self.decay, self.time_bias, self.norm, self.out]
        return [weight for weight in own if weight is not None] + self.beside.weights()

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        x, ways = self._entered(x)
        projected = self._entering(x, self.project, ways)
        del x
        qkv, gate, small = SplitFeatures.apply(projected, self.parts)
        del projected
        context = self._scanned(qkv, small)
        del qkv, small
        heads = (len(context), self.sizes.heads, self.sizes.value)
        gate = gate.contiguous()
        normed = Norm.apply(context.view(heads), self.norm, None, context.dtype).view(context.shape)
        del context
        gated = OutputGate.apply(normed, gate, True)
        del normed, gate
        return self._left(gated)

    def _scanned(self, qkv: Tensor, small: Tensor) -> Tensor:
        sizes, n = self.sizes, len(qkv)
        if self.convolution is not None:
            qkv = CausalConv.apply(qkv, self.convolution, self.site.strategy.mbs)
        qk, v = SplitFeatures.apply(qkv, (2 * self.keys, self.values))
        del qkv
        qk = L2Norm.apply(qk.contiguous().view(n, 2 * sizes.key_heads, sizes.key)).view(n, -1)
        each = sizes.heads // sizes.key_heads
        q, k = (_for_every_head(part, each, sizes.key) for part in SplitFeatures.apply(qk, (self.keys, self.keys)))
        del qk
        v = v.contiguous()
        strength, decay = Decay.apply(small, self.decay, self.time_bias)
        return GatedDeltaScan.apply(q, k, v, strength, decay, sizes)


def _for_every_head(x: Tensor, times: int, size: int) -> Tensor:
    """Queries or keys [n, heads·size] repeated for heads of values; a copy in any case."""
    if times == 1:
        return x.contiguous()
    return x.unflatten(1, (-1, size)).repeat_interleave(times, 1).flatten(1)


class KimiDeltaAttention(_LinearBase):
    """Kimi delta attention (Kimi Team 2025, arXiv:2510.26692): fla/layers/kda.py, heads split over TP.

    Queries, keys and values have separate GEMMs and convolutions; decays by channel and the gate come from GEMMs of low
    rank, whose first halves every rank holds whole.
    """

    def __init__(self, site: Site, queue: GradientQueue, linear: LinearAttentionSpec) -> None:
        super().__init__(site, queue, linear)
        hidden, sizes = site.model.hidden, self.sizes
        rank = linear.low_rank
        widths = (self.keys, self.keys, self.values)
        self.project = [Weight(site, (width, hidden), SPLIT) for width in widths]
        taps = linear.conv_kernel
        self.convolutions = [Weight(site, (width, taps), SPLIT) for width in widths] if taps else []
        self.decay_down = None if linear.full_decay else Weight(site, (rank, hidden), REPLICATED)
        self.decay_up = Weight(site, (sizes.keys, hidden if linear.full_decay else rank), SPLIT)
        self.gate_down = None if linear.full_gate else Weight(site, (rank, hidden), REPLICATED)
        self.gate_up = Weight(site, (self.values, hidden if linear.full_gate else rank), SPLIT)
        self.strength = Weight(site, (sizes.heads, hidden), SPLIT)
        self.small = [Weight(site, (size,), SPLIT) for size in (sizes.heads, sizes.keys)]
        self.norm = Weight(site, (linear.value_head_dim,), REPLICATED)

    def weights(self) -> list[Weight]:
        """Every weight of the mixer."""
        chain = (self.decay_down, self.decay_up, self.gate_down, self.gate_up)
        low = [each for each in chain if each is not None]
        own = [*self.project, *self.convolutions, *low, self.strength, *self.small, self.norm, self.out]
        return own + self.beside.weights()

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        x, ways = self._entered(x)
        parts = [self._entering(x, weight, ways, place) for place, weight in enumerate(self.project)]
        for place, weight in enumerate(self.convolutions):
            parts[place] = CausalConv.apply(parts[place], weight, self.site.strategy.mbs)
        decay = self._low_rank(x, self.decay_down, self.decay_up, ways, 3)
        strength = self._entering(x, self.strength, ways, 5 - (self.decay_down is None))
        context = KimiDeltaScan.apply(*parts, strength, decay, self.sizes, self.small)
        del parts, strength, decay
        gate = self._low_rank(x, self.gate_down, self.gate_up, ways, 6 - (self.decay_down is None))
        del x
        heads = (len(context), self.sizes.heads, self.sizes.value)
        gated = GatedNorm.apply(context.view(heads), gate.view(heads), self.norm).view(context.shape)
        del context, gate
        return self._left(gated)

    def _low_rank(self, x: Tensor, down: Weight | None, up: Weight, ways: int, place: int) -> Tensor:
        """A GEMM in two halves, or whole where there is no first one; `place` is the first one's."""
        if down is None:
            return self._entering(x, up, ways, place)
        # Every rank has the first half whole, and runs it on its own tokens.
        return self._entering(self._entering(x, down, 1, place), up, ways, place + 1)


class LightningAttention(_LinearBase):
    """Lightning attention (Qin et al. 2024, arXiv:2401.04658) as MiniMax's models have it.

    huggingface/transformers 008e5743 src/transformers/models/minimax/modular_minimax.py, ``MiniMaxLightningAttention``:
    one GEMM for queries, keys and values with a SiLU behind it, a norm over the context, a gate. The scan is
    flash-linear-attention's, which takes copies in its own layout.
    """

    def __init__(self, site: Site, queue: GradientQueue, linear: LinearAttentionSpec) -> None:
        super().__init__(site, queue, linear)
        hidden = site.model.hidden
        self.parts = (self.keys, self.keys, self.values)
        self.project = Weight(site, (sum(self.parts), hidden), SPLIT)
        taps = linear.conv_kernel
        self.convolution = Weight(site, (sum(self.parts), taps), SPLIT) if taps else None
        self.gate = Weight(site, (self.values, hidden), SPLIT)
        self.norm = Weight(site, (self.values,), SPLIT)

    def weights(self) -> list[Weight]:
        """Every weight of the mixer."""
        own = [self.project, self.convolution, self.gate, self.norm, self.out]
        return [weight for weight in own if weight is not None] + self.beside.weights()

    def __call__(self, x: Tensor, again: Collection[str], given_up: GivenUpOutputs) -> Tensor:
        x, ways = self._entered(x)
        qkv = self._entering(x, self.project, ways)
        qkv = SiLU.apply(qkv) if self.convolution is None else self._convolved(qkv, self.convolution)
        q, k, v = (part.contiguous() for part in SplitFeatures.apply(qkv, self.parts))
        del qkv
        context = LightningScan.apply(q, k, v, self.sizes)
        del q, k, v
        normed = GroupNorm.apply(context, self.norm, 1)
        del context
        gated = OutputGate.apply(normed, self._entering(x, self.gate, ways, 1), False)
        del normed, x
        return self._left(gated)

    def _convolved(self, qkv: Tensor, weight: Weight) -> Tensor:
        return CausalConv.apply(qkv, weight, self.site.strategy.mbs)
