"""How a tree is probed and searched round by round, with what the rounds and the probing bring written down here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.tree import tree_run
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from taylor.pipeline_solver.tree.tree_run import TreeEnd, TreeRun

INFINITE = float("inf")
CUTOFF = 20.0


class Columns:
    """So many, told apart by phases or not."""

    def __init__(self, number: int) -> None:
        self.number, self.phases = number, None

    def __len__(self) -> int:
        return self.number


class Tree:
    """A tree with a root of bound 10, to be closed at 20; a mask stands for its columns."""

    def __init__(self, stages: int, interleaves: int, columns: int, alive: int, quickness: int = 1) -> None:
        self.problem = SimpleNamespace(stages=stages, interleaves=interleaves, uniform_recompute=())
        self.columns, self.params = Columns(columns), DEFAULT_PARAMS
        self.alive = np.arange(columns) < alive
        self.cutoff, self.target, self.root_bound, self.nodes = CUTOFF, INFINITE, 10.0, 0
        self.open: list[tuple[float, int, Any]] = [(10.0, 0, None)]
        self.stopper = SimpleNamespace(check=lambda: None)
        self.master = SimpleNamespace(quickness=quickness, probed=True)
        self.tightened: list[tuple[int, float]] = []
        self.floors = SimpleNamespace(tighten=self.tighten, under_prices=lambda: np.zeros((1, columns)))
        self.plans = SimpleNamespace(
            best_time=CUTOFF,
            pool=SimpleNamespace(size=5),
            programs=SimpleNamespace(exact=True),
            anneal_among=self.anneal_among,
        )
        self.annealed: list[bool] = []
        self.found = CUTOFF
        self.processed: list[tuple[int, int | None]] = []
        self.first_look: float | None = 10.0
        self.anew: list[tuple[float, NDArray[np.bool_]]] = []
        self.through = False
        self.granted: list[int] = []

    def looked_through(self, iterations: int) -> bool:
        self.granted.append(iterations)
        return self.through

    def lp(self) -> Any:
        return self.master

    def lower_bound(self) -> float:
        return min(self.open[0][0], self.cutoff) if self.open else self.cutoff

    def process(self, budget: int, most_open: int | None = None) -> None:
        self.processed.append((budget, most_open))
        self.raise_to(self.first_look)

    def raise_to(self, bound: float | None) -> None:
        self.open = [] if bound is None else [(bound, 0, None)]

    def tighten(self, mask: NDArray[np.bool_], cutoff: float) -> tuple[float, NDArray[np.bool_]]:
        assert cutoff == self.cutoff
        left, known = self.tightened.pop(0)
        return known, np.arange(len(mask)) < left

    def anneal_among(self, left: NDArray[np.bool_], costs: NDArray[np.float64], more: Callable[[], bool]) -> None:
        assert left is self.alive
        self.annealed.append(more())
        self.plans.best_time = min(self.plans.best_time, self.found)

    def replace_open(self, nodes: list[tuple[float, NDArray[np.bool_]]]) -> None:
        self.anew += nodes
        self.open = [(bound, 0, None) for bound, _ in nodes]


class Pool:
    """Shares that raise the bound to the next of `bounds` in each round; None closes the tree."""

    bounds: Sequence[float | None] = ()
    made: list[Pool] = []
    probe_cost = 0

    def __init__(self, *_: Any) -> None:
        self.iterations = 0
        self.slices: list[int] = []
        self.probed: list[tuple[int, ...]] = []
        self.closed = False
        Pool.made.append(self)

    def round(self, tree: Tree, budget: int) -> None:
        self.slices.append(budget)
        bounds = Pool.bounds
        tree.raise_to(bounds[min(len(self.slices), len(bounds)) - 1])

    def probe(self, tree: Tree, stages: Sequence[int]) -> None:
        self.probed.append(tuple(stages))
        self.iterations += self.probe_cost

    def enumerate(self, *asked: Any) -> tuple[bool, int]:
        self.asked = asked
        return False, 7

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    monkeypatch.setattr(tree_run, "WorkerPool", Pool)
    monkeypatch.setattr(Pool, "made", [])
    monkeypatch.setattr(Pool, "bounds", [None])
    return Pool.made


def run_of(
    stages: int = 8,
    interleaves: int = 2,
    columns: int = 1000,
    alive: int = 1000,
    memory: TreeMemory | None = None,
    patient: bool = False,
    probed: bool = True,
    quickness: int = 1,
) -> tuple[TreeRun, Any, list[tuple[float, str]]]:
    told: list[tuple[float, str]] = []
    tree: Any = Tree(stages, interleaves, columns, alive, quickness)
    run = TreeRun(tree, 1, 0, lambda bound, text: told.append((bound, text)), memory or TreeMemory(), patient)
    run.probed = probed
    return run, tree, told


# Rounds.


def test_the_first_look_takes_a_slice_and_opens_three_nodes_a_share(pools: list[Pool]) -> None:
    run, tree, told = run_of(quickness=3)
    tree.first_look = None
    assert run.search() is TreeEnd.DONE
    assert tree.processed == [(6000, 12)] and not pools
    assert [bound for bound, _ in told] == [10.0, 20.0]
    tree.open = []
    assert run.search() is TreeEnd.DONE
    assert len(tree.processed) == 1


@pytest.mark.parametrize(("bound", "rounds"), [(20.0, 0), (19.9, 1)])
def test_a_tree_whose_nodes_reach_the_cut_off_is_done(bound: float, rounds: int, pools: list[Pool]) -> None:
    run, tree, _ = run_of()
    tree.first_look = bound
    tree.open.append((30.0, 1, None))
    assert run.search() is TreeEnd.DONE
    assert sum(len(pool.slices) for pool in pools) == rounds


def test_slices_grow_by_the_first_one_up_to_the_last(monkeypatch: pytest.MonkeyPatch, pools: list[Pool]) -> None:
    monkeypatch.setattr(Pool, "bounds", [15.0] * 12 + [None])
    run, _, _ = run_of(quickness=2, patient=True)
    assert run.search() is TreeEnd.DONE
    assert pools[0].slices == [2 * min(20_000, 2_000 * k) for k in range(1, 14)]
    assert run.rounds == 13 and pools[0].closed


@pytest.mark.parametrize(
    ("bounds", "rounds"),
    [
        ([13.3], 3),
        ([13.4], 6),  # a third of 10 closed, and then a third of 6.6 in as many rounds more
        ([13.4] * 3 + [15.7] * 3, 12),
        ([13.4] * 3 + [15.5] * 3, 6),
        ([13.4] * 2 + [10.0], 3),
    ],
)
def test_a_tree_that_closes_less_than_a_third_of_its_gap_in_its_rounds_is_left(
    bounds: list[float], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "bounds", bounds)
    run, _, _ = run_of()
    assert run.search() is TreeEnd.LEFT
    assert run.rounds == rounds


def test_the_gap_counts_from_the_root_or_the_cut_off_where_the_root_is_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 18 to 20 a third is closed at 18.67, though from what is open it is far more."""
    for root, bound, rounds in ((18.0, 18.6, 3), (18.0, 18.7, 6)):
        monkeypatch.setattr(Pool, "bounds", [bound])
        run, tree, _ = run_of()
        tree.root_bound = root
        assert run.search() is TreeEnd.LEFT
        assert run.rounds == rounds


