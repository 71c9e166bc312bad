"""How the nodes of a tree are bounded, closed and split, with what its LPs say written down here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.path_lp import LpResult
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.splits import Split
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import LayerKind
from taylor.pipeline_solver.model.stopping import LpTrouble, OutOfTime, Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree import tree_search
from taylor.pipeline_solver.tree.enumeration import Remaining
from taylor.pipeline_solver.tree.tree_search import Search
from tests.solver_cases import small_problem

INFINITE = float("inf")
COLUMNS = 12
"""Columns of two stages that hold seven layers, one to six each."""

Node = tuple[float, NDArray[np.bool_]]


class Lp:
    """An LP whose results are written down, by the least column that may not be used and the iterations it may take."""

    def __init__(self) -> None:
        self.iterations, self.solves, self.params = 100, 7, DEFAULT_PARAMS.bounds
        self.kept: list[int] = []
        self.improve_every, self.candidates, self.finalists = 4, 32, 8
        self.lp = SimpleNamespace(getBasis=lambda: "basis", setBasis=self.set_basis)
        self.allowed = np.ones(COLUMNS, dtype=bool)
        self.asked: list[tuple[int, int]] = []
        self.results: dict[tuple[int, int], tuple[float, float]] = {}
        self.splits: list[Split] = []
        self.decided = False
        self.choice: NDArray[np.int64] | None = None
        self.active, self.partial = np.arange(3), True
        self.rebuilt = self.purged = 0

    def set_basis(self, basis: str) -> None:
        assert basis == "basis"

    def allow(self, mask: NDArray[np.bool_]) -> None:
        self.allowed = mask

    def solve(self, limit: int) -> LpResult:
        gone = int(np.nonzero(~self.allowed)[0][-1])
        self.asked.append((gone, limit))
        bound, value = self.results.get((gone, limit)) or self.results[gone, 25]
        return LpResult(bound, value)

    def ways(self, splits: Any, result: LpResult, mask: NDArray[np.bool_]) -> tuple[list[Split], bool]:
        return self.splits, self.decided

    def chosen(self, result: LpResult, mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        return self.choice

    def durations(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.ones(4)

    def rebuild(self, active: NDArray[np.int64], partial: bool) -> None:
        assert active is self.active and partial is self.partial
        self.rebuilt += 1

    def purge(self) -> None:
        self.purged += 1


def search_below(target: float = 20.0, gap: float = 0.0, cutoff: float = INFINITE) -> tuple[Any, Lp]:
    problem = small_problem(kinds=(LayerKind("body", 7, 1.0, 1.0, {NONE: 0.1, FULL: 0.1}),))
    columns = build_columns(problem, stage_tuples(problem, 1000), 1000)
    assert len(columns) == COLUMNS
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    search: Any = Search(problem, columns, paths, gap, 0, Stopper(None, lambda: cutoff), target)
    search.master = master = Lp()
    search.keep_prices = lambda result: None
    search.enumeration.close = lambda *_: (False, 0)
    search.plans.try_at_reduced_costs = lambda *_: None
    return search, master


def mask_of(*gone: int) -> NDArray[np.bool_]:
    mask = np.ones(COLUMNS, dtype=bool)
    mask[list(gone)] = False
    return mask


def gone_of(mask: NDArray[np.bool_]) -> list[int]:
    return [int(k) for k in np.nonzero(~mask)[0]]


# Open nodes.


def test_what_closes_a_node_is_the_least_of_plan_target_and_step_time_to_beat() -> None:
    for best, target, cutoff, closes in ((30.0, 28.0, 29.0, 27.0), (40.0, 28.0, 29.0, 28.0), (40.0, 33.0, 29.0, 29.0)):
        search, _ = search_below(target, 0.1, cutoff)
        search.plans.best_time = best
        assert (search.cutoff, search.closing_bound) == (pytest.approx(closes), pytest.approx(0.9 * best))


def test_the_least_bound_of_open_nodes_is_that_of_the_tree_at_most_what_closes_them() -> None:
    search, _ = search_below()
    assert search.lower_bound() == 20.0
    for bound, least in ((25.0, 20.0), (12.0, 12.0), (14.0, 12.0)):
        search.push(bound, mask_of())
        assert search.lower_bound() == least


def test_a_tree_begins_with_no_bound_no_node_and_its_own_prices_or_given_ones() -> None:
    search, _ = search_below()
    assert (search.nodes, search.failures, search.foreign_solves, search.root_bound) == (0, 0, 0, 0.0)
    assert search.alive.all() and (search.root_floor == -INFINITE).all() and len(search.prices) == 0
    known = PricePool()
    again = Search(search.problem, search.columns, search.plans.paths, 0.0, 0, search.stopper, 20.0, known)
    assert again.prices is known and again.lp_solves() == 0
    search.foreign_solves = 5
    assert search.lp_solves() == 12


def children_of(
    search: Any, master: Lp, children: Sequence[Sequence[float]], each: int = 10
) -> list[tuple[float, int]]:
    """Lets the nodes have children of these bounds, one after the other; the nodes in their order, by column gone."""
    seen: list[tuple[float, int]] = []

    def branch(bound: float, mask: NDArray[np.bool_]) -> list[Node]:
        seen.append((bound, gone_of(mask)[0]))
        master.iterations += each
        mine = children[len(seen) - 1] if len(seen) <= len(children) else ()
        return [(child, mask) for child in mine]

    search._branch = branch
    return seen


def test_nodes_come_by_their_bounds_and_of_equal_bounds_in_the_order_in_which_they_were_opened() -> None:
    search, master = search_below()
    seen = children_of(search, master, [])
    search.replace_open([(12.0, mask_of(3)), (11.0, mask_of(4)), (12.0, mask_of(5)), (12.0, mask_of(6))])
    search.push(12.0, mask_of(7))
    search.push(11.0, mask_of(8))
    search.process(1000)
    assert seen == [(11.0, 4), (11.0, 8), (12.0, 3), (12.0, 5), (12.0, 6), (12.0, 7)]


def test_children_that_reach_the_cut_off_are_not_opened() -> None:
    search, master = search_below()
    seen = children_of(search, master, [[20.0, 19.9, 21.0], []])
    search.push(10.0, mask_of(3))
    search.process(1000)
    assert seen == [(10.0, 3), (19.9, 3)]


@pytest.mark.parametrize(("budget", "nodes"), [(0, 0), (10, 1), (11, 2), (20, 2), (21, 3)])
def test_nodes_are_worked_on_until_the_iterations_are_used_up(budget: int, nodes: int) -> None:
    search, master = search_below()
    seen = children_of(search, master, [[11.0]] * 9)
    search.push(10.0, mask_of(3))
    search.process(budget)
    assert len(seen) == nodes and len(search.open) == 1


@pytest.mark.parametrize(("most", "nodes"), [(1, 0), (2, 1), (3, 2)])
def test_no_node_is_split_once_so_many_are_open(most: int, nodes: int) -> None:
    search, master = search_below()
    seen = children_of(search, master, [[11.0, 12.0]] * 9)
    search.push(10.0, mask_of(3))
    search.process(1000, most)
    assert (len(seen), len(search.open)) == (nodes, most)


def test_once_the_best_node_reaches_the_cut_off_none_is_left() -> None:
    search, master = search_below()
    seen = children_of(search, master, [])
    search.push(20.0, mask_of(3))
    search.push(25.0, mask_of(4))
    search.process(1000)
    assert seen == [] and search.open == []


def test_a_node_has_no_column_that_is_gone_for_all_and_is_open_again_when_it_is_interrupted() -> None:
    search, _ = search_below()
    seen: list[list[int]] = []

    def branch(bound: float, mask: NDArray[np.bool_]) -> list[Node]:
        seen.append(gone_of(mask))
        raise OutOfTime

    search._branch = branch
    search.alive = mask_of(5)
    search.push(10.0, mask_of(3))
    with pytest.raises(OutOfTime):
        search.process(1000)
    assert seen == [[3, 5]]
    assert [(bound, gone_of(mask)) for bound, _, mask in search.open] == [(10.0, [3, 5])]


# One node.


class Cuts:
    """What the LPs of a node end with."""

    def __init__(self, bound: float = 12.0, length: float = 30.0, reduced: Sequence[float] = (0.0,) * COLUMNS) -> None:
        least = np.array([min(reduced[:6]), min(reduced[6:])])
        self.result: LpResult | None = LpResult(12.0, 12.0, np.zeros(3), np.array(reduced), least)
        self.bound, self.length, self.called = bound, length, 0

    def __call__(self, master: Any, paths: Any, stopper: Any, cutoff: float, rounds: int) -> Any:
        assert (cutoff, rounds) == (20.0, 60)
        self.called += 1
        return self.bound, self.result, self.length


def branched(
    search: Any, cuts: Cuts, monkeypatch: pytest.MonkeyPatch, parent: float = 10.0, known: float = -INFINITE
) -> list[tuple[float, list[int]]]:
    monkeypatch.setattr(tree_search, "cut_loop", cuts)
    search.floors.tighten = lambda mask, cutoff: (known, mask)
    return [(bound, gone_of(mask)) for bound, mask in search._branch(parent, mask_of(1))]


@pytest.mark.parametrize(
    ("parent", "known", "bound", "left"),
    [
        (10.0, -INFINITE, 12.0, 12.0),
        (13.0, -INFINITE, 12.0, 13.0),
        (13.0, 14.0, 12.0, 14.0),
        (10.0, 20.0, 12.0, None),  # older prices close it
        (10.0, 19.9, 12.0, 19.9),
        (10.0, -INFINITE, 20.0, None),
        (10.0, -INFINITE, 19.9, 19.9),
    ],
)
def test_a_node_has_the_best_of_its_bounds_and_is_closed_by_one_that_reaches_the_cut_off(
    parent: float, known: float, bound: float, left: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, _ = search_below()
    cuts = Cuts(bound)
    assert branched(search, cuts, monkeypatch, parent, known) == ([] if left is None else [(left, [1])])
    assert cuts.called == (known < 20.0) and search.nodes == 1


def test_columns_that_only_plans_of_the_cut_off_have_leave_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of 12, and 8 to the cut-off of 20: what costs more than the least of its stage by that is gone."""
    search, _ = search_below()
    reduced = [1.0, 0.0, 9.0, 9.1, 0.5 + 8.5, 9.0 + 1e-8, *(-2.0, 6.0, 6.1, 6.0 + 1e-7, 0.0, 0.0)]
    reduced[1] = 1.0
    assert branched(search, Cuts(reduced=reduced), monkeypatch) == [(12.0, [1, 3, 8, 9])]


