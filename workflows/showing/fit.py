"""Fit of a plan on its devices: one record for the result's JSON, the last lines of the log and the API."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from taylor.base.errors import shortened
from taylor.cost_model.errors.known_error import DEFAULT_RISK, KnownError, risk_beyond
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB
from taylor.pipeline_solver.model.solution import Solution
from taylor.report.ranking import AT_RISK, NOT_CERTAIN, percent_text

UNKNOWN_ERROR = 0.01
"""Fraction of the limit below which free memory is reported as tight where the error of the memory is unknown."""

NAMED_FLAGS = 4
UNKNOWN_FIT = NOT_CERTAIN
"""Sentence part for a plan whose answer unmodelled flags may change."""


class Fit(str, Enum):
    """Answer; at risk is a plan whose predicted peaks fit the devices with more risk than the job may have."""

    FITS = "fits"
    AT_RISK = AT_RISK
    DOES_NOT_FIT = "does not fit"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class FitVerdict:
    """Fit of a plan, and what to do where it does not fit.

    Parameters
    ----------
    fit : Fit
    likely : bool
        Whether the answer is that of the predicted peaks while the interval of one of them crosses its device's memory.
    shortage_mib : tuple of float [pp]
        Excess of each stage's predicted peak over its limit, MiB; 0 where it is below. Empty without a peak.
    risk : float or None
        Probability that the stage with the highest one runs out of memory; None where no error is known.
    reason : str
        Reason for an uncertain answer or a shortage; empty where the plan fits.
    cure : str
        Change that would make it fit; empty where none is needed.
    """

    fit: Fit
    likely: bool = False
    shortage_mib: tuple[float, ...] = ()
    risk: float | None = None
    reason: str = ""
    cure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Verdict as plain data; `probability` is that of fitting, as a share."""
        return asdict(self) | {
            "fit": str(self.fit),
            "shortage_mib": [round(one, 3) for one in self.shortage_mib],
            "probability": None if self.risk is None or self.fit is Fit.UNKNOWN else 1.0 - self.risk,
            "sentence": self.sentence,
        }

    @property
    def sentence(self) -> str:
        """Answer, risk, reason and cure in one line."""
        parts = [self.answer, self.reason, self.cure]
        return "; ".join(part for part in parts if part)

    @property
    def answer(self) -> str:
        """Answer with its probability, where that is known."""
        if self.fit is Fit.UNKNOWN:
            return UNKNOWN_FIT
        if self.probability is None:
            return f"likely {self.fit}" if self.likely else str(self.fit)
        word = Fit.DOES_NOT_FIT if self.fit is Fit.DOES_NOT_FIT else Fit.FITS
        only = " only" if self.fit is Fit.AT_RISK else ""
        return f"{word} with {percent_text(self.probability)} probability{only}"

    @property
    def probability(self) -> float | None:
        """Probability of the answer, that it fits where it is at risk, %; None where no error is known."""
        if self.risk is None or self.fit is Fit.UNKNOWN:
            return None
        return 100.0 * (self.risk if self.fit is Fit.DOES_NOT_FIT else 1.0 - self.risk)


def doubt_of_no(flags: Sequence[UnmodelledFlag]) -> str:
    """Further sentence on what may change the answer that nothing fits; empty where nothing may."""
    lower = [flag for flag in flags if flag.may_lower_memory]
    if not lower:
        return ""
    return f"; whether one fits is unknown: {named_flags(lower)} may lower the peak and {is_or_are(lower)} not modelled"


def shortage(peaks_mib: Sequence[float], limits_mib: Sequence[float]) -> tuple[float, ...]:
    """Excess of each peak over its limit, MiB, as far as it is more than rounding."""
    over = (peak - limit for peak, limit in zip(peaks_mib, limits_mib, strict=True))
    return tuple(one if one > MEMORY_TOLERANCE_MIB else 0.0 for one in over)


def risk_of(known: KnownError | None, peak_mib: float, limit_mib: float) -> float | None:
    """Probability that a measured peak exceeds the limit; None where no error is known."""
    if known is None or peak_mib <= 0 or limit_mib <= 0:
        return None
    share = math.log(limit_mib / peak_mib)
    far = math.log1p(known.above) if share >= 0 else -math.log1p(-known.below)
    if not far:
        return float(share < 0)
    return risk_beyond(share / far)


def is_tight(known: KnownError | None, margin: MemoryMargin, peak_mib: float, limit_mib: float) -> bool:
    """Return whether a stage may run out of memory: at the upper end of its peak, or by `UNKNOWN_ERROR` of its limit.

    Parameters
    ----------
    known : KnownError or None
        Of the peak; None where nothing is known.
    limit_mib : float
        What the margin leaves of the limit.
    """
    whole = margin.around(limit_mib, known)
    if known is None:
        return whole - peak_mib < UNKNOWN_ERROR * whole
    return peak_mib * known.upper(margin.stated_risk) > whole + MEMORY_TOLERANCE_MIB


def odds_text(risk: float) -> str:
    """Probability of an interval with this risk beyond each end, in words."""
    return "in nine of ten cases" if risk == DEFAULT_RISK else f"with {100 * (1 - 2 * risk):g} % probability"


