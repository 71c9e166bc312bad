"""Width of an estimated peak's interval: classes of jobs, and the errors that each class has shown.

The errors are recorded in ``peak_errors.json``, which ``python -m benchmarks.memory_page --record`` fits to whole sets
left out (`benchmarks.peak_fit`). Small classes are drawn towards the wider class around them; a class without a record
takes that of the wider one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from taylor.cost_model.errors.known_error import FRAMEWORK_WIDTH, KnownError
from taylor.cost_model.errors.step_interval import WHOLE, ClassError, layer_class
from taylor.register.model import ModelSpec

RECORD = Path(__file__).with_name("peak_errors.json")


@dataclass(frozen=True)
class PeakClass:
    """Facts of a job that the error of its estimated peaks depends on.

    Parameters
    ----------
    software : str
        Framework, or what starts the job in its place.
    layers : str
        Kind of layers, as `step_interval.layer_class` names it.
    """

    software: str
    layers: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes that the job lies in, the widest first."""
        return WHOLE, self.software, f"{self.software}, {self.layers}"


def peak_class(model: ModelSpec, software: str) -> PeakClass:
    """Class of a job."""
    return PeakClass(software, layer_class(model))


@dataclass(frozen=True)
class PeakErrors:
    """Errors of every recorded class.

    Parameters
    ----------
    classes : mapping of str to ClassError
        By the names of `PeakClass.names`; `WHOLE` is one of them.
    """

    classes: Mapping[str, ClassError]

    def of(self, job: PeakClass) -> KnownError:
        """Error of a job's estimated peaks: that of its narrowest recorded class.

        Software without a measured peak has the error of all, and one in common of all its peaks
        (`known_error.FRAMEWORK_WIDTH`).
        """
        name = next(name for name in reversed(job.names) if name in self.classes)
        found = self.classes[name]
        known = KnownError(found.below, found.above, found.typical, "estimated peaks of such jobs are", planned=True)
        return known if name != WHOLE else known.widened(FRAMEWORK_WIDTH)

    def as_data(self) -> dict[str, Any]:
        """The record as plain data."""
        return {"classes": {name: vars(one) for name, one in self.classes.items()}}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> PeakErrors:
        """The record that `as_data` gave."""
        return cls({name: ClassError(**one) for name, one in data["classes"].items()})


@cache
def recorded_errors() -> PeakErrors:
    """The errors in `RECORD`."""
    return PeakErrors.of_data(json.loads(RECORD.read_text(encoding="utf-8")))
