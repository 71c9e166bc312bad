"""Which step time to prove next, where the tree of the best plan is too large to prove that at once."""

from __future__ import annotations

import math

from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from taylor.pipeline_solver.tree.tree_run import TreeEnd

LEAST_STEP = 2e-4
"""Step of a target, as a share of the step time, below which its tree is searched to the end."""

HALF_WAY, TIMES_AS_LONG = 0.5, 4.0
"""Share of the way to the best plan's step time that the next target goes at most, and how many times as long its tree
then takes as the one before: three to five times in those measured."""

LEAST_WAY = 0.1
"""Share of that way that it goes at the least."""

TIME_SHARE = 0.9
"""Share of the time left within which the next tree is to end: one that does not end in time proves little."""


class Targets:
    """Step times to prove, one after the other, each in a tree of its own.

    The first is the best plan's: where probing rules out most configurations, lower targets only cost time. Below a
    lower one the reduced costs leave far fewer configurations, and the LP can mix no others: where the tree of the
    best plan was left as slow, such a tree is done long before that one has raised its bound as far.

    Parameters
    ----------
    memory : TreeMemory
        Which targets earlier solves of the problem left, or found too many configurations below.
    aim, bound : float
        The step time to beat, and the one that no plan beats.
    """

    def __init__(self, memory: TreeMemory, aim: float, bound: float) -> None:
        self.memory, self.aim, self.bound = memory, aim, bound
        self.left: list[float] = []
        self.target = aim if aim < memory.left else 0.5 * (bound + memory.left)

    @property
    def whole(self) -> bool:
        """Whether the target is all that is left to prove."""
        return self.target >= self.aim

    @property
    def patient(self) -> bool:
        """Whether the target is so near that its tree is searched to the end."""
        return self.target - self.bound <= LEAST_STEP * self.aim

    @property
    def hemmed_in(self) -> bool:
        """Whether next to nothing can be proven, for there are too many configurations just above the bound."""
        return not self.whole and self.memory.crowded - self.bound <= LEAST_STEP * self.aim

    def settle(self, aim: float, bound: float) -> float:
        """The target, with what is known by now."""
        self.aim, self.bound = aim, bound
        last = aim - bound <= LEAST_STEP * aim
        self.target = aim if last else min(self.target, aim)
        if self.target >= self.memory.crowded and not last:
            self.target = 0.5 * (bound + self.memory.crowded)
        return self.target

    def proven(self, bound: float) -> None:
        """The target is proven without a tree."""
        self.bound = bound
        self.target = 0.5 * (bound + self.aim)

    def crowded(self) -> None:
        """There are too many configurations below the target."""
        self.memory.crowded = min(self.memory.crowded, self.target)

    def searched(
        self, end: TreeEnd | None, aim: float, bound: float, seconds: float = 0.0, time_left: float | None = None
    ) -> None:
        """The target's tree has ended after so many seconds: what comes next.

        Below a target that was left comes one half-way down; once a lower one is proven, the one that was left comes
        again, and only then those above it. None goes farther than its tree is likely to end in the time left.
        """
        self.aim, self.bound = aim, bound
        if end is TreeEnd.LEFT:
            self.memory.left = min(self.memory.left, self.target)
            self.left.append(self.target)
        self.left = [target for target in self.left if bound < target < aim]
        if aim < self.memory.left:
            self.target = aim
        elif end is TreeEnd.LEFT:
            self.target = bound + HALF_WAY * (min(self.target, aim) - bound)
        else:
            way = _way(seconds, time_left) * (aim - bound)
            self.target = bound + min([way, *(target - bound for target in self.left)])


def _way(seconds: float, time_left: float | None) -> float:
    """Share of the way to the best plan that a next target may go, with so long a tree behind and so much time left."""
    if time_left is None or seconds <= 0.0:
        return HALF_WAY
    times = TIME_SHARE * time_left / seconds
    share = min(1.0, math.log(max(times, 1.0)) / math.log(TIMES_AS_LONG))
    return HALF_WAY * max(LEAST_WAY, share)
