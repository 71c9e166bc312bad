"""How far memory figures are usually off, by where they come from: stated, so that a margin can be judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownError:
    """What is known of a source of memory figures.

    Parameters
    ----------
    share : float
        How far above the figure a peak lies at most in 19 of 20 cases, as a share of the figure.
    typical : float
        How far it is off in the median.
    sentence : str
        The same in words.
    """

    share: float
    typical: float
    sentence: str


_MEASURED = KnownError(0.02, 0.02, "a fit to dry-runs is up to 2 % off")

MEMORY_ERRORS = {
    "estimate": KnownError(0.19, 0.03, "the estimate is typically 3 % off, 19 of 20 peaks are at most 19 % above it"),
    "dry-run": _MEASURED,
    "saved": _MEASURED,
}
"""By `MemoryProfile.source`. The estimate: over 58 published peaks, the upper end over the 53 of them whose files tell
what ran (``python -m benchmarks.measured_runs``).
Dry-runs: under noise of 2 % (`docs/dryrun.md`)."""
