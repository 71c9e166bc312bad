"""Whole layers of any kind around the residual stream."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from taylor.cost_model.job.sparse_latent import sparse_latent
from taylor.cost_model.memory.saved_operators import ends_unkept
from taylor.dryrun.torch_stage.attention_blocks import Attention, LatentAttention
from taylor.dryrun.torch_stage.experts import Experts
from taylor.dryrun.torch_stage.kernels import DropoutAdd, GradientQueue, Recompute
from taylor.dryrun.torch_stage.linear_attention import GatedDeltaNet, KimiDeltaAttention, LightningAttention
from taylor.dryrun.torch_stage.mamba import Mamba1, Mamba2
from taylor.dryrun.torch_stage.mlp import Mlp
from taylor.dryrun.torch_stage.norms import NormLayer
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs, SavedResults
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.sparse_latent import SparseLatentAttention
from taylor.dryrun.torch_stage.weights import REPLICATED, Weight
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.frameworks import (
    DENSE_ACTIVATION,
    DENSE_MLP,
    EXPERT_ACTIVATION,
    EXPERT_BLOCK,
    EXPERT_ROWS,
    LATENT_UP,
    NORMS,
    UNSAVED_OPERATORS,
)
from taylor.register.layers import GATED_DELTA, KIMI_DELTA, LIGHTNING, UNREACHED, LayerSpec

Linear = GatedDeltaNet | KimiDeltaAttention | LightningAttention
Mixer = Attention | LatentAttention | Mamba1 | Mamba2 | Linear

_LINEAR: dict[str, type[Linear]] = {
    GATED_DELTA: GatedDeltaNet,
    KIMI_DELTA: KimiDeltaAttention,
    LIGHTNING: LightningAttention,
}


def _mixer(site: Site, queue: GradientQueue, spec: LayerSpec) -> Mixer | None:
    if spec.attention is not None:
        if (sparse := sparse_latent(spec.attention, site.rules)) is not None:
            return SparseLatentAttention(site, queue, spec.attention, sparse)
        return (Attention if spec.attention.latent is None else LatentAttention)(site, queue, spec.attention)
    if spec.mamba is not None:
        return (Mamba2 if spec.mamba.dt_rank is None else Mamba1)(site, queue, spec.mamba)
    return None if spec.linear is None else _LINEAR[spec.linear.style](site, queue, spec.linear)


class RecomputedGroup:
    """Layers that full recompute takes together: the input of the first is kept, and all run again at once."""

    def __init__(self, layers: list[TransformerLayer]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        return Recompute.apply(self._run, x)

    def _run(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer.run(x)
        return x


class TransformerLayer:
    """A mixer, and MLP or experts or both, with their norms around a residual stream [tokens, hidden] of one rank.

    Every part has its own norm in front, as far as there are enough (`LayerSpec.norm_count`); parallel MLP and
    experts have the last one in common, and a single norm serves a layer whose mixer and MLP run in parallel.
    Remaining norms stand behind the mixer and behind the rest.

    Parameters
    ----------
    mode : str
        Recompute mode: ``full`` keeps the layer's input alone; ``select`` runs the job's parts again
        (`TrainingRules.recomputed_parts`).
    """

    def __init__(self, site: Site, queue: GradientQueue, spec: LayerSpec, mode: str) -> None:
        site = site.within(spec)
        self.site, self.queue, self.spec, self.mode = site, queue, spec, mode
        self.again = site.rules.recomputed_parts if mode == SELECT else ()
        self.norms = [NormLayer(site) for _ in range(spec.norm_count)]
        self.mixer = _mixer(site, queue, spec)
        self.mlp = None if spec.mlp is None else Mlp(site, queue, spec.mlp, ends_unkept=ends_unkept(spec, site.rules))
        self.experts = None if spec.moe is None else Experts(site, queue, spec.moe)
        self.extra = Weight(site, (spec.extra,), REPLICATED) if spec.extra else None
        self.then = None if spec.then is None else TransformerLayer(site, queue, spec.then, mode)
        self.rate = site.dropout_rate
        self.gives_up = not {NORMS, LATENT_UP, EXPERT_ACTIVATION, EXPERT_ROWS}.isdisjoint(self.again)
        self._place_norms()

    def _place_norms(self) -> None:
        spec, norms = self.spec, list(self.norms)
        mixed = int(self.mixer is not None)
        blocks = [each for each in (spec.mlp, spec.moe) if each is not None]
        self.before_mixer = norms.pop(0) if mixed and norms else None
        own = [norms.pop(0) for _ in blocks[: len(norms)]]
        self.side_by_side = bool(mixed and blocks and not own)
        self.before_blocks: list[NormLayer | None] = [*own] or [None]
        self.behind_mixer = norms.pop(0) if mixed and norms else None
        self.behind_block = norms
        fused = self.site.rules.fused_norms
        self.own_mixer_norm = not fused or (spec.attention is not None and spec.attention.latent is not None)
        self.own_block_norm = not fused or spec.moe is not None

    def weights(self) -> list[Weight]:
        """Every weight of the layer."""
        parts = [part for part in (self.mixer, self.mlp, self.experts) if part is not None]
        own = [weight for norm in self.norms for weight in norm.weights()] + ([self.extra] if self.extra else [])
        behind = [] if self.then is None else self.then.weights()
        return own + [weight for part in parts for weight in part.weights()] + behind

    @property
    def reached(self) -> bool:
        """Whether a gradient passes through the layer."""
        return self.spec.frozen != UNREACHED

    def __call__(self, x: Tensor) -> Tensor:
        if not self.reached:
            with torch.no_grad():
                return self._run(x)
        if self.mode == FULL:
            return Recompute.apply(self._run, x)
        if UNSAVED_OPERATORS in self.again:
            return Recompute.apply(self._but_for_saved(SavedResults()), x)
        return self._run(x)

    def run(self, x: Tensor) -> Tensor:
        """The layer itself, under any recompute mode."""
        return self._run(x)

    def _but_for_saved(self, saved: SavedResults) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            self.queue.saved = saved
            saved.start(again=torch.is_grad_enabled())
            try:
                return self._run(x)
            finally:
                self.queue.saved = None

        return run

    def _run(self, x: Tensor) -> Tensor:
        x = self._half(x)
        return x if self.then is None else self.then.run(x)

    def _half(self, x: Tensor) -> Tensor:
        given_up = GivenUpOutputs()
        with given_up.saving() if self.gives_up else nullcontext():
            if self.side_by_side:
                assert self.mixer is not None
                normed = self._normed(self.before_mixer, x, given_up, own=self.own_mixer_norm)
                y = self.mixer(normed, self.again, given_up) + self._block(normed, given_up, normed=True)
                del normed
                return DropoutAdd.apply(self._behind(y, self.behind_block), x, self.rate)
            if self.mixer is not None:
                y = self._mixed(x, given_up)
                x = DropoutAdd.apply(y, x, self.rate)
                del y
            if self.spec.has_block:
                y = self._behind(self._block(x, given_up), self.behind_block)
                x = DropoutAdd.apply(y, x, self.rate)
            return x

    def _mixed(self, x: Tensor, given_up: GivenUpOutputs) -> Tensor:
        assert self.mixer is not None
        y = self.mixer(self._normed(self.before_mixer, x, given_up, own=self.own_mixer_norm), self.again, given_up)
        return self._behind(y, [] if self.behind_mixer is None else [self.behind_mixer])

    def _behind(self, y: Tensor, norms: list[NormLayer]) -> Tensor:
        for norm in norms:
            y = norm(y.float() if self.site.framework.activations.fp32_norm_input else y)
        return y

    def _normed(self, norm: NormLayer | None, x: Tensor, given_up: GivenUpOutputs, *, own: bool) -> Tensor:
        """`own`: whether the norm is a separate operator, whose result selective recompute can drop."""
        if norm is None:
            return x.to(self.site.dtype)
        if NORMS in self.again and own:
            return given_up.run(lambda x: (norm(x),), x)[0]
        return norm(x)

    def _block(self, x: Tensor, given_up: GivenUpOutputs, *, normed: bool = False) -> Tensor:
        """MLP, experts or both behind their norms; `normed`: x is behind the norm already."""
        if self.mlp is None:
            return self._routed(x, given_up, None if normed else self.before_blocks[0])
        if self.experts is None:
            return self._dense(x, given_up, None if normed else self.before_blocks[0], own=self.own_block_norm)
        if not normed and len(self.before_blocks) == 1:
            x, normed = self._normed(self.before_blocks[0], x, given_up, own=True), True
        first, second = (None, None) if normed else self.before_blocks
        y = self._dense(x, given_up, first, own=not self.site.rules.fused_norms or normed)
        return y + self._routed(x, given_up, second)

    def _dense(self, x: Tensor, given_up: GivenUpOutputs, norm: NormLayer | None, *, own: bool) -> Tensor:
        """The MLP behind its norm, unless x comes from one."""
        assert self.mlp is not None
        ways, mlp, rebuild = self.site.shard_ways, self.mlp, DENSE_ACTIVATION in self.again
        if DENSE_MLP not in self.again:
            return mlp(x if norm is None else self._normed(norm, x, given_up, own=own), rebuild=rebuild, ways=ways)
        if norm is None or own:
            x = x if norm is None else self._normed(norm, x, given_up, own=own)
            return Recompute.apply(lambda x: mlp(x, rebuild=False, ways=ways), x)
        return Recompute.apply(lambda x: mlp(norm(x), rebuild=False, ways=ways), x)

    def _routed(self, x: Tensor, given_up: GivenUpOutputs, norm: NormLayer | None) -> Tensor:
        """The experts behind their norm, unless x comes from one."""
        assert self.experts is not None
        experts, x = self.experts, x if norm is None else self._normed(norm, x, given_up, own=True)
        if EXPERT_BLOCK in self.again:
            return Recompute.apply(lambda x: experts(x, (), GivenUpOutputs()), x)
        return experts(x, self.again, given_up)
