"""Inputs of the pipeline solver from measurement or estimate: a memory profile and time ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.model import kind_of


class MemorySource(str, Enum):
    """Origin of a `MemoryProfile`'s figures."""

    FILE = "file"
    ESTIMATE = "estimate"
    DRY_RUN = "dry-run"
    SAVED = "saved"
    """Dry-runs of an earlier run."""
    REPLAY = "replay"
    """The estimate, moved onto the peaks of earlier dry-runs."""

    def __str__(self) -> str:
        return self.value


class RatioSource(str, Enum):
    """Origin of `TimeRatios`."""

    GIVEN = "given"
    PARTLY_GIVEN = "partly given"
    PARSED = "parsed"
    ESTIMATE = "estimate"
    FIXED = "fixed"
    """The defaults of the older tool."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class MemoryProfile:
    """Memory of one strategy's stages, MiB (the JSON of the user contract).

    Parameters
    ----------
    device_limit_mib : float
        Memory limit of one device.
    static_first_mib, static_middle_mib, static_last_mib : float
        Memory of a stage outside its layers; the last one's includes head and loss. With a single
        stage, `static_first_mib` + `static_last_mib` − `static_middle_mib` counts.
    layer_mib : mapping of kind to float
        Weights, gradients and optimizer states of one layer; kinds in model order.
    activation_mib : mapping of kind to mapping of mode to float
        Memory that one micro-batch keeps alive in one layer, by recompute mode (none, select, full).
    source : MemorySource
    every_flag : bool
        Every flag of the job has had its effect on the figures: a user states them, or the job's own framework ran.
    """

    device_limit_mib: float
    static_first_mib: float
    static_middle_mib: float
    static_last_mib: float
    layer_mib: Mapping[str, float]
    activation_mib: Mapping[str, Mapping[str, float]]
    source: MemorySource = MemorySource.FILE
    every_flag: bool = False

    def static_mib(self, stages: int) -> tuple[float, ...]:
        """Static memory of each stage, MiB [pp]."""
        if stages == 1:
            return (self.static_first_mib + self.static_last_mib - self.static_middle_mib,)
        return (self.static_first_mib, *[self.static_middle_mib] * (stages - 2), self.static_last_mib)

    def kind_for(self, kind: str) -> str:
        """The entry that a layer kind or run is charged as: its own, else the body layer's (the last listed)."""
        own = kind_of(kind)
        return own if own in self.layer_mib else list(self.layer_mib)[-1]


@dataclass(frozen=True)
class TimeRatios:
    """Times of one strategy in units of one body layer's forward time.

    Parameters
    ----------
    dense_forward : float
        Dense over MoE layer, forward (`dmratio`); 1 for a model with one kind.
    backward : float
        Backward over forward, without recompute (`bfratio`).
    recompute : mapping of mode to float
        Recompute over forward (`re_grow_ration`; selective has its own).
    head : float
        LM head and loss over the body layer, forward (`hratio`).
    unit_ms : float or None
        Real time of one body layer's forward (`moe_fw`), ms; None when unknown.
    embedding : float
        Embedding over the body layer, forward.
    lag : float
        Transfer between neighbouring stages over the body layer's forward; the longest where they are unlike.
    lags : tuple of float [pp] or empty
        Unequal transfers by stage: to the next one and back, the last entry between the last stage and the first.
    tail : float
        Gradient reduction and optimizer at the end of the step, same unit.
    mtp_forward : float or None
        MTP layer over body layer, forward; None = charged as the body layer.
    kind_forward : mapping of kind to float
        Of a model with a `pattern`: each kind's forward over the body layer's; 1 for a kind that it lacks.
    exposed : mapping of kind to (float, float)
        Of a forward and a backward that run as one pass and overlap each other's communication: extra time of a layer's
        forward, and its backward, where no layer of the other runs beside it, over the body layer's forward.
    source : RatioSource
    """

    dense_forward: float = 0.33
    backward: float = 2.0
    recompute: Mapping[str, float] = field(default_factory=lambda: {FULL: 1.0, SELECT: 0.33, NONE: 0.0})
    head: float = 1.5
    unit_ms: float | None = None
    embedding: float = 0.0
    lag: float = 0.0
    lags: tuple[float, ...] = ()
    tail: float = 0.0
    mtp_forward: float | None = None
    kind_forward: Mapping[str, float] = field(default_factory=dict)
    exposed: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: RatioSource = RatioSource.GIVEN
