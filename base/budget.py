"""The time of a whole command: one deadline set at its start, passed to everything that takes long."""

from __future__ import annotations

import time
from dataclasses import dataclass

FINISH_SECONDS = 3.0
"""Seconds beyond its limit that a command may spend on optional files."""


@dataclass(frozen=True)
class TimeBudget:
    """The deadline for a command's result.

    Parameters
    ----------
    deadline : float or None
        `time.monotonic()` of that moment; None sets no limit.
    """

    deadline: float | None = None

    @classmethod
    def of(cls, seconds: float | None) -> TimeBudget:
        """Start a budget that ends `seconds` from now; None for no limit."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def left(self) -> float | None:
        """Remaining seconds, at least 0; None without a limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def over(self) -> bool:
        """Return whether nothing remains."""
        return self.left == 0.0

    def part(self, shares: int) -> float | None:
        """An equal fraction of the remaining seconds; None without a limit."""
        left = self.left
        return None if left is None else left / max(1, shares)

    def at_most(self, seconds: float | None) -> float | None:
        """The remaining seconds, or `seconds` where these are fewer."""
        left = self.left
        if left is None or seconds is None:
            return left if seconds is None else seconds
        return min(left, seconds)

    def later(self, seconds: float) -> TimeBudget:
        """Return a budget that ends `seconds` later."""
        return self if self.deadline is None else TimeBudget(self.deadline + seconds)


NO_LIMIT = TimeBudget()
"""A command takes as long as it takes."""
