"""Times of operators that a base lacks: a line over bytes and multiplications for each type, its error stated.

The line is fitted to relative errors and has no negative part. The count of multiplications is chosen for each type, by
5-fold cross-validation: a GEMM, or all numbers of the first input with one dimension of the second (attention's scores,
grouped GEMMs). The error is that to expect for a new operator.

An operator that was measured a few times and one that a line gives are two estimates of the same time. Where the line
is as good as the noise of so few samples, both count, by the inverse of their variances; see `OperatorSpeeds.estimate`.

Operators measured where multiplications take the time do not show how fast they move bytes. Where moving them at the
usual rate of operators that do nothing else would take longer than the line says, that counts (Williams et al.,
Roofline, 2009), with the spread of these rates as its error.

Operators of one type whose tensors differ in rank are different kernels: each form has a line of its own. Where a form
was measured in too few sizes for one, the nearest of them is scaled by its work. What was measured in another size of
one dimension draws the line's estimate half way to its own time; see `SIBLING`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from taylor.blackbox.operator_base import OperatorTime
from taylor.blackbox.rejection import LEAST_FOR_STRAGGLERS, ROBUST
from taylor.parsers.profiles.operators import Operator

LEAST_OPERATORS = 5
"""Of a type with fewer there is no line; the part of the chip that runs it then has one."""
LEAST_MOVING = 3
"""The same of a type without multiplications: two weights, and one operator for their error."""
FOLDS = 5
ROOF_ROUNDS = 8
MOST_RANKS = 4
"""Dimensions of a second input that are tried as a factor of the multiplications."""
MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of many normal samples, in that of their mean; the median of two is their mean."""
SIBLING = 0.5
"""Part of a measured operator's deviation from its line that another size of one of its dimensions has too. Of GEMMs
and attention on four cards (`benchmarks.third_size`), half of it is better than none or all."""
BOUND = 2.0
"""An operator that takes this multiple of moving its bytes at the usual rate is scaled by its multiplications."""
_BYTES = {"FLOAT": 4, "FLOAT32": 4, "DT_BF16": 2, "FLOAT16": 2, "INT64": 8, "INT32": 4, "DOUBLE": 8, "BOOL": 1,
          "INT8": 1, "UINT8": 1, "INT16": 2, "UINT64": 8}  # fmt: skip
_USUAL_BYTES = 4


@dataclass(frozen=True)
class SpeedLine:
    """Time in ns: `base` + `per_byte` · bytes + `per_product` · products, or `base` + the greater of both.

    Parameters
    ----------
    products : int or None
        Count of multiplications; see `work_of`.
    roof : bool
        The greater counts: transfers beside multiplications (Williams et al., Roofline, 2009).
    error : float
        Median relative error of operators left out of the fit.
    operators : int
        Number of operators in the fit.
    least_per_byte, least_error : float
        Below `base` + `least_per_byte` · bytes no operator is estimated, and the relative error of that.
    """

    base: float
    per_byte: float
    per_product: float
    error: float
    operators: int
    products: int | None = None
    roof: bool = False
    least_per_byte: float = 0.0
    least_error: float = 0.0

    def estimate(self, operator: Operator, factor: float = 1.0) -> Estimate:
        """Time of an operator that no base holds, `factor` times the line's."""
        ns, least = factor * self.at(operator), self.base + self.least_per_byte * work_of(operator)[1]
        if ns >= least:
            return Estimate(ns, self.error, exact=False)
        return Estimate(least, max(self.error, self.least_error), exact=False)

    def at(self, operator: Operator) -> float:
        """Time of an operator, ns."""
        one, moved, products = work_of(operator, self.products)
        both = self.per_byte * moved, self.per_product * products
        return self.base * one + (max(both) if self.roof else sum(both))


@dataclass(frozen=True)
class Estimate:
    """A time, and its error.

    Parameters
    ----------
    error : float
        Relative: what the samples leave open where `exact`, else the line's own error.
    exact : bool
        The base has this very operator.
    """

    ns: float
    error: float
    exact: bool


