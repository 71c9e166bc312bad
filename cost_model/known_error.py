"""How far memory figures are usually off, by where they come from: stated, so that a margin can be judged."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownError:
    """What is known of a source of memory figures.

    Parameters
    ----------
    share : float
        How far a peak is usually off, as a share of it.
    sentence : str
        The same in words.
    """

    share: float
    sentence: str


_MEASURED = KnownError(0.02, "a fit to dry-runs is up to 2 % off")

MEMORY_ERRORS = {
    "estimate": KnownError(0.07, "the estimate is typically 7 % off"),
    "dry-run": _MEASURED,
    "saved": _MEASURED,
}
"""By `MemoryProfile.source`. The estimate: median over 58 published peaks (``python -m benchmarks.measured_runs``).
Dry-runs: under noise of 2 % (`docs/dryrun.md`)."""
