"""A layer-wise job: what is trained on what, and what is decided before the layers' strategies are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from taylor.cost_model.measured.cost_table import CostSetting
from taylor.cost_model.measured.layer_strategy import EndStrategy
from taylor.pipeline.schedule import PLAIN, ScheduleSpec


@dataclass(frozen=True)
class LayerwiseJob:
    """A model on a cluster.

    Parameters
    ----------
    world : int
        Ranks.
    layers : int
        Layers of the model.
    tokens, hidden : int
        Tokens a sample, width of the hidden states.
    limit_mib : float
        Memory of a rank, MiB.
    kind : str
        The layers' kind, as the source of costs calls it, where all are of one.
    precision, sequence_parallel, reduce_every_micro_batch, kv_hidden
        As `CostSetting`.
    global_buffer : bool
        Gathered hidden states keep a buffer beside the layers (Megatron's global memory buffer).
    whole_mib : bool
        A layer's memory on its stage counts in whole MiB, as in Galvatron's search.
    kinds : tuple of (str, int)
        Kinds of layers with how many of each, in model order: encoder and decoder, dense and MoE layers. Empty: all
        are of one kind.
    """

    world: int
    layers: int
    tokens: int
    hidden: int
    limit_mib: float
    kind: str = "body"
    precision: str = "bf16"
    sequence_parallel: bool = True
    reduce_every_micro_batch: bool = False
    kv_hidden: int | None = None
    global_buffer: bool = False
    whole_mib: bool = False
    kinds: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        assert not self.kinds or sum(count for _, count in self.kinds) == self.layers
        assert len({name for name, _ in self.kinds}) == len(self.kinds), "layers of a kind stand together"

    @property
    def stack(self) -> tuple[tuple[str, int], ...]:
        """Kinds of layers with how many of each, in model order."""
        return self.kinds or ((self.kind, self.layers),)

    @property
    def kind_of(self) -> tuple[str, ...]:
        """The kind of every layer."""
        return tuple(name for name, count in self.stack for _ in range(count))

    def replace(self, **changes: Any) -> LayerwiseJob:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def setting(self, outer: OuterChoice) -> CostSetting:
        """Job whose costs are requested."""
        return CostSetting(
            outer.stages,
            outer.global_batch,
            outer.micro_batches,
            self.tokens,
            self.hidden,
            self.precision,
            self.sequence_parallel,
            self.reduce_every_micro_batch,
            "gpipe" if outer.schedule.name == "gpipe" else "1f1b",
            self.kv_hidden,
        )

    def ranks(self, outer: OuterChoice) -> int:
        """Ranks of a stage."""
        return self.world // outer.stages


@dataclass(frozen=True)
class OuterChoice:
    """Choices around the layers.

    Parameters
    ----------
    global_batch, micro_batches : int
        Samples and micro-batches a step.
    stages, interleaves : int
        Of the pipeline.
    ends : EndStrategy
        Embedding and head.
    schedule : ScheduleSpec
    buffer_tp : int or None
        Largest TP degree of the layers, for which the buffer of gathered hidden states is kept; None: no buffer.
    """

    global_batch: int
    micro_batches: int
    stages: int
    ends: EndStrategy
    interleaves: int = 1
    schedule: ScheduleSpec = field(default_factory=lambda: ScheduleSpec(PLAIN))
    buffer_tp: int | None = None
