"""Times of operators that a base does not hold: a line over bytes and products for each type, its error stated.

The line is fitted to relative errors and has no negative part. Its error is that of operators left out of the fit
(each fifth in turn), so that it is what a new operator may expect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from taylor.blackbox.operator_base import OperatorTime
from taylor.parsers.profiles.operators import Operator

LEAST_OPERATORS = 5
"""Of a type with fewer there is no line; the part of the chip that runs it then has one."""
FOLDS = 5
_BYTES = {"FLOAT": 4, "FLOAT32": 4, "DT_BF16": 2, "FLOAT16": 2, "INT64": 8, "INT32": 4, "DOUBLE": 8, "BOOL": 1,
          "INT8": 1, "UINT8": 1, "INT16": 2, "UINT64": 8}  # fmt: skip
_USUAL_BYTES = 4


@dataclass(frozen=True)
class SpeedLine:
    """Time in ns: `base` + `per_byte` · bytes + `per_product` · products.

    Parameters
    ----------
    error : float
        Median relative error of operators left out of the fit.
    operators : int
        How many it was fitted to.
    """

    base: float
    per_byte: float
    per_product: float
    error: float
    operators: int

    def at(self, operator: Operator) -> float:
        """Time of an operator, ns."""
        return float(np.dot((self.base, self.per_byte, self.per_product), work_of(operator)))


@dataclass(frozen=True)
class Estimate:
    """A time, and how sure it is.

    Parameters
    ----------
    error : float
        Relative: the samples' spread where `exact`, else the line's own error.
    exact : bool
        Whether the base holds this very operator.
    """

    ns: float
    error: float
    exact: bool


@dataclass(frozen=True)
class Coverage:
    """What share of a run's operators a base holds itself: by number, and by time as estimated."""

    by_count: float
    by_time: float
    unknown: tuple[Operator, ...]


class OperatorSpeeds:
    """Looks up operators, and estimates the others by lines.

    Parameters
    ----------
    times : mapping of Operator to OperatorTime
        Of one origin.
    """

    def __init__(self, times: Mapping[Operator, OperatorTime]) -> None:
        self._times = times
        groups: dict[tuple[str, str], dict[Operator, float]] = {}
        for operator, time in times.items():
            groups.setdefault(("type", operator.type), {})[operator] = time.centre_ns
            groups.setdefault(("core", operator.core), {})[operator] = time.centre_ns
        self.lines = {
            group: fit_line(known) for group, known in groups.items() if len(known) >= LEAST_OPERATORS
        }  # fmt: skip

    def estimate(self, operator: Operator) -> Estimate | None:
        """Time of an operator; None where nothing like it is known."""
        known = self._times.get(operator)
        if known is not None:
            return Estimate(known.centre_ns, known.spread, exact=True)
        line = self.lines.get(("type", operator.type)) or self.lines.get(("core", operator.core))
        return Estimate(line.at(operator), line.error, exact=False) if line is not None else None

    def coverage(self, operators: Sequence[Operator]) -> Coverage:
        """How much of a run the base holds; operators without any estimate count by number alone."""
        exact = [operator in self._times for operator in operators]
        estimates = [self.estimate(operator) for operator in operators]
        total = sum(one.ns for one in estimates if one is not None)
        held = sum(one.ns for one in estimates if one is not None and one.exact)
        unknown = tuple(dict.fromkeys(each for each, there in zip(operators, exact, strict=True) if not there))
        return Coverage(sum(exact) / max(1, len(exact)), held / total if total else 0.0, unknown)


def work_of(operator: Operator) -> tuple[float, float, float]:
    """(1, bytes read and written, products) of an operator.

    Of a matrix product of [m, k] by [k, n] the three tensors hold mk, kn and mn numbers: the root of their product is
    mkn. Other operators have the same figure of their first two inputs and first output, for what it is worth.
    """
    sizes = [math.prod(shape) for shape in operator.inputs]
    results = [math.prod(shape) for shape in operator.outputs]
    widths = [_BYTES.get(name, _USUAL_BYTES) for name in operator.dtypes]
    widths += [widths[0] if widths else _USUAL_BYTES] * (len(sizes) + 1)
    moved = sum(size * width for size, width in zip(sizes, widths, strict=False))
    moved += sum(results) * widths[0]
    full = len(sizes) > 1 and results and len(operator.inputs[0]) > 1 and len(operator.inputs[1]) > 1
    return 1.0, float(moved), math.sqrt(float(sizes[0]) * sizes[1] * results[0]) if full else 0.0


def fit_line(times: Mapping[Operator, float]) -> SpeedLine:
    """The line of least relative squares over operators, with its cross-validated error."""
    operators = sorted(times)
    work = np.array([work_of(operator) for operator in operators])
    measured = np.array([times[operator] for operator in operators])
    errors = np.zeros(len(operators))
    for fold in range(min(FOLDS, len(operators))):
        out = np.arange(len(operators)) % FOLDS == fold
        predicted = work[out] @ _solve(work[~out], measured[~out])
        errors[out] = np.abs(predicted / measured[out] - 1)
    base, per_byte, per_product = map(float, _solve(work, measured))
    return SpeedLine(base, per_byte, per_product, float(np.median(errors)), len(operators))


def _solve(work: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    scale = np.maximum(work.max(axis=0), 1.0)
    found, _ = nnls(work / scale / measured[:, None], np.ones(len(measured)))
    return np.asarray(found / scale, dtype=np.float64)
