"""The next step time to prove, where the tree of the best plan is too large to prove that directly."""

from __future__ import annotations

import math

from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, TreeParams
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from taylor.pipeline_solver.tree.tree_run import TreeEnd


class Targets:
    """Step times to prove, one after the other, each in a separate tree.

    The first is the best plan's: where probing rules out most columns, lower targets only cost time. Below a lower
    target far fewer columns pass the reduced-cost test, and the LP can mix no others: where the tree of the best plan
    was abandoned as slow, such a tree ends long before that one has raised its bound as far.

    Parameters
    ----------
    memory : TreeMemory
        The targets that earlier solves of the problem abandoned, or that had too many columns below them.
    aim, bound : float
        The step time to beat, and the lower bound.
    params : TreeParams
    """

    def __init__(self, memory: TreeMemory, aim: float, bound: float, params: TreeParams = DEFAULT_PARAMS.tree) -> None:
        self.memory, self.aim, self.bound, self.params = memory, aim, bound, params
        self.left: list[float] = []
        self.target = aim if aim < memory.left else 0.5 * (bound + memory.left)

    @property
    def whole(self) -> bool:
        """Return whether only the target remains to prove."""
        return self.target >= self.aim

    @property
    def patient(self) -> bool:
        """Return whether the target is so near that its tree is searched to the end."""
        return self.target - self.bound <= self.params.least_step * self.aim

    @property
    def hemmed_in(self) -> bool:
        """Return whether the search is stalled: too many columns lie just above the bound."""
        return not self.whole and self.memory.crowded - self.bound <= self.params.least_step * self.aim

    def settle(self, aim: float, bound: float) -> float:
        """Update aim and bound; return the target."""
        self.aim, self.bound = aim, bound
        last = aim - bound <= self.params.least_step * aim
        self.target = aim if last else min(self.target, aim)
        if self.target >= self.memory.crowded and not last:
            self.target = 0.5 * (bound + self.memory.crowded)
        return self.target

    def proven(self, bound: float) -> None:
        """Record that the target is proven without a tree."""
        self.bound = bound
        self.target = 0.5 * (bound + self.aim)

    def crowded(self) -> None:
        """Record that there are too many columns below the target."""
        self.memory.crowded = min(self.memory.crowded, self.target)

    def searched(
        self, end: TreeEnd | None, aim: float, bound: float, seconds: float = 0.0, time_left: float | None = None
    ) -> None:
        """Record how the target's tree ended and its seconds, and choose the next target.

        After an abandoned target comes one half-way down. Once a lower one is proven, the abandoned one is tried again,
        and only then those above it. No target goes farther than its tree is likely to end in the remaining time.
        """
        self.aim, self.bound = aim, bound
        if end is TreeEnd.LEFT:
            self.memory.left = min(self.memory.left, self.target)
            self.left.append(self.target)
        self.left = [target for target in self.left if bound < target < aim]
        if aim < self.memory.left:
            self.target = aim
        elif end is TreeEnd.LEFT:
            self.target = bound + self.params.half_way * (min(self.target, aim) - bound)
        else:
            way = self._way(seconds, time_left) * (aim - bound)
            self.target = bound + min([way, *(target - bound for target in self.left)])

    def _way(self, seconds: float, time_left: float | None) -> float:
        """Fraction of the way to the best plan for the next target, by the last tree's seconds and those remaining."""
        if time_left is None or seconds <= 0.0:
            return self.params.half_way
        times = self.params.time_share * time_left / seconds
        share = min(1.0, math.log(max(times, 1.0)) / math.log(self.params.times_as_long))
        return self.params.half_way * max(self.params.least_way, share)