def test_the_rounds_of_a_tree_that_was_searched_to_its_end_grant_the_next_three_times_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for patience, then in ((7, 7), (5, 6)):
        monkeypatch.setattr(Pool, "bounds", [12.0, None])
        memory = TreeMemory(patience=patience)
        assert run_of(memory=memory)[0].search() is TreeEnd.DONE
        assert memory.patience == then


def test_a_patient_search_leaves_no_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "bounds", [10.0] * 7 + [None])
    assert run_of(patient=True)[0].search() is TreeEnd.DONE


@pytest.mark.parametrize(
    ("stages", "interleaves", "bounds", "end", "rounds"),
    [
        (8, 1, [10.0], TreeEnd.HANDED_OVER, 3),
        (23, 1, [10.0], TreeEnd.HANDED_OVER, 3),
        (24, 1, [10.0], TreeEnd.HANDED_OVER, 1),
        (8, 1, [10.0, 10.0, None], TreeEnd.DONE, 3),
        (8, 2, [16.0, 16.0, 16.0, None], TreeEnd.DONE, 4),
        (24, 2, [10.0, None], TreeEnd.DONE, 2),
    ],
)
def test_with_one_interleave_the_milp_goes_on_after_three_rounds_or_one_of_many_stages(
    stages: int,
    interleaves: int,
    bounds: list[float | None],
    end: TreeEnd,
    rounds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pool, "bounds", bounds)
    run, _, _ = run_of(stages, interleaves)
    assert (run.search(), run.rounds) == (end, rounds)


def test_a_tree_closes_well_from_half_of_its_gap_on_and_only_below_its_target() -> None:
    run, tree, _ = run_of()
    for bound, well in ((15.0, True), (14.99, False)):
        tree.raise_to(bound)
        assert run.closing_well(0.0) is well
    tree.raise_to(16.0)
    assert run.closing_well(12.0) and not run.closing_well(12.01)
    tree.target = 20.0
    assert not run.closing_well(0.0)


# Probing.


