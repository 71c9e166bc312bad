"""Sizes of one rank's part of the work, already divided by the parallel degrees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import residual_bytes
from taylor.cost_model.memory.statics import vocabulary_ways
from taylor.register.frameworks import Framework
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec


def share(count: int, ways: int) -> int:
    """The largest part of `count` things given to `ways` ranks."""
    return -(-count // ways)


@dataclass(frozen=True)
class Site:
    """Facts of its rank that every layer of a stage needs.

    Parameters
    ----------
    pieces : int
        Pieces of a sequence that go through the pipeline one by one (seqpipe).
    device : torch.device
    """

    model: ModelSpec
    strategy: Strategy
    rules: TrainingRules
    pieces: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def trained(self) -> Site:
        """The same rank for adapters, which train beside frozen matrices."""
        return replace(self, rules=self.rules.trained)

    def within(self, layer: LayerSpec) -> Site:
        """The same rank for a layer, which may be frozen."""
        return replace(self, rules=self.rules.within((layer,)))

    def of_part(self, part: str) -> Site:
        """The same rank for a part of the model, which may be frozen (`TrainingRules.frozen`)."""
        return replace(self, rules=self.rules.of_part(part))

    def at(self, end: str) -> Site:
        """The same rank for the weights that compute at an end of the model."""
        return replace(self, rules=self.rules.at(end))

    @property
    def framework(self) -> Framework:
        """Framework whose operators run."""
        return self.rules.framework

    @cached_property
    def sequence(self) -> int:
        """Positions of one sample on this rank."""
        return share(self.rules.seq_length, self.strategy.cp * self.pieces)

    @cached_property
    def tokens(self) -> int:
        """Tokens of one micro-batch that pass through the GEMMs split over TP."""
        return self.sequence * self.strategy.mbs

    @property
    def shard_ways(self) -> int:
        """Ways in which the residual stream is split: TP under sequence parallelism, else 1."""
        return self.strategy.tp if self.strategy.sp else 1

    @cached_property
    def shard_tokens(self) -> int:
        """Tokens of the residual stream."""
        return share(self.tokens, self.shard_ways)

    @property
    def dtype(self) -> torch.dtype:
        """Type in which GEMMs run."""
        return torch.float32 if self.rules.compute_bytes >= 4 else torch.bfloat16

    @property
    def residual_dtype(self) -> torch.dtype:
        """Type of the residual stream."""
        return torch.float32 if residual_bytes(self.rules) == 4 else self.dtype

    @property
    def dropout_rate(self) -> float:
        """Rate of the job's dropouts; any rate above 0 keeps the same masks."""
        return 0.1 if self.rules.dropout else 0.0

    @property
    def vocabulary(self) -> int:
        """Rows of the head, and of a split embedding."""
        return share(self.model.vocab, int(vocabulary_ways(self.model, self.strategy, self.rules)))

    @property
    def splits_vocabulary(self) -> bool:
        """Return whether TP splits the vocabulary."""
        return self.vocabulary < self.model.vocab or self.strategy.tp == 1
