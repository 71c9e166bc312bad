"""Widths of intervals of estimated steps, fitted so that whole sets left out lie within.

A class of jobs (`taylor.cost_model.errors.step_interval.JobClass.names`) has the 5 % and 95 % ranks of the logarithms
of its measured over predicted steps, each one rank further out than the fraction itself (split conformal prediction,
Vovk et al. 2005). The ranks of a class are drawn towards those of
the class around it, by the number of sets that the class rests on (`Settings.shrink`). What sets left out need beyond
them is added on each side (conformalized quantile regression, Romano, Patterson & Candès 2019, arXiv:1905.03222, by
sets in place of rows), by kind of layers, drawn likewise towards what all kinds need. Settings are the ones of least
interval score (Gneiting & Raftery 2007, eq. 43) on sets left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.errors.known_error import DEFAULT_RISK, FLAG_WIDTH, KnownError
from taylor.cost_model.errors.step_interval import PLACES, WHOLE, ClassError, JobClass, StepErrors

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
    """Residuals as arrays: logarithm, fold, flags' deviation and logarithms of places, each [n]."""

    def __init__(self, residuals: Sequence[Residual]) -> None:
        self.residuals = residuals
        self.y = np.array([one.log_ratio for one in residuals])
        names = {name: place for place, name in enumerate(dict.fromkeys(one.fold for one in residuals))}
        self.fold = np.array([names[one.fold] for one in residuals])
        self.plain = np.array([one.flags == 0 for one in residuals])
        self.kind = [one.job.layers for one in residuals]
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
        scores[settings] = _score(rows, among, ends, _margins(rows, among, ends, settings.shrink))
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


def _margins(rows: _Rows, among: NDArray[np.bool_], ends: _Ends, shrink: float) -> dict[str, tuple[float, float]]:
    """Distance by which the ranks must move out below and above, for the rows to lie within: by kind of layers."""
    needed, kinds = (ends.low - ends.near, ends.near - ends.high), np.array(rows.kind)[among]
    whole = [_rank(side) for side in needed]
    found = {}
    for kind in sorted(set(rows.kind)):
        mine = kinds == kind
        share = _share(rows.fold[among][mine], shrink) if mine.any() else 0.0
        own = [_rank(side[mine]) if share else 0.0 for side in needed]
        below, above = (share * one + (1 - share) * every for one, every in zip(own, whole, strict=True))
        found[kind] = below, above
    return {WHOLE: (whole[0], whole[1]), **found}


def _share(fold: NDArray[np.int64], shrink: float) -> float:
    """Fraction that a class has in its own figures, by the number of sets that it rests on."""
    by_set = np.bincount(fold)
    sets = by_set.sum() ** 2 / np.sum(by_set**2)
    return float(sets / (sets + shrink))


def _score(rows: _Rows, among: NDArray[np.bool_], ends: _Ends, margins: dict[str, tuple[float, float]]) -> float:
    """Mean interval score at a risk of `DEFAULT_RISK` a side."""
    y, of_row = rows.y[among], np.array([margins[kind] for kind in np.array(rows.kind)[among]])
    low = -np.hypot(np.minimum(ends.low - of_row[:, 0], 0.0), ends.far)
    high = np.hypot(np.maximum(ends.high + of_row[:, 1], 0.0), ends.far)
    beyond = np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0)
    return float(np.mean(high - low + beyond / DEFAULT_RISK))


def _ranks(rows: _Rows, train: NDArray[np.bool_], shrink: float) -> dict[str, Array]:
    """Low rank, high rank and usual size of the logarithms of each class, each drawn towards the class around it."""
    plain = train & rows.plain
    train = plain if plain.any() else train
    found: dict[str, Array] = {}
    for name, member in rows.members.items():
        mine = member & train
        if not mine.any():
            continue
        y = rows.y[mine]
        ranks = np.array([-_rank(-y), _rank(y), _rank(np.abs(np.expm1(-y)), 0.5)])
        around = name.rpartition(", ")[0] or WHOLE
        if name != WHOLE:
            share = _share(rows.fold[mine], shrink)
            ranks = share * ranks + (1 - share) * found[around]
        found[name] = ranks
    return found


def _rank(values: Array, below: float = 1 - DEFAULT_RISK) -> float:
    """The value that a further one of the same kind exceeds with a risk: a rank with one more row at infinity."""
    at = math.ceil(below * (len(values) + 1) - 1e-9) - 1
    return float(np.sort(values)[min(max(at, 0), len(values) - 1)])


def _ranges(rows: _Rows, train: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Low and high end of the logarithm of each of `PLACES`, each [places]."""
    ends = np.quantile(rows.place[train], (EDGE, 1 - EDGE), axis=0)
    return ends[0], ends[1]


def _record(rows: _Rows, train: NDArray[np.bool_], settings: Settings) -> StepErrors:
    """The errors of every class from some rows, with the margins that their own sets left out need."""
    by_kind = _margins(rows, train, _left_out_ends(rows, train, settings), settings.shrink)
    ranks, ranges = _ranks(rows, train, settings.shrink), _ranges(rows, train)
    classes = {}
    for name, (least, most, typical) in ranks.items():
        mine = rows.members[name] & train
        margins = by_kind[name.partition(", ")[0]]
        below = abs(math.expm1(min(least - margins[0], 0.0)))
        above = math.expm1(max(most + margins[1], 0.0))
        classes[name] = ClassError(
            round(below, 4), round(above, 4), round(float(typical), 4), len(np.unique(rows.fold[mine])), int(mine.sum())
        )
    spans = [(math.exp(first), math.exp(last)) for first, last in zip(*ranges, strict=True)]
    return StepErrors(classes, spans, settings.slope)
