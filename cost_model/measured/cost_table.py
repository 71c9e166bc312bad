"""The cost of a layer, and of embedding and head, by how they are spread: one form for every source of costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from taylor.base.errors import InputError
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy
from taylor.cost_model.measured.profiles import LayerMemory

MIB = 2.0**20
BYTES_OF = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a number that is computed with, by the precision of the job."""


@dataclass(frozen=True)
class CostSetting:
    """The job that costs are asked for.

    Parameters
    ----------
    stages : int
        Pipeline stages.
    global_batch : int
        Samples a step.
    micro_batches : int
        Micro-batches a step.
    tokens : int
        Tokens a sample.
    hidden : int
        Width of the hidden states.
    precision : str
        A key of `BYTES_OF`.
    sequence_parallel : bool
        Tensor parallel layers split the activations outside their GEMMs too.
    reduce_every_micro_batch : bool
        Gradients are reduced in every micro-batch (Hetu's ``no_async_grad_reduce``); else once a step, and whole
        until then.
    schedule : str
        ``1f1b`` or ``gpipe``.
    kv_hidden : int or None
        Width of keys, and of values, of all heads; None: as `hidden`.
    """

    stages: int
    global_batch: int
    micro_batches: int
    tokens: int
    hidden: int
    precision: str = "bf16"
    sequence_parallel: bool = True
    reduce_every_micro_batch: bool = False
    schedule: str = "1f1b"
    kv_hidden: int | None = None

    @property
    def kv_share(self) -> float:
        """Width of keys, or of values, over that of the hidden states."""
        return (self.kv_hidden or self.hidden) / self.hidden

    @property
    def micro_batch(self) -> int:
        """Samples of a micro-batch, of all ranks of a stage together."""
        return self.global_batch // self.micro_batches

    @property
    def bytes(self) -> int:
        """Bytes of a number."""
        return BYTES_OF[self.precision]

    @property
    def half(self) -> bool:
        """Return whether numbers take two bytes."""
        return self.bytes == 2

    def alive(self, stage: int) -> int:
        """Micro-batches whose activations a stage holds at most."""
        if self.stages == 1:
            return 1
        most = self.micro_batches if self.schedule == "gpipe" else self.stages - stage
        return min(most, self.micro_batches)


@dataclass(frozen=True, order=True)
class Layout:
    """Layout of the hidden states between two layers on the ranks of a stage.

    Parameters
    ----------
    batch_ways, sequence_ways : int
        Ways in which samples, and the tokens of each, are split.
    copies : int
        Ranks that hold the same part.
    """

    batch_ways: int
    sequence_ways: int
    copies: int = 1

    @classmethod
    def of(cls, strategy: EndStrategy, sequence_parallel: bool) -> Layout:
        """The layout that a layer takes and gives."""
        split = strategy.sp * strategy.cp * (strategy.tp if sequence_parallel else 1)
        return cls(strategy.dp, split, 1 if sequence_parallel else strategy.tp)


