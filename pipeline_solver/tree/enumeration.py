"""A node of the tree closed by enumeration: column after column, stage by stage, pruned by all known bounds.

Each bound of a plan is a sum over its stages: a path's length is its constant plus a term for each stage's column, and
under an LP's dual values a plan takes the LP's value plus its columns' reduced costs. So with columns of some stages
chosen, each of these bounds the plan by the least sum of the other stages (`choice_walk`). In the time of one node's
LPs, millions of partial choices are visited. The event graph evaluates a complete choice that is not pruned: it is a
better plan, or its longest path is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Callable, Protocol

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.bounds.column_floors import ColumnFloors
from taylor.pipeline_solver.bounds.cut_pool import CutPool, PathCuts
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.phases import borders_of
from taylor.pipeline_solver.columns.positions import plan_in_order
from taylor.pipeline_solver.heuristics.incumbents import Incumbents
from taylor.pipeline_solver.model.params import TreeParams
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.tree.choice_kernels import CHOICE, CLOSED, fill_costs, path_costs
from taylor.pipeline_solver.tree.choice_samples import sample
from taylor.pipeline_solver.tree.choice_walk import ChoiceWalk, Matching, Rows, goes_back


class Remaining:
    """Columns of a node that are still to be searched; `mask` bool [columns] is replaced, never changed in place."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask

    def remove(self, columns: NDArray[np.int64]) -> None:
        """Remove columns below which the search is complete."""
        mask = self.mask.copy()
        mask[columns] = False
        self.mask = mask


class Deal(Protocol):
    """Continues in an order of the stages on other batches, a portion each; arguments and result as of
    `Enumeration.close`."""

    def __call__(
        self,
        remaining: Remaining,
        order: NDArray[np.int64],
        durations: NDArray[np.float64] | None,
        most: float,
    ) -> tuple[bool, int]: ...


class PathRows(Rows):
    """Rows of LPs' dual values, then of paths.

    Parameters
    ----------
    columns : ColumnSet
    members, first, matching
        As of `Rows`.
    prices : float64 [prices, n]
        Term of each member in the former.
    counts : float64 [paths, classes]
        Class counts of the latter.
    values : float64 [prices + paths]
        Constant of each row.
    params : TreeParams
    """

    def __init__(
        self,
        columns: ColumnSet,
        members: NDArray[np.int64],
        first: NDArray[np.int64],
        matching: Matching,
        prices: NDArray[np.float64],
        counts: NDArray[np.float64],
        values: NDArray[np.float64],
        params: TreeParams,
    ) -> None:
        super().__init__(members, first, matching, values, params)
        self.durations = columns.durations[members]
        by_stage = np.ascontiguousarray(counts.reshape(len(counts), -1, len(first) - 1).T)
        fill_costs(prices, self.durations, first, by_stage, self.costs)

    def add_path(self, counts: NDArray[np.float64], constant: float) -> bool:
        """Add a path, of class counts float64 [classes]; False where there is no space for it."""
        by_stage = counts.reshape(-1, len(self.first) - 1).T
        return self.add(path_costs(self.durations, self.first, np.ascontiguousarray(by_stage)), constant)


