"""Low-rank adapters beside frozen matrices, step by step as peft and Megatron-Bridge run them.

Sources: Megatron-Bridge 067f987d src/megatron/bridge/peft/utils.py:960-1040 and :1208-1280, lora_layers.py:70-92; peft
5d602fdb src/peft/tuners/lora/tp_layer.py:95-260; what the steps keep is in `cost_model.job.adapters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taylor.cost_model.job.adapters import Adapted, adapted_matrices
from taylor.dryrun.torch_stage.attention import Dropout
from taylor.dryrun.torch_stage.grouped_linear import GroupedLinear
from taylor.dryrun.torch_stage.kernels import Gather, GradientQueue, Linear, Scatter
from taylor.dryrun.torch_stage.site import Site, share
from taylor.dryrun.torch_stage.weights import REPLICATED, ROUTED, SPLIT, Weight
from taylor.register.layers import LayerSpec

_RATE, _SCALE = 0.1, 2.0
"""Rate of an adapter's dropout, and its alpha over its rank; no figure depends on them."""


class GatherFeatures(torch.autograd.Function):
    """All-gather of features split over TP, [n, f/t] -> [n, f]; backward takes this rank's part. Saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, width: int) -> Tensor:
        ctx.width = x.shape[1]
        return x if x.shape[1] == width else torch.empty((len(x), width), dtype=x.dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        return dy if dy.shape[1] == ctx.width else dy[:, : ctx.width].contiguous(), None


class Adapter:
    """The adapter of one matrix: two GEMMs of few columns, and a scaling.

    Parameters
    ----------
    width : int
        Columns of the frozen GEMM's result on this rank.
    """

    def __init__(self, site: Site, queue: GradientQueue, matrix: Adapted, width: int) -> None:
        adapters, tp = site.rules.adapters, site.strategy.tp
        assert adapters is not None
        self.site, self.queue, self.matrix, self.adapters = site, queue, matrix, adapters
        own, rank = site.trained, adapters.rank
        ways = tp if matrix.rows else 1
        if matrix.routed:
            ways = int(site.rules.experts_over(tp)) if matrix.rows else 1
        wide = share(matrix.width_in, ways)
        if matrix.routed:
            shared = adapters.shared_by_experts
            experts = () if shared else (share(matrix.copies, site.strategy.ep),)
            groups = (REPLICATED, REPLICATED) if shared else (ROUTED, ROUTED)
        else:
            experts = ()
            groups = (SPLIT if matrix.rows else REPLICATED, REPLICATED if matrix.rows or matrix.whole else SPLIT)
        inner, outside = rank, width
        if adapters.gathers and not matrix.routed:
            groups = (SPLIT, SPLIT)
            inner = rank if matrix.rows else share(rank, tp)
            outside = share(width, tp) if matrix.rows or matrix.whole else width
        self.into = Weight(own, (*experts, inner, wide), groups[0], counted=False)
        self.out = Weight(own, (*experts, outside, rank), groups[1], counted=False)
        self.width = width

    def weights(self) -> list[Weight]:
        """Both matrices."""
        return [self.into, self.out]

    def __call__(self, x: Tensor, gather: int, scatter: int) -> Tensor:
        """The scaled result, of the input of the frozen GEMM.

        Parameters
        ----------
        gather, scatter : int
            Ranks of TP over which the input's tokens, or the result's, are split.
        """
        x = Dropout.apply(x, _RATE) if self.adapters.dropout else x
        if self.matrix.routed:
            return self._by_expert(x) * _SCALE
        if self.adapters.gathers:
            x = Gather.apply(x, gather) if gather > 1 else x
            inner = GatherFeatures.apply(Linear.apply(x, self.into, self.queue), self.adapters.rank)
            y = Linear.apply(inner, self.out, self.queue)
            del inner
            y = GatherFeatures.apply(y, self.width)
            return (Scatter.apply(y, scatter) if scatter > 1 else y) * _SCALE
        # The first matrix multiplies a rank's own tokens; the second gathers what it made.
        inner = Linear.apply(x, self.into, self.queue, 1, scatter)
        return Linear.apply(inner, self.out, self.queue, gather) * _SCALE

    def _by_expert(self, slots: Tensor) -> Tensor:
        multiply = Linear if self.adapters.shared_by_experts else GroupedLinear
        y: Tensor = multiply.apply(multiply.apply(slots, self.into, self.queue), self.out, self.queue)
        return y


class Beside:
    """The adapters beside a block's frozen matrices; none in a job without.

    Parameters
    ----------
    layer : LayerSpec
        The block alone.
    """

    def __init__(self, site: Site, queue: GradientQueue, layer: LayerSpec) -> None:
        self.site = site
        adapters = site.rules.adapters
        found = () if adapters is None else adapted_matrices(site.model, layer, adapters)
        self._adapters: dict[str, list[Adapter]] = {}
        for matrix in found:
            tp = int(site.rules.experts_over(site.strategy.tp)) if matrix.routed else site.strategy.tp
            width = matrix.width_out if matrix.rows or matrix.whole else share(matrix.width_out, tp)
            self._adapters.setdefault(matrix.target, []).append(Adapter(site, queue, matrix, width))

    def weights(self) -> list[Weight]:
        """Matrices of every adapter."""
        return [weight for each in self._adapters.values() for one in each for weight in one.weights()]

    def reaches(self, *targets: str) -> bool:
        """Return whether one of the matrices has an adapter."""
        return not self._adapters.keys().isdisjoint(targets)

    def gathered(self, x: Tensor, ways: int, *targets: str) -> tuple[Tensor, int]:
        """A block's input, gathered once where Megatron-Bridge's adapters take what the frozen GEMM gathered."""
        adapters = self.site.rules.adapters
        if adapters is None or not adapters.gathers or ways == 1 or not self.reaches(*targets):
            return x, ways
        return Gather.apply(x, ways), 1

    def added(self, y: Tensor, x: Tensor, target: str, gather: int = 1, scatter: int = 1, place: int = 0) -> Tensor:
        """A frozen GEMM's result with its adapter's; `place` counts the matrices that a target names together."""
        adapters = self._adapters.get(target, [])
        return y + _fitting(adapters[place](x, gather, scatter), y.shape[1]) if place < len(adapters) else y

    def added_to_parts(
        self, parts: Sequence[Tensor], x: Tensor, joined: str, apart: Sequence[str], gather: int
    ) -> list[Tensor]:
        """The results of GEMMs of one input with those of their adapters.

        The GEMMs are joined in one, or separate, and so are the adapters: one of target `joined`, or one for each that
        `apart` names in order.
        """
        parts = list(parts)
        if self.reaches(joined):
            whole = self._adapters[joined][0](x, gather, 1)
            widths = [part.shape[1] for part in parts]
            pieces = [_fitting(whole, widths[0])] if len(parts) == 1 else _fitting(whole, sum(widths)).split(widths, 1)
            parts = [part + piece for part, piece in zip(parts, pieces, strict=True)]
        if not self.reaches(*apart):
            return parts
        if len(parts) > 1:
            return [self.added(part, x, name, gather) for part, name in zip(parts, apart, strict=False)]
        return [parts[0] + _fitting(self._joined(x, apart, gather), parts[0].shape[1])]

    def _joined(self, x: Tensor, apart: Sequence[str], gather: int) -> Tensor:
        """Results of separate adapters side by side (Megatron-Bridge 067f987d src/megatron/bridge/peft/
        canonical_lora.py:81-156, ``LoRALinearSplitQKV``).
        """
        return torch.cat([each(x, gather, 1) for name in apart for each in self._adapters.get(name, [])], 1)


def _fitting(y: Tensor, width: int) -> Tensor:
    """A result as wide as the GEMM's: key/value heads are copied where TP exceeds their number, others are zeros."""
    return y if y.shape[1] == width else torch.nn.functional.pad(y, (0, width - y.shape[1]))
