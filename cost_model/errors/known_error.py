"""Usual error of figures of time and memory: the one source of every interval, and of what «fits» means.

An error is the spread of measured over predicted figures, fitted to published runs. Differences of a job from these
widen it: flags that no figure takes into account, a device without measured rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist, median

from taylor.cost_model.profile import MemorySource

DEFAULT_RISK = 0.05
"""Probability that a measured figure lies beyond an end of its interval."""

FLAG_WIDTH = 0.1
"""Change of a time by a flag that no figure takes into account, as a deviation of its logarithm. Assumed."""
DEVICE_WIDTH = 0.15
"""Common error of all speeds of a device that was not measured, likewise; a calibration is drawn towards the register
by it. Assumed."""
FRAMEWORK_WIDTH = 0.085
"""Common error of all peaks under a framework without measured ones, likewise: fits to MindFormers' dry-runs lay up to
15 % above the analytical model (95 % upper limit, taken as that of a normal distribution) before any of them took part
in it."""


@dataclass(frozen=True)
class KnownError:
    """Distance of measured figures from predicted ones.

    Parameters
    ----------
    below, above : float
        95 % limits of measured figures below it and above it, as fractions of the figure.
    typical : float
        Its error in the median.
    source : str
        Source of the figures, in words.
    planned : bool
        Plans keep memory free for it at `DEFAULT_RISK` where no other risk is asked for.
    """

    below: float
    above: float
    typical: float
    source: str = ""
    planned: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.below < 1 and 0 <= self.above < math.inf):
            raise ValueError(f"an error lies between shares of 0 to 1 below and 0 on above, found {self}")

    @classmethod
    def seen(cls, ratios: Iterable[float]) -> KnownError:
        """The error from ratios of measured to predicted figures.

        Its ends are ranks of the ratios, so that one more of the same kind lies beyond an end in one of 20 cases
        (Vovk et al. 2005, split conformal prediction); below 19 of them it is the outermost.

        Raises
        ------
        ValueError
            Without any.
        """
        ordered = sorted(ratios)
        if not ordered:
            raise ValueError("an error is that of at least one figure")
        rank = (len(ordered) + 1) * DEFAULT_RISK
        # Rounded, for 20 times a twentieth to be one.
        beyond = max(math.floor(round(rank, 9)), 1)
        low, high = ordered[beyond - 1], ordered[-beyond]
        typical = median(abs(1 / ratio - 1) for ratio in ordered)
        return cls(max(1 - low, 0.0), max(high - 1, 0.0), typical)

    def upper(self, risk: float = DEFAULT_RISK) -> float:
        """Factor on the figure so that a measured one is higher with this risk.

        Other risks than one of 20 follow a normal distribution of the logarithm, each side with its own deviation.
        """
        return math.exp(math.log1p(self.above) * _deviations(risk)) if self.above else 1.0

    def lower(self, risk: float = DEFAULT_RISK) -> float:
        """Factor on the figure so that a measured one is lower with this risk."""
        return math.exp(math.log1p(-self.below) * _deviations(risk))

    def widened(self, deviation: float) -> KnownError:
        """Return the error with a further, independent deviation of the logarithm."""
        far = deviation * _STANDARD
        low, high = math.hypot(math.log1p(-self.below), far), math.hypot(math.log1p(self.above), far)
        return replace(self, below=-math.expm1(-low), above=math.expm1(high))

    @property
    def sentence(self) -> str:
        """The error in words."""
        return f"{self.source} typically {100 * self.typical:.0f} % off, 95 % upper limit: +{100 * self.above:.0f} %"


def _deviations(risk: float) -> float:
    """Deviations from the figure to an end with this risk, over those to one of 20; none from one half on."""
    return max(NormalDist().inv_cdf(1 - risk), 0.0) / _STANDARD


def risk_beyond(share: float) -> float:
    """Probability of a figure beyond a fraction of the way to its 5 % end; over half where the fraction is negative."""
    return 1.0 - NormalDist().cdf(share * _STANDARD)


_STANDARD = NormalDist().inv_cdf(1 - DEFAULT_RISK)

_MEASURED = KnownError(0.02, 0.02, 0.01, "a fit to dry-runs is")
"""Fits to dry-runs with noise of 2 %, judged on plans that were not dry-run (`docs/dryrun.md`)."""

MEMORY_ERRORS: dict[str, KnownError] = {
    MemorySource.DRY_RUN: _MEASURED,
    MemorySource.SAVED: _MEASURED,
}
"""Errors of measured memory by `MemoryProfile.source`: under noise of 2 % (`docs/dryrun.md`). Estimated peaks have
their class's (`cost_model.errors.peak_interval`)."""

STEP_ERROR = KnownError(0.11, 0.14, 0.06, "estimated steps are")
"""Error of steps on a device that is calibrated to the user's own runs: that of steps on a measured device in the same
table, without flags that no figure has. All other steps have their class's (`cost_model.errors.step_interval`)."""

NEIGHBOUR_ERROR = 0.08
"""Relative difference of two predicted steps of one model on one device above which their order is right with 95 %
probability: what pairs of runs of the same model and software do, the same table."""