class Enumeration:
    """Enumerates choices of one column a stage among those of a tree.

    Parameters
    ----------
    floors : ColumnFloors
        Dual values of LPs.
    plans : Incumbents
        Evaluates choices, keeps the best one and the paths.
    """

    def __init__(self, columns: ColumnSet, floors: ColumnFloors, plans: Incumbents) -> None:
        self.columns, self.floors, self.plans, self.params = columns, floors, plans, plans.params.tree
        problem = columns.problem
        schedule = schedule_of(problem)
        self.counts = np.array([kind.count for kind in problem.placed_kinds])
        period = 1 if columns.phases is None else columns.phases.period
        self.matching: Matching | None = None
        if (columns.ordered or period > 1) and period**problem.interleaves <= self.params.most_borders:
            self.matching = _matching(columns, schedule, self.params.most_states)

    def close(
        self,
        remaining: Remaining,
        paths: NDArray[np.int64],
        cutoff: Callable[[], float],
        check: Callable[[], None],
        durations: NDArray[np.float64] | None = None,
        most: float = np.inf,
        deal: Deal | None = None,
    ) -> tuple[bool, int]:
        """Look for plans below a step time among some columns.

        Parameters
        ----------
        remaining : Remaining
            Some columns of every stage. Those below which the search is complete are removed.
        paths : int64
            Cuts of the pool that prune.
        cutoff : callable
            The step time; called again after a better plan.
        check : callable
            Called between slices of the work; after what it raises, `remaining` has the progress so far.
        durations : float64 [classes], optional
            Of the node's LP: the longest paths under similar ones prune, too.
        most : float
            Most columns in total, estimated by a first look; never more than this module's limits.
        deal : Deal, optional
            Continues after a promising first look, in place of this process.

        Returns
        -------
        (bool, int)
            Whether the search is complete, so that no plan below the step time remains; and the columns visited, as a
            measure of the work.
        """
        rows = self._rows(remaining.mask, paths, cutoff(), durations)
        if rows is None:
            return False, 0
        own = self.params
        whole = own.most_steps if self.columns.ordered else own.most_phased_steps
        hopeless = np.inf if most < np.inf else own.hopeless * whole
        best, closed, spent = self._begun(rows, remaining, cutoff, check, hopeless)
        most = min(most, whole)
        if best is None:
            return closed, spent
        done = best.done()
        short = best.steps * (1.0 - done) <= own.dealt_above * rows.costs.size * done
        if deal is None or best.stuck or best.steps > most * done or short:
            closed, steps = self._to_the_end(best, remaining, cutoff, check, most)
        else:
            order = best.order
            del best, rows  # before other processes build theirs
            closed, steps = deal(remaining, order, durations, most)
        return closed, spent + steps

    def _begun(
        self,
        rows: PathRows,
        remaining: Remaining,
        cutoff: Callable[[], float],
        check: Callable[[], None],
        hopeless: float,
    ) -> tuple[ChoiceWalk | None, bool, int]:
        """The enumeration in the most promising order, advanced a little; None at its end or where hopeless.

        Also returns whether one has ended, and the columns visited for all orders. Where samples give an estimate, only
        the best order is enumerated.
        """
        best: ChoiceWalk | None = None
        promised, spent = np.inf, 0
        for order in self._orders(rows):
            walk = ChoiceWalk(rows, order)
            if walk.sampled and self.params.samples:
                whole, looked = self._sample(walk, cutoff, check, hopeless)
                spent += looked
                if whole > hopeless:
                    continue
            else:
                closed = self.look(walk, remaining, cutoff, check)
                spent += walk.steps
                if closed:
                    return None, True, spent
                done = walk.done()
                whole = walk.steps / done if done else np.inf
            # Only one is kept: its tables are large.
            if best is None or whole < promised:
                best, promised = walk, whole
        if best is not None and best.sampled and self.params.samples:
            before = best.steps
            closed = self.look(best, remaining, cutoff, check)
            spent += best.steps - before
            if closed:
                return None, True, spent
        return best, False, spent

    def _sample(
        self,
        walk: ChoiceWalk,
        cutoff: Callable[[], float],
        check: Callable[[], None],
        hopeless: float = np.inf,
    ) -> tuple[float, int]:
        """Sample an enumeration that has not begun; return its estimated length and the cost of the samples, in
        columns.

        The second half of the samples gives the estimate, with the paths that the first half found; the first samples
        give it where they show a hopeless enumeration.
        """
        rows, steps, looked = walk.rows, [], 0
        check()
        for seed in range(self.params.samples):
            found = sample(walk, cutoff(), seed)
            steps.append(found.steps)
            looked += found.looked + self.params.sample_steps
            if found.choice is not None and not self._judged(rows, found.choice, cutoff):
                break
            if len(steps) == self.params.first_samples and _expected(steps) > hopeless:
                break
        return _expected(steps), looked

    def walk_of(
        self,
        mask: NDArray[np.bool_],
        order: NDArray[np.int64],
        paths: NDArray[np.int64],
        cutoff: float,
        durations: NDArray[np.float64] | None,
    ) -> ChoiceWalk | None:
        """An enumeration of some columns in an order of the stages, int64 [S]; None as from `_rows`."""
        rows = self._rows(mask, paths, cutoff, durations)
        if rows is None:
            return None
        walk = ChoiceWalk(rows, order)
        if walk.sampled:
            self._sample(walk, lambda: cutoff, lambda: None)  # for the rows
        return walk

    def portion(self, mask: NDArray[np.bool_], order: NDArray[np.int64], number: int, of: int) -> NDArray[np.bool_]:
        """Some columns without those of one stage that are in other portions; `number` is 0 ... `of` - 1.

        It is the first stage of the order that has many columns: every portion visits those before it.
        """
        assert self.matching is not None, "close comes first"
        borders = self.matching.borders
        enter = borders.high if goes_back(borders, order) else borders.low
        start = self.columns.start
        left = [start[s] + np.nonzero(mask[start[s] : start[s + 1]])[0] for s in order]
        own = left[0]
        turn = np.unique(enter[own], return_inverse=True)[1].reshape(-1)
        if turn.max(initial=0) + 1 < self.params.dealt_by_border * of:
            own = left[np.argmax([min(len(part), self.params.dealt_by_column * of) for part in left])]
            turn = np.arange(len(own))
        found: NDArray[np.bool_] = mask.copy()
        found[own[turn % of != number]] = False
        return found

    def _to_the_end(
        self,
        walk: ChoiceWalk,
        remaining: Remaining,
        cutoff: Callable[[], float],
        check: Callable[[], None],
        most: float,
    ) -> tuple[bool, int]:
        """Continue while progress promises an end; return whether the search is complete, and the columns visited."""
        before = walk.steps
        closed = False
        while not closed and not walk.stuck and walk.steps <= most * walk.done():
            closed = self.look(walk, remaining, cutoff, check)
        return closed, walk.steps - before

    def look(
        self, walk: ChoiceWalk, remaining: Remaining, cutoff: Callable[[], float], check: Callable[[], None]
    ) -> bool:
        """Continue a little; return whether the search is complete, else remove what is."""
        if self._go_on(walk, walk.steps + self.params.first_steps, cutoff):
            return True
        remaining.remove(walk.finished())
        check()
        return False

    def _go_on(self, walk: ChoiceWalk, until: int, cutoff: Callable[[], float]) -> bool:
        """Continue until `until` steps are taken; return whether the search is complete."""
        while walk.steps < until and not walk.stuck:
            end = walk.go_on(until, cutoff())
            if end == CLOSED:
                return True
            if end == CHOICE:
                walk.stuck = not self._judged(walk.rows, walk.choice(), cutoff)
        return False

    def _orders(self, rows: Rows) -> Iterator[NDArray[np.int64]]:
        """Orders of the stages; which one is by far the quickest differs: from both ends, from the last one back, and
        by rising number of columns; where chunks have phases, from the first one on and from the last one back."""
        S = len(rows.first) - 1
        every, free = np.arange(S), rows.matching.borders.number == 1
        yield np.stack([every, every[::-1]], axis=1).reshape(-1)[:S] if free else every
        yield every[::-1].copy()
        if free:
            yield np.argsort(np.diff(rows.first), kind="stable")

    def _rows(
        self,
        mask: NDArray[np.bool_],
        paths: NDArray[np.int64],
        cutoff: float,
        durations: NDArray[np.float64] | None = None,
    ) -> PathRows | None:
        """Pruning rows of the remaining columns; None where they would be too large or the columns leave the order
        open."""
        own = self.params
        if self.matching is None or not own.enumeration:
            return None
        members = np.nonzero(mask)[0]
        if self.columns.ordered and len(members) > own.most_ordered:
            return None
        first = np.searchsorted(members, self.columns.start)
        prices = self.floors.under_prices()
        spare = own.most_cells // max(1, len(members)) - own.spare_rows - len(prices)
        if not np.isfinite(cutoff) or spare < own.least_paths or (np.diff(first) == 0).any():
            return None
        near = self._near(durations, spare)
        pool, paths = self.plans.pool, paths[len(paths) - min(len(paths), spare - near.size) :]
        # Columns with the same layers between the same borders are adjacent: an enumeration visits them as a whole.
        borders = self.matching.borders
        keys = borders.high, borders.low, self.matching.layers, self.columns.stage
        members = members[np.lexsort([key[members] for key in keys])]
        counts = np.vstack([near.counts[: near.size], pool.counts[paths]])
        values = [self.floors.values[: len(prices)], near.constant[: near.size], pool.constant[paths]]
        return PathRows(
            self.columns, members, first, self.matching, prices[:, members], counts, np.concatenate(values), own
        )

    def _near(self, durations: NDArray[np.float64] | None, most: int) -> CutPool:
        """The longest paths under durations near the given ones: the remaining choices differ from these a little.

        Drawn afresh at every node, so that no node depends on earlier ones.
        """
        paths = PathCuts(self.plans.problem, self.plans.paths.graph)
        if durations is not None:
            random, own = np.random.default_rng(0), self.params
            for _ in range(min(own.near_paths, most, int(own.near_tasks / len(paths.graph.before)))):
                noise = own.near_noise * random.standard_normal(len(durations))
                paths.path(np.maximum(durations * (1.0 + noise), 0.0))
        return paths.pool

    def _judged(self, rows: Rows, chosen: NDArray[np.int64], cutoff: Callable[[], float]) -> bool:
        """Evaluate a complete choice; False where its new path does not fit, or where it is no plan but may represent
        one."""
        columns, plans = self.columns, self.plans
        if not (columns.totals[chosen].sum(axis=0) == self.counts).all():
            return True
        length, cut = plans.paths.path(plans.durations_of(chosen))
        if length >= cutoff():
            assert isinstance(rows, PathRows)
            return rows.add_path(plans.pool.counts[cut], float(plans.pool.constant[cut]))
        if not columns.ordered and plan_in_order(plans.problem, columns, chosen) is None:
            return False  # its chunks' layers in order cost something else
        plans.try_choice(chosen)
        return True


