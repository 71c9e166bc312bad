"""How cases share the time, of which the best one's plan counts and cuts the others off.

The places of a kind, the recompute choices for all chunks, the variants of a job: each is a problem by itself, most are
closed within a moment, and which ones are hard is known only once they have been tried. So each has a first turn, and
what is left goes to those that are open. What a case can go on with is cheap to stop: its first turn is short, and
later turns go to the case of the least bound, for the bound of all is no better. What begins anew each time is dear to
stop: a first turn is an equal share of what is left, and later the case nearest to its proof comes first, so that the
last one has all the time there is.
"""

from __future__ import annotations

import time
from typing import Generic, TypeVar

FIRST = 0.1
"""Share of the limit that the first turn of a case takes at most which a later one goes on with."""

ALL_FIRST = 0.5
"""Share of it that all these first turns may take."""

LONGEST = 0.5
"""Share of the time left that a later turn takes while other cases are open."""

LEAST = 0.05
"""Seconds of a turn at the least."""

SHORT, FORESEEN = 60.0, 3.0
"""Seconds of limit that are reckoned with at first, and how many times what has gone by is later: in ten minutes, too,
a case of one second is not to wait for the first turn of one that takes them all."""

Case = TypeVar("Case")


def foreseen(limit: float, gone: float) -> float:
    """How much of a limit turns are shares of once so many seconds of it have gone by; all of a short one."""
    return min(limit, max(SHORT, FORESEEN * gone))


class Turns(Generic[Case]):
    """The turns of cases up to a moment.

    Parameters
    ----------
    deadline : float or None
        `time.monotonic()` at which all turns end; without it every turn takes as long as it takes.
    """

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.whole = self.left()
        self._again: set[Case] = set()

    def left(self) -> float | None:
        """Seconds left; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def reckoned(self) -> float | None:
        """The part of the limit that turns are shares of by now; None without a deadline."""
        left = self.left()
        return None if left is None or self.whole is None else foreseen(self.whole, self.whole - left)

    def ahead(self) -> float | None:
        """Seconds left of that part; None without a deadline."""
        left, part = self.left(), self.reckoned()
        return None if left is None or part is None or self.whole is None else left - (self.whole - part)

    def first(self, untried: int, *, resumable: bool) -> float | None:
        """Seconds of a case's first turn, with so many cases untried, this one among them."""
        left, part, ahead = self.left(), self.reckoned(), self.ahead()
        if left is None or part is None or ahead is None:
            return None
        if not resumable:
            return max(LEAST, left / untried)
        return max(LEAST, min(FIRST * part, (ahead - (1.0 - ALL_FIRST) * part) / untried))

    def later(self, pending: list[tuple[float, Case]], *, resumable: bool) -> tuple[Case, float | None]:
        """The case whose turn it is, of those that are open with their bounds, and its seconds."""
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
