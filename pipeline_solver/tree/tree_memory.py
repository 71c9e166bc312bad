"""What a solve by branch and cut leaves for another one of the same problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.model.options import Resume

if TYPE_CHECKING:  # what a solve is asked loads no solver
    from taylor.pipeline_solver.model.problem import PipelineProblem

FEW_CHUNKS = 24
"""Chunks up to which the compact MILP takes over what is too many configurations to list, and, with one recompute
choice for all chunks, what a tree closes slowly: there it proves more than trees of lower targets do."""


FIRST_ROUNDS = 3
"""Rounds that the first tree gets before it is left as slow."""


class StoppedTree(Protocol):
    """A tree that there was no time for; `tree_run.TreeRun` is one."""

    def closing_well(self, before: float) -> bool:
        """Whether it has closed so much since a bound that it would not be left as slow."""


@dataclass
class TreeMemory(Resume):
    """Bound, paths and prices; a solve starts from them and adds to them.

    Parameters
    ----------
    paths : PathCuts or None
        Paths met; they hold for any problem of the same schedule and lag.
    prices, loose_prices : PricePool
        LP prices met: over configurations that keep the kinds in order, and over those that leave it open, whose alike
        kinds are taken as one.
    period : int
        Of the phases that configurations are told apart by where they leave the order open (`phases`), 1 for none yet.
    walked : bool
        Whether long walks have looked for plans.
    left, crowded : float
        The least step times whose trees were left as slow, and below which there are too many configurations.
    unlisted : float
        The least step time under which no tree could begin, for configurations are too many.
    fruitless : float
        The least step time below which probing ruled out too little to go on.
    patience : int
        Rounds that a tree gets before it is left as slow.
    tree : StoppedTree or None
        A tree that there was no time for.
    cases : object or None
        For the solver of cases alone: how the recompute choices stand, of which one holds for all chunks.
    """

    paths: PathCuts | None = None
    prices: PricePool = field(default_factory=PricePool)
    loose_prices: PricePool = field(default_factory=PricePool)
    period: int = 1
    walked: bool = False
    left: float = np.inf
    crowded: float = np.inf
    unlisted: float = np.inf
    fruitless: float = np.inf
    patience: int = FIRST_ROUNDS
    tree: StoppedTree | None = None
    cases: object | None = None

    def forget_trees(self) -> None:
        """Forget how trees fared: those to come have other configurations. What is proven stays, and the prices met."""
        self.left = self.fruitless = np.inf
        self.patience, self.tree = FIRST_ROUNDS, None


def closed_by_milp(problem: PipelineProblem) -> bool:
    """Whether the compact MILP goes on with what a tree closes slowly: of few chunks under one recompute choice."""
    return bool(problem.uniform_recompute) and problem.stages * problem.interleaves <= FEW_CHUNKS
