"""One tree searched to its end: a first look, classes of columns probed, then rounds over its shares."""

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
"""Simplex iterations that a share of the tree gets in the first rounds and at most, times the LP's `quickness`."""

STAGED_SHARE = 1 / 3
"""A tree is left when it has not closed this share of its root's gap in the rounds that the memory grants, and again
each time as many: then the bound is raised target by target, each half-way to the one before, in trees of fewer
columns. Bounds rise faster the fewer nodes are open: trees of S4 V4 that had closed 39 to 46 % of their gap after three
rounds had closed all of it, or 84 % and more, after six."""
CLOSED_WELL = 0.5
"""Share of its gap that a tree has closed which is worth its end."""
PATIENCE, AFTER_LEAVING = 3, 2
"""The rounds granted are so many times those of the longest tree that was searched to its end, and grow so much where
one was left: trees of targets a little higher take a little longer, and each begins anew."""

MOST_PROBED = 60_000
"""Columns that are probed at most: of more, each LP takes long and the tree does better."""
PROBED_STAGES = 4
"""Stages that are probed before the shares tell each other what they found."""
PROBE_GAIN = 0.1
"""Share of the columns that probing must rule out to go on."""
PROBE_LEAST = 0.75
"""Share of many columns that the first probing leaves at most, or a lower step time is the next target."""
IN_VAIN = 0.98
"""Share of the columns that half of the stages leave at most, or the rest is not probed."""
PROBE_ANEW = 0.7
"""Share of the columns left below which the tree begins anew."""

HAND_OVER_ROUNDS = 3
"""With one interleave, rounds after which the compact MILP goes on with the plan and the cuts: HiGHS's own
cuts close what splits of stages leave open when many stages hold one or two layers each."""
MANY_STAGES = 24
"""Stages from which it goes on after the first round: further ones close little of the gap there."""

Note = Callable[[float, str], None]


class TreeEnd(Enum):
    """How the search of a tree has ended: to its end, left because it is slow, or left to the compact MILP."""

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
        Called with what is proven, and what to tell of it.
    memory : TreeMemory
        Keeps below which step time probing ruled out too little.
    patient : bool
        Whether to stay with a tree that raises its bound slowly.
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
        """Get ready for more time; what the MILP goes on with is soon left, and probing it would be in vain."""
        self.tree.stopper, self.note = stopper, note
        self.probed |= closed_by_milp(self.tree.problem)

    def closing_well(self, before: float) -> bool:
        """Whether the tree's end proves the best plan, and it has closed so much of its gap that it is worth its end.

        Parameters
        ----------
        before : float
            Bound from which the gap counts; the root's where that is higher.
        """
        tree = self.tree
        before = max(before, tree.root_bound)
        return tree.cutoff < tree.target and (tree.lower_bound() - before >= CLOSED_WELL * (tree.cutoff - before))

    def search(self) -> TreeEnd:
        """Search the tree, from where an earlier search had no time for more."""
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
        # So many columns told apart by phases are enumerated or left: their LPs' splits close little.
        crowd = tree.columns.phases is not None and tree.alive.sum() > MOST_PROBED and not self.patient
        if tree.open:
            tree.process(FIRST_SLICE * tree.lp().quickness, most_open=2 if crowd else NODES_A_SHARE * SHARES)
            self._tell()
        if not tree.open or tree.open[0][0] >= tree.cutoff:
            return TreeEnd.DONE
        if crowd:
            return TreeEnd.LEFT
        self._end_pool()  # one that has helped with the root knows less than that has left
        pool = self._own_pool()
        if not self.probed and self._promising() and not self._probe(pool):
            return TreeEnd.LEFT
        self.probed = True
        self.probing += pool.iterations
        return self._rounds(pool, root)

    def _own_pool(self) -> WorkerPool:
        """The shares, which begin with what the tree has met so far."""
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
        """Let the shares go on with an enumeration."""
        return self._own_pool().enumerate(self.tree, mask, order, durations, most)

    def _promising(self) -> bool:
        """Whether probing may rule out enough: not where it did not below this step time or a lower one."""
        few = self.tree.lp().probed and self.tree.alive.sum() <= MOST_PROBED
        return bool(few and self.tree.cutoff < self.memory.fruitless)

    def _probe(self, pool: WorkerPool) -> bool:
        """Rule out classes of columns as long as it is worth it; the tree begins anew with what is left.

        False when many are left all the same, unless one is patient: a lower step time rules out more.
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
        """Look for better plans among the configurations that are left: the fewer, the likelier one is met."""
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
        """Work on the tree round by round."""
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
            # What comes after a tree that is left is probed anew: one that was probed is worth as many iterations.
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
