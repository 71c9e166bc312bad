"""One tree searched to its end: a first look, classes of columns probed, then rounds over its subtree batches."""

from __future__ import annotations

from enum import Enum
from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.master import PRICE_ABOVE
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.tree.tree_memory import FIRST_ROUNDS, TreeMemory, closed_by_milp
from taylor.pipeline_solver.tree.tree_search import Search
from taylor.pipeline_solver.tree.worker_pool import SHARES, WorkerPool

NODES_A_SHARE = 3
FIRST_SLICE, LAST_SLICE = 2_000, 20_000
"""Simplex iterations of a batch in the first round and at most, times the LP's `quickness`."""

STAGED_SHARE = 1 / 3
"""A tree is abandoned when it has not closed this fraction of its root's gap in the rounds that the memory grants, and
again after each as many. Then the bound is raised target by target, each half-way to the one before, in trees of fewer
columns. The fewer nodes are open, the faster bounds rise: trees of S4 V4 that had closed 39 to 46 % of their gap after
three rounds had closed all of it, or 84 % and more, after six."""
CLOSED_WELL = 0.5
"""Fraction of its gap from which a tree is worth its end."""
PATIENCE, AFTER_LEAVING = 3, 2
"""Rounds granted as a multiple of those of the longest tree that was searched to its end, and their growth after an
abandoned one: trees of slightly higher targets take slightly longer, and each starts from nothing."""

MOST_PROBED = 60_000
"""Most columns that are probed: with more, each LP takes long and the tree does better."""
PROBED_STAGES = 4
"""Stages that are probed before the batches exchange results."""
PROBE_GAIN = 0.1
"""Least fraction of the columns that probing must rule out to continue."""
PROBE_LEAST = 0.75
"""Largest fraction of many columns that may remain after the first probing, or a lower step time is the next target."""
IN_VAIN = 0.98
"""Largest fraction of the columns that may remain after half of the stages, or the rest is not probed."""
PROBE_ANEW = 0.7
"""Remaining fraction of the columns below which the tree is rebuilt."""