def probed_by(run: TreeRun, tree: Any, *left: int | tuple[int, float]) -> tuple[TreeEnd, list[tuple[int, ...]]]:
    tree.tightened = [each if isinstance(each, tuple) else (each, 10.0) for each in left]
    end = run.search()
    assert not tree.tightened
    return end, Pool.made[-1].probed


FIRST_HALF, SECOND_HALF = (4, 5, 6, 7), (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("columns", "alive", "fruitless", "promising"),
    [(60_000, 60_000, 20.1, True), (60_001, 60_001, 20.1, False), (60_001, 60_000, 20.1, True), (9, 9, 20.0, False)],
)
def test_few_columns_are_probed_below_a_step_time_at_which_it_was_not_in_vain(
    columns: int, alive: int, fruitless: float, promising: bool
) -> None:
    run, tree, _ = run_of(columns=columns, alive=alive, memory=TreeMemory(fruitless=fruitless))
    assert run._promising() is promising
    tree.master.probed = False
    assert not run._promising()


def test_what_was_probed_once_or_promises_nothing_is_not_probed(pools: list[Pool]) -> None:
    for probed, fruitless in ((True, INFINITE), (False, 0.0)):
        run, _, _ = run_of(probed=probed, memory=TreeMemory(fruitless=fruitless))
        assert run.search() is TreeEnd.DONE
        assert pools[-1].probed == [] and run.probed


@pytest.mark.parametrize(
    ("stages", "left", "stretches"),
    [
        (8, [981], [FIRST_HALF]),  # more than 98 of 100 after half of the stages: the rest is in vain
        (8, [980, 980], [FIRST_HALF, SECOND_HALF]),
        (9, [1000, 1000], [(5, 6, 7, 8), (1, 2, 3, 4)]),  # four of nine are not half
        (9, [1000, 980, 980], [(5, 6, 7, 8), (1, 2, 3, 4), (0,)]),
        (3, [990], [(0, 1, 2)]),
        (8, [(500, 20.0)], [FIRST_HALF]),  # the bound reaches the cut-off: none is left
        (8, [0], [FIRST_HALF]),
        (8, [901, 901], [FIRST_HALF, SECOND_HALF]),
        (8, [900, 900, 890], [FIRST_HALF, SECOND_HALF, FIRST_HALF]),  # a tenth is gone: once more
        (8, [500, 500, 450, 450, 449], [FIRST_HALF, SECOND_HALF] * 2 + [FIRST_HALF]),
    ],
)
def test_stages_are_probed_four_by_four_as_long_as_it_is_worth_it(
    stages: int, left: list[int | tuple[int, float]], stretches: list[tuple[int, ...]]
) -> None:
    run, tree, _ = run_of(stages, probed=False)
    assert probed_by(run, tree, *left) == (TreeEnd.DONE, stretches)
    assert run.probed


def test_a_tree_of_which_probing_leaves_nothing_is_proven() -> None:
    for left in ((1000, 20.0), (1000, 25.0), (0, 10.0)):
        run, tree, told = run_of(probed=False)
        end, _ = probed_by(run, tree, left)
        assert end is TreeEnd.DONE and not tree.open and not Pool.made[-1].slices
        assert told[2][1] == "0 of 1000 configurations left below 20"
        assert told[2][0] == min(left[1], 20.0)


@pytest.mark.parametrize(
    ("through", "left", "granted"),
    [(True, [900, 900], [60]), (False, [900, 900, 890], [60, 30]), (True, [1000], [])],
)
def test_what_a_probing_leaves_is_enumerated_for_as_long_as_the_probing_took(
    through: bool, left: list[int], granted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "probe_cost", 30)
    run, tree, _ = run_of(probed=False)
    tree.through = through
    end, _ = probed_by(run, tree, *left)
    assert end is TreeEnd.DONE and tree.granted == granted
    assert bool(Pool.made[-1].slices) is not (through and bool(granted))


def test_shares_that_helped_with_the_root_end_before_those_of_the_tree_begin(
    monkeypatch: pytest.MonkeyPatch, pools: list[Pool]
) -> None:
    run, tree, _ = run_of()
    deals = []

    def process(*_: Any, **__: Any) -> None:
        deals.extend(tree.deal(*of) for of in (("mask", "order", None, 5.0), ("mask", "order", None, 6.0)))

    monkeypatch.setattr(tree, "process", process)
    assert run.search() is TreeEnd.DONE and tree.deal is None
    helpers, shares = pools
    assert deals == [(False, 7), (False, 7)] and helpers.asked == (tree, "mask", "order", None, 6.0)
    assert not helpers.slices and helpers.closed and len(shares.slices) == 1 and shares.closed


