"""Bound, branch and improve: the work on nodes of the branch-and-cut tree, in one process."""

from __future__ import annotations

import heapq
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.annealing import Annealer, Cooling
from taylor.pipeline_solver.columns import ColumnSet
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.master import PRICE_ABOVE, CutPool, LpResult, Master
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.splits import Split, StageSplits
from taylor.pipeline_solver.stage_programs import StagePrograms
from taylor.pipeline_solver.stopping import Stopper

NODE_ROUNDS = 60
ROOT_ROUNDS = 600
MAX_HELD_CUTS = 120
"""Cuts that an LP may hold before the slack ones are dropped; longer LPs cost more than they prove."""

STALL_ROUNDS = 6
STALL_SHARE = 0.1
"""A node branches when the last `STALL_ROUNDS` cut rounds closed less than this share of what is left."""

STRONG_CANDIDATES = 12
STRONG_ITERATIONS = 400
STRONG_ITERATIONS_PRICED = 40
IMPROVE_EVERY = 4
"""Nodes between two attempts at a better plan."""

ROOT_ATTEMPTS, IN_VAIN = 12, 3
"""Annealing runs at the root, and how many without a better plan end them."""

FIRST_COLUMNS = 200
"""Columns of each stage that the LP starts with when it prices."""

SHARED_CUTS = 400

MOST_FAILURES = 8
"""LPs that may fail in a row, each solved afresh, before the tree is given up."""


class LpTrouble(Exception):
    """The LPs of the tree keep failing numerically: what is proven so far stands, and no more will be."""