def _expected(steps: Sequence[float]) -> float:
    """The mean of the second half."""
    return float(np.mean(steps[len(steps) // 2 :]))


def _matching(columns: ColumnSet, schedule: Schedule, most_states: int) -> Matching:
    """Properties by which columns must fit together: layers, and phases where they have them, else the order of the
    kinds.

    Where phases determine the layers of a chunk, kinds need not be counted.
    """
    problem = columns.problem
    counts = [kind.count for kind in problem.placed_kinds]
    layers, goal = columns.totals.sum(axis=1), sum(counts)
    if columns.ordered and np.prod([count + 1.0 for count in counts]) <= most_states:
        weights = np.cumprod([1, *(count + 1 for count in counts[::-1])])[:-1][::-1]
        layers, goal = columns.totals @ weights, int(np.dot(weights, counts))
    every = range(problem.interleaves)
    place = np.array([[schedule.position(v, s) for v in every] for s in range(problem.stages)])[columns.stage]
    late, early = [], []
    for j in range(len(counts) - 1 if columns.ordered else 0):
        late.append(np.where(columns.greatest_kind > j, place, schedule.chunks).min(axis=1))
        early.append(np.where(columns.least_kind <= j, place, -1).max(axis=1))
    none = np.zeros((0, len(columns)), dtype=np.int64)
    borders = borders_of(columns.phases, len(columns), schedule, sum(counts))
    return Matching(layers, goal, borders, *(np.ascontiguousarray(np.array(of or none).T) for of in (late, early)))
