"""A node of the tree closed by enumeration: column after column, stage by stage, pruned by all that is known.

What is known of plans is a sum over their stages: a path takes its constant and what each stage's column adds to it,
and under an LP's prices a plan takes the LP's value and its columns' reduced costs. So with columns of some stages
chosen, each of these bounds the plan once it is known what the other stages add at the least; that is tabulated
beforehand for every number of layers left to them. In the time that the LPs of one node take, millions of partial
choices are looked at. A whole choice that nothing rules out is judged by the event graph: it is a better plan, or its
longest path is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.column_floors import ColumnFloors
from taylor.pipeline_solver.columns import ColumnSet
from taylor.pipeline_solver.compiled import compiled
from taylor.pipeline_solver.durations import schedule_of
from taylor.pipeline_solver.incumbents import Incumbents

PATHS = 300
"""Paths of the pool that prune, the newest ones, besides those that the LP holds."""

MOST_NEW = 500
"""Paths met on the way that prune at most."""

MOST_CELLS = 6_000_000
"""Columns, and numbers of layers left at each stage, times paths and prices, at most: some 50 MB each."""

MOST_STATES = 500
"""Totals of layers by kind that are told apart at most; where they are more, only how many layers there are."""

MOST_TABLE = 60_000_000
"""Steps that the tables of what other stages add may take at most."""

FIRST_STEPS, MOST_STEPS = 1_000_000, 100_000_000
"""Columns looked at for a node before it is asked how far that went, and how many it may take as a whole, as far as
that tells: a node that would take more is left to its LPs."""

CHOICE_STEPS = 20_000
"""Columns that could be looked at while the event graph judges one choice."""

STEPS_AN_ITERATION = 4000
"""Columns that are looked at in the time of a simplex iteration."""

_CLOSED, _SPENT, _CHOICE = range(3)


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
        self.held, self.goal = _totals(columns)
        problem = columns.problem
        schedule = schedule_of(problem)
        chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
        self.interleave, self.stage = (np.array(side) for side in zip(*chunks, strict=True))
        self.counts = np.array([kind.count for kind in problem.placed_kinds])

    def close(
        self,
        mask: NDArray[np.bool_],
        paths: NDArray[np.int64],
        cutoff: Callable[[], float],
        check: Callable[[], None],
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

        Returns
        -------
        (bool, int)
            Whether all has been looked at, so that nothing below the step time is left; and the columns looked at, as a
            measure of the work.
        """
        rows = self._rows(mask, paths, cutoff())
        if rows is None:
            return False, 0
        best: _Run | None = None
        spent = 0
        for order in self._orders(rows.first):
            run = _Run(rows, order, self.goal)
            closed = self._go_on(run, FIRST_STEPS, cutoff)
            spent += run.steps
            if closed:
                return True, spent
            mask[run.finished()] = False
            check()
            # One is kept at a time: its tables are large.
            best = run if best is None or run.done() > best.done() else best
        assert best is not None
        spent -= best.steps
        while not best.stuck and best.steps <= MOST_STEPS * best.done():
            if self._go_on(best, best.steps + FIRST_STEPS, cutoff):
                return True, spent + best.steps
            mask[best.finished()] = False
            check()
        return False, spent + best.steps

    def _go_on(self, run: _Run, until: int, cutoff: Callable[[], float]) -> bool:
        """Go on until so many steps are taken; whether all has been looked at."""
        while run.steps < until and not run.stuck:
            end = run.go_on(until, cutoff())
            if end == _CLOSED:
                return True
            if end == _CHOICE:
                run.stuck = not self._judged(run, cutoff)
        return False

    def _orders(self, first: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Orders of the stages, of which now one, now another is by far the quickest: from both ends, from the last one
        back, and those of the fewest columns first."""
        S = len(first) - 1
        every = np.arange(S)
        yield np.stack([every, every[::-1]], axis=1).reshape(-1)[:S]
        yield every[::-1].copy()
        yield np.argsort(np.diff(first), kind="stable")

    def _rows(self, mask: NDArray[np.bool_], paths: NDArray[np.int64], cutoff: float) -> _Rows | None:
        """What prunes, of the columns that are left; None where it would take too much."""
        members = np.nonzero(mask)[0]
        first = np.searchsorted(members, self.columns.start)
        costs = self.floors.under_prices()
        count = len(costs) + len(paths)
        room = count + MOST_NEW
        tables = len(first) * (self.goal + 1)
        if not (np.isfinite(cutoff) and count) or room * max(len(members), tables) > MOST_CELLS:
            return None
        held = self.held[members]
        totals = [len(np.unique(held[a:b])) for a, b in zip(first[:-1], first[1:], strict=True)]
        if min(totals) == 0 or count * sum(totals) * (self.goal + 1) > MOST_TABLE:
            return None
        of_paths = self._of_paths(self.plans.pool.counts[paths], members)
        values = np.concatenate([self.floors.values[: len(costs)], self.plans.pool.constant[paths]])
        return _Rows(members, first, held, np.vstack([costs[:, members], of_paths]), values)

    def _of_paths(self, counts: NDArray[np.float64], members: NDArray[np.int64]) -> NDArray[np.float64]:
        """What columns add to paths of class counts float64 [P, classes], float64 [P, members]."""
        S = self.columns.problem.stages
        found = np.empty((len(counts), len(members)))
        stage = self.columns.stage[members]
        for s in range(S):
            own = np.nonzero(stage == s)[0]
            found[:, own] = counts[:, s::S] @ self.columns.durations[members[own]].T
        return found

    def _judged(self, run: _Run, cutoff: Callable[[], float]) -> bool:
        """Judge the whole choice at hand; False where its path is new and there is no room for it."""
        chosen = run.choice()
        columns, plans = self.columns, self.plans
        if not (columns.totals[chosen].sum(axis=0) == self.counts).all():
            return True
        length, cut = plans.paths.path(plans.durations_of(chosen))
        if length < cutoff():
            if self._in_order(chosen):
                plans.try_choice(chosen)
            return True
        return run.add(self._of_paths(plans.pool.counts[cut : cut + 1], run.members)[0], plans.pool.constant[cut])

    def _in_order(self, chosen: NDArray[np.int64]) -> bool:
        """Whether the chunks hold the kinds in the model's order."""
        column = chosen[self.stage]
        least = self.columns.least_kind[column, self.interleave]
        greatest = self.columns.greatest_kind[column, self.interleave]
        before = np.maximum.accumulate(greatest)[:-1]
        return bool((before <= least[1:]).all())


class _Rows(NamedTuple):
    """What bounds plans of some columns.

    Parameters
    ----------
    members, first : int64 [n], int64 [S + 1]
        The columns, and where each stage's begin among them.
    held : int64 [n]
        Their layers as a number.
    costs : float64 [rows, n]
        What each adds to each row.
    values : float64 [rows]
        What no column adds.
    """

    members: NDArray[np.int64]
    first: NDArray[np.int64]
    held: NDArray[np.int64]
    costs: NDArray[np.float64]
    values: NDArray[np.float64]


class _Run:
    """One enumeration: where it stands in an order of the stages, and what the stages to come add at the least."""

    def __init__(self, rows: _Rows, order: NDArray[np.int64], goal: int) -> None:
        self.members, self.first, self.held, costs, values = rows
        self.order = order
        S, n = len(order), len(self.members)
        self.rows, self.room = len(values), len(values) + MOST_NEW
        self.rank = np.arange(self.room)
        self.at, self.left = self.first[order].copy(), np.full(S + 1, goal)
        self.chosen = np.zeros(S, dtype=np.int64)
        self.state = np.zeros(2, dtype=np.int64)
        self.judged = 0
        self.stuck = False
        self.costs = np.empty((n, self.room))
        self.costs[:, : self.rows] = costs.T
        self.rest = np.empty((S + 1, goal + 1, self.room))
        self.partial = np.empty((S + 1, self.room))
        self.partial[0, : self.rows] = values
        tabulate(self.costs, 0, self.rows, self.first, self.held, order, self.rest)

    @property
    def steps(self) -> int:
        """Columns looked at, and as many as the event graph's judgements would have taken."""
        return int(self.state[1]) + CHOICE_STEPS * self.judged

    def add(self, costs: NDArray[np.float64], value: float) -> bool:
        """Take one more row; False where there is no room for it."""
        p = self.rows
        if p == self.room:
            return False
        self.costs[:, p] = costs
        tabulate(self.costs, p, p + 1, self.first, self.held, self.order, self.rest)
        self.partial[0, p] = value
        for k, j in enumerate(self.chosen[:-1]):
            self.partial[k + 1, p] = self.partial[k, p] + costs[j]
        # The new one is looked at first.
        self.rank[p], self.rank[0] = self.rank[0], p
        self.rows += 1
        return True

    def go_on(self, until: int, cutoff: float) -> int:
        """Look at columns until so many steps are taken, all have been looked at, or a whole choice is at hand."""
        most = until - CHOICE_STEPS * self.judged
        end: int = walk_choices(
            self.costs, self.rows, self.rest, self.first, self.held, self.order, cutoff, most, self.partial,
            self.at, self.left, self.rank, self.chosen, self.state,
        )  # fmt: skip
        self.judged += end == _CHOICE
        return end

    def choice(self) -> NDArray[np.int64]:
        """The choice at hand: a column for each stage, int64 [S]."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = self.members[self.chosen]
        return found

    def done(self) -> float:
        """The share of all choices that is looked at or ruled out, as far as places alone tell."""
        share = 0.0
        for k in range(int(self.state[0]), -1, -1):
            begin, end = self.first[self.order[k]], self.first[self.order[k] + 1]
            share = (max(0, self.at[k] - 1 - begin) + share) / (end - begin)
        return share

    def finished(self) -> NDArray[np.int64]:
        """Columns of the first stage under which all has been looked at."""
        return self.members[self.first[self.order[0]] : max(self.first[self.order[0]], self.at[0] - 1)]


def _totals(columns: ColumnSet) -> tuple[NDArray[np.int64], int]:
    """A number for the layers of each column, int64 [n], that adds up to a given one over the stages of a plan."""
    counts = [kind.count for kind in columns.problem.placed_kinds]
    totals = columns.totals
    if totals.shape[1] == len(counts) and np.prod([count + 1.0 for count in counts]) <= MOST_STATES:
        weights = np.cumprod([1, *(count + 1 for count in counts[::-1])])[:-1][::-1]
        return totals @ weights, int(np.dot(weights, counts))
    return totals.sum(axis=1), sum(counts)


@compiled
def tabulate(costs, low, high, first, held, order, rest):  # type: ignore[no-untyped-def]
    """What the stages from each place of the order on add at the least, to rows low ... high - 1, by their layers.

    `costs` float64 [members, room] are the columns' under each row, `first` int64 [S + 1] the first member of each
    stage, `held` int64 [members] their layers as a number, `order` int64 [S]; written to `rest` float64
    [S + 1, goal + 1, room].
    """
    S, numbers = len(order), rest.shape[1]
    rest[:, :, low:high] = np.inf
    rest[S, 0, low:high] = 0.0
    least = np.empty((numbers, high - low))
    for k in range(S - 1, -1, -1):
        least[:] = np.inf
        known = np.zeros(numbers, dtype=np.bool_)
        for i in range(first[order[k]], first[order[k] + 1]):
            if held[i] < numbers:
                known[held[i]] = True
                for p in range(low, high):
                    least[held[i], p - low] = min(least[held[i], p - low], costs[i, p])
        for own in range(numbers):
            if not known[own]:
                continue
            for others in range(numbers - own):
                if rest[k + 1, others, low] < np.inf:
                    for p in range(low, high):
                        both = least[own, p - low] + rest[k + 1, others, p]
                        rest[k, own + others, p] = min(rest[k, own + others, p], both)


@compiled
def walk_choices(  # type: ignore[no-untyped-def]
    costs, rows, rest, first, held, order, cutoff, most_steps, partial, at, left, rank, chosen, state
):
    """Go on with an enumeration, depth first: 0 at its end, 1 after `most_steps`, 2 with a whole choice in `chosen`.

    `costs`, `first`, `held`, `order` and `rest` as for `tabulate`, of which the first `rows` rows count. `partial`
    float64 [S + 1, room] is what the choice up to each place adds up to, `left` int64 [S + 1] the layers that are left
    there, `at` int64 [S] the next member of each place, `rank` int64 [room] the order in which rows are asked, `state`
    int64 [2] the place and the members looked at.
    """
    S = len(order)
    k, steps = state
    while k >= 0:
        if at[k] >= first[order[k] + 1]:
            k -= 1
            continue
        if steps >= most_steps:
            state[0], state[1] = k, steps
            return 1
        i = at[k]
        at[k] += 1
        steps += 1
        others = left[k] - held[i]
        if others < 0:
            continue
        dead = False
        for q in range(rows):
            p = rank[q]
            if partial[k, p] + costs[i, p] + rest[k + 1, others, p] >= cutoff:
                dead = True
                # What has pruned is asked sooner.
                rank[q], rank[q // 2] = rank[q // 2], p
                break
        if dead:
            continue
        chosen[k] = i
        if k == S - 1:
            state[0], state[1] = k, steps
            return 2
        for p in range(rows):
            partial[k + 1, p] = partial[k, p] + costs[i, p]
        left[k + 1] = others
        k += 1
        at[k] = first[order[k]]
    state[0], state[1] = k, steps
    return 0
