"""A node of the tree closed by enumeration: column after column, stage by stage, pruned by all that is known.

What is known of plans is a sum over their stages: a path takes its constant and what each stage's column adds to it,
and under an LP's prices a plan takes the LP's value and its columns' reduced costs. So with columns of some stages
chosen, each of these bounds the plan once it is known what the other stages add at the least (`choice_walk`). In the
time that the LPs of one node take, millions of partial choices are looked at. A whole choice that nothing rules out is
judged by the event graph: it is a better plan, or its longest path is new.
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
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.tree.choice_samples import sample
from taylor.pipeline_solver.tree.choice_walk import (
    CHOICE,
    CLOSED,
    MOST_CELLS,
    SPARE,
    ChoiceWalk,
    Rows,
    Told,
    fill_costs,
    goes_back,
    path_costs,
)

PATHS, LEAST_PATHS = 300, 50
"""Paths of the pool that prune, the newest ones, besides those that the LP holds; for how many there must be room."""

NEAR, NOISE = 300, 0.1
"""Longest paths under durations like those of the node's LP that prune, and the share of these that is drawn."""

NEAR_TASKS = 2.5e6
"""Tasks that the search for these may evaluate, some 20 ms."""

MOST_STATES = 20_000
"""Totals of layers by kind that are told apart at most; where they are more, only how many layers there are."""

MOST_BORDERS = 1000
"""Borders between stages that are told apart at most."""

FIRST_STEPS, MOST_STEPS, MOST_PHASED_STEPS = 1_000_000, 60_000_000, 250_000_000
"""Columns looked at for a node before it is asked how far that went, and how many it may take as a whole, as far as
that tells: a node that would take more is left to its LPs. Splits close less of what phases tell apart."""

MOST_ORDERED = 5000
"""Columns in order that are enumerated at most: of more, a look takes longer than the LPs of a node."""

SAMPLES, FIRST_SAMPLES = 50, 16
"""Samples of a walk in each order of the stages, and after how many it is asked whether the walk is hopeless."""

HOPELESS = 30
"""How many times as many columns as may be looked at a hopeless walk has, as far as its first samples tell. Of the
nodes of LLaMA3-70B on 8 stages with 5 interleaves none was closed that promised more than twelve times what may be
looked at; most of the others promised a thousand times as much. Where probing goes on with the same columns none is
hopeless: it gains from each path that is met on the way."""

SAMPLE_STEPS = 30_000
"""Columns that are looked at in the time that a sample takes besides."""

STEPS_AN_ITERATION = 1000
"""Columns that are looked at in the time of a simplex iteration."""

DEALT_ABOVE = 1
"""How many times as many columns as the rows have cells must be left for others to go on with them: the tables that
these make first take as long as half as many columns."""

DEALT_BY_BORDER, DEALT_BY_COLUMN = 4, 8
"""Borders a portion from which choices are dealt by where they begin, for then each portion tabulates its own alone;
else columns a portion that the stage should have by which they are."""


class Deal(Protocol):
    """Lets others go on in an order of the stages, each with a portion; asked and answers as `Enumeration.close`."""

    def __call__(
        self,
        mask: NDArray[np.bool_],
        order: NDArray[np.int64],
        durations: NDArray[np.float64] | None,
        most: float,
    ) -> tuple[bool, int]: ...


class PathRows(Rows):
    """Rows of LPs' prices, then of paths.

    Parameters
    ----------
    columns : ColumnSet
    members, first, told
        As of `Rows`.
    prices : float64 [prices, n]
        What each of the members adds to the former.
    counts : float64 [paths, classes]
        Class counts of the latter.
    values : float64 [prices + paths]
        What no column adds.
    """

    def __init__(
        self,
        columns: ColumnSet,
        members: NDArray[np.int64],
        first: NDArray[np.int64],
        told: Told,
        prices: NDArray[np.float64],
        counts: NDArray[np.float64],
        values: NDArray[np.float64],
    ) -> None:
        super().__init__(members, first, told, values)
        self.durations = columns.durations[members]
        by_stage = np.ascontiguousarray(counts.reshape(len(counts), -1, len(first) - 1).T)
        fill_costs(prices, self.durations, first, by_stage, self.costs)

    def add_path(self, counts: NDArray[np.float64], constant: float) -> bool:
        """Take one more path, of class counts float64 [classes]; False where there is no room for it."""
        by_stage = counts.reshape(-1, len(self.first) - 1).T
        return self.add(path_costs(self.durations, self.first, np.ascontiguousarray(by_stage)), constant)


