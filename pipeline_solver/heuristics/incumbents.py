"""The best plan of a search, and two ways to a better one: the dynamic programme over the stages, and annealing."""

from __future__ import annotations

from functools import cached_property
from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.count_master import CountMaster
from taylor.pipeline_solver.bounds.cut_pool import CutPool, PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.stage_programs import StagePrograms
from taylor.pipeline_solver.heuristics.annealing import Annealer, Cooling
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, SolverParams
from taylor.pipeline_solver.model.problem import PipelineProblem


class Incumbents:
    """The best choice of one column a stage so far, evaluated by the event graph; every path found joins the cuts.

    Parameters
    ----------
    paths : PathCuts
        Evaluates choices, and keeps the paths found.
    seed : int
        Of all random draws, here and in the search.
    params : SolverParams
    """

    def __init__(
        self,
        problem: PipelineProblem,
        columns: ColumnSet,
        paths: PathCuts,
        seed: int,
        params: SolverParams = DEFAULT_PARAMS,
    ) -> None:
        self.problem, self.columns, self.paths, self.params = problem, columns, paths, params
        self.random = np.random.default_rng(seed)
        self.programs = StagePrograms(columns)
        self.best_time = np.inf
        self.best: NDArray[np.int64] | None = None

    def chosen(self) -> NDArray[np.int64]:
        """The best plan's column on each stage, int64 [S]."""
        assert self.best is not None
        return self.best

    @property
    def pool(self) -> CutPool:
        """The paths found."""
        return self.paths.pool

    def durations_of(self, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Durations [classes] of one column a stage."""
        return np.ascontiguousarray(self.columns.durations[chosen].T).reshape(-1)

    def try_choice(self, chosen: NDArray[np.int64]) -> float:
        """Step time of a consistent choice; the best one is kept."""
        length, _ = self.paths.path(self.durations_of(chosen))
        if length < self.best_time * (1 - 1e-12) or self.best is None:
            self.best_time, self.best = length, np.array(chosen, dtype=np.int64)
        return length

    def take(self, best: NDArray[np.int64] | None, best_time: float) -> None:
        """Keep a choice that another search has found and evaluated, when it is better."""
        if best is not None and best_time < self.best_time:
            self.best, self.best_time = best, best_time

    @cached_property
    def annealer(self) -> Annealer:
        """Built at first use: its neighbour tables take a while for many columns."""
        return Annealer(self.columns, self.paths.graph, self.paths.tails, self.params.heuristics)

    def anneal(self, chosen: NDArray[np.int64], moves: int, hot: float) -> None:
        """Anneal from a choice; `hot` is a fraction of the best step time."""
        scale = self.best_time
        cold = self.params.heuristics.annealing_cold
        cooling = Cooling(moves, int(self.random.integers(2**31)), hot * scale, cold * scale)
        _, best, cuts = self.annealer.run(chosen, self.pool, cooling)
        self.try_choice(best)
        for row in cuts[:60]:
            self.pool.add(row[:-1].copy(), float(row[-1]))

    def anneal_moves(self) -> int:
        """Moves of one annealing run, fewer for long schedules."""
        return int(np.clip(8e7 / len(self.paths.graph.before), 3000, 20000))

    def noisy(self, weights: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
        """Weights with a random part of up to `noise`."""
        return weights + noise * self.random.random(len(weights)) if noise else weights

    def try_at_prices(self, master: Master | CountMaster, attempts: int) -> None:
        """DP with the columns weighted by the LP's dual values of their durations, with some noise."""
        prices = np.abs(master.prices().duration).reshape(-1)
        blocks = self.columns.durations.shape[1]
        weights = np.zeros(len(self.columns))
        for b in range(blocks):
            weights += prices[b * self.problem.stages + self.columns.stage] * self.columns.durations[:, b]
        mean = float(np.abs(weights).mean())
        weights += 0.1 * self.columns.work * mean / float(self.columns.work.mean() or 1.0)
        for attempt in range(attempts):
            chosen = self.programs.best(self.noisy(weights, 0.1 * mean * attempt / attempts))
            if chosen is None:
                return
            self.try_choice(chosen)

    def try_at_reduced_costs(self, mask: NDArray[np.bool_], reduced: NDArray[np.float64], bound: float) -> None:
        """DP on reduced costs inside the node, then outside with noise."""
        open_gap = max(self.best_time - bound, 1e-3 * self.best_time)
        step = 1.0 if self.best is None else open_gap / self.problem.stages
        for noisy in (False, True):
            weights = reduced - reduced.min()
            if noisy:
                weights = self.noisy(weights, step) + np.where(mask, 0.0, 10 * step)
            else:
                weights = np.where(mask, weights, np.inf)
            chosen = self.programs.best(weights)
            if chosen is not None:
                self.try_choice(chosen)

    def anneal_among(self, left: NDArray[np.bool_], costs: NDArray[np.float64], more: Callable[[], bool]) -> None:
        """Anneal among the remaining columns: a plan better than the best one has no others.

        Some of the best plan's columns are ruled out, so each run begins with the DP's choice under one LP's dual
        values.

        Parameters
        ----------
        left : bool [columns]
            Some of every stage.
        costs : float64 [prices, columns]
            Reduced costs under the dual values of some LPs.
        more : callable
            Returns whether to run again.
        """
        part, numbers = self.columns.part(left)
        among = Incumbents(self.problem, part, self.paths, int(self.random.integers(2**31)), self.params)
        own, in_vain = self.params.heuristics, 0
        for attempt in range(own.annealing_runs):
            if in_vain == own.annealing_without_success or not more():
                return
            chosen = among.programs.best(costs[among.random.integers(len(costs))][numbers])
            if chosen is None:
                return
            among.best = None
            among.try_choice(chosen)
            among.anneal(chosen, among.anneal_moves(), own.annealing_hot[attempt % len(own.annealing_hot)])
            in_vain = in_vain + 1 if among.best_time >= self.best_time else 0
            self.take(numbers[among.chosen()], among.best_time)
