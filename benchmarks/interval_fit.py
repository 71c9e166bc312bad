"""Widths of intervals of estimated steps, fitted so that whole sets left out lie within.

A class of jobs (`taylor.cost_model.step_interval.JobClass.names`) has the 5 % and 95 % ranks of the logarithms of its
measured over predicted steps, each one rank further out than the fraction itself (split conformal prediction, Vovk et
al. 2005). A row weighs one over the root of its set's number of rows. The ranks of a class are drawn towards those of
the class around it, by the number of sets that the class rests on (`Settings.shrink`). What sets left out need beyond
them is added on each side (conformalized quantile regression, Romano, Patterson & Candès 2019, arXiv:1905.03222, by
sets in place of rows). Settings are the ones of least interval score (Gneiting & Raftery 2007, eq. 43) on sets left
out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.known_error import DEFAULT_RISK, FLAG_WIDTH, KnownError
from taylor.cost_model.step_interval import PLACES, WHOLE, ClassError, JobClass, StepErrors

Array = NDArray[np.float64]

SHRINKS = (2.0, 8.0, 20.0)
SLOPES = (0.0, 0.1)
"""Settings tried: number of sets that the class around a class counts for; widening by distance."""

EDGE = 0.05
"""Fraction of the calibrated rows beyond each end of a range of `PLACES`."""

DEVIATIONS = 1.6448536269514722
"""Standard deviations to a 5 % end."""


@dataclass(frozen=True)
class Residual:
    """A measured step over the predicted one, as a logarithm; the rows that are left out with it; its job and flags."""

    log_ratio: float
    fold: str
    job: JobClass
    flags: int = 0


@dataclass(frozen=True)
class Settings:
    """One choice of `SHRINKS` and `SLOPES`."""

    shrink: float = 2.0
    slope: float = 0.0


class _Rows:
    """Residuals as arrays: logarithm, fold, weight, flags' deviation and logarithms of places, each [n]."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        self.residuals = residuals
        self.y = np.array([one.log_ratio for one in residuals])
        names = {name: place for place, name in enumerate(dict.fromkeys(one.fold for one in residuals))}
        self.fold = np.array([names[one.fold] for one in residuals])
        self.weight = np.bincount(self.fold)[self.fold] ** -0.5
        self.plain = np.array([one.flags == 0 for one in residuals])
        self.spread = FLAG_WIDTH * np.sqrt(np.array([one.flags for one in residuals], dtype=float))
        self.place = np.log(np.array([one.job.place or (1.0,) * len(PLACES) for one in residuals]))
        self.names = [one.job.names for one in residuals]
        self.members = {
            name: np.array([name in mine for mine in self.names])
            for name in sorted({name for mine in self.names for name in mine}, key=lambda name: (name.count(","), name))
        }
        self.members = {WHOLE: self.members.pop(WHOLE), **self.members}


def fit(residuals: Sequence[Residual]) -> tuple[StepErrors, Settings]:
    """Errors of every class, and the settings of least interval score."""
    rows = _Rows(residuals)
    everyone = np.ones(len(residuals), dtype=bool)
    settings = chosen_settings(rows, everyone)
    return _record(rows, everyone, settings), settings


def left_out(residuals: Sequence[Residual], settings: Settings) -> list[KnownError]:
    """Error of each residual by a fit that neither it nor any row of its fold took part in."""
    rows = _Rows(residuals)
    found: list[KnownError | None] = [None] * len(residuals)
    for fold in range(int(rows.fold.max()) + 1):
        errors = _record(rows, rows.fold != fold, settings)
        for at in map(int, np.flatnonzero(rows.fold == fold)):
            found[at] = errors.of(residuals[at].job, residuals[at].flags)
    return [one for one in found if one is not None]


def covered(log_ratio: float, known: KnownError) -> bool:
    """Return whether a measured step lies within its interval."""
    return known.lower() <= math.exp(log_ratio) <= known.upper()


def chosen_settings(rows: _Rows, among: NDArray[np.bool_]) -> Settings:
    """Settings of least mean interval score, each row by a fit without its fold."""
    scores = {}
    for shrink, slope in product(SHRINKS, SLOPES):
        settings = Settings(shrink, slope)
        ends = _left_out_ends(rows, among, settings)
        scores[settings] = _score(rows.y[among], ends, _margins(ends, rows.weight[among]), rows.weight[among])
    return min(scores, key=lambda one: scores[one])