class Enumeration:
    """Enumerates choices of one column a stage among those of a tree.

    Parameters
    ----------
    floors : ColumnFloors
        Prices of LPs.
    plans : Incumbents
        Judges choices, keeps the best one and the paths.
    """

    def __init__(self, columns: ColumnSet, floors: ColumnFloors, plans: Incumbents) -> None:
        self.columns, self.floors, self.plans = columns, floors, plans
        problem = columns.problem
        schedule = schedule_of(problem)
        self.counts = np.array([kind.count for kind in problem.placed_kinds])
        period = 1 if columns.phases is None else columns.phases.period
        self.told: Told | None = None
        if (columns.ordered or period > 1) and period**problem.interleaves <= MOST_BORDERS:
            self.told = _told(columns, schedule)

    def close(
        self,
        mask: NDArray[np.bool_],
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
        mask : bool [columns]
            Some of every stage. Columns under which all has been looked at are taken out of it.
        paths : int64
            Cuts of the pool that prune.
        cutoff : callable
            The step time; asked again after a better plan.
        check : callable
            Called between slices of the work; what it raises leaves `mask` as far as it has come.
        durations : float64 [classes], optional
            Of the node's LP: the longest paths under some like them prune, too.
        most : float
            Columns that it may look at as a whole, as far as a first look tells; never more than this module's own
            limits.
        deal : Deal, optional
            Goes on after the first look, where that tells of an end, in place of this process.

        Returns
        -------
        (bool, int)
            Whether all has been looked at, so that nothing below the step time is left; and the columns looked at, as a
            measure of the work.
        """
        rows = self._rows(mask, paths, cutoff(), durations)
        if rows is None:
            return False, 0
        whole = MOST_STEPS if self.columns.ordered else MOST_PHASED_STEPS
        best, closed, spent = self._begun(rows, mask, cutoff, check, np.inf if most < np.inf else HOPELESS * whole)
        most = min(most, whole)
        if best is None:
            return closed, spent
        done = best.done()
        short = best.steps * (1.0 - done) <= DEALT_ABOVE * rows.costs.size * done
        if deal is None or best.stuck or best.steps > most * done or short:
            closed, steps = self._to_the_end(best, mask, cutoff, check, most)
        else:
            order = best.order
            del best, rows  # before others make their own
            closed, steps = deal(mask, order, durations, most)
        return closed, spent + steps

    def _begun(
        self,
        rows: PathRows,
        mask: NDArray[np.bool_],
        cutoff: Callable[[], float],
        check: Callable[[], None],
        hopeless: float,
    ) -> tuple[ChoiceWalk | None, bool, int]:
        """The walk in the order that promises the soonest end, gone on with a little; None at its end or without hope.

        And whether one has ended, and the columns looked at for all orders. Where samples can tell, none but the best
        is walked.
        """
        best: ChoiceWalk | None = None
        promised, spent = np.inf, 0
        for order in self._orders(rows):
            walk = ChoiceWalk(rows, order)
            if walk.sampled:
                whole, looked = self._sample(walk, cutoff, check, hopeless)
                spent += looked
                if whole > hopeless:
                    continue
            else:
                closed = self.look(walk, mask, cutoff, check)
                spent += walk.steps
                if closed:
                    return None, True, spent
                done = walk.done()
                whole = walk.steps / done if done else np.inf
            # One is kept at a time: its tables are large.
            if best is None or whole < promised:
                best, promised = walk, whole
        if best is not None and best.sampled:
            before = best.steps
            closed = self.look(best, mask, cutoff, check)
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
        """Sample a walk that has not begun: how long it will take, and what that took, in columns looked at.

        The second half of the samples tells it, with what the first one has taught; of the first samples where these
        tell of a hopeless walk.
        """
        rows, told, looked = walk.rows, [], 0
        check()
        for seed in range(SAMPLES):
            found = sample(walk, cutoff(), seed)
            told.append(found.steps)
            looked += found.looked + SAMPLE_STEPS
            if found.choice is not None and not self._judged(rows, found.choice, cutoff):
                break
            if len(told) == FIRST_SAMPLES and _expected(told) > hopeless:
                break
        return _expected(told), looked

    def walk_of(
        self,
        mask: NDArray[np.bool_],
        order: NDArray[np.int64],
        paths: NDArray[np.int64],
        cutoff: float,
        durations: NDArray[np.float64] | None,
    ) -> ChoiceWalk | None:
        """A walk through some columns in an order of the stages, int64 [S]; None as from `_rows`."""
        rows = self._rows(mask, paths, cutoff, durations)
        if rows is None:
            return None
        walk = ChoiceWalk(rows, order)
        if walk.sampled:
            self._sample(walk, lambda: cutoff, lambda: None)  # for the rows
        return walk

    def portion(self, mask: NDArray[np.bool_], order: NDArray[np.int64], number: int, of: int) -> NDArray[np.bool_]:
        """Some columns less those of one stage that are in other portions; `number` is 0 ... `of` - 1.

        It is the first stage of the order that has many columns: those before it are looked at in every portion.
        """
        assert self.told is not None, "close comes first"
        borders = self.told.borders
        enter = borders.high if goes_back(borders, order) else borders.low
        start = self.columns.start
        left = [start[s] + np.nonzero(mask[start[s] : start[s + 1]])[0] for s in order]
        own = left[0]
        turn = np.unique(enter[own], return_inverse=True)[1].reshape(-1)
        if turn.max(initial=0) + 1 < DEALT_BY_BORDER * of:
            own = left[np.argmax([min(len(part), DEALT_BY_COLUMN * of) for part in left])]
            turn = np.arange(len(own))
        found: NDArray[np.bool_] = mask.copy()
        found[own[turn % of != number]] = False
        return found

    def _to_the_end(
        self,
        walk: ChoiceWalk,
        mask: NDArray[np.bool_],
        cutoff: Callable[[], float],
        check: Callable[[], None],
        most: float,
    ) -> tuple[bool, int]:
        """Go on while the progress promises an end; whether all has been looked at, and the columns looked at."""
        before = walk.steps
        closed = False
        while not closed and not walk.stuck and walk.steps <= most * walk.done():
            closed = self.look(walk, mask, cutoff, check)
        return closed, walk.steps - before

    def look(
        self, walk: ChoiceWalk, mask: NDArray[np.bool_], cutoff: Callable[[], float], check: Callable[[], None]
    ) -> bool:
        """Go on a little; whether all has been looked at, else that comes out of `mask`."""
        if self._go_on(walk, walk.steps + FIRST_STEPS, cutoff):
            return True
        mask[walk.finished()] = False
        check()
        return False

    def _go_on(self, walk: ChoiceWalk, until: int, cutoff: Callable[[], float]) -> bool:
        """Go on until so many steps are taken; whether all has been looked at."""
        while walk.steps < until and not walk.stuck:
            end = walk.go_on(until, cutoff())
            if end == CLOSED:
                return True
            if end == CHOICE:
                walk.stuck = not self._judged(walk.rows, walk.choice(), cutoff)
        return False

    def _orders(self, rows: Rows) -> Iterator[NDArray[np.int64]]:
        """Orders of the stages, of which now one, now another is by far the quickest: from both ends, from the last one
        back, and those of the fewest columns first; where chunks must begin in the phase that the one before them left,
        from the first one on and from the last one back."""
        S = len(rows.first) - 1
        every, free = np.arange(S), rows.told.borders.number == 1
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
        """What prunes, of the columns that are left; None where it would take too much or they leave the order open."""
        if self.told is None:
            return None
        members = np.nonzero(mask)[0]
        if self.columns.ordered and len(members) > MOST_ORDERED:
            return None
        first = np.searchsorted(members, self.columns.start)
        prices = self.floors.under_prices()
        room = MOST_CELLS // max(1, len(members)) - SPARE - len(prices)
        if not np.isfinite(cutoff) or room < LEAST_PATHS or (np.diff(first) == 0).any():
            return None
        near = self._near(durations, room)
        pool, paths = self.plans.pool, paths[len(paths) - min(len(paths), room - near.size) :]
        # What takes the same layers between the same borders lies together: a walk looks at it as a whole.
        borders = self.told.borders
        keys = borders.high, borders.low, self.told.held, self.columns.stage
        members = members[np.lexsort([key[members] for key in keys])]
        counts = np.vstack([near.counts[: near.size], pool.counts[paths]])
        values = [self.floors.values[: len(prices)], near.constant[: near.size], pool.constant[paths]]
        return PathRows(self.columns, members, first, self.told, prices[:, members], counts, np.concatenate(values))

    def _near(self, durations: NDArray[np.float64] | None, most: int) -> CutPool:
        """The longest paths under durations like some: what is left to choose differs from these a little.

        Drawn anew at every node, so that no node depends on what came before it.
        """
        paths = PathCuts(self.plans.problem, self.plans.paths.graph)
        if durations is not None:
            random = np.random.default_rng(0)
            for _ in range(min(NEAR, most, int(NEAR_TASKS / len(paths.graph.before)))):
                noise = NOISE * random.standard_normal(len(durations))
                paths.path(np.maximum(durations * (1.0 + noise), 0.0))
        return paths.pool

    def _judged(self, rows: Rows, chosen: NDArray[np.int64], cutoff: Callable[[], float]) -> bool:
        """Judge a whole choice; False where its path is new and there is no room for it, or where it is no plan and
        yet may stand for one."""
        columns, plans = self.columns, self.plans
        if not (columns.totals[chosen].sum(axis=0) == self.counts).all():
            return True
        length, cut = plans.paths.path(plans.durations_of(chosen))
        if length >= cutoff():
            assert isinstance(rows, PathRows)
            return rows.add_path(plans.pool.counts[cut], float(plans.pool.constant[cut]))
        if not columns.ordered and plan_in_order(plans.problem, columns, chosen) is None:
            return False  # what its chunks hold in order costs something else
        plans.try_choice(chosen)
        return True


def _expected(told: Sequence[float]) -> float:
    """The mean of the second half."""
    return float(np.mean(told[len(told) // 2 :]))


def _told(columns: ColumnSet, schedule: Schedule) -> Told:
    """What columns must fit together by: layers, and phases where they tell them, else the order of the kinds.

    Where phases tell which layers a chunk holds, kinds need not be counted.
    """
    problem = columns.problem
    counts = [kind.count for kind in problem.placed_kinds]
    held, goal = columns.totals.sum(axis=1), sum(counts)
    if columns.ordered and np.prod([count + 1.0 for count in counts]) <= MOST_STATES:
        weights = np.cumprod([1, *(count + 1 for count in counts[::-1])])[:-1][::-1]
        held, goal = columns.totals @ weights, int(np.dot(weights, counts))
    every = range(problem.interleaves)
    place = np.array([[schedule.position(v, s) for v in every] for s in range(problem.stages)])[columns.stage]
    late, early = [], []
    for j in range(len(counts) - 1 if columns.ordered else 0):
        late.append(np.where(columns.greatest_kind > j, place, schedule.chunks).min(axis=1))
        early.append(np.where(columns.least_kind <= j, place, -1).max(axis=1))
    none = np.zeros((0, len(columns)), dtype=np.int64)
    borders = borders_of(columns.phases, len(columns), schedule, sum(counts))
    return Told(held, goal, borders, *(np.ascontiguousarray(np.array(of or none).T) for of in (late, early)))
