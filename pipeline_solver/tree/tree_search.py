"""The branch-and-cut tree in one process: open nodes, best bound first, each bounded, split or closed."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.bounds.bounding import cut_loop
from taylor.pipeline_solver.bounds.column_floors import ColumnFloors
from taylor.pipeline_solver.bounds.count_master import CountMaster
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.path_lp import LpResult
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.positions import plan_in_order
from taylor.pipeline_solver.columns.splits import Split, StageSplits
from taylor.pipeline_solver.heuristics.incumbents import Incumbents
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, SolverParams
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.stopping import LpTrouble, Stopper
from taylor.pipeline_solver.tree.enumeration import Deal, Enumeration, Remaining


class Search:
    """The tree search over one set of columns.

    Parameters
    ----------
    gap : float
        Nodes whose bound reaches ``best_time * (1 - gap)`` are closed.
    target : float
        Nodes whose bound reaches this step time are closed, too: the tree only proves that no plan lies below it.
    stopper : Stopper
        Called between steps; after what it raises, `open` is complete.
    prices : PricePool
        Dual values of earlier LPs of the problem; grows where columns are probed.
    params : SolverParams
    """

    def __init__(
        self,
        problem: PipelineProblem,
        columns: ColumnSet,
        paths: PathCuts,
        gap: float,
        seed: int,
        stopper: Stopper,
        target: float = np.inf,
        prices: PricePool | None = None,
        params: SolverParams = DEFAULT_PARAMS,
    ) -> None:
        self.problem, self.columns, self.params = problem, columns, params
        self.prices = PricePool() if prices is None else prices
        self.floors = ColumnFloors(columns, self.prices, params.bounds)
        self.gap, self.stopper, self.target = gap, stopper, target
        self.plans = Incumbents(problem, columns, paths, seed, params)
        self.nodes = 0
        self.failures = 0
        self.foreign_solves = 0
        self.alive = np.ones(len(columns), dtype=bool)
        self.open: list[tuple[float, int, NDArray[np.bool_]]] = []
        self.node = Remaining(self.alive)  # of the current node
        self.root_bound = 0.0
        self._serial = 0
        self.master: Master | CountMaster | None = None
        self.to_keep: list[int] = []  # cuts of an LP that is not made yet
        self.root_floor = np.full(len(columns), -np.inf)
        self.splits = StageSplits(columns, problem.interleaves)
        self.enumeration = Enumeration(columns, self.floors, self.plans)
        self.deal: Deal | None = None  # continues an enumeration on the batches, where there are any

    @property
    def cutoff(self) -> float:
        """Bound at which a node has no plan better than the best one or the cutoff."""
        return min(self.closing_bound, self.target, self.stopper.cutoff())

    @property
    def closing_bound(self) -> float:
        """Bound at which the best plan is optimal."""
        return self.plans.best_time * (1.0 - self.gap)

    def plan_of(self, chosen: NDArray[np.int64]) -> PipelinePlan | None:
        """The plan of one column a stage, int64 [S]; None where columns with open order have none."""
        if self.columns.ordered:
            return self.columns.plan(chosen)
        return plan_in_order(self.problem, self.columns, chosen)

    def lp_solves(self) -> int:
        """LPs solved, those of worker processes included."""
        return self.foreign_solves + (self.master.solves if self.master is not None else 0)

    def lp(self) -> Master | CountMaster:
        """The LP, which `start_search` has made."""
        assert self.master is not None
        return self.master

    def note_root_bound(self, bound: float) -> None:
        """Keep the lower bound while the root is not finished."""
        self.root_bound = bound

    def keep_prices(self, result: LpResult) -> None:
        """Keep the dual values of the last LP."""
        if self.params.tree.price_pool:
            self.prices.add(result.value, self.lp().prices())

    def rest(self) -> None:
        """Free large data that can be rebuilt."""
        self.floors = ColumnFloors(self.columns, self.prices, self.params.bounds)
        self.enumeration.floors = self.floors

    def push(self, bound: float, mask: NDArray[np.bool_]) -> None:
        """Add an open node."""
        heapq.heappush(self.open, (bound, self._serial, mask))
        self._serial += 1

    def replace_open(self, nodes: list[tuple[float, NDArray[np.bool_]]]) -> None:
        """Replace all open nodes by others."""
        entries = [(bound, self._serial + k, mask) for k, (bound, mask) in enumerate(nodes)]
        self._serial += len(nodes)
        heapq.heapify(entries)
        self.open = entries

    def lower_bound(self) -> float:
        """Lowest bound among the open nodes, at most the closing bound."""
        return min(self.open[0][0], self.cutoff) if self.open else self.cutoff

    def process(self, iteration_budget: int, most_open: int | None = None) -> None:
        """Process open nodes, best bound first, until the simplex iterations are used up or none remains.

        Raises
        ------
        OutOfTime, KeyboardInterrupt
            From the stopper; the current node is open again.
        LpTrouble
            When one LP after the other fails; likewise.
        """
        master = self.lp()
        before = master.iterations
        while self.open and master.iterations - before < iteration_budget:
            if most_open is not None and len(self.open) >= most_open:
                return
            bound, _, mask = self.open[0]
            if bound >= self.cutoff:
                self.open.clear()
                return
            self.stopper.check()
            heapq.heappop(self.open)
            self.node = Remaining(mask & self.alive)
            try:
                children = self._branch(bound, self.node.mask)
            except BaseException:
                self.push(bound, self.node.mask)
                raise
            for child_bound, child in children:
                if child_bound < self.cutoff:
                    self.push(child_bound, child)

    def _branch(self, parent_bound: float, mask: NDArray[np.bool_]) -> list[tuple[float, NDArray[np.bool_]]]:
        """Bound a node; return its children, or nothing when it is closed."""
        master = self.lp()
        self.nodes += 1
        known, mask = self.floors.tighten(mask, self.cutoff)
        if known >= self.cutoff:
            return []
        parent_bound = max(known, parent_bound)
        master.allow(mask)
        bound, result, length = cut_loop(master, self.plans.paths, self.stopper, self.cutoff, self.params.tree.node_lps)
        bound = max(bound, parent_bound)
        if bound >= self.cutoff:
            return []
        if result is None or result.point is None or result.reduced is None or result.least is None:
            self._rebuild_after_failure()
            return [(bound, mask)]
        self.failures = 0
        self.keep_prices(result)
        floor = result.reduced + result.bound - result.least[self.columns.stage]
        mask = mask & (floor <= self.cutoff + 1e-9 * abs(self.cutoff))
        if len(master.kept) > self.params.bounds.most_cuts:
            master.purge()
        if self.params.tree.node_plans and self.nodes % master.improve_every == 1:
            self.plans.try_at_reduced_costs(mask, result.reduced, self.lower_bound())
            if bound >= self.cutoff:
                return []
        self.node = Remaining(mask)
        if self._enumerated(self.node, master.durations(result.point)):
            return []
        mask = self.node.mask
        candidates, decided = master.ways(self.splits, result, mask)
        if decided and (chosen := master.chosen(result, mask)) is not None:
            if not self.columns.ordered and self.plan_of(chosen) is None:
                raise LpTrouble("the order of the kinds decides")
            reached = self.plans.try_choice(chosen)
            if length - bound <= 1e-7 * abs(length) or reached - bound <= 1e-7 * abs(reached):
                return []
        return self._strong_branch(bound, mask, candidates) if candidates else [(bound, mask)]

    def looked_through(self, iterations: int) -> bool:
        """Return whether all open nodes are bounded by an LP or closed by enumeration.

        Enumeration may take the time of `iterations` simplex iterations: probing afterwards, in as much time, makes it
        shorter.
        """
        master = self.lp()
        master.allow(self.alive)
        bound, result, _ = cut_loop(master, self.plans.paths, self.stopper, self.cutoff, self.params.tree.node_lps)
        if result is None or result.point is None:
            return bound >= self.cutoff
        self.keep_prices(result)
        remaining = Remaining(self.alive)
        try:
            return self._enumerated(remaining, master.durations(result.point), iterations)
        finally:
            self.alive = remaining.mask

    def _enumerated(self, remaining: Remaining, durations: NDArray[np.float64], iterations: int | None = None) -> bool:
        """Return whether enumeration closes a node; where not, remove what it has completed."""
        iteration = self.params.tree.steps_an_iteration
        most = np.inf if iterations is None else iterations * iteration
        closed, steps = self.enumeration.close(
            remaining, self.pruning_paths(), lambda: self.cutoff, self.stopper.check, durations, most, self.deal
        )
        self.lp().iterations += steps // iteration
        return closed

    def pruning_paths(self) -> NDArray[np.int64]:
        """The cuts of the pool that prune an enumeration: those of the LP, and the newest ones."""
        size = self.plans.pool.size
        kept = self.to_keep if self.master is None else self.master.kept
        return np.array(sorted({*kept, *range(max(0, size - self.params.tree.paths), size)}), dtype=np.int64)

    def _rebuild_after_failure(self) -> None:
        """Rebuild the LP: the simplex failed because of a basis, not because of the problem."""
        self.failures += 1
        most = self.params.tree.most_failures
        if self.failures > most:
            raise LpTrouble(f"{most} LPs in a row failed numerically")
        master = self.lp()
        master.rebuild(master.active, partial=master.partial)

    def _strong_branch(
        self, bound: float, mask: NDArray[np.bool_], candidates: list[Split]
    ) -> list[tuple[float, NDArray[np.bool_]]]:
        """Split where both children's LPs rise most: try all splits a few iterations, the best of them further.

        A side proven to have no better plan is removed from the node immediately.
        """
        master, own = self.lp(), self.params.tree
        basis = master.lp.getBasis()
        ceiling = self.cutoff if np.isfinite(self.cutoff) else 2.0 * abs(bound) + 1.0
        candidates.sort(key=lambda split: -split.merit)
        left = candidates[: master.candidates]
        tried: list[tuple[float, int, Split, list[_Child]]] = []
        for limit, most, ahead in (
            (own.look_iterations, master.finalists, len(left)),
            (own.strong_iterations, 1, own.final_ahead),
        ):
            tried = []
            best, best_at = -np.inf, -1
            for k, split in enumerate(left):
                if k - best_at > ahead:
                    break
                self.stopper.check()
                pair = []
                for gone in (split.above, split.below):
                    child = mask.copy()
                    child[gone] = False
                    master.allow(child)
                    master.lp.setBasis(basis)
                    result = master.solve(limit)
                    proven = max(bound, result.bound)
                    pair.append(_Child(max(result.value, proven), proven, child))
                closed = [child.proven >= self.cutoff for child in pair]
                if all(closed):
                    return []
                if any(closed):
                    mask, best_at = pair[closed.index(False)].mask, k
                    continue
                gains = [max(min(child.value, ceiling) - bound, 1e-6 * abs(bound)) for child in pair]
                tried.append((gains[0] * gains[1], -k, split, pair))
                if tried[-1][0] > best:
                    best, best_at = tried[-1][0], k
            tried.sort(key=lambda entry: entry[:2], reverse=True)
            left = [entry[2] for entry in tried[:most]]
        if not tried:
            return [(bound, mask)]
        return [(child.proven, child.mask & mask) for child in tried[0][3]]


class _Child(NamedTuple):
    """A child node tried: its LP's value so far, its lower bound, its columns."""

    value: float
    proven: float
    mask: NDArray[np.bool_]
