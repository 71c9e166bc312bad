"""Column generation: the LP's bound, and the columns that matter, where not all can be listed.

The master LP starts with some columns of each stage. Its dual values identify others that would lower its value
(`stage_pricing`); those join until none remains. The value and the least reduced costs bound the step time at any
moment. A column whose reduced cost exceeds the gap between bound and step time is in no plan below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.bounding import cut_loop
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.stage_pricing import (
    alike,
    all_below,
    cheapest,
    columns_of,
    reduced_costs,
    stage_options,
)
from taylor.pipeline_solver.bounds.threads import in_order
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, BoundsParams
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.stopping import LpTrouble, Stopper


class Generated(NamedTuple):
    """The columns in plans below a step time.

    Parameters
    ----------
    columns : ColumnSet
    first : int64
        Columns that an LP should start with.
    kept : list of int
        Path cuts that bound them.
    """

    columns: ColumnSet
    first: NDArray[np.int64]
    kept: list[int]


class _Priced(NamedTuple):
    """Result of an LP: its bound, its cuts, and every option's cost, the constant and the least of each stage."""

    bound: float
    costs: list[NDArray[np.float64]]
    constants: list[float]
    least: list[float]


class _Nothing(Exception):
    """A stage has no column."""


class Generation:
    """Columns generated for an LP by pricing.

    Parameters
    ----------
    step_time : float
        Of the plans searched, at most.
    paths : PathCuts
        Grows by the paths found.
    stopper : Stopper
        Called between LPs.
    ordered : bool
        False leaves the order of the kinds open and merges kinds of equal cost. Its bounds are valid, but its columns
        give no plan.
    period : int
        Of the phases that distinguish such columns (`phases`), 1 for none.
    kept : sequence of int
        Path cuts of the first LP.
    workers : int
        Stages priced in parallel.
    params : BoundsParams
    """

    def __init__(
        self,
        problem: PipelineProblem,
        step_time: float,
        limits: WorkLimits,
        paths: PathCuts,
        stopper: Stopper,
        ordered: bool = True,
        period: int = 1,
        kept: Sequence[int] = (),
        workers: int = 1,
        params: BoundsParams = DEFAULT_PARAMS.bounds,
    ) -> None:
        self.limits, self.paths, self.stopper, self.ordered = limits, paths, stopper, ordered
        self.workers, self.params = workers, params
        self.problem = problem if ordered else alike(problem)
        merged = None if ordered else self.problem
        self.options = stage_options(problem, limits.under(step_time), merged, period, stopper)
        none = np.zeros((0, problem.interleaves), dtype=np.int64)
        self.chosen: list[NDArray[np.int64]] = [none for _ in self.options]
        self.known: list[set[bytes]] = [set() for _ in self.options]
        self.kept: list[int] = list(kept)
        self.last: _Priced | None = None

    def bound(self, step_time: float) -> float:
        """Lower bound of the plans below `step_time`; inf where a stage has no column within it.

        Raises
        ------
        TooManyColumns
            When the pricing takes too long.
        LpTrouble
            When an LP fails.
        """
        limits = self.limits.under(step_time)
        if not any(self.known):
            self._begin(limits)
        best = -np.inf
        for _ in range(self.params.pricings):
            columns, _ = columns_of(self.problem, self.options, self.chosen, self.ordered)
            if (np.diff(columns.start) == 0).any():
                return np.inf
            master = Master(columns, np.zeros(0, dtype=np.int64), self.paths.pool, self.params)
            master.rebuild(np.arange(len(columns)), partial=True)
            for cut in dict.fromkeys([*self.paths.seeds(), *self.kept]):
                master.keep(cut)
            _, result, _ = cut_loop(master, self.paths, self.stopper, np.inf, self.params.pricing_lps)
            if result is not None:
                master.purge()
                result = master.solve()
            if result is None or result.point is None:
                raise LpTrouble("an LP under prices failed numerically")
            self.kept = list(master.kept)
            added = self._price(master, result.value, limits)
            assert self.last is not None
            best = max(best, self.last.bound)
            close = self.params.close * abs(best)
            if not self.ordered:
                close = max(close, self.params.loose_close * (step_time - best))
            if not added or best >= step_time or result.value - best <= close:
                break
        return best

    def columns_under(self, step_time: float, most: int) -> Generated | None:
        """All columns in plans below `step_time`, by the last LP's dual values; None when a stage has none.

        Raises
        ------
        TooManyColumns
            When they are more than `most`.
        """
        found = self._all_under(step_time, most)
        if found is None:
            return None
        assert self.last is not None
        columns, number = columns_of(self.problem, self.options, [rows for rows, _ in found], self.ordered)
        prices = zip(found, self.last.constants, strict=True)
        reduced = np.concatenate([price - constant for (_, price), constant in prices])[number]
        first = [
            a + np.argsort(reduced[a:b], kind="stable")[: 5 * self.params.priced]
            for a, b in zip(columns.start[:-1], columns.start[1:], strict=True)
        ]
        return Generated(columns, np.concatenate(first), self.kept)

    def few_under(self, step_time: float, most: int) -> bool:
        """Return whether each stage has some of these columns, and all together at most `most`."""
        try:
            return self._all_under(step_time, most) is not None
        except TooManyColumns:
            return False

    def _all_under(self, step_time: float, most: int) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]] | None:
        """Each stage's columns in plans below `step_time`, with their cost; None when a stage has none."""
        assert self.last is not None, "bound comes first"
        slack = step_time - self.last.bound + 1e-6 * abs(step_time)
        found: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []

        def take(one: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
            self.stopper.check()
            found.append(one)
            if sum(len(rows) for rows, _ in found) > most:
                raise TooManyColumns(f"the stages have more than {most} configurations within the gap")
            if not len(one[0]):
                raise _Nothing

        limits = self.limits.under(step_time)
        stages = zip(self.options, self.last.costs, limits, self.last.constants, self.last.least, strict=True)
        calls = [
            partial(all_below, stage, cost, float(limit), constant + least + slack, most, self.params)
            for stage, cost, limit, constant, least in stages
        ]
        try:
            in_order(calls, self.workers, take)
        except _Nothing:
            return None
        return found

    def _begin(self, limits: NDArray[np.float64]) -> None:
        """Start the LP with columns of even chunks, some with more work, some with less."""
        problem = self.problem
        mean = sum(kind.count * kind.forward for kind in problem.kinds)
        mean += problem.head_forward + problem.embedding_forward
        speed = 1.0 / np.array(problem.pace)
        means = mean / problem.interleaves * speed / speed.sum()
        for s, stage in enumerate(self.options):
            for share in self.params.first_spread:
                cost = np.abs(stage.forward - share * means[s]) + 0.3 * stage.extra.sum(axis=0)
                self._join(s, cheapest(stage, cost, limits[s], np.inf, self.params.first_of_each, self.params)[0])

    def _price(self, master: Master, value: float, limits: NDArray[np.float64]) -> int:
        """Add the columns of least reduced cost to the LP; return their number."""
        prices = master.prices()
        costs = [reduced_costs(self.problem, stage, s, prices) for s, stage in enumerate(self.options)]
        constants = [float(constant) for constant in prices.stage]
        least: list[float] = []
        added = 0

        def take(one: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
            nonlocal added
            self.stopper.check()
            found, price = one
            s = len(least)
            least.append(min(0.0, float(price.min()) - constants[s]) if len(price) else -1e-9 * abs(value))
            added += self._join(s, found)

        stages = zip(self.options, costs, limits, constants, strict=True)
        calls = [
            partial(cheapest, stage, cost, float(limit), constant - 1e-9 * abs(value), self.params.priced, self.params)
            for stage, cost, limit, constant in stages
        ]
        in_order(calls, self.workers, take)
        self.last = _Priced(value + sum(least), costs, constants, least)
        return added

    def _join(self, s: int, rows: NDArray[np.int64]) -> int:
        new = [row for row in rows if row.tobytes() not in self.known[s]]
        self.known[s].update(row.tobytes() for row in new)
        if new:
            self.chosen[s] = np.vstack([self.chosen[s], np.array(new)])
        return len(new)
