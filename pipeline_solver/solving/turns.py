"""Time slices of subproblems, of which the best plan counts and cuts the others off.

Subproblems are the places of a kind, the recompute choices for all chunks, the variants of a job. Most are closed
within a moment; only a try shows which ones are hard. So each has a first time slice, and the remaining time goes to
the open ones. A resumable subproblem is cheap to stop: its first slice is short, and later slices go to the subproblem
of the lowest bound, because the bound of all is no better. One that starts from nothing each time is dear to stop: its
first slice is an equal part of the remaining time. Later the one nearest to its proof comes first, so that the last one
has all the remaining time.
"""

from __future__ import annotations

import time
from typing import Generic, TypeVar

FIRST = 0.1
"""Largest fraction of the limit for the first time slice of a resumable subproblem."""

ALL_FIRST = 0.5
"""Fraction of it for all these first slices together."""

LONGEST = 0.5
"""Fraction of the remaining time for a later slice while other subproblems are open."""

LEAST = 0.05
"""Least seconds of a time slice."""

SHORT, FORESEEN = 60.0, 3.0
"""Seconds of the limit that count at first, and multiple of the elapsed time that counts later: in ten minutes, too, a
subproblem of one second must not wait for the first slice of one that takes them all."""

Case = TypeVar("Case")


def foreseen(limit: float, gone: float) -> float:
    """The part of a limit that slices are fractions of after `gone` seconds; all of a short one."""
    return min(limit, max(SHORT, FORESEEN * gone))


class Turns(Generic[Case]):
    """The time slices of subproblems up to a deadline.

    Parameters
    ----------
    deadline : float or None
        `time.monotonic()` at which all slices end; without it slices have no limit.
    """

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.whole = self.left()
        self._again: set[Case] = set()

    def left(self) -> float | None:
        """Seconds remaining; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def reckoned(self) -> float | None:
        """The part of the limit that slices are fractions of by now; None without a deadline."""
        left = self.left()
        return None if left is None or self.whole is None else foreseen(self.whole, self.whole - left)

    def ahead(self) -> float | None:
        """Seconds of that part remaining; None without a deadline."""
        left, part = self.left(), self.reckoned()
        return None if left is None or part is None or self.whole is None else left - (self.whole - part)

    def first(self, untried: int, *, resumable: bool) -> float | None:
        """Seconds of a first time slice, with `untried` subproblems untried, this one included."""
        left, part, ahead = self.left(), self.reckoned(), self.ahead()
        if left is None or part is None or ahead is None:
            return None
        if not resumable:
            return max(LEAST, left / untried)
        return max(LEAST, min(FIRST * part, (ahead - (1.0 - ALL_FIRST) * part) / untried))

    def later(self, pending: list[tuple[float, Case]], *, resumable: bool) -> tuple[Case, float | None]:
        """The next one of the open subproblems (given with their bounds), and its seconds."""
        ordered = sorted(pending, key=lambda entry: entry[0])
        fresh = [entry for entry in ordered if entry[1] not in self._again]
        _, case = fresh[-1] if fresh and not resumable else ordered[0]
        self._again.add(case)
        left, ahead = self.left(), self.ahead()
        if left is None or ahead is None:
            return case, None
        if len(pending) == 1 or (not resumable and self._again.issuperset(one for _, one in pending)):
            return case, max(LEAST, left)
        return case, max(LEAST, LONGEST * (ahead if resumable else left))
