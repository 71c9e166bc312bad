"""Measurements of a model: times and memory of whole runs, and the tables of one layer made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taylor.base.errors import InputError

RECOMPUTED = "checkpoint"
"""Name of the recomputed layer's entry among activations by ways, as the files have it."""


@dataclass(frozen=True, order=True)
class Shape:
    """The input of a measured run.

    Parameters
    ----------
    batch : int
        Samples; of all ranks in a memory run.
    sequence : tuple of int
        Tokens a sample, by layer kind: one, where the model has one kind.
    """

    batch: int
    sequence: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens a sample of the first kind."""
        return self.sequence[0]


@dataclass(frozen=True, order=True)
class TimedRun:
    """A forward of a whole model without any parallelism.

    Parameters
    ----------
    layers : tuple of int
        Layers by kind.
    shape : Shape
    """

    layers: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True)
class ComputationProfile:
    """Forward times of a model.

    Parameters
    ----------
    runs_ms : mapping of TimedRun to float
        Raw measurements: forward of the whole model, ms.
    layer_ms : mapping of kind to mapping of Shape to float
        Forward of one layer, ms a sample.
    other_ms : mapping of Shape to float
        Forward of embedding, head and loss, ms a sample.
    source : str
        The file.
    """

    runs_ms: Mapping[TimedRun, float] = field(default_factory=dict)
    layer_ms: Mapping[str, Mapping[Shape, float]] = field(default_factory=dict)
    other_ms: Mapping[Shape, float] = field(default_factory=dict)
    source: str = "computation_profiling_*.json"


@dataclass(frozen=True, order=True)
class MemoryLayout:
    """Strategy of a run whose memory was measured.

    Parameters
    ----------
    pp, tp, dp : int
        Degrees; the world is their product.
    recompute : bool
        Every layer was recomputed.
    vocabulary_split : bool
        Embedding and head were split over TP.
    sequence_parallel : bool
        Activations outside the GEMMs were split over TP.
    """

    pp: int
    tp: int
    dp: int
    recompute: bool = False
    vocabulary_split: bool = False
    sequence_parallel: bool = False

    @property
    def world(self) -> int:
        """Ranks of the run."""
        return self.pp * self.tp * self.dp


@dataclass(frozen=True, order=True)
class MemoryRun:
    """A run whose memory was measured on one rank.

    Parameters
    ----------
    layout : MemoryLayout
    layers : tuple of int
        Layers by kind.
    shape : Shape
    last : bool
        The rank is of the last stage; else of the first.
    """

    layout: MemoryLayout
    layers: tuple[int, ...]
    shape: Shape
    last: bool


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank, MiB; NaN where a file leaves a figure out.

    Parameters
    ----------
    states_mib : float
        After a step: parameters, gradients, optimizer states.
    activation_mib : float
        More after the forward.
    peak_mib : float
        More at the worst moment of the step.
    """

    states_mib: float
    activation_mib: float
    peak_mib: float


@dataclass(frozen=True)
class LayerMemory:
    """Memory of one layer.

    Parameters
    ----------
    parameter_mib : float
        Parameters of a whole layer, MiB, in the bytes that the profiler's rule takes (`ProfileRules`).
    activation_mib : mapping of int to float
        Memory that the forward of a sample keeps, MiB, by ways of tensor parallelism or Ulysses.
    recomputed_mib : float or None
        The same of a recomputed layer, before it is split.
    """

    parameter_mib: float
    activation_mib: Mapping[int, float]
    recomputed_mib: float | None


@dataclass(frozen=True)
class OtherMemory:
    """Memory of embedding, head and loss on one stage.

    Parameters
    ----------
    states_mib : mapping of int to float
        Parameters, gradients and optimizer states, by ways in which the vocabulary is split, without ZeRO.
    activation_mib : mapping of int to float
        Worst moment's activations a sample, by the same ways.
    """

    states_mib: Mapping[int, float]
    activation_mib: Mapping[int, float]


@dataclass(frozen=True)
class MemoryTables:
    """Tables of memory, by sequence length.

    Parameters
    ----------
    layer : mapping of kind to mapping of int to LayerMemory
    alone, first, last : mapping of int to OtherMemory
        Memory outside layers without a pipeline, on its first and on its last stage.
    """

    layer: Mapping[str, Mapping[int, LayerMemory]]
    alone: Mapping[int, OtherMemory]
    first: Mapping[int, OtherMemory]
    last: Mapping[int, OtherMemory]