@dataclass(frozen=True)
class Coverage:
    """Fraction of a run's operators that a base has: by number, and by estimated time."""

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
        self._forms: dict[str, set[str]] = {}
        for operator in times:
            self._forms.setdefault(operator.type, set()).add(_ranks(operator))
        groups: dict[tuple[str, str], dict[Operator, float]] = {}
        self._siblings: dict[Hashable, list[Operator]] = {}
        for operator, time in times.items():
            groups.setdefault(self._key(operator), {})[operator] = time.centre_ns
            groups.setdefault(("core", operator.core), {})[operator] = time.centre_ns
            for pattern in _patterns(operator):
                self._siblings.setdefault(pattern, []).append(operator)
        self._groups = groups
        with_products = {group for group, known in groups.items() if _has_products(known)}
        least = {group: LEAST_OPERATORS for group in groups}
        least |= {group: LEAST_MOVING for group in groups if group[0] == "type" and group not in with_products}
        self.lines = {group: fit_line(known) for group, known in groups.items() if len(known) >= least[group]}
        self.lines = self._with_least(groups, with_products)
        self._noise = {key: _noise_of([times[one] for one in known]) for key, known in groups.items()}
        self._line_variance = {key: self._variance_of_line(key, groups[key]) for key in self.lines}

    def _key(self, operator: Operator) -> tuple[str, str]:
        """An operator's type, and its form where its type was measured in several."""
        several = len(self._forms.get(operator.type, ())) > 1
        return "type", f"{operator.type} of ranks {_ranks(operator)}" if several else operator.type

    def _variance_of_line(self, key: tuple[str, str], known: Collection[Operator]) -> float:
        """Relative variance of true times about a line, without the noise of its operators."""
        spread = ROBUST * self.lines[key].error
        return max(0.0, spread**2 - median(self._variance_of_centre(key, self._times[one]) for one in known))

    def _variance_of_centre(self, key: tuple[str, str], time: OperatorTime) -> float:
        """Relative variance of the median of an operator's samples."""
        return self._noise[key] ** 2 * (MEDIAN_VARIANCE if time.count > 2 else 1.0) / time.count

    def _with_least(
        self, groups: Mapping[tuple[str, str], Mapping[Operator, float]], with_products: Collection[tuple[str, str]]
    ) -> dict[tuple[str, str], SpeedLine]:
        """The lines of operators with multiplications, with the usual rate of types without."""
        self._usual_rate = 0.0
        multiplied = [
            1 / line.per_product for (kind, _), line in self.lines.items() if kind == "type" and line.per_product
        ]
        self._usual_multiplications = median(multiplied) if multiplied else 0.0
        rates = [
            line.per_byte
            for group, line in self.lines.items()
            if group[0] == "type" and group not in with_products and line.per_byte
        ]
        if not rates:
            return self.lines
        usual = self._usual_rate = median(rates)
        error = median(abs(rate / usual - 1) for rate in rates)
        found = dict(self.lines)
        for group in found.keys() & set(with_products):
            # No faster than the usual, and no slower than any that was seen.
            most = min(ns / work_of(one)[1] for one, ns in groups[group].items() if work_of(one)[1])
            line, works = found[group], [work_of(one, found[group].products) for one in groups[group]]
            unseen = line.roof and all(line.per_byte * moved <= line.per_product * done for _, moved, done in works)
            per_byte = 0.0 if unseen else line.per_byte  # What it may be at most says less than the usual.
            found[group] = replace(line, per_byte=per_byte, least_per_byte=min(usual, most), least_error=error)
        return found

    def estimate(self, operator: Operator) -> Estimate | None:
        """Time of an operator; None where nothing like it is known.

        Of a measured operator with centre c and variance v, and the line l of its type with variance t, both relative,
        it is the mean by inverse variances, l + (c - l) t / (t + v) (Efron and Morris, Stein's estimation rule and its
        competitors, 1973). Where c leaves l by more than its noise, t is at least (c - l)^2 - v of this very operator:
        then what was measured counts almost alone.
        """
        key = self._key(operator)
        line = self.lines.get(key)
        known = self._times.get(operator)
        if known is None and line is not None:
            return line.estimate(operator, self._drawn(operator, line))
        if known is None:
            line = self.lines.get(("core", operator.core))
            return self._scaled(operator, key) or (line.estimate(operator) if line is not None else None)
        noise = self._variance_of_centre(key, known)
        if line is None or not noise:
            return Estimate(known.centre_ns, math.sqrt(noise), exact=True)
        apart = line.at(operator) / known.centre_ns - 1
        own = max(self._line_variance[key], apart**2 - noise)
        measured = own / (own + noise)
        return Estimate(known.centre_ns * (1 + (1 - measured) * apart), math.sqrt(measured * noise), exact=True)

    def _drawn(self, operator: Operator, line: SpeedLine) -> float:
        """Factor of a line's estimate by the nearest operator that was measured in another size of one dimension."""
        near = [one for pattern in _patterns(operator) for one in self._siblings.get(pattern, ())]
        if not near:
            return 1.0
        mine = line.at(operator)
        _, nearest = min((abs(math.log(max(1.0, line.at(one)) / max(1.0, mine))), one) for one in near)
        return float((self._times[nearest].centre_ns / max(1.0, line.at(nearest))) ** SIBLING)

    def _scaled(self, operator: Operator, key: tuple[str, str]) -> Estimate | None:
        """The nearest operator of the same form, scaled by what it moves or, if that takes it longer, multiplies.

        Of several counts of multiplications the one counts whose rate is nearest to that of other types; the error
        states how far they differ.
        """
        moved = work_of(operator)[1]
        alike = self._groups.get(key)
        if not alike or not moved:
            return None
        nearest = min(alike, key=lambda one: abs(math.log(max(1.0, work_of(one)[1]) / moved)))
        took = self._times[nearest].centre_ns
        works = [(work_of(nearest, each)[2], work_of(operator, each)[2]) for each in (None, *range(MOST_RANKS))]
        counts = [(old / took, new / old) for old, new in works if old and new]
        ratio = by_bytes = moved / max(1.0, work_of(nearest)[1])
        if counts and took > BOUND * self._usual_rate * work_of(nearest)[1]:
            usual = self._usual_multiplications
            ratio = min(counts, key=lambda one: abs(math.log(one[0] / usual)) if usual else -one[1])[1]
        ratios = [by_bytes, *(each for _, each in counts)]
        error = 1 - min(ratios) / max(ratios) if counts else abs(1 - 1 / by_bytes)
        return Estimate(took * ratio, error, exact=False)

    def coverage(self, operators: Sequence[Operator]) -> Coverage:
        """Fraction of a run that the base covers; operators without any estimate count by number alone."""
        exact = [operator in self._times for operator in operators]
        estimates = [self.estimate(operator) for operator in operators]
        total = sum(one.ns for one in estimates if one is not None)
        covered = sum(one.ns for one in estimates if one is not None and one.exact)
        unknown = tuple(dict.fromkeys(each for each, there in zip(operators, exact, strict=True) if not there))
        return Coverage(sum(exact) / max(1, len(exact)), covered / total if total else 0.0, unknown)


