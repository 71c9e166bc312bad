"""Base of the tree's LPs: a step time above path cuts that come and go, and a warm basis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.cut_pool import CutPool
from taylor.pipeline_solver.milp.highs_model import silent_highs
from taylor.pipeline_solver.model.params import BoundsParams
from taylor.pipeline_solver.model.problem import PipelineProblem

INFINITY = highspy.kHighsInf

AFRESH = 1, 4
"""Simplex strategies with which a failed LP is solved afresh: the dual one, as usual, and the primal one, which detects
infeasibility where the dual one can't."""


@dataclass
class LpResult:
    """Result of one LP solve.

    Parameters
    ----------
    bound : float
        Valid lower bound on the step time over the allowed columns; -inf when the solve was interrupted.
    value : float
        Optimum of the LP over its columns; inf when infeasible.
    point : float64 or None
        The LP's solution, as the LP that made it reads it.
    reduced : float64 [columns] or None
        Reduced cost of every column.
    least : float64 [S] or None
        Least reduced cost among each stage's allowed columns.
    entering : int64
        Columns that would improve the LP.
    """

    bound: float
    value: float
    point: NDArray[np.float64] | None = None
    reduced: NDArray[np.float64] | None = None
    least: NDArray[np.float64] | None = None
    entering: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


NO_PHASES = np.zeros((0, 0, 0))


class Prices(NamedTuple):
    """An LP's dual values by the parts of a column; its reduced cost is the sum over its chunks minus `stage`.

    Parameters
    ----------
    stage : float64 [S]
    layer : float64 [K]
        Of a layer of each kind.
    duration : float64 [D, V, S]
        Of a task's time, by direction.
    late, early : float64 [K - 1, V, S]
        Of a chunk with a kind after kind j, and of one with kind j or one before it.
    begin, end : float64 [period, V, S]
        Of a chunk that begins in each phase, and of one that ends before it; empty where the LP has no phases.
    """

    stage: NDArray[np.float64]
    layer: NDArray[np.float64]
    duration: NDArray[np.float64]
    late: NDArray[np.float64]
    early: NDArray[np.float64]
    begin: NDArray[np.float64] = NO_PHASES
    end: NDArray[np.float64] = NO_PHASES


class PathLp(ABC):
    """An LP whose first variable is the step time, and whose rows behind the first `rows` ones are path cuts."""

    half_way = False
    """Nodes, too, cut half-way between the LP's durations and the best ones found, as the root does."""

    def __init__(self, problem: PipelineProblem, pool: CutPool, params: BoundsParams) -> None:
        self.pool, self.params = pool, params
        self.scale = 1.0 / (problem.micro_batches * problem.schedule.seq_splits)
        self.S = problem.stages
        self.rows = 0
        self.iterations = 0
        self.solves = 0
        self.kept: list[int] = []
        self._kept_set: set[int] = set()

    def start(self) -> None:
        """Start a new LP with the step time alone."""
        lp = silent_highs()
        for option, value in (
            ("output_flag", False),
            ("threads", 1),
            ("presolve", "off"),
            ("simplex_dual_edge_weight_strategy", 1),
        ):
            lp.setOptionValue(option, value)
        self.lp = lp
        lp.addVar(0.0, INFINITY)
        lp.changeColCost(0, 1.0)

    def keep_again(self, cuts: Iterable[int]) -> None:
        """Add cuts of the pool to a new LP."""
        self.kept, self._kept_set = [], set()
        for cut in cuts:
            self.keep(cut)

    def keep(self, cut: int) -> None:
        """Add a cut of the pool to the LP."""
        if cut < 0 or cut in self._kept_set:
            return
        self._kept_set.add(cut)
        self.kept.append(cut)
        columns, coefficients, constant = self.cut_terms(self.pool.counts[cut])
        self.lp.addRow(
            -INFINITY,
            -self.scale * (float(self.pool.constant[cut]) + constant),
            len(columns) + 1,
            np.concatenate([[0], columns]).astype(np.int32),
            np.concatenate([[-self.scale], self.scale * coefficients]),
        )

    @abstractmethod
    def cut_terms(self, counts: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """Variables and coefficients of a path's length, and its constant."""

    def keeps(self, cut: int) -> bool:
        """Return whether the LP has the cut."""
        return cut in self._kept_set

    def run(self, iteration_limit: int | None) -> highspy.HighsModelStatus:
        """Solve the LP, afresh where it failed; kIterationLimit when interrupted."""
        lp = self.lp
        self.solves += 1
        if iteration_limit is not None:
            lp.setOptionValue("simplex_iteration_limit", iteration_limit)
        lp.run()
        status = lp.getModelStatus()
        states = highspy.HighsModelStatus
        if iteration_limit is not None:
            lp.setOptionValue("simplex_iteration_limit", 2**31 - 1)
        if iteration_limit is None or status != states.kIterationLimit:
            for strategy in AFRESH:
                if status in (states.kOptimal, states.kInfeasible):
                    break
                lp.clearSolver()
                lp.setOptionValue("simplex_strategy", strategy)
                lp.run()
                status = lp.getModelStatus()
                lp.setOptionValue("simplex_strategy", AFRESH[0])
        self.iterations += max(0, lp.getInfo().simplex_iteration_count)
        return status

    def unsolved(self, status: highspy.HighsModelStatus) -> LpResult | None:
        """The result of an LP that has no optimum; None when it has one."""
        states = highspy.HighsModelStatus
        if status == states.kIterationLimit:
            return LpResult(-np.inf, float(self.lp.getInfo().objective_function_value))
        if status == states.kInfeasible:
            return LpResult(np.inf, np.inf)
        return None if status == states.kOptimal else LpResult(-np.inf, -np.inf)

    @abstractmethod
    def solve(self, iteration_limit: int | None = None) -> LpResult:
        """Solve the LP over the allowed columns."""

    @abstractmethod
    def durations(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Task durations at a point of the LP, float64 [classes] (tails left out)."""

    @abstractmethod
    def add_columns(self, new: NDArray[np.int64]) -> None:
        """Let columns take part in the LP."""

    def start_from(self, basis: highspy.HighsBasis) -> None:
        """Start the next solve from a basis of this LP; newer columns and cuts are not in it.

        No row may have been removed since.
        """
        states = highspy.HighsBasisStatus
        rows, columns = list(basis.row_status), list(basis.col_status)
        start = self.lp.getBasis()
        start.row_status = rows + [states.kBasic] * (self.lp.getNumRow() - len(rows))
        start.col_status = columns + [states.kLower] * (self.lp.getNumCol() - len(columns))
        self.lp.setBasis(start)

    def purge(self) -> None:
        """Drop the cuts that are slack at the present optimum."""
        self.lp.run()
        if self.lp.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return
        basic = highspy.HighsBasisStatus.kBasic
        status = self.lp.getBasis().row_status
        drop = [i for i in range(len(self.kept)) if status[self.rows + i] == basic]
        if len(drop) < 10:
            return
        self.lp.deleteRows(len(drop), np.array([self.rows + i for i in drop], dtype=np.int32))
        gone = set(drop)
        self.kept = [cut for i, cut in enumerate(self.kept) if i not in gone]
        self._kept_set = set(self.kept)
