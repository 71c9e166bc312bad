"""Width of an estimated step's interval: classes of jobs, and the errors that each class has shown.

The errors are recorded in ``step_errors.json``, which ``python -m benchmarks.accuracy_page --record`` fits to whole
sets left out (`benchmarks.interval_fit`). A class without a record takes that of the wider class around it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from taylor.cost_model.errors.known_error import FLAG_WIDTH, STEP_ERROR, KnownError
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec

RECORD = Path(__file__).with_name("step_errors.json")

DENSE_LAYERS, EXPERT_LAYERS, RECURRENT_LAYERS, SPARSE_LAYERS = "dense", "experts", "recurrent", "sparse attention"
WHOLE = "all"
"""Name of the class of every job."""

WIDE = 0.25
"""Half of an interval's width, as a fraction of the step, above which a measurement that narrows it is named."""

NARROWED_BY = "wide, as few runs like it are published: taylor calibrate narrows it with one run of 20 steps"
"""Sentence part for an interval wider than `WIDE`."""

PLACES = ("hidden size", "tokens a sample", "cards", "tokens a micro-batch and card")
"""Sizes by which a job lies near to the calibrated rows or far from them."""


@dataclass(frozen=True)
class JobClass:
    """What the error of a job's step depends on.

    Parameters
    ----------
    layers : str
        `SPARSE_LAYERS` where attention selects or compresses its keys, or has sinks; else `RECURRENT_LAYERS` where some
        layer has no softmax; else `EXPERT_LAYERS` where some has experts; else `DENSE_LAYERS`.
    measured_device : bool
        The device's efficiencies were fitted to runs on it.
    narrow : bool
        GEMMs run in 8 or 4 bits.
    framework : str
        Name of the framework.
    place : tuple of float
        The sizes of `PLACES`; empty where they are unknown.
    calibrated : bool
        The device is calibrated to the user's own runs.
    """

    layers: str
    measured_device: bool
    narrow: bool
    framework: str
    place: tuple[float, ...] = ()
    calibrated: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes that the job lies in, the widest first."""
        device = "measured device" if self.measured_device else "other device"
        words = (self.layers, device, "8 or 4 bits" if self.narrow else "16 bits", self.framework)
        return (WHOLE, *(", ".join(words[:count]) for count in range(1, len(words) + 1)))


def job_class(model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> JobClass:
    """Class of a job."""
    tokens = rules.seq_length * strategy.mbs / (strategy.tp * strategy.cp)
    return JobClass(
        layer_class(model),
        device.is_measured,
        rules.narrow is not None,
        rules.framework.error_class,
        (float(model.hidden), float(rules.seq_length), float(strategy.world_size), float(tokens)),
        device.is_calibrated,
    )


def layer_class(model: ModelSpec) -> str:
    """Kind of layers that decides a job's class."""
    layers = [layer for kind in model.kind_counts for layer in model.layers_of(kind)]
    attentions = [layer.attention for layer in layers if layer.attention is not None]
    if any(one.indexer is not None or one.compression or one.sinks for one in attentions):
        return SPARSE_LAYERS
    if any(layer.recurrent is not None for layer in layers):
        return RECURRENT_LAYERS
    return EXPERT_LAYERS if model.n_moe else DENSE_LAYERS


@dataclass(frozen=True)
class ClassError:
    """Error that a class has shown.

    Parameters
    ----------
    below, above, typical : float
        As `KnownError` has them.
    sets, rows : int
        Number of sets and rows that it rests on.
    """

    below: float
    above: float
    typical: float
    sets: int
    rows: int


@dataclass(frozen=True)
class StepErrors:
    """Errors of every recorded class.

    Parameters
    ----------
    classes : mapping of str to ClassError
        By the names of `JobClass.names`; `WHOLE` is one of them.
    ranges : sequence of (float, float)
        Range of each of `PLACES` that the calibrated rows span.
    slope : float
        Deviation of the logarithm by which a factor of e beyond a range widens an interval.
    """

    classes: Mapping[str, ClassError]
    ranges: Sequence[tuple[float, float]] = ()
    slope: float = 0.0

    def found(self, job: JobClass) -> ClassError:
        """The narrowest recorded class of a job."""
        return next(self.classes[name] for name in reversed(job.names) if name in self.classes)

    def distance(self, place: Sequence[float]) -> float:
        """Factor by which a job's sizes lie beyond the calibrated rows', as a logarithm; 0 within all ranges."""
        beyond = (
            max(math.log(low / size), math.log(size / high), 0.0)
            for size, (low, high) in zip(place, self.ranges, strict=False)
        )
        return math.hypot(*beyond)

    def of(self, job: JobClass, flags: int = 0) -> KnownError:
        """Error of a job's estimated step.

        Parameters
        ----------
        flags : int
            Number of the job's flags that cost time and are in no figure.
        """
        found = self.found(job)
        known = KnownError(found.below, found.above, found.typical, "estimated steps of such jobs are")
        return known.widened(math.hypot(FLAG_WIDTH * math.sqrt(flags), self.slope * self.distance(job.place)))

    def as_data(self) -> dict[str, Any]:
        """The record as plain data."""
        return {
            "slope": self.slope,
            "ranges": dict(zip(PLACES, ([round(end, 1) for end in one] for one in self.ranges), strict=True)),
            "classes": {name: vars(one) for name, one in self.classes.items()},
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> StepErrors:
        """The record that `as_data` gave."""
        ranges = [(float(low), float(high)) for low, high in data["ranges"].values()]
        return cls({name: ClassError(**one) for name, one in data["classes"].items()}, ranges, data["slope"])


@cache
def recorded_errors() -> StepErrors:
    """The errors in `RECORD`."""
    return StepErrors.of_data(json.loads(RECORD.read_text(encoding="utf-8")))


def step_error(job: JobClass, flags: int) -> KnownError:
    """Error of an estimated step: of the job's class, or of a device that is calibrated to the user's own runs.

    Parameters
    ----------
    flags : int
        Number of the job's flags that cost time and are in no figure.
    """
    if job.calibrated:
        return STEP_ERROR.widened(FLAG_WIDTH * math.sqrt(flags))
    return recorded_errors().of(job, flags)
