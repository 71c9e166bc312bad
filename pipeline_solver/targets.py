"""Which step time to prove next, where the tree of the best plan is too large to prove that at once."""

from __future__ import annotations

import numpy as np

from taylor.pipeline_solver.tree_memory import TreeMemory
from taylor.pipeline_solver.tree_run import TreeEnd

LEAST_STEP = 2e-4
"""Step of a target, as a share of the step time, below which its tree is searched to the end."""

SLOW_STEP = 0.25
"""Share of the way to the best plan's step time that the next target goes after a slow tree: each takes longer than the
one before, and one that is not done in time proves little."""


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
        self.top = np.inf
        self.target = aim if aim < memory.left else 0.5 * (bound + memory.left)

    @property
    def whole(self) -> bool:
        """Whether the target is all that is left to prove."""
        return self.target >= self.aim

    @property
    def patient(self) -> bool:
        """Whether the target is so near that its tree is searched to the end."""
        return self.target - self.bound <= LEAST_STEP * self.aim

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

    def searched(self, end: TreeEnd | None, aim: float, bound: float, slow: bool = False) -> None:
        """The target's tree has ended: what comes next, less far on where that was slow for the time that is left."""
        self.aim, self.bound = aim, bound
        left = end is TreeEnd.LEFT
        if left:
            self.memory.left, self.top = min(self.memory.left, self.target), self.target
        if aim < self.memory.left:
            self.target = aim
            return
        self.target = bound + (SLOW_STEP if slow and not left else 0.5) * (min(self.top, aim) - bound)
        if not left:
            self.top = np.inf