HAND_OVER_ROUNDS = 3
"""Without virtual stages, rounds after which the compact MILP takes over the plan and the cuts: HiGHS's cuts close what
splits of stages do not when many stages have one or two layers each."""
MANY_STAGES = 24
"""Least stages with which it takes over after the first round: further rounds close little of the gap there."""

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
        self.memory = memory
        self.rounds = 0
        self.seconds = 0.0
        self.probed = False
        self.probing = 0  # simplex iterations
        self.pool: WorkerPool | None = None

    def resume(self, stopper: Stopper, note: Note) -> None:
        """Prepare for more time; a tree for the MILP is soon handed over, and probing it would not pay."""
        self.tree.stopper, self.note = stopper, note
        self.probed |= closed_by_milp(self.tree.problem)

    def closing_well(self, before: float) -> bool:
        """Return whether the tree's end proves the best plan, and enough of its gap is closed for that to pay.

        Parameters
        ----------
        before : float
            Bound from which the gap counts; the root's where that is higher.
        """
        tree = self.tree
        before = max(before, tree.root_bound)
        return tree.cutoff < tree.target and (tree.lower_bound() - before >= CLOSED_WELL * (tree.cutoff - before))

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
        self._tell()
        # Many columns with phases are enumerated or abandoned: their LPs' splits close little.
        crowd = tree.columns.phases is not None and tree.alive.sum() > MOST_PROBED and not self.patient
        if tree.open:
            tree.process(FIRST_SLICE * tree.lp().quickness, most_open=2 if crowd else NODES_A_SHARE * SHARES)
            self._tell()
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
        self, mask: NDArray[np.bool_], order: NDArray[np.int64], durations: NDArray[np.float64] | None, most: float
    ) -> tuple[bool, int]:
        """Let the batches continue an enumeration."""
        return self._own_pool().enumerate(self.tree, mask, order, durations, most)

    def _promising(self) -> bool:
        """Return whether probing may rule out enough: not where it failed below this step time or a lower one."""
        few = self.tree.lp().probed and self.tree.alive.sum() <= MOST_PROBED
        return bool(few and self.tree.cutoff < self.memory.fruitless)

    def _probe(self, pool: WorkerPool) -> bool:
        """Rule out classes of columns as long as it pays; rebuild the tree from the rest.

        False when many remain, unless patient: a lower step time rules out more.
        """
        tree, stages = self.tree, self.tree.problem.stages
        began = left = int(tree.alive.sum())
        while left:
            tree.stopper.check()
            before, spent = left, pool.iterations
            # From the last stage back columns go sooner: S16 V4 m128 in 39 s, in 55 s from the first one on.
            for last in range(stages, 0, -PROBED_STAGES):
                pool.probe(tree, range(max(0, last - PROBED_STAGES), last))
                known, tree.alive = tree.floors.tighten(tree.alive, tree.cutoff)
                left = int(tree.alive.sum()) if known < tree.cutoff else 0
                if not left or (2 * (last - PROBED_STAGES) <= stages and left > IN_VAIN * before):
                    break
            proven = max(tree.lower_bound(), min(known, tree.cutoff))
            self.note(proven, f"{left} of {began} configurations left below {tree.cutoff:.6g}")
            self._look_among_left()
            if left and left < before and tree.looked_through(pool.iterations - spent):
                left = 0
            if before == began and not self.patient and left > max(PRICE_ABOVE, PROBE_LEAST * len(tree.columns)):
                return False
            if before - left < PROBE_GAIN * before:
                if before == began:
                    self.memory.fruitless = min(self.memory.fruitless, tree.cutoff)
                break
        if not left:
            tree.open.clear()
        elif left < PROBE_ANEW * began:
            tree.replace_open([(tree.lower_bound(), tree.alive.copy())])
        return True

    def _look_among_left(self) -> None:
        """Search for better plans among the remaining columns: the fewer, the likelier one is found."""
        tree = self.tree
        costs, before = tree.floors.under_prices(), tree.plans.best_time

        def more() -> bool:
            tree.stopper.check()
            return tree.lower_bound() < tree.cutoff

        if len(costs) and tree.alive.any() and tree.plans.programs.exact:
            tree.plans.anneal_among(tree.alive, costs, more)
        if tree.plans.best_time < before:
            self._tell()

    def _rounds(self, pool: WorkerPool, root: float) -> TreeEnd:
        """Search the tree round by round."""
        tree, problem = self.tree, self.tree.problem
        slice_size, rounds = FIRST_SLICE, 0
        first, paid_off = np.isinf(self.memory.left), pool.iterations + self.probing
        looked, proven = FIRST_ROUNDS if first else self.memory.patience, root
        while tree.open and tree.open[0][0] < tree.cutoff:
            tree.stopper.check()
            before = pool.iterations
            pool.round(tree, slice_size * tree.lp().quickness)
            rounds += 1
            self.rounds += 1
            enough = 1 if problem.stages >= MANY_STAGES else HAND_OVER_ROUNDS
            if problem.interleaves == 1 and rounds >= enough and tree.open:
                return TreeEnd.HANDED_OVER
            slice_size = min(LAST_SLICE, slice_size + FIRST_SLICE)
            self._tell()
            # After an abandoned tree the next one is probed again, so a probed tree deserves as many iterations.
            worth_it = before < pool.iterations < paid_off
            if rounds >= looked and problem.interleaves > 1 and not self.patient and not worth_it:
                bound = tree.lower_bound()
                if bound - proven < STAGED_SHARE * (tree.cutoff - proven):
                    self.memory.patience *= 1 if first else AFTER_LEAVING
                    return TreeEnd.LEFT
                looked, proven = 2 * rounds, bound
        self.memory.patience = max(self.memory.patience, PATIENCE * rounds)
        return TreeEnd.DONE

    def _tell(self) -> None:
        tree = self.tree
        cuts = tree.plans.pool.size
        text = f"{tree.nodes} nodes, {len(tree.open)} open below {tree.cutoff:.6g}, {cuts} cuts"
        self.note(tree.lower_bound(), text)