@pytest.mark.parametrize(
    ("alive", "phases", "patient", "end"),
    [
        (60_001, True, False, TreeEnd.LEFT),
        (60_000, True, False, TreeEnd.DONE),
        (60_001, False, False, TreeEnd.DONE),
        (60_001, True, True, TreeEnd.DONE),
    ],
)
def test_a_crowd_told_apart_by_phases_is_enumerated_at_the_root_or_left(
    alive: int, phases: bool, patient: bool, end: TreeEnd
) -> None:
    run, tree, _ = run_of(columns=70_000, alive=alive, patient=patient)
    tree.columns.phases = phases or None
    assert run.search() is end
    assert tree.processed[0][1] == (2 if end is TreeEnd.LEFT else 3 * DEFAULT_PARAMS.tree.batches)
    assert bool(Pool.made) is (end is TreeEnd.DONE)
    tree.first_look = None
    tree.open = [(10.0, 0, None)]
    assert run.search() is TreeEnd.DONE


def test_what_is_told_of_probing_is_the_better_of_both_bounds() -> None:
    for known, told_bound in ((12.0, 12.0), (8.0, 10.0)):
        run, tree, told = run_of(probed=False)
        probed_by(run, tree, (990, known))
        assert told[2] == (told_bound, "990 of 1000 configurations left below 20")


@pytest.mark.parametrize(
    ("left", "fruitless"), [([990], 20.0), ([901, 901], 20.0), ([900, 900, 890], INFINITE), ([(990, 20.0)], INFINITE)]
)
def test_a_first_probing_that_rules_out_less_than_a_tenth_is_remembered(left: list[Any], fruitless: float) -> None:
    memory = TreeMemory()
    run, tree, _ = run_of(probed=False, memory=memory)
    probed_by(run, tree, *left)
    assert memory.fruitless == fruitless


@pytest.mark.parametrize(("left", "anew"), [(699, True), (700, False)])
def test_the_tree_begins_anew_with_less_than_seven_tenths_of_its_columns(left: int, anew: bool) -> None:
    run, tree, _ = run_of(probed=False)
    probed_by(run, tree, left, left, left)
    assert [(bound, int(mask.sum())) for bound, mask in tree.anew] == ([(10.0, left)] if anew else [])
    assert all(mask is not tree.alive for _, mask in tree.anew)


@pytest.mark.parametrize(
    ("columns", "left", "patient", "end"),
    [
        (8000, 6001, False, TreeEnd.LEFT),  # three quarters of many
        (8000, 6000, False, TreeEnd.DONE),
        (8000, 6001, True, TreeEnd.DONE),
        (3500, 3001, False, TreeEnd.LEFT),  # or what an LP takes without pricing
        (3500, 3000, False, TreeEnd.DONE),
    ],
)
def test_a_tree_of_which_the_first_probing_leaves_many_columns_is_left(
    columns: int, left: int, patient: bool, end: TreeEnd
) -> None:
    run, tree, _ = run_of(columns=columns, alive=columns, probed=False, patient=patient)
    again = [left] if end is TreeEnd.DONE else []
    assert probed_by(run, tree, left, left, *again)[0] is end
    assert Pool.made[-1].closed and run.probed is (end is TreeEnd.DONE)


def test_better_plans_are_looked_for_among_what_is_left_and_told() -> None:
    for found, tells in ((20.0, 0), (19.0, 1)):
        run, tree, told = run_of(probed=False)
        tree.found = found
        probed_by(run, tree, 990)
        assert tree.annealed == [True]
        assert sum("990 of 1000" in text for _, text in told) == 1
        # Before and after the first look, and after the only round.
        assert len(told) == 4 + tells


def test_where_nothing_is_left_or_the_programme_is_not_exact_no_plan_is_looked_for() -> None:
    run, tree, _ = run_of(probed=False)
    probed_by(run, tree, 0)
    assert tree.annealed == []
    run, tree, _ = run_of(probed=False)
    tree.plans.programs.exact = False
    probed_by(run, tree, 990)
    assert tree.annealed == []
    run, tree, _ = run_of(probed=False)
    tree.floors.under_prices = lambda: np.zeros((0, 1000))
    probed_by(run, tree, 990)
    assert tree.annealed == []


def test_among_what_is_left_nothing_more_is_looked_for_once_the_bound_is_reached() -> None:
    run, tree, _ = run_of(probed=False)
    asked: list[bool] = []

    def anneal_among(left: Any, costs: Any, more: Callable[[], bool]) -> None:
        for bound in (19.9, 20.0):
            tree.raise_to(bound)
            asked.append(more())

    tree.plans.anneal_among = anneal_among
    probed_by(run, tree, 990)
    assert asked == [True, False]