class Search:
    """The tree search over one set of columns.

    Parameters
    ----------
    gap : float
        Nodes whose bound reaches ``best_time * (1 - gap)`` are closed.
    stopper : Stopper
        Asked between steps; what it raises leaves `open` whole.
    """

    def __init__(
        self,
        problem: PipelineProblem,
        columns: ColumnSet,
        graph: EventGraph,
        gap: float,
        seed: int,
        stopper: Stopper,
    ) -> None:
        self.problem, self.columns, self.graph = problem, columns, graph
        self.gap, self.stopper = gap, stopper
        self.random = np.random.default_rng(seed)
        self.tails = np.array(problem.tail or [0.0] * problem.stages, dtype=np.float64)
        self.classes = columns.durations.shape[1] * problem.stages
        self.pool = CutPool(self.classes)
        self.best_time = np.inf
        self.best: NDArray[np.int64] | None = None
        self.nodes = 0
        self.failures = 0
        self.foreign_solves = 0
        self.alive = np.ones(len(columns), dtype=bool)
        self.open: list[tuple[float, int, NDArray[np.bool_]]] = []
        self.root_bound = 0.0
        self._serial = 0
        self.programs = StagePrograms(columns)
        self.master: Master | None = None
        self.root_floor = np.full(len(columns), -np.inf)
        self.splits = StageSplits(columns, problem.interleaves)

    # ---- shared pieces ------------------------------------------------------------------------

    @property
    def cutoff(self) -> float:
        """Bound at which a node holds nothing better."""
        return self.best_time * (1.0 - self.gap)

    def chosen(self) -> NDArray[np.int64]:
        """The best plan's column on each stage, int64 [S]."""
        assert self.best is not None
        return self.best

    def lp_solves(self) -> int:
        """LPs solved, those of worker processes included."""
        return self.foreign_solves + (self.master.solves if self.master is not None else 0)

    def path(self, durations: NDArray[np.float64], prefer: int = 0) -> tuple[float, int]:
        """Step time under durations [classes] and the number of its path's cut in the pool (-1: known)."""
        length, counts, lag = self.graph.critical_path(np.concatenate([durations, self.tails]), prefer)
        constant = lag + float(counts[self.classes :] @ self.tails)
        return length, self.pool.add(counts[: self.classes].copy(), constant)

    def cut_on(self, durations: NDArray[np.float64], prefer: int = 0) -> int:
        """Number of the cut of a longest path under durations [classes], known or new."""
        _, counts, lag = self.graph.critical_path(np.concatenate([durations, self.tails]), prefer)
        used, constant = counts[: self.classes].copy(), lag + float(counts[self.classes :] @ self.tails)
        self.pool.add(used, constant)
        return self.pool.number(used, constant)

    def durations_of(self, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Durations [classes] of one column a stage."""
        return np.ascontiguousarray(self.columns.durations[chosen].T).reshape(-1)

    def try_choice(self, chosen: NDArray[np.int64]) -> float:
        """Step time of a consistent choice; the best one is kept."""
        length, _ = self.path(self.durations_of(chosen))
        if length < self.best_time * (1 - 1e-12) or self.best is None:
            self.best_time, self.best = length, np.array(chosen, dtype=np.int64)
        return length

    @cached_property
    def annealer(self) -> Annealer:
        """Made when first used: its neighbour tables take a while for many columns."""
        return Annealer(self.columns, self.graph, self.tails)

    def anneal(self, chosen: NDArray[np.int64], moves: int, hot: float) -> None:
        """Anneal from a choice; `hot` is a share of the best step time."""
        scale = self.best_time
        cooling = Cooling(moves, int(self.random.integers(2**31)), hot * scale, 5e-5 * scale)
        _, best, cuts = self.annealer.run(chosen, self.pool, cooling)
        self.try_choice(best)
        for row in cuts[:60]:
            self.pool.add(row[:-1].copy(), float(row[-1]))

    def anneal_moves(self) -> int:
        """Moves of one annealing run, fewer for long schedules."""
        return int(np.clip(8e7 / len(self.graph.before), 3000, 20000))

    # ---- root -------------------------------------------------------------------------------

    def seed_cuts(self) -> list[int]:
        """For each stage the path that fills up to it, runs all its tasks and drains after it."""
        graph = self.graph
        stages = self.problem.stages
        feeds = np.zeros(len(graph.before) + 1, dtype=np.int64)
        feeds[graph.needed] = np.arange(1, len(graph.before) + 1)
        result = []
        for s in range(stages):
            counts = np.bincount(graph.task_class[graph.place[s] - 1], minlength=self.classes).astype(np.float64)
            crossings = 0
            node = int(graph.place[s, 0])
            while graph.needed[node - 1] > 0:
                crossings += int(graph.crosses[node - 1])
                node = int(graph.needed[node - 1])
                counts[graph.task_class[node - 1]] += 1.0
            node = end = int(graph.last[s])
            while feeds[node] > 0:
                node = end = int(feeds[node])
                crossings += int(graph.crosses[node - 1])
                counts[graph.task_class[node - 1]] += 1.0
            tail = self.tails[graph.task_class[end - 1] % stages]
            result.append(self.pool.add(counts, crossings * self.graph.lag + tail))
        return result

    def start(self, warm: NDArray[np.int64] | None) -> None:
        """Seed cuts, first columns and first plans."""
        cuts = self.seed_cuts()
        active = np.arange(len(self.columns))
        if len(active) > PRICE_ABOVE:
            start = self.columns.start
            active = np.unique(
                np.concatenate(
                    [
                        start[s] + self.random.integers(0, start[s + 1] - start[s], FIRST_COLUMNS)
                        for s in range(self.problem.stages)
                    ]
                )
            )
        if warm is not None:
            self.try_choice(warm)
            active = np.union1d(active, warm)
        first = self.programs.best(self._noisy(self.columns.work**2, 0.0))
        if first is not None:
            self.try_choice(first)
            active = np.union1d(active, first)
        if self.best is not None:
            self.anneal(self.best, self.anneal_moves() // 2, 0.01)
            active = np.union1d(active, self.best)
        self.master = Master(self.columns, active, self.pool)
        for cut in cuts:
            self.master.hold(cut)

    def bound_root(self) -> float:
        """Solve the root LP with cuts, improve the best plan, drop columns that cannot matter.

        Returns the proven bound (inf: infeasible) and leaves the root in `open` unless it is closed.
        """
        master = self._master()
        bound, result, _ = self.cut_loop(ROOT_ROUNDS, root=True)
        if bound >= self.cutoff:
            return bound
        if result is not None:
            self.improve_at_root(bound)
            result = master.solve()
            while len(result.entering):
                master.add_columns(result.entering)
                result = master.solve()
            if result.reduced is not None and result.least is not None:
                bound = max(bound, result.bound)
                self.root_floor = result.reduced + result.bound - result.least[self.columns.stage]
                self.fix_columns()
        # Where the LP failed, the root stays open as it is: nothing is proven of it.
        if bound < self.cutoff:
            self.push(bound, self.alive.copy())
        return bound

    def improve_at_root(self, bound: float) -> None:
        """DP under LP prices, then annealing, until the bound is met or attempts bring nothing more."""
        self.programs_at_prices(12 if len(self.columns) < 5000 else 4)
        in_vain = 0
        for attempt in range(ROOT_ATTEMPTS):
            self.stopper.check()
            if self.best is None or self.best_time * (1 - self.gap) <= bound or in_vain >= IN_VAIN:
                break
            before, in_vain = self.best_time, in_vain + 1
            self.anneal(self.best, self.anneal_moves() * (1 + attempt // 3), 0.01 if attempt % 2 == 0 else 0.003)
            if self.best_time < before:
                in_vain = 0

    def programs_at_prices(self, attempts: int) -> None:
        """DP with the columns weighed by the LP's prices of their durations, with some noise."""
        master = self._master()
        prices = np.abs(master.duals[master.duration_row : master.duration_row + self.classes])
        blocks = self.columns.durations.shape[1]
        weights = np.zeros(len(self.columns))
        for b in range(blocks):
            weights += prices[b * self.problem.stages + self.columns.stage] * self.columns.durations[:, b]
        mean = float(np.abs(weights).mean())
        weights += 0.1 * self.columns.work * mean / float(self.columns.work.mean() or 1.0)
        for attempt in range(attempts):
            chosen = self.programs.best(self._noisy(weights, 0.1 * mean * attempt / attempts))
            if chosen is None:
                return
            self.try_choice(chosen)

    def fix_columns(self) -> None:
        """Drop the columns that no better plan can use, by the root's reduced costs."""
        self.alive &= self.root_floor <= self.cutoff + 1e-9 * abs(self.cutoff)
        if self.best is not None:
            self.alive[self.best] = True
        master = self._master()
        few = int(self.alive.sum()) <= PRICE_ABOVE
        if few:
            master.rebuild(np.nonzero(self.alive)[0], partial=False)
        else:
            active = master.active[self.alive[master.active]]
            order = np.argsort(self.root_floor[active], kind="stable")[: PRICE_ABOVE // 2]
            keep = active[order] if self.best is None else np.union1d(active[order], self.best)
            master.rebuild(keep, partial=True)

    def _noisy(self, weights: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
        return weights + noise * self.random.random(len(weights)) if noise else weights

    def _master(self) -> Master:
        assert self.master is not None
        return self.master

    # ---- bounding ---------------------------------------------------------------------------

    def cut_loop(self, rounds: int, root: bool = False) -> tuple[float, LpResult | None, float]:
        """Cut and price until the LP's value is the step time of its own durations, or little more comes.

        Returns
        -------
        (float, LpResult or None, float)
            Proven bound, the last LP (None when infeasible or closed, or when it failed), step time at its durations.
        """
        master, pool = self._master(), self.pool
        bound, length = -np.inf, np.inf
        history: list[float] = []
        centre: NDArray[np.float64] | None = None
        centre_length = np.inf
        result: LpResult | None = None
        for turn in range(rounds):
            self.stopper.check()
            result = master.solve()
            if result.weights is None:
                if np.isinf(result.value) and result.value > 0:
                    return np.inf, None, np.inf
                return bound, None, np.inf
            bound = max(bound, result.bound)
            history.append(bound)
            if root:
                self.root_bound = bound
            if bound >= self.cutoff:
                return bound, None, np.inf
            durations = master.durations(result.weights)
            violated = [
                g
                for path_length, g in pool.longest(durations, 8)
                if path_length > result.value * (1 + 1e-7) and not master.holds(g)
            ][:4]
            length, cut = self.path(durations)
            _, other = self.path(durations, 1)
            converged = length - result.value <= 1e-7 * abs(length)
            if converged and not len(result.entering):
                return bound, result, length
            new = [cut, other]
            if root and centre is not None and not converged:
                middle = 0.5 * (durations + centre)
                middle_length, middle_cut = self.path(middle)
                new.append(middle_cut)
                if middle_length < centre_length:
                    centre_length, centre = middle_length, middle
            if length < centre_length:
                centre_length, centre = length, durations
            if not converged:
                for g in [*violated, *new]:
                    master.hold(g)
            master.add_columns(result.entering)
            if not converged and max(new) < 0 and not violated and not len(result.entering):
                return bound, result, length
            if not root and self._stalled(history):
                return bound, result, length
            if root and turn > 40 and len(master.held) > 3 * MAX_HELD_CUTS:
                master.purge()
        return bound, result, length

    def _stalled(self, history: list[float]) -> bool:
        """Whether further cuts promise less than branching: the last ones closed little of what is left."""
        if len(history) <= STALL_ROUNDS or not np.isfinite(history[-1 - STALL_ROUNDS]):
            return False
        gained = history[-1] - history[-1 - STALL_ROUNDS]
        left = self.cutoff - history[-1] if np.isfinite(self.cutoff) else 1e-2 * abs(history[-1])
        return gained < STALL_SHARE * left

    # ---- the tree ---------------------------------------------------------------------------

    def push(self, bound: float, mask: NDArray[np.bool_]) -> None:
        """Add an open node."""
        heapq.heappush(self.open, (bound, self._serial, mask))
        self._serial += 1

    def replace_open(self, nodes: list[tuple[float, NDArray[np.bool_]]]) -> None:
        """Take other open nodes in place of all present ones."""
        entries = [(bound, self._serial + k, mask) for k, (bound, mask) in enumerate(nodes)]
        self._serial += len(nodes)
        heapq.heapify(entries)
        self.open = entries

    def lower_bound(self) -> float:
        """Least bound among the open nodes, at most what closes them."""
        return min(self.open[0][0], self.cutoff) if self.open else self.cutoff

    def process(self, iteration_budget: int, most_open: int | None = None) -> None:
        """Work on open nodes, best bound first, until the simplex iterations are used up or none is left.

        Raises
        ------
        OutOfTime, KeyboardInterrupt
            From the stopper; the node at hand is open again.
        LpTrouble
            When one LP after the other fails; likewise.
        """
        master = self._master()
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
            try:
                children = self._branch(bound, mask & self.alive)
            except BaseException:
                self.push(bound, mask)
                raise
            for child_bound, child in children:
                if child_bound < self.cutoff:
                    self.push(child_bound, child)

    def _branch(self, parent_bound: float, mask: NDArray[np.bool_]) -> list[tuple[float, NDArray[np.bool_]]]:
        """Bound a node; its children, or nothing when it is closed."""
        master = self._master()
        self.nodes += 1
        master.allow(mask)
        bound, result, length = self.cut_loop(NODE_ROUNDS)
        bound = max(bound, parent_bound)
        if bound >= self.cutoff:
            return []
        if result is None or result.weights is None or result.reduced is None or result.least is None:
            self._rebuild_after_failure()
            return [(bound, mask)]
        self.failures = 0
        floor = result.reduced + result.bound - result.least[self.columns.stage]
        mask = mask & (floor <= self.cutoff + 1e-9 * abs(self.cutoff))
        if len(master.held) > MAX_HELD_CUTS:
            master.purge()
        if self.nodes % IMPROVE_EVERY == 1:
            self._improve(mask, result.reduced)
            if bound >= self.cutoff:
                return []
        candidates = self.splits.ways(result.weights, mask)
        if not candidates:
            chosen = np.array(
                [
                    a + int(np.argmax(result.weights[a:b]))
                    for a, b in zip(self.columns.start[:-1], self.columns.start[1:], strict=True)
                ]
            )
            reached = self.try_choice(chosen)
            if length - bound <= 1e-7 * abs(length) or reached - bound <= 1e-7 * abs(reached):
                return []
            return [(bound, mask)]
        return self._strong_branch(bound, mask, candidates)

    def _rebuild_after_failure(self) -> None:
        """Start the LP afresh: what its simplex lost its way in is a basis, not the problem."""
        self.failures += 1
        if self.failures > MOST_FAILURES:
            raise LpTrouble(f"{MOST_FAILURES} LPs in a row failed numerically")
        master = self._master()
        master.rebuild(master.active, partial=master.partial)

    def _strong_branch(
        self, bound: float, mask: NDArray[np.bool_], candidates: list[Split]
    ) -> list[tuple[float, NDArray[np.bool_]]]:
        """Split where both children's LPs rise most."""
        master = self._master()
        candidates.sort(key=lambda split: -split.merit)
        limit = STRONG_ITERATIONS_PRICED if master.partial else STRONG_ITERATIONS
        ceiling = self.best_time if np.isfinite(self.best_time) else 2.0 * abs(bound) + 1.0
        best_score, children = -np.inf, []
        for split in candidates[: STRONG_CANDIDATES // 2 if master.partial else STRONG_CANDIDATES]:
            self.stopper.check()
            pair = []
            for gone in (split.above, split.below):
                child = mask.copy()
                child[gone] = False
                master.allow(child)
                result = master.solve(limit)
                proven = max(bound, result.bound)
                pair.append((max(result.value, proven), proven, child))
            gains = [max(min(value, ceiling) - bound, 1e-6 * abs(bound)) for value, _, _ in pair]
            score = gains[0] * gains[1]
            if score > best_score:
                best_score, children = score, [(proven, child) for _, proven, child in pair]
            if all(proven >= self.cutoff for _, proven, _ in pair):
                break
        return children

    def _improve(self, mask: NDArray[np.bool_], reduced: NDArray[np.float64]) -> None:
        """DP on reduced costs inside the node, then outside with noise; a short cool annealing after each."""
        if self.best is None:
            step = 1.0
        else:
            step = max(self.best_time - self.lower_bound(), 1e-3 * self.best_time) / self.problem.stages
        for noisy in (False, True):
            weights = reduced - reduced.min()
            if noisy:
                weights = self._noisy(weights, step) + np.where(mask, 0.0, 10 * step)
            else:
                weights = np.where(mask, weights, np.inf)
            chosen = self.programs.best(weights)
            if chosen is None:
                continue
            self.try_choice(chosen)
            self.anneal(chosen, self.anneal_moves() * 3 // 4, 0.003)