def _ranks(operator: Operator) -> str:
    """Numbers of dimensions of its inputs."""
    return ",".join(str(len(shape)) for shape in operator.inputs)


def _patterns(operator: Operator) -> Iterator[Hashable]:
    """Shapes of an operator with one of its sizes left open, wherever it stands: once for each size."""
    for size in {each for shape in (*operator.inputs, *operator.outputs) for each in shape if each > 1}:
        shapes = (tuple(0 if each == size else each for each in shape) for shape in operator.inputs + operator.outputs)
        yield operator.type, operator.dtypes, len(operator.inputs), tuple(shapes)


def _noise_of(times: Sequence[OperatorTime]) -> float:
    """Relative standard deviation of a sample of a type: the middle of its operators', if they have several samples."""
    several = [one.spread for one in times if one.count >= LEAST_FOR_STRAGGLERS]
    return float(median(several or [one.spread for one in times]))


def work_of(operator: Operator, products: int | None = None) -> tuple[float, float, float]:
    """(1, bytes read and written, multiplications) of an operator.

    Parameters
    ----------
    products : int or None
        None: of a GEMM of [m, k] by [k, n] the three tensors hold mk, kn and mn numbers, and the root of
        their product is mkn. Else: numbers of the first input times this dimension of the second.
    """
    sizes = [math.prod(shape) for shape in operator.inputs]
    results = [math.prod(shape) for shape in operator.outputs]
    widths = [_BYTES.get(name, _USUAL_BYTES) for name in operator.dtypes]
    widths += [widths[0] if widths else _USUAL_BYTES] * (len(sizes) + 1)
    moved = sum(size * width for size, width in zip(sizes, widths, strict=False))
    moved += sum(results) * widths[0]
    if len(sizes) < 2 or not results or min(len(operator.inputs[0]), len(operator.inputs[1])) < 2:
        return 1.0, float(moved), 0.0
    if products is None:
        return 1.0, float(moved), math.sqrt(float(sizes[0]) * sizes[1] * results[0])
    second = operator.inputs[1]
    return 1.0, float(moved), float(sizes[0]) * second[products] if products < len(second) else 0.0


