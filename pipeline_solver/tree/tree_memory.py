"""State that a solve by branch and cut keeps for another one of the same problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.model.options import Resume
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, MilpParams

if TYPE_CHECKING:  # the request of a solve loads no solver
    from taylor.pipeline_solver.model.problem import PipelineProblem


class StoppedTree(Protocol):
    """A tree stopped by the time limit; `tree_run.TreeRun` is one."""

    def closing_well(self, before: float) -> bool:
        """Return whether it has closed so much since a bound that it would not be abandoned as slow."""


@dataclass
class TreeMemory(Resume):
    """Bound, paths and dual values; a solve starts from them and adds to them.

    Parameters
    ----------
    paths : PathCuts or None
        Paths found; they are valid for any problem of the same schedule and lag.
    prices, loose_prices : PricePool
        Dual values found: over columns that keep the kinds in order, and over those that leave it open, with alike
        kinds merged.
    period : int
        Of the phases that distinguish columns with open order (`phases`), 1 for none yet.
    walked : bool
        Long local searches have run.
    left, crowded : float
        The least step times whose trees were abandoned as slow, and below which there are too many columns.
    unlisted : float
        The least step time under which no tree could begin, because of too many columns.
    fruitless : float
        The least step time below which probing ruled out too little to go on.
    patience : int
        Rounds of a tree before it is abandoned as slow; 0 for those of a first tree.
    tree : StoppedTree or None
        A tree stopped by the time limit.
    cases : object or None
        State of the recompute choices that apply to all chunks; only for the solver of subproblems.
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
    patience: int = 0
    tree: StoppedTree | None = None
    cases: object | None = None

    def forget_trees(self) -> None:
        """Forget the progress of trees: later ones have other columns. The bound stays, and the dual values found."""
        self.left = self.fruitless = np.inf
        self.patience, self.tree = 0, None


def closed_by_milp(problem: PipelineProblem, params: MilpParams = DEFAULT_PARAMS.milp) -> bool:
    """Return whether the compact MILP continues slow trees: with few chunks under one recompute choice."""
    return bool(problem.uniform_recompute) and problem.stages * problem.interleaves <= params.few_chunks
