"""One tree searched to its end: a first look, classes of columns probed, then rounds over its subtree batches."""

from __future__ import annotations

from enum import Enum
from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.tree.enumeration import Remaining
from taylor.pipeline_solver.tree.tree_memory import TreeMemory, closed_by_milp
from taylor.pipeline_solver.tree.tree_search import Search
from taylor.pipeline_solver.tree.worker_pool import WorkerPool

Note = Callable[[float, str], None]


class TreeEnd(Enum):
    """End of a tree's search: complete, abandoned as slow, or handed over to the compact MILP."""

    DONE = "done"
    LEFT = "left"
    HANDED_OVER = "handed over"


class TreeRun:
    """The search of one tree whose root is bounded.

    Parameters
    ----------
    workers : int
        Processes.
    note : callable
        Called with the lower bound and a message.
    memory : TreeMemory
        Keeps the step time below which probing ruled out too little.
    patient : bool
        Do not abandon a tree that raises its bound slowly.
    """

    def __init__(
        self, tree: Search, workers: int, seed: int, note: Note, memory: TreeMemory, patient: bool = False
    ) -> None:
        self.tree, self.workers, self.seed, self.note, self.patient = tree, workers, seed, note, patient
        self.memory, self.own = memory, tree.params.tree
        self.rounds = 0
        self.seconds = 0.0
        self.probed = False
        self.probing = 0  # simplex iterations
        self.pool: WorkerPool | None = None

    def resume(self, stopper: Stopper, note: Note) -> None:
        """Prepare for more time; a tree for the MILP is soon handed over, and probing it would not pay."""
        self.tree.stopper, self.note = stopper, note
        self.probed |= closed_by_milp(self.tree.problem, self.tree.params.milp)

    def closing_well(self, before: float) -> bool:
        """Return whether the tree's end proves the best plan, and enough of its gap is closed for that to pay.

        Parameters
        ----------
        before : float
            Bound from which the gap counts; the root's where that is higher.
        """
        tree = self.tree
        before = max(before, tree.root_bound)
        closed, gap = tree.lower_bound() - before, tree.cutoff - before
        return tree.cutoff < tree.target and closed >= self.own.closed_well * gap

    def search(self) -> TreeEnd:
        """Search the tree, from where an earlier search stopped."""
        self.tree.deal = self._deal
        try:
            return self._search()
        finally:
            self.tree.deal = None
            self._end_pool()

    def _search(self) -> TreeEnd:
        tree = self.tree
        root = min(tree.root_bound, tree.cutoff)
        self._report()
        # Many columns with phases are enumerated or abandoned: their LPs' splits close little.
        own = self.own
        crowd = tree.columns.phases is not None and tree.alive.sum() > own.most_probed and not self.patient
        if tree.open:
            most = 2 if crowd else own.nodes_a_batch * own.batches
            tree.process(own.first_slice * tree.lp().quickness, most_open=most)
            self._report()
        if not tree.open or tree.open[0][0] >= tree.cutoff:
            return TreeEnd.DONE
        if crowd:
            return TreeEnd.LEFT
        self._end_pool()  # a pool that has helped with the root lacks the root's results
        pool = self._own_pool()
        if not self.probed and self._promising() and not self._probe(pool):
            return TreeEnd.LEFT
        self.probed = True
        self.probing += pool.iterations
        return self._rounds(pool, root)

    def _own_pool(self) -> WorkerPool:
        """The batches, which begin with the tree's results so far."""
        if self.pool is None:
            self.pool = WorkerPool(self.workers, self.tree, self.seed)
        return self.pool

    def _end_pool(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()

    def _deal(
        self, remaining: Remaining, order: NDArray[np.int64], durations: NDArray[np.float64] | None, most: float
    ) -> tuple[bool, int]:
        """Let the batches continue an enumeration."""
        return self._own_pool().enumerate(self.tree, remaining, order, durations, most)

    def _promising(self) -> bool:
        """Return whether probing may rule out enough: not where it failed below this step time or a lower one."""
        few = self.tree.lp().probed and self.tree.alive.sum() <= self.own.most_probed
        return bool(few and self.own.probing and self.tree.cutoff < self.memory.fruitless)

    def _probe(self, pool: WorkerPool) -> bool:
        """Rule out classes of columns as long as it pays; rebuild the tree from the rest.

        False when many remain, unless patient: a lower step time rules out more.
        """
        tree, own, stages = self.tree, self.own, self.tree.problem.stages
        began = left = int(tree.alive.sum())
        while left:
            tree.stopper.check()
            before, spent = left, pool.iterations
            # From the last stage back columns go sooner: S16 V4 m128 in 39 s, in 55 s from the first one on.
            for last in range(stages, 0, -own.probed_stages):
                pool.probe(tree, range(max(0, last - own.probed_stages), last))
                known, tree.alive = tree.floors.tighten(tree.alive, tree.cutoff)
                left = int(tree.alive.sum()) if known < tree.cutoff else 0
                if not left or (2 * (last - own.probed_stages) <= stages and left > own.probe_stop * before):
                    break
            proven = max(tree.lower_bound(), min(known, tree.cutoff))
            self.note(proven, f"{left} of {began} configurations left below {tree.cutoff:.6g}")
            self._look_among_left()
            if left and left < before and tree.looked_through(pool.iterations - spent):
                left = 0
            many = max(tree.params.bounds.price_above, own.probe_least * len(tree.columns))
            if before == began and not self.patient and left > many:
                return False
            if before - left < own.probe_gain * before:
                if before == began:
                    self.memory.fruitless = min(self.memory.fruitless, tree.cutoff)
                break
        if not left:
            tree.open.clear()
        elif left < own.probe_rebuild * began:
            tree.replace_open([(tree.lower_bound(), tree.alive.copy())])
        return True

    def _look_among_left(self) -> None:
        """Search for better plans among the remaining columns: the fewer, the likelier one is found."""
        tree = self.tree
        costs, before = tree.floors.under_prices(), tree.plans.best_time

        def more() -> bool:
            tree.stopper.check()
            return tree.lower_bound() < tree.cutoff

        if self.own.probe_annealing and len(costs) and tree.alive.any() and tree.plans.programs.exact:
            tree.plans.anneal_among(tree.alive, costs, more)
        if tree.plans.best_time < before:
            self._report()

    def _rounds(self, pool: WorkerPool, root: float) -> TreeEnd:
        """Search the tree round by round."""
        tree, own, problem = self.tree, self.own, self.tree.problem
        slice_size, rounds = own.first_slice, 0
        first, paid_off = np.isinf(self.memory.left), pool.iterations + self.probing
        patience = self.memory.patience or own.first_rounds
        looked, proven = own.first_rounds if first else patience, root
        while tree.open and tree.open[0][0] < tree.cutoff:
            tree.stopper.check()
            before = pool.iterations
            pool.round(tree, slice_size * tree.lp().quickness)
            rounds += 1
            self.rounds += 1
            enough = 1 if problem.stages >= own.many_stages else own.hand_over_rounds
            if problem.interleaves == 1 and rounds >= enough and tree.open:
                return TreeEnd.HANDED_OVER
            slice_size = min(own.last_slice, slice_size + own.first_slice)
            self._report()
            # After an abandoned tree the next one is probed again, so a probed tree deserves as many iterations.
            worth_it = before < pool.iterations < paid_off
            if rounds >= looked and problem.interleaves > 1 and not self.patient and not worth_it:
                bound = tree.lower_bound()
                if bound - proven < own.staged_share * (tree.cutoff - proven):
                    self.memory.patience = patience * (1 if first else own.after_abandoning)
                    return TreeEnd.LEFT
                looked, proven = 2 * rounds, bound
        self.memory.patience = max(patience, own.patience * rounds)
        return TreeEnd.DONE

    def _report(self) -> None:
        tree = self.tree
        cuts = tree.plans.pool.size
        text = f"{tree.nodes} nodes, {len(tree.open)} open below {tree.cutoff:.6g}, {cuts} cuts"
        self.note(tree.lower_bound(), text)