@dataclass(frozen=True)
class MeasuredMemory:
    """Measured memory of a model.

    Parameters
    ----------
    runs : mapping of MemoryRun to RankMemory
        Raw measurements.
    tables : mapping of bool to MemoryTables
        Tables without and with sequence parallelism; those that the file holds.
    source : str
        The file.
    """

    runs: Mapping[MemoryRun, RankMemory] = field(default_factory=dict)
    tables: Mapping[bool, MemoryTables] = field(default_factory=dict)
    source: str = "memory_profiling_*.json"

    def table(self, sequence_parallel: bool) -> MemoryTables:
        """The tables with or without sequence parallelism.

        Raises
        ------
        InputError
            When the file has the other ones alone, or none.
        """
        if sequence_parallel in self.tables:
            return self.tables[sequence_parallel]
        kind = "layertype_0_sp" if sequence_parallel else "layertype_0"
        other = ", or plan without sequence parallelism" if sequence_parallel else ", or plan with sequence parallelism"
        raise InputError(
            "is missing, and the memory of layers needs it",
            file=self.source,
            field=kind,
            cure=f"process the raw profiles{other if self.tables else ''}",
        )


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes that a training keeps of a parameter, and of what ZeRO splits.

    Parameters
    ----------
    weights : int
        In the type that GEMMs take; split under ZeRO-3.
    gradients : int
        With one micro-batch a step; split from ZeRO-2 on.
    whole : int
        Gradients of several micro-batches that are reduced once a step: whole until then.
    accumulated : int
        Further gradients where every micro-batch's are reduced: split from ZeRO-2 on.
    optimizer : int
        Split from ZeRO-2 on.
    reduced : int
        Bytes of a gradient in its reduction.
    """

    weights: int
    gradients: int
    whole: int
    accumulated: int
    optimizer: int
    reduced: int

    def kept(self, zero: int, replicas: int, *, several: bool, every: bool) -> float:
        """Bytes a parameter on one rank.

        Parameters
        ----------
        zero : int
            0, 2 or 3.
        replicas : int
            Ranks over which states are divided.
        several : bool
            A step has several micro-batches.
        every : bool
            The gradients of every one are reduced.
        """
        whole = self.whole if several and not every else 0
        split = 0 if whole else self.gradients + (self.accumulated if several else 0)
        if zero == 0:
            return self.weights + self.optimizer + max(whole, self.gradients, self.accumulated * several * every)
        weights = self.weights / replicas if zero == 3 else self.weights
        return weights + whole + (split + self.optimizer) / replicas


@dataclass(frozen=True)
class ProfileRules:
    """Differences of two profilers, in raw profiles and in what they count.

    Parameters
    ----------
    name : str
        ``hetu`` or ``paddle``.
    states_of_parameters : float
        States that were measured, over the parameters as this profiler counts them.
    parameter_bytes : int
        Bytes of a parameter as it counts them.
    per_parameter : ParameterBytes
        States of a parameter in this framework's training.
    """

    name: str
    states_of_parameters: float
    parameter_bytes: int
    per_parameter: ParameterBytes


HETU = ProfileRules(
    "hetu", 4.0, 4, ParameterBytes(weights=2, gradients=2, whole=2, accumulated=4, optimizer=12, reduced=2)
)
"""fp32 parameters, and 16 bytes of states each (Hetu-Galvatron cea12ff galvatron/core/profiler/model_profiler.py:557;
gradients in half precision: galvatron/core/cost_model/components/layer_cost.py:111)."""

PADDLE = ProfileRules(
    "paddle", 9.0, 2, ParameterBytes(weights=2, gradients=0, whole=4, accumulated=4, optimizer=12, reduced=4)
)
"""bf16 parameters, and 18 bytes of states each; gradients are kept and reduced in fp32 (paddle-galvatron b0bdd07
paddlenlp/experimental/galvatron/profiler/model_profiler.py, `model_states_divide_param`; cost_model/time_cost_model.py,
`estimate_dp_communication_cost`)."""
