"""Fully sharded blocks (FSDP2, ZeRO-3): weights gathered around their use, gradients reduced after it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import BUFFERS, GRADIENTS, WEIGHTS, Weight, charged


class ShardedBlock:
    """The weights of one layer (or end of the model) that are gathered and reduced together.

    Without a pipeline they are gathered before the block's forward and dropped after it, gathered again
    before its backward and dropped after it; the block that follows in time is gathered one ahead
    (Zhao et al. 2023, arXiv:2304.11277 §4.3). In a pipeline the framework may keep them from the first
    forward on and add unsharded fp32 gradients until the last micro-batch (`StateRules.whole_in_pipeline`;
    `torch.distributed.pipelining`: ``set_reshard_after_backward(False)``,
    ``set_requires_gradient_sync(False)``). A job may keep all of them, or embedding and head, without a pipeline too
    (`TrainingRules.stay_gathered`, `TrainingRules.whole_ends`).
    """

    def __init__(self, weights: list[Weight], site: Site, *, in_layer: bool) -> None:
        self.members = weights
        self.adds_whole = site.framework.states.whole_in_pipeline and site.strategy.pp > 1
        self.keep = self.adds_whole or site.rules.stay_gathered or (site.rules.whole_ends and not in_layer)
        self.before: ShardedBlock | None = None
        self.after: ShardedBlock | None = None
        self._whole: dict[int, Tensor] = {}
        self._reducing: list[Tensor] = []

    def gather(self) -> None:
        """Gather the weights that are not there yet, in the compute type."""
        with charged(WEIGHTS if self.keep else BUFFERS):
            for weight in self.members:
                if weight.tensor is None:
                    weight.make_whole()

    def drop(self) -> None:
        """Free the gathered weights, unless they stay whole."""
        if not self.keep:
            for weight in self.members:
                weight.drop()

    def reduce(self) -> None:
        """After a backward: add up the gradients (pipeline), or scatter them, in the type of the reduction."""
        if self.after is not None:
            # The buffer of the block before, in time, is free once its reduction is over.
            self.after._reducing = []
        with charged(GRADIENTS if self.adds_whole else BUFFERS):
            for weight in self.members:
                if weight.pending is None:
                    continue
                if not self.adds_whole:
                    # A gradient with the rows of all ranks of TP becomes this rank's part first.
                    self._reducing.append(weight.reduced(weight.pending[: weight.shape[0]]))
                    weight.make_gradient()
                elif id(weight) in self._whole:
                    self._whole[id(weight)].add_(weight.pending)
                else:
                    self._whole[id(weight)] = weight.reduced(weight.pending)
                weight.pending = None
        if self.before is None:
            self._reducing = []
        self.drop()


class Enter(torch.autograd.Function):
    """Start of a sharded block: forward gathers its weights, backward ends here and reduces."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: ShardedBlock) -> Tensor:
        ctx.block = block
        block.gather()
        if block.after is not None:
            block.after.gather()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        ctx.block.reduce()
        return dy, None


class Leave(torch.autograd.Function):
    """Marks the end of a sharded block: forward frees its weights, backward starts here and gathers them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, block: ShardedBlock) -> Tensor:
        ctx.block = block
        if block.after is not None:
            # The last block is needed again at once.
            block.drop()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        ctx.block.gather()
        if ctx.block.before is not None:
            ctx.block.before.gather()
        return dy, None