def fit_verdict(
    solution: Solution,
    flags: Sequence[UnmodelledFlag],
    most_mib: Sequence[float | None] | None,
    known: KnownError | None,
    margin: MemoryMargin,
    *,
    least_mib: Sequence[float | None] | None = None,
    confirmed: bool = False,
    cure: str = "",
) -> FitVerdict:
    """Verdict of a plan with predicted peaks.

    Parameters
    ----------
    flags : sequence of UnmodelledFlag
        Flags of the job whose effect is in no peak.
    most_mib : sequence of (float or None) [pp], or None
        Most of each peak with those flags and the known error; None: no bound is known.
    known : KnownError or None
        Of the peaks.
    least_mib : sequence of (float or None) [pp], or None
        Least of each peak with those flags and the known error; None: no bound is known. A stage whose least is above
        its limit settles the answer, whatever is not modelled.
    confirmed : bool
        Whether a dry-run of this very plan passed.
    cure : str
        Change, known to the caller, that makes the plan fit.
    """
    peaks, limits = solution.peak_memory_mib, solution.memory_limit_mib
    if not peaks:
        return FitVerdict(Fit.UNKNOWN, reason=solution.message or "its memory is not known")
    short = shortage(peaks, limits)
    whole = [margin.around(limit, known) for limit in limits]
    tightest = min(range(len(peaks)), key=lambda stage: whole[stage] / max(peaks[stage], MEMORY_TOLERANCE_MIB))
    risk = None if confirmed else risk_of(known, peaks[tightest], whole[tightest])
    if any(shortage(peaks, [margin.within(limit, known) for limit in limits])):
        worst = short.index(max(short))
        beside = sum(map(bool, short)) - 1
        more = f", and {beside} further stage{'s' * (beside > 1)}" if beside else ""
        reason = f"{short[worst]:,.0f} MiB short on stage {worst}{more}"
        cure = cure or f"the fullest stage needs a device with {max(peaks):,.0f} MiB"
        lower = [flag for flag in flags if flag.may_lower_memory]
        least = (None,) * len(peaks) if least_mib is None else least_mib
        settled = any(one is not None and one > limit for one, limit in zip(least, whole, strict=True))
        if lower and not settled:
            figure = f"{_predicted(peaks, limits, worst)}, {reason}"
            unknown = f"{figure}; {named_flags(lower)} may lower the peak and {is_or_are(lower)} not modelled"
            return FitVerdict(Fit.UNKNOWN, False, short, risk, unknown, _measure(lower))
        likely = known is not None and not confirmed and peaks[worst] * known.lower(margin.stated_risk) <= whole[worst]
        return FitVerdict(Fit.DOES_NOT_FIT, likely, short, risk, reason, cure)
    higher = [] if confirmed else [flag for flag in flags if flag.may_raise_memory]
    if higher and most_mib is not None:
        beyond = [stage for stage, most in enumerate(most_mib) if most is None or most > whole[stage]]
        if beyond:
            figure = _predicted(peaks, limits, tightest)
            may = f"{named_flags(higher)} may raise the peak above the limit"
            unknown = f"{figure}; {may} and {is_or_are(higher)} not modelled"
            return FitVerdict(Fit.UNKNOWN, False, short, risk, unknown, _measure(higher))
    if any(short) and risk is not None:
        worst = short.index(max(short))
        free = f"{margin.within(limits[worst], known) - peaks[worst]:,.0f} MiB free on stage {worst}"
        return _at_risk(short, risk, f"{free}, {short[worst]:,.0f} MiB less", margin.planned_risk(known), cure)
    most = peaks[tightest] * (1.0 if known is None or confirmed else known.upper(margin.stated_risk))
    likely = most > whole[tightest] + MEMORY_TOLERANCE_MIB
    if not likely:
        return FitVerdict(Fit.FITS, False, short, risk)
    free = f"{whole[tightest] - peaks[tightest]:,.0f} MiB free on stage {tightest}"
    return FitVerdict(Fit.FITS, True, short, risk, free, f"--risk {100 * margin.stated_risk:g}% plans with more free")


def _at_risk(short: tuple[float, ...], risk: float, free: str, planned: float, cure: str) -> FitVerdict:
    """Verdict of a plan within the memory of every device, but not with the risk that it may have."""
    reason = f"{free} than {100 * planned:g} % risk asks for"
    allowed = f"--risk {math.ceil(100 * risk)}% allows it"
    return FitVerdict(Fit.AT_RISK, True, short, risk, reason, cure or allowed)


def _predicted(peaks: Sequence[float], limits: Sequence[float], stage: int) -> str:
    return f"{peaks[stage]:,.0f} of {limits[stage]:,.0f} MiB predicted on stage {stage}"


def is_or_are(flags: Sequence[UnmodelledFlag]) -> str:
    """Verb after this number of flags."""
    return "is" if len(flags) == 1 else "are"


def named_flags(flags: Sequence[UnmodelledFlag]) -> str:
    """Names of the first flags, and the number of others."""
    names = ", ".join(shortened(flag.name) for flag in flags[:NAMED_FLAGS])
    return names if len(flags) <= NAMED_FLAGS else f"{names} and {len(flags) - NAMED_FLAGS} more"


def _measure(flags: Sequence[UnmodelledFlag]) -> str:
    return f"measure it by a dry-run, or leave out {named_flags(flags)}"