@dataclass(frozen=True)
class EndCost:
    """Costs of a micro-batch on one stage, as `CostRow`, of embedding or of head and loss.

    Parameters
    ----------
    forward_s, backward_s : float
        Seconds a micro-batch.
    tail_s : float
        Exposed seconds at the end of the step.
    states_mib : float
        Parameters, gradients and optimizer states, MiB.
    activation_mib : float
        Memory that a micro-batch keeps alive, MiB.
    """

    forward_s: float
    backward_s: float
    tail_s: float
    states_mib: float
    activation_mib: float

    @property
    def micro_batch_s(self) -> float:
        """Forward and backward, s."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class CostRow(EndCost):
    """The cost of one layer under one strategy.

    Parameters
    ----------
    forward_s, backward_s, tail_s, states_mib, activation_mib
        As `EndCost`; recompute is part of the backward.
    kind : str
        Kind of the layer.
    strategy : LayerStrategy
    layout : Layout
        Of its input and its output.
    working_mib : float
        Further memory of its backward while it runs: parameters that were gathered, activations that are
        recomputed or come back from the host, MiB. A stage holds that of one layer at a time.
    host_mib : float
        Memory of a micro-batch on the host, MiB.
    """

    kind: str
    strategy: LayerStrategy
    layout: Layout
    working_mib: float = 0.0
    host_mib: float = 0.0


@dataclass(frozen=True)
class EndCosts:
    """Costs of embedding and head.

    Parameters
    ----------
    first : EndCost
        On the first stage; of a single stage, all of them.
    last : EndCost or None
        On the last stage; None where there is one stage.
    """

    first: EndCost
    last: EndCost | None = None

    def on_stage(self, stage: int, stages: int) -> EndCost | None:
        """Cost of embedding and head on a stage; None between them."""
        if stage == 0:
            return self.first
        return self.last if stage == stages - 1 else None


@dataclass(frozen=True)
class MemorySettings:
    """A device's memory outside the tables.

    Parameters
    ----------
    context_mib : float
        Of the runtime and its communication, MiB.
    reserved_share : float
        Fraction of the limit that the allocator's fragments take.
    reserved_above_mib : float
        Limits up to this one keep nothing for them, MiB.
    """

    context_mib: float = 0.0
    reserved_share: float = 0.0
    reserved_above_mib: float = 0.0

    def usable_mib(self, limit_mib: float) -> float:
        """Part of a limit for states, activations and the context, MiB."""
        reserved = int(limit_mib * self.reserved_share) if limit_mib > self.reserved_above_mib else 0
        return limit_mib - reserved


class CostProvider(Protocol):
    """A source of costs."""

    @property
    def name(self) -> str:
        """Name in commands."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its layer kinds, in model order."""

    @property
    def memory(self) -> MemorySettings:
        """Its memory outside the rows."""

    def layer(self, kind: str, strategy: LayerStrategy, setting: CostSetting) -> CostRow:
        """The cost of one layer.

        Raises
        ------
        InputError
            When a measurement that it needs is missing, or the batch cannot be split so.
        """

    def ends(self, strategy: EndStrategy, setting: CostSetting) -> EndCosts:
        """The costs of embedding and head.

        Raises
        ------
        InputError
            As `layer`.
        """

    def layout_change_s(self, before: Layout, after: Layout, setting: CostSetting) -> float:
        """Time to change the layout of a micro-batch's hidden states, and later of their gradients, s.

        Raises
        ------
        InputError
            As `layer`.
        """

    def handover_s(self, layout: Layout, setting: CostSetting) -> float:
        """Time to send a micro-batch's hidden states to the next stage, s; 0 where the rows have it.

        Raises
        ------
        InputError
            As `layer`.
        """


def samples_of(strategy: EndStrategy, setting: CostSetting) -> int:
    """Samples of a micro-batch on one data parallel rank.

    Raises
    ------
    InputError
        When there is none.
    """
    samples = setting.micro_batch // strategy.dp
    if samples < 1:
        raise InputError(
            f"leaves a micro-batch {setting.micro_batch} samples, and {strategy.name} splits them {strategy.dp} ways",
            field="--micro_batches",
            value=setting.micro_batches,
            cure="take fewer micro-batches, a larger batch, or a smaller data-parallel degree",
        )
    return samples


def hidden_mib(samples: float, setting: CostSetting) -> float:
    """Hidden states of a number of samples, MiB."""
    return samples * setting.tokens * setting.hidden * setting.bytes / MIB


def of_ways(by_ways: Mapping[int, float], ways: int, what: str) -> float:
    """A figure by ways.

    Raises
    ------
    InputError
        When those ways were not measured.
    """
    found = by_ways.get(ways)
    if found is None:
        raise InputError(
            f"was not measured at degree {ways}, which the memory of such strategies needs",
            file="memory_profiling_*.json",
            field=f"{what}.{ways}",
            cure="profile with a larger --max_tp_deg, or exclude strategies with this degree",
        )
    return found


def layer_activation_mib(memory: LayerMemory, strategy: LayerStrategy, setting: CostSetting) -> float:
    """Memory that a layer keeps of a sample whose context is not split, MiB.

    Raises
    ------
    InputError
        When it was not measured.
    """
    if not strategy.recompute:
        return of_ways(memory.activation_mib, strategy.ways, "tp_activation_per_bsz_dict")
    if memory.recomputed_mib is None:
        raise InputError(
            "is missing, and recomputed layers need it",
            file="memory_profiling_*.json",
            field="tp_activation_per_bsz_dict.checkpoint",
            cure="profile with recompute, or leave it out",
        )
    split = strategy.sp > 1 or (strategy.tp > 1 and setting.sequence_parallel)
    return memory.recomputed_mib / (strategy.ways if split else 1)


def cost_table(
    provider: CostProvider, kinds: Iterable[str], strategies: Iterable[LayerStrategy], setting: CostSetting
) -> tuple[CostRow, ...]:
    """The cost of every kind under every strategy, kinds outermost.

    Raises
    ------
    InputError
        As `CostProvider.layer`.
    """
    every = tuple(strategies)
    return tuple(provider.layer(kind, strategy, setting) for kind in kinds for strategy in every)