def _has_products(operators: Collection[Operator]) -> bool:
    """Return whether any operator of a group may multiply matrices; those whose tensors are all of one shape do not."""
    if all(len({*one.inputs, *one.outputs}) == 1 for one in operators):
        return False
    return any(work_of(one, products)[2] for one in operators for products in (None, *range(MOST_RANKS)))


def fit_line(times: Mapping[Operator, float]) -> SpeedLine:
    """The line of least relative squares over operators, with its cross-validated error."""
    operators = sorted(times)
    measured = np.array([times[operator] for operator in operators])
    ranks = max((len(operator.inputs[1]) for operator in operators if len(operator.inputs) > 1), default=0)
    counted = float(_has_products(operators))
    ways: list[tuple[int | None, bool]] = [(products, False) for products in (None, *range(min(ranks, MOST_RANKS)))]
    best: tuple[float, int | None, bool, NDArray[np.float64]] | None = None
    for products, roof in ways + [(products, True) for products, _ in ways]:
        work = np.array([work_of(operator, products) for operator in operators]) * (1.0, 1.0, counted)
        if roof and not (work[:, 2] > 0).all():
            continue
        errors = np.zeros(len(operators))
        for fold in range(FOLDS):
            out = np.arange(len(operators)) % FOLDS == fold
            weights = _solve(work[~out], measured[~out], roof)
            errors[out] = np.abs(_predicted(work[out], weights, roof) / measured[out] - 1)
        error = float(np.median(errors))
        if best is None or error < 0.9 * best[0]:
            best = (error, products, roof, work)
    assert best is not None
    error, chosen, roof, work = best
    base, per_byte, per_product = map(float, _solve(work, measured, roof))
    return SpeedLine(base, per_byte, per_product, error, len(operators), chosen, roof)


def _predicted(work: NDArray[np.float64], weights: NDArray[np.float64], roof: bool) -> NDArray[np.float64]:
    parts = work * weights
    found = parts[:, 0] + np.maximum(parts[:, 1], parts[:, 2]) if roof else parts.sum(axis=1)
    return np.asarray(found, dtype=np.float64)


def _solve(work: NDArray[np.float64], measured: NDArray[np.float64], roof: bool) -> NDArray[np.float64]:
    """Weights of least relative squares; of a roof iteratively, with the part that counts for each operator."""
    scale = np.maximum(work.max(axis=0), 1.0)
    rows = work / scale / measured[:, None]
    found = nnls(rows, np.ones(len(measured)))[0]
    if roof:
        # Where one side never counts its weight stays what it may be at most.
        most = np.array([0.0, *(1 / np.maximum(rows[:, 1:].max(axis=0), 1e-30))])
        found = most
        for _ in range(ROOF_ROUNDS):
            by_products = found[2] * rows[:, 2] > found[1] * rows[:, 1]
            sides = np.array([rows[:, 0], rows[:, 1] * ~by_products, rows[:, 2] * by_products]).T
            fitted = nnls(sides, np.ones(len(measured)))[0]
            found = np.where(sides.any(axis=0), fitted, np.minimum(found, most))
    return np.asarray(found / scale, dtype=np.float64)
