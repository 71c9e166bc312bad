"""Widths of intervals of estimated peaks, fitted so that whole sets left out lie within.

A class of jobs (`taylor.cost_model.errors.peak_interval.PeakClass.names`) has the 5 % and 95 % quantiles of the
logarithms of its measured over predicted peaks. They are drawn towards those of the class around it, by the number of
sets that the class rests on; fewer rows than show such a quantile can only move it out.

Wider ends were tried: ranks one further out (split conformal prediction, Vovk et al. 2005), and what sets left out need
beyond them (conformalized quantile regression, Romano, Patterson & Candès 2019, arXiv:1905.03222, by sets in place of
rows). Sets left out score worse with them (interval score over both ends 0.60 without, 0.66 with the ranks, 0.79 with
both), and lie inside as often: 96 to 97 % of the rows.

A flag that no figure has may raise a peak, or lower it. A row with such a flag bounds the error on one side alone: a
peak that may have been raised counts where it is below the predicted one, and one that may have been lowered where it
is above. The weight of the class around a class is the one of least interval score (Gneiting & Raftery 2007, eq. 43) on
sets left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.interval_fit import SHRINKS
from taylor.cost_model.errors.known_error import DEFAULT_RISK
from taylor.cost_model.errors.peak_interval import PeakClass, PeakErrors
from taylor.cost_model.errors.step_interval import WHOLE, ClassError

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ends = dict[str, float]

SHOWING = math.ceil(1 / DEFAULT_RISK) - 1
"""Fewest values that can show an end that one more exceeds with the default risk."""


@dataclass(frozen=True)
class PeakResidual:
    """A measured peak over the predicted one, as a logarithm.

    Parameters
    ----------
    fold : str
        Rows that are left out together.
    open_below, open_above : bool
        Flags that no figure has may have lowered it, and may have raised it.
    """

    log_ratio: float
    fold: str
    job: PeakClass
    open_below: bool = False
    open_above: bool = False


class _Rows:
    """Residuals as arrays, each [n]: `known` says by side (below, above) whether a row bounds the error there."""

    def __init__(self, residuals: Sequence[PeakResidual]) -> None:
        y = np.array([one.log_ratio for one in residuals])
        low, high = (np.array([getattr(one, name) for one in residuals]) for name in ("open_below", "open_above"))
        self.sides = (-y, y)
        self.known = (~low & (~high | (y < 0)), ~high & (~low | (y > 0)))
        folds = {name: place for place, name in enumerate(dict.fromkeys(one.fold for one in residuals))}
        self.fold = np.array([folds[one.fold] for one in residuals])
        self.names = [one.job.names for one in residuals]
        every = sorted({name for mine in self.names for name in mine}, key=lambda name: (name.count(","), name))
        every = [WHOLE, *(name for name in every if name != WHOLE)]
        self.members = {name: np.array([name in mine for mine in self.names]) for name in every}


def fit(residuals: Sequence[PeakResidual]) -> tuple[PeakErrors, float]:
    """Errors of every class, and the number of sets that the class around a class counts for.

    Of the numbers whose scores lie within one standard error of the best, the smallest: a class that has rows of its
    own is then described by them (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).
    """
    rows = _Rows(residuals)
    everyone = np.ones(len(residuals), dtype=bool)
    scores = {shrink: _scores(rows, everyone, shrink) for shrink in SHRINKS}
    best = min(scores.values(), key=np.mean)
    bound = float(best.mean() + best.std() / math.sqrt(best.size)) if best.size else math.inf
    shrink = min(shrink for shrink, each in scores.items() if not each.size or each.mean() <= bound)
    return _record(rows, everyone, shrink), shrink


def without_each(residuals: Sequence[PeakResidual], shrink: float) -> dict[str, PeakErrors]:
    """Errors by fits without each fold's rows, by the fold."""
    rows = _Rows(residuals)
    names = list(dict.fromkeys(one.fold for one in residuals))
    return {name: _record(rows, rows.fold != place, shrink) for place, name in enumerate(names)}


def _scores(rows: _Rows, among: Mask, shrink: float) -> Array:
    """Interval scores of the sides that rows bound, each by a fit without its fold."""
    found = []
    for side, known in zip(rows.sides, rows.known, strict=True):
        width = np.maximum(_left_out_ends(rows, among, side, known, shrink), 0.0)
        found.append((width + np.maximum(side - width, 0.0) / DEFAULT_RISK)[among & known])
    return np.concatenate(found)


def _record(rows: _Rows, train: Mask, shrink: float) -> PeakErrors:
    """Errors of every class from some rows."""
    below, above = (
        _quantiles(rows, train, side, known, shrink) for side, known in zip(rows.sides, rows.known, strict=True)
    )
    classes = {}
    for name, member in rows.members.items():
        mine = member & train
        if not mine.any() or name not in below or name not in above:
            continue
        plain = mine & rows.known[0] & rows.known[1]
        typical = float(np.median(np.abs(np.expm1(rows.sides[0][plain if plain.any() else mine]))))
        low, high = max(below[name], 0.0), max(above[name], 0.0)
        classes[name] = ClassError(
            round(-math.expm1(-low), 4), round(math.expm1(high), 4), round(typical, 4),
            len(np.unique(rows.fold[mine])), int(mine.sum()),
        )  # fmt: skip
    return PeakErrors(classes)


def _quantiles(rows: _Rows, train: Mask, side: Array, known: Mask, shrink: float) -> Ends:
    """Quantile of each class on a side, drawn towards that of the class around it."""
    found: Ends = {}
    for name, member in rows.members.items():
        if not (member & train).any():
            continue
        mine, around = member & train & known, name.rpartition(", ")[0] or WHOLE
        if name == WHOLE:
            found[name] = _quantile(side[mine]) if mine.any() else 0.0
            continue
        found[name] = _drawn(side[mine], _share(rows.fold[mine], shrink), found[around])
    return found


def _drawn(values: Array, share: float, around: float) -> float:
    """Quantile of some values, drawn towards that of the values around them; few of them can only move it out."""
    if not len(values):
        return around
    own = _quantile(values) if len(values) >= SHOWING else max(_quantile(values), around)
    return share * own + (1 - share) * around


def _left_out_ends(rows: _Rows, among: Mask, side: Array, known: Mask, shrink: float) -> Array:
    """Quantile of each row's class by the rows among some without its fold, [n]; 0 for other rows."""
    ends = np.zeros(len(side))
    for fold in np.unique(rows.fold[among]):
        train = among & (rows.fold != fold)
        if not train.any():
            continue
        ranks = _quantiles(rows, train, side, known, shrink)
        for at in np.flatnonzero(among & (rows.fold == fold)):
            ends[at] = ranks[next(name for name in reversed(rows.names[at]) if name in ranks)]
    return ends


def _share(fold: NDArray[np.int64], shrink: float) -> float:
    """Fraction that a class has in its own figures, by the number of sets that it rests on."""
    if not len(fold):
        return 0.0
    by_set = np.bincount(fold)
    sets = by_set.sum() ** 2 / np.sum(by_set**2)
    return float(sets / (sets + shrink))


def _quantile(values: Array) -> float:
    """The value that one of them exceeds with the default risk."""
    return float(np.quantile(values, 1 - DEFAULT_RISK))
