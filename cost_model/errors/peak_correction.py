"""A memory model corrected by peaks of runs, and by stages that ran out of memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean

from taylor.cost_model.errors.known_error import DEFAULT_RISK, KnownError

UNKNOWN_STEP = 0.01
"""Fraction of a card's memory by which a peak that ran out of it is taken to be higher, where the error of the figures
is unknown. Assumed."""

_STANDARD = NormalDist().inv_cdf(1.0 - DEFAULT_RISK)


@dataclass(frozen=True)
class SeenPeak:
    """A stage of a run: its predicted peak, and what was seen of the real one.

    Parameters
    ----------
    fixed_mib, kept_mib : float
        The predicted peak: kept activations, and everything else.
    mib : float
        Measured peak, or the least possible one.
    at_least : bool
        The stage ran out of memory: the peak is at least `mib`.
    """

    stage: int
    fixed_mib: float
    kept_mib: float
    mib: float
    at_least: bool = False

    @property
    def predicted_mib(self) -> float:
        """Peak by the uncorrected model."""
        return self.fixed_mib + self.kept_mib

    @property
    def more_mib(self) -> float:
        """Seen peak less the predicted one; of a stage that ran out of memory the least possible difference."""
        return self.mib - self.predicted_mib


@dataclass(frozen=True)
class PeakCorrection:
    """Correction of predicted peaks: an additive part of each stage and a factor on kept activations.

    Parameters
    ----------
    extra_mib : tuple of float [pp]
        Added to everything but kept activations; negative where a stage needs less than predicted.
    kept_factor : float
        Factor on kept activations, of all stages.
    common_mib : float
        Part of `extra_mib` that stages without a measurement have too.
    """

    extra_mib: tuple[float, ...]
    kept_factor: float = 1.0
    common_mib: float = 0.0

    def peak_mib(self, seen: SeenPeak) -> float:
        """Corrected peak of a stage."""
        return seen.fixed_mib + self.extra_mib[seen.stage] + self.kept_factor * seen.kept_mib


def correction_of(seen: Sequence[SeenPeak], stages: int, known: KnownError | None) -> PeakCorrection:
    """Correction under which each measured stage has its peak and each that ran out of memory is over its card.

    The more stages were measured, the more of the error is attributed to what they have in common; each form must
    predict a stage from the others better than the simpler form does (leave-one-out).

    * One stage: an additive part of this stage alone.
    * Two or more: a common additive part, where that predicts better than none.
    * Three or more: a common part and a factor on kept activations, by least squares.

    The rest is an additive part of each measured stage; of several runs the largest. A stage that ran out of memory has
    a peak of at least its card's memory: it is planned with the median of the peaks above that by the known error.

    Parameters
    ----------
    known : KnownError or None
        Of the predicted peaks.
    """
    measured = [one for one in seen if not one.at_least]
    common, factor = in_common(measured)
    extra = [common] * stages
    for stage in {one.stage for one in measured}:
        extra[stage] = max(one.mib - one.fixed_mib - factor * one.kept_mib for one in measured if one.stage == stage)
    for one in seen:
        predicted = one.fixed_mib + extra[one.stage] + factor * one.kept_mib
        if one.at_least and predicted <= one.mib:
            extra[one.stage] += median_beyond(predicted, one.mib, known) - predicted
    return PeakCorrection(tuple(extra), factor, common)


def median_beyond(predicted_mib: float, least_mib: float, known: KnownError | None) -> float:
    """Median of real peaks that are at least `least_mib`, MiB: above it, so that the same plan does not fit again.

    Real peaks over the predicted one are log-normal as in `KnownError.upper`, cut off at the least.
    """
    if known is None or not known.above or predicted_mib <= 0:
        return least_mib * (1.0 + UNKNOWN_STEP)
    deviation = math.log1p(known.above) / _STANDARD
    nearest = math.log(least_mib / predicted_mib) / deviation
    beyond = 1.0 - NormalDist().cdf(nearest)
    # Far out a normal tail falls by half within log 2 / distance (Mills' ratio), and the figures have no more digits.
    median = NormalDist().inv_cdf(1.0 - beyond / 2) if beyond > 1e-12 else nearest + math.log(2.0) / nearest
    return predicted_mib * math.exp(deviation * median)


@dataclass(frozen=True)
class _Form:
    """A form of what stages have in common: whether an additive part and a factor are fitted, to how many at least."""

    shifted: bool = False
    scaled: bool = False
    needs: int = 1

    def fit(self, seen: Sequence[SeenPeak]) -> tuple[float, float] | None:
        """Additive part and factor; None where the stages do not determine them."""
        if not self.shifted:
            return 0.0, 1.0
        more, kept = [one.more_mib for one in seen], [one.kept_mib for one in seen]
        if not self.scaled:
            return mean(more), 1.0
        middle = mean(kept)
        spread = sum((each - middle) ** 2 for each in kept)
        if spread <= 1e-9 * max(1.0, middle) ** 2:
            return None
        slope = sum((k - middle) * (m - mean(more)) for k, m in zip(kept, more, strict=True)) / spread
        return (mean(more) - slope * middle, 1.0 + slope) if slope > -1.0 else None


def in_common(measured: Sequence[SeenPeak]) -> tuple[float, float]:
    """Additive part and factor that measured peaks have in common; 0 and 1 where none predicts them better.

    Parameters
    ----------
    measured : sequence of SeenPeak
        Peaks of one `stage` are left out together.
    """
    stages = sorted({one.stage for one in measured})
    best, least = (0.0, 1.0), math.inf
    # The simplest first: another must predict better.
    for form in (_Form(), _Form(shifted=True, needs=2), _Form(shifted=True, scaled=True, needs=3)):
        found = form.fit(measured) if len(stages) >= form.needs else None
        error = None if found is None else _left_out(form, measured, stages)
        if found is not None and error is not None and error < least * (1.0 - 1e-9):
            best, least = found, error
    return best


def _left_out(form: _Form, measured: Sequence[SeenPeak], stages: Iterable[int]) -> float | None:
    """Sum of the errors of each stage's peaks in a fit to the others; None where one cannot be fitted."""
    error = 0.0
    for stage in stages:
        found = form.fit([one for one in measured if one.stage != stage]) if form.shifted else (0.0, 1.0)
        if found is None:
            return None
        common, factor = found
        error += sum(
            abs(one.mib - one.fixed_mib - common - factor * one.kept_mib) for one in measured if one.stage == stage
        )
    return error