@dataclass(frozen=True)
class _Ends:
    """Ranks of rows by the others without their fold, and the rows' deviation by flags and distance, each [n].

    `near` is a row's logarithm without that deviation, so that it lies within an interval where `near` lies within
    the ranks and their margin.
    """

    low: Array
    high: Array
    far: Array
    near: Array


def _left_out_ends(rows: _Rows, among: NDArray[np.bool_], settings: Settings) -> _Ends:
    """Ends of each row among some."""
    low, high, far = np.zeros(len(rows.y)), np.zeros(len(rows.y)), np.zeros(len(rows.y))
    for fold in np.unique(rows.fold[among]):
        train, test = among & (rows.fold != fold), among & (rows.fold == fold)
        if not train.any():
            continue
        ranks, ranges = _ranks(rows, train, settings.shrink), _ranges(rows, train)
        for at in np.flatnonzero(test):
            name = next(name for name in reversed(rows.names[at]) if name in ranks)
            low[at], high[at] = ranks[name][0], ranks[name][1]
        beyond = np.maximum(np.maximum(ranges[0] - rows.place[test], rows.place[test] - ranges[1]), 0.0)
        distance = np.linalg.norm(beyond, axis=1)
        far[test] = DEVIATIONS * np.hypot(rows.spread[test], settings.slope * distance)
    y = rows.y
    near = np.sign(y) * np.sqrt(np.maximum(y**2 - far**2, 0.0))
    return _Ends(low[among], high[among], far[among], near[among])


def _margins(ends: _Ends, weight: Array) -> tuple[float, float]:
    """Distance by which the ranks must move out below and above, for the rows to lie within."""
    return _rank(ends.low - ends.near, weight), _rank(ends.near - ends.high, weight)


def _score(y: Array, ends: _Ends, margins: tuple[float, float], weight: Array) -> float:
    """Mean interval score at a risk of `DEFAULT_RISK` a side."""
    low = -np.hypot(np.minimum(ends.low - margins[0], 0.0), ends.far)
    high = np.hypot(np.maximum(ends.high + margins[1], 0.0), ends.far)
    beyond = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
    return float(np.average(high - low + beyond / DEFAULT_RISK, weights=weight))


def _ranks(rows: _Rows, train: NDArray[np.bool_], shrink: float) -> dict[str, Array]:
    """Low rank, high rank and usual size of the logarithms of each class, each drawn towards the class around it."""
    plain = train & rows.plain
    train = plain if plain.any() else train
    found: dict[str, Array] = {}
    for name, member in rows.members.items():
        mine = member & train
        if not mine.any():
            continue
        y, weight = rows.y[mine], rows.weight[mine]
        ranks = np.array([-_rank(-y, weight), _rank(y, weight), _rank(np.abs(np.expm1(-y)), weight, 0.5)])
        around = name.rpartition(", ")[0] or WHOLE
        if name != WHOLE:
            by_set = np.bincount(rows.fold[mine], weight)
            sets = by_set.sum() ** 2 / np.sum(by_set**2)
            share = sets / (sets + shrink)
            ranks = share * ranks + (1 - share) * found[around]
        found[name] = ranks
    return found


def _rank(values: Array, weight: Array, below: float = 1 - DEFAULT_RISK) -> float:
    """The value that a further one of the same kind exceeds with a risk: a rank with one more weight at infinity."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    at = int(np.searchsorted(total, below * (total[-1] + weight.mean()) - 1e-12))
    return float(values[order][min(at, len(values) - 1)])


def _ranges(rows: _Rows, train: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Low and high end of the logarithm of each of `PLACES`, each [places]."""
    ends = np.quantile(rows.place[train], (EDGE, 1 - EDGE), axis=0)
    return ends[0], ends[1]


def _record(rows: _Rows, train: NDArray[np.bool_], settings: Settings) -> StepErrors:
    """The errors of every class from some rows, with the margins that their own sets left out need."""
    margins = _margins(_left_out_ends(rows, train, settings), rows.weight[train])
    ranks, ranges = _ranks(rows, train, settings.shrink), _ranges(rows, train)
    classes = {}
    for name, (least, most, typical) in ranks.items():
        mine = rows.members[name] & train
        below = abs(math.expm1(min(least - margins[0], 0.0)))
        above = math.expm1(max(most + margins[1], 0.0))
        classes[name] = ClassError(
            round(below, 4), round(above, 4), round(float(typical), 4), len(np.unique(rows.fold[mine])), int(mine.sum())
        )
    spans = [(math.exp(first), math.exp(last)) for first, last in zip(*ranges, strict=True)]
    return StepErrors(classes, spans, settings.slope)