def failing(search: Any, times: int, cuts: Cuts, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(times):
        assert branched(search, cuts, monkeypatch) == [(12.0, [1])]


@pytest.mark.parametrize("lacking", ["result", "point", "reduced", "least"])
def test_an_lp_that_fails_is_built_afresh_eight_times_in_a_row(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    search, master = search_below()
    bad, good = Cuts(), Cuts()
    assert bad.result is not None
    if lacking == "result":
        bad.result = None
    else:
        setattr(bad.result, lacking, None)
    failing(search, 5, bad, monkeypatch)
    assert (master.rebuilt, search.failures) == (5, 5)
    failing(search, 1, good, monkeypatch)
    assert (master.rebuilt, search.failures) == (5, 0)
    failing(search, 8, bad, monkeypatch)
    with pytest.raises(LpTrouble):
        branched(search, bad, monkeypatch)


def test_the_cuts_are_purged_where_the_lp_holds_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for more, purged in ((0, 0), (1, 1)):
        search, master = search_below()
        master.kept = list(range(DEFAULT_PARAMS.bounds.most_cuts + more))
        branched(search, Cuts(), monkeypatch)
        assert master.purged == purged


def test_every_fourth_node_looks_for_a_better_plan_which_may_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    search, _ = search_below()
    looked: list[int] = []
    search.plans.try_at_reduced_costs = lambda *_: looked.append(search.nodes)
    for _ in range(9):
        branched(search, Cuts(), monkeypatch)
    assert looked == [1, 5, 9]
    for found, left in ((12.0, []), (12.1, [(12.0, [1])])):
        search, _ = search_below()

        def find(*_: Any, at: Any = search, step: float = found) -> None:
            at.plans.best_time = step

        search.plans.try_at_reduced_costs = find
        assert branched(search, Cuts(), monkeypatch) == left


@pytest.mark.parametrize(
    ("length", "reached", "closed"),
    [(30.0, 30.0, False), (12.0 + 1e-6, 30.0, True), (30.0, 12.0 + 1e-6, True), (12.0 + 2e-6, 12.0 + 2e-6, False)],
)
def test_a_node_whose_lp_has_decided_is_closed_by_a_plan_as_short_as_its_bound(
    length: float, reached: float, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for decided, chosen in ((True, np.array([0, 6])), (True, None), (False, np.array([0, 6]))):
        search, master = search_below()
        master.decided, master.choice = decided, chosen
        search.plans.try_choice = lambda choice: reached
        ends = closed and decided and chosen is not None
        assert branched(search, Cuts(length=length), monkeypatch) == ([] if ends else [(12.0, [1])])


def test_where_the_order_of_the_kinds_decides_configurations_of_any_order_prove_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search, master = search_below()
    search.columns = replace(search.columns, ordered=False)
    assert branched(search, Cuts(), monkeypatch) == [(12.0, [1])]
    master.decided, master.choice = True, np.array([0])
    search.plan_of = lambda chosen: None
    with pytest.raises(LpTrouble):
        branched(search, Cuts(), monkeypatch)


# Splits.


def split(merit: float, above: int, below: int) -> Split:
    return Split(merit, np.array([above]), np.array([below]))


def told(master: Lp, limit: int = 25, **bounds: Any) -> None:
    """The values, by the column that is gone: one figure for both, or the bound and the value."""
    for name, given in bounds.items():
        master.results[int(name[1:]), limit] = given if isinstance(given, tuple) else (given, given)


def strong(search: Any, *splits: Split, bound: float = 10.0) -> list[tuple[float, list[int]]]:
    return [(low, gone_of(mask)) for low, mask in search._strong_branch(bound, mask_of(), list(splits))]


def test_a_node_is_split_where_the_product_of_both_gains_is_greatest() -> None:
    """Gains of 1 and 6, 3 and 3, 2 and 4."""
    search, master = search_below()
    told(master, _0=11.0, _6=16.0, _1=13.0, _7=13.5, _2=12.0, _8=14.0)
    assert strong(search, split(1, 0, 6), split(1, 1, 7), split(1, 2, 8)) == [(13.0, [1]), (13.5, [7])]
    assert master.asked[:6] == [(0, 25), (6, 25), (1, 25), (7, 25), (2, 25), (8, 25)]
    # The best comes first when they are tried further.
    assert master.asked[6:] == [(1, 400), (7, 400), (2, 400), (8, 400), (0, 400), (6, 400)]


def test_what_a_child_has_proven_is_its_bound_and_its_value_is_what_counts() -> None:
    search, master = search_below()
    told(master, _0=(9.0, 16.0), _6=(12.0, 11.0), _1=(11.0, 11.0), _7=(11.0, 15.0))
    # 6 times 2, against 1 times 5.
    assert strong(search, split(1, 1, 7), split(1, 0, 6)) == [(10.0, [0]), (12.0, [6])]


def test_the_first_of_equal_splits_is_taken_and_merits_say_which_come_first() -> None:
    search, master = search_below()
    told(master, _0=12.0, _6=12.0, _1=12.0, _7=12.0)
    assert strong(search, split(1, 0, 6), split(2, 1, 7)) == [(12.0, [1]), (12.0, [7])]
    assert strong(search, split(2, 0, 6), split(2, 1, 7)) == [(12.0, [0]), (12.0, [6])]


def test_a_side_that_gains_nothing_still_counts_a_little_and_none_counts_beyond_the_cut_off() -> None:
    search, master = search_below()
    # A millionth of 10, times 5, is less than 0.01 times 0.01; one side beyond what closes it counts as 10.
    told(master, _0=10.0, _6=15.0, _1=10.01, _7=10.01)
    assert strong(search, split(1, 0, 6), split(1, 1, 7)) == [(10.01, [1]), (10.01, [7])]
    told(master, _0=(10.0, 1e9), _6=11.0, _1=13.0, _7=14.0)
    assert strong(search, split(1, 0, 6), split(1, 1, 7)) == [(13.0, [1]), (14.0, [7])]
    told(master, _0=(10.0, 19.0), _6=12.0, _1=13.0, _7=15.0)
    assert strong(search, split(1, 1, 7), split(1, 0, 6)) == [(10.0, [0]), (12.0, [6])]


def test_without_a_cut_off_no_side_counts_beyond_twice_the_bound_and_one() -> None:
    """From 10 to 21 that is 11: with 2 as much as 22, between 21 and 24 of the other split."""
    for other, first in ((13.0 - 1e-6, 0), (14.0, 1)):
        search, master = search_below(INFINITE)
        told(master, _0=(10.0, 1e9), _6=12.0, _1=17.0, _7=other)
        taken = strong(search, split(1, 1, 7), split(1, 0, 6))
        assert taken[0][1] == [first]


def test_a_node_both_of_whose_sides_reach_the_cut_off_is_closed_and_one_side_leaves_the_node() -> None:
    search, master = search_below()
    told(master, _0=20.0, _6=25.0)
    assert strong(search, split(1, 0, 6)) == []
    told(master, _0=20.0, _6=19.0)
    # Without 6 it goes on, for without 0 nothing is better; no split is left.
    assert strong(search, split(1, 0, 6)) == [(10.0, [6])]
    told(master, _0=19.9, _6=20.0)
    assert strong(search, split(1, 0, 6)) == [(10.0, [0])]


def test_what_one_split_has_ruled_out_is_gone_from_the_children_of_another() -> None:
    search, master = search_below()
    told(master, _0=20.0, _6=12.0, _8=12.0, _9=13.0)
    assert strong(search, split(2, 0, 6), split(1, 8, 9)) == [(12.0, [6, 8]), (13.0, [6, 9])]
    # One tried before is without it too.
    told(master, _4=13.0, _5=12.0, _3=20.0, _2=12.0)
    assert strong(search, split(2, 4, 5), split(1, 3, 2)) == [(13.0, [2, 4]), (12.0, [2, 5])]


def test_no_more_splits_are_tried_than_the_lp_says() -> None:
    search, master = search_below()
    master.candidates, master.finalists = 3, 2
    told(master, _0=12.0, _6=12.0, _1=13.0, _7=13.0, _2=11.0, _8=11.0, _3=15.0, _9=15.0)
    assert strong(search, split(4, 0, 6), split(3, 1, 7), split(2, 2, 8), split(1, 3, 9)) == [(13.0, [1]), (13.0, [7])]
    assert [gone for gone, limit in master.asked if limit == 25] == [0, 6, 1, 7, 2, 8]
    assert [gone for gone, limit in master.asked if limit == 400] == [1, 7, 0, 6]


def test_three_splits_in_a_row_that_are_no_better_end_the_further_trials() -> None:
    """They come by what a short look promised: 5, 4, 3, 2 and 1."""
    search, master = search_below()
    told(master, _0=15.0, _1=14.0, _2=13.0, _3=12.0, _4=11.0, _6=12.0, _7=12.0, _8=12.0, _9=12.0, _10=12.0)
    splits = [split(1, k, 6 + k) for k in range(5)]
    assert strong(search, *splits) == [(15.0, [0]), (12.0, [6])]
    assert [gone for gone, limit in master.asked if limit == 400] == [0, 6, 1, 7, 2, 8, 3, 9]
    # A better one begins the count anew, one as good does not; nor does one of which a side is ruled out end it.
    for second, last in ((16.0, 4), (15.0, 3)):
        master.asked.clear()
        told(master, 400, _1=second)
        strong(search, *splits)
        assert [gone for gone, limit in master.asked if limit == 400][-2] == last


def test_a_node_that_stays_open_has_the_children_of_its_best_split(monkeypatch: pytest.MonkeyPatch) -> None:
    search, master = search_below()
    master.splits = [split(1, 2, 7), split(1, 3, 8)]
    told(master, _2=13.0, _7=13.0, _3=14.0, _8=15.0)
    assert branched(search, Cuts(), monkeypatch) == [(14.0, [1, 3]), (15.0, [1, 8])]
    master.splits = []
    assert branched(search, Cuts(), monkeypatch) == [(12.0, [1])]


def test_what_was_enumerated_before_the_time_ended_stays_out_of_the_node() -> None:
    """The columns that enumeration takes out hold nothing below the step time, whoever goes on with the node."""
    search, master = search_below()
    told = LpResult(12.0, 12.0, np.zeros(COLUMNS), np.zeros(COLUMNS), np.zeros(2))

    def close(remaining: Remaining, *_: Any) -> tuple[bool, int]:
        remaining.remove(np.array([2, 4]))
        raise OutOfTime

    search.enumeration.close = close
    master.solve = lambda *_: told
    master.durations = lambda point: np.zeros(search.plans.paths.classes)
    master.keep, master.keeps, master.add_columns = (lambda cut: None), (lambda cut: True), (lambda new: None)
    search.push(10.0, mask_of(3))
    with pytest.raises(OutOfTime):
        search.process(1000)
    assert [(bound, gone_of(mask)) for bound, _, mask in search.open] == [(10.0, [2, 3, 4])]


@pytest.mark.parametrize(
    ("bound", "point", "closes", "through"),
    [(20.0, False, False, True), (12.0, False, False, False), (12.0, True, True, True), (12.0, True, False, False)],
)
def test_what_is_left_is_looked_through_where_its_lp_or_enumeration_closes_it(
    bound: float, point: bool, closes: bool, through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, master = search_below()
    search.alive = mask_of(3)
    told = LpResult(bound, bound, np.zeros(COLUMNS) if point else None)
    monkeypatch.setattr(tree_search, "cut_loop", lambda *_: (bound, told, bound))
    asked = []

    def close(remaining: Remaining, *of: Any) -> tuple[bool, int]:
        asked.append((gone_of(remaining.mask), *of[-2:]))
        return closes, 8000

    search.enumeration.close, search.deal = close, "shares"
    assert search.looked_through(7) is through
    assert gone_of(master.allowed) == [3] and asked == ([([3], 7000, "shares")] if point else [])
    assert master.iterations == 100 + 8 * point
