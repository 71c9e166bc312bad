"""What old prices and probing rule out: nothing that a plan below the cut-off needs, by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem, enumerate_optimum
from benchmarks.random_instances import alternating_problem
from benchmarks.solver import light_layers
from taylor.pipeline_solver.bounds import column_floors
from taylor.pipeline_solver.bounds.column_floors import ColumnFloors, column_costs
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.path_lp import LpResult
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.heuristics import annealing
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree import branch_and_cut as tree
from taylor.pipeline_solver.tree import probing, tree_run
from taylor.pipeline_solver.tree.root import start_search
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from taylor.pipeline_solver.tree.tree_search import Search
from tests.solver_params import set_parameter


def problems(number: int, seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        problem, truth = comparable_problem(rng, 20_000)
        if np.isfinite(truth.objective):
            yield rng, problem, truth


def search_of(problem: PipelineProblem, target: float) -> Search:
    columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    search = Search(problem, columns, paths, 1e-7, 0, Stopper(None), target)
    start_search(search, None)
    return search


def test_old_prices_give_the_reduced_costs_of_their_lp_and_bound_every_other_node():
    compared = 0
    for rng, problem, truth in problems(40, 21):
        search = search_of(problem, np.inf)
        columns, master = search.columns, search.lp()
        best = columns.find(truth.plan)
        assert best is not None
        for _ in range(4):
            mask = rng.random(len(columns)) < 0.6
            master.allow(mask)
            result = master.solve()
            if result.reduced is None:
                continue
            search.keep_prices(result)
            costs = column_costs(columns, search.prices.prices[-1:])[0]
            assert costs == pytest.approx(result.reduced, rel=1e-7, abs=1e-6)
            assert result.value + costs[best].sum() <= truth.objective * (1 + 1e-7)
            compared += 1
        bound, left = search.floors.tighten(np.ones(len(columns), dtype=bool), truth.objective * (1 + 1e-6))
        assert bound <= truth.objective * (1 + 1e-7)
        assert left[best].all()
    assert compared > 40


def test_prices_are_kept_once_and_the_newest_where_the_columns_are_many(monkeypatch):
    _, problem, _ = next(problems(60, 22))
    search = search_of(problem, np.inf)
    result = search.lp().solve()
    for _ in range(3):
        search.keep_prices(result)
    assert len(search.prices) == 1
    pool = PricePool()
    for k in range(9):
        pool.add(float(k), search.prices.prices[0])
    set_parameter(monkeypatch, "bounds.most_prices", 4)
    floors = ColumnFloors(search.columns, pool)
    everything = np.ones(len(search.columns), dtype=bool)
    floors.tighten(everything, np.inf)
    assert sorted(floors.values) == [5.0, 6.0, 7.0, 8.0]
    pool.add(9.0, search.prices.prices[0])
    floors.tighten(everything, np.inf)
    assert sorted(floors.values) == [6.0, 7.0, 8.0, 9.0]


def test_columns_are_ruled_out_as_the_plain_statement_of_the_rule_says():
    rng = np.random.default_rng(3)
    ended = set()
    for _ in range(60):
        start = np.concatenate([[0], np.cumsum(rng.integers(1, 9, size=3))])
        values, costs = rng.uniform(5, 9, size=6), rng.exponential(2.0, size=(6, start[-1]))
        mask = rng.random(start[-1]) < 0.9
        cutoff = rng.uniform(8, 16)
        bound, left = column_floors.rule_out(values, costs, start, mask, cutoff)
        if any(not mask[a:b].any() for a, b in zip(start[:-1], start[1:], strict=True)):
            assert bound == np.inf and not left.any()
            ended.add("nothing")
            continue
        assert not (left & ~mask).any()
        parts = [np.where(left, costs, np.inf)[:, a:b].min(axis=1) for a, b in zip(start[:-1], start[1:], strict=True)]
        if bound >= cutoff:
            ended.add("bounded")
            continue
        stage = np.searchsorted(start, np.arange(start[-1]), side="right") - 1
        ended.add("ruled out" if left.sum() < mask.sum() else "whole")
        least = values + np.sum(parts, axis=0)  # with the cheapest column of every stage
        floor = (least[:, None] - np.array(parts)[stage].T + costs).max(axis=0)
        assert (floor[left] <= cutoff + 1e-6).all() and (floor[mask & ~left] > cutoff - 1e-6).all()
        assert bound <= least.max() + 1e-9
    assert ended >= {"bounded", "ruled out"}


def test_neighbours_of_layer_tuples_are_those_with_one_layer_more_in_a_chunk():
    rng = np.random.default_rng(4)
    shapes = np.unique(rng.integers(0, 3, size=(60, 3)), axis=0).astype(np.int16)
    stage = np.sort(rng.integers(0, 2, size=len(shapes)))
    more, less = annealing._neighbours(shapes, stage)
    known = {(int(s), *map(int, row)): g for g, (s, row) in enumerate(zip(stage, shapes, strict=True))}
    found = 0
    for (s, *row), g in known.items():
        for cell in range(3):
            up = [count + (c == cell) for c, count in enumerate(row)]
            down = [count - (c == cell) for c, count in enumerate(row)]
            assert more[g, cell] == known.get((s, *up), -1)
            assert less[g, cell] == known.get((s, *down), -1)
            found += more[g, cell] >= 0
    assert found > 10


@pytest.mark.parametrize("held", [320, 0])
def test_probing_leaves_every_plan_below_the_cut_off_and_nothing_where_there_is_none(held, monkeypatch):
    set_parameter(
        monkeypatch, "tree.probe_most_cuts", held
    )  # none: after every class the LP over all that are left is solved
    ruled_out = closed = 0
    for _, problem, truth in problems(40, 23):
        above = search_of(problem, truth.objective * 1.02)
        above.plans.best_time = np.inf
        before = int(above.alive.sum())
        probing.probe(above, range(problem.stages))
        best = above.columns.find(truth.plan)
        assert best is not None and above.alive[best].all()
        ruled_out += before > int(above.alive.sum())
        below = search_of(problem, truth.objective * 0.9)
        probing.probe(below, range(problem.stages))
        closed += not below.alive.any()
    assert ruled_out > 3 and closed > 12


@pytest.mark.parametrize(
    ("values", "bounds", "lps", "nothing"),
    [
        ([11.4], [11.4], 1, False),  # less than 15 of 100 on the way from 10 to 20
        ([11.5] * 8, [11.5] * 8, 8, False),
        ([11.5] * 8, [9.0] * 8, 8, False),  # columns are still to enter: the value counts
        ([12.0, 11.0, 15.0, 20.0], [12.0, 11.0, 15.0, 20.0], 4, True),  # asked of the first LP alone
    ],
)
def test_a_class_is_let_be_where_its_first_lp_rises_little(values, bounds, lps, nothing, monkeypatch):
    search = search_of(light_layers(2, 2, 4, 10), 20.0)
    search.plans.best_time = np.inf
    point, asked = np.zeros(len(search.columns)), []

    def cut(*_, known):
        value, bound = values[len(asked)], bounds[len(asked)]
        asked.append(known)
        return bound, LpResult(bound, value, point), bound

    monkeypatch.setattr(probing, "cut_loop", cut)
    monkeypatch.setattr(search, "keep_prices", lambda result: None)
    monkeypatch.setattr(search.floors, "tighten", lambda mask, cutoff: (-np.inf, mask))
    base = probing._Base(10.0, point, search.lp().lp.getBasis())
    assert probing._is_empty(search, search.alive.copy(), base) is nothing
    assert asked == [DEFAULT_PARAMS.tree.probe_cuts] * lps


def test_an_lp_started_from_an_earlier_basis_has_the_optimum_of_one_started_afresh():
    """Cuts and columns that have come since take no part in the basis."""
    started = 0
    for rng, problem, _ in problems(25, 26):
        search = search_of(problem, np.inf)
        master, paths = search.lp(), search.plans.paths
        master.rebuild(np.nonzero(rng.random(len(search.columns)) < 0.7)[0], partial=True)
        basis = master.solve() and master.lp.getBasis()
        for _ in range(3):
            result = master.solve()
            if result.point is None:
                break
            master.keep(paths.path(master.durations(result.point))[1])
            master.add_columns(result.entering)
        master.start_from(basis)
        again = master.solve()
        master.lp.clearSolver()
        afresh = master.solve()
        assert again.value == pytest.approx(afresh.value, rel=1e-7)
        assert again.bound == pytest.approx(afresh.bound, rel=1e-6)
        optimal = master.lp.getBasis()
        master.allow(rng.random(len(search.columns)) < 0.5)
        master.solve()
        master.allow(np.ones(len(search.columns), dtype=bool))
        master.start_from(optimal)
        before = master.iterations
        assert master.solve().value == pytest.approx(afresh.value, rel=1e-7) and master.iterations == before
        started += master.lp.getNumRow() > len(basis.row_status) and master.lp.getNumCol() > len(basis.col_status)
    assert started > 5


@pytest.mark.slow
def test_a_tree_that_is_probed_at_once_finds_the_optimum(monkeypatch):
    set_parameter(monkeypatch, "tree.first_slice", 0)
    set_parameter(monkeypatch, "tree.few_tuples", 0)
    set_parameter(monkeypatch, "heuristics.long_searches", 0)
    probed = []
    whole = tree_run.TreeRun._probe

    def noted(run, pool):
        before = int(run.tree.alive.sum())
        done = whole(run, pool)
        probed.append(int(run.tree.alive.sum()) < before)
        return done

    monkeypatch.setattr(tree_run.TreeRun, "_probe", noted)
    for _, problem, truth in problems(25, 24):
        solution = tree.branch_and_cut(problem)
        assert solution.status == OPTIMAL
        assert solution.objective == pytest.approx(truth.objective, rel=1e-6)
    assert sum(probed) > 3


def test_annealing_among_what_is_left_meets_the_best_plan_with_nothing_that_is_gone():
    met = compared = 0
    for rng, problem, truth in problems(25, 25):
        search = search_of(problem, truth.objective * 1.2)
        columns, result = search.columns, search.lp().solve()
        best = columns.find(truth.plan)
        if result.point is None or not search.plans.programs.exact:
            continue
        search.keep_prices(result)
        left = rng.random(len(columns)) < 0.4
        left[best] = True
        search.plans.best_time, search.plans.best = np.inf, None
        search.plans.anneal_among(left, search.floors.under_prices(), lambda: True)
        assert search.plans.best is not None and left[search.plans.best].all()
        assert search.plans.best_time == pytest.approx(search.plans.try_choice(search.plans.best))
        assert search.plans.best_time >= truth.objective * (1 - 1e-9)
        met += search.plans.best_time <= truth.objective * (1 + 1e-9)
        compared += 1
    assert compared > 10 and met >= 0.9 * compared


def test_annealing_among_what_is_left_ends_when_it_is_told_to():
    _, problem, _ = next(problems(60, 22))
    search = search_of(problem, np.inf)
    search.keep_prices(search.lp().solve())
    search.plans.best_time, search.plans.best = np.inf, None
    search.plans.anneal_among(search.alive, search.floors.under_prices(), lambda: False)
    assert search.plans.best is None


def resting_run(memory: TreeMemory, monkeypatch) -> tree_run.TreeRun:
    """A tree with an open root, whose rounds have no time to do anything."""
    set_parameter(monkeypatch, "tree.first_slice", 0)
    search = search_of(light_layers(2, 2, 4, 10), np.inf)
    search.push(0.0, search.alive.copy())
    return tree_run.TreeRun(search, 1, 0, lambda bound, text: None, memory)


@pytest.mark.parametrize("left, granted, then", [(np.inf, DEFAULT_PARAMS.tree.first_rounds, 5), (1.0, 5, 10)])
def test_a_tree_is_left_after_the_rounds_that_it_is_granted(left, granted, then, monkeypatch):
    memory = TreeMemory(left=left, patience=5, fruitless=0.0)
    run = resting_run(memory, monkeypatch)
    assert run.search() is tree_run.TreeEnd.LEFT
    assert (run.rounds, memory.patience) == (granted, then)


@pytest.mark.parametrize(
    "probing, a_round, rounds",
    [
        (0, 10, 3),
        (20, 10, 3),
        (100, 10, 10),
        (100, 0, 3),
    ],
)
def test_a_tree_is_not_left_before_it_has_cost_as_much_as_its_probing(probing, a_round, rounds, monkeypatch):
    def work(pool, search, budget):
        pool.iterations += a_round

    run = resting_run(TreeMemory(fruitless=0.0), monkeypatch)
    run.probing = probing
    monkeypatch.setattr(tree_run.WorkerPool, "round", work)
    assert run.search() is tree_run.TreeEnd.LEFT
    assert run.rounds == rounds


@pytest.mark.parametrize(
    "bound, before, target, well",
    [(16.0, 0.0, np.inf, True), (14.0, 0.0, np.inf, False), (16.0, 14.0, np.inf, False), (16.0, 0.0, 20.0, False)],
)
def test_a_tree_closes_well_that_has_closed_half_of_its_gap_and_whose_end_proves_the_best_plan(
    bound, before, target, well, monkeypatch
):
    run = resting_run(TreeMemory(), monkeypatch)
    tree_of = run.tree
    tree_of.plans.best_time, tree_of.gap = 20.0, 0.0
    tree_of.root_bound, tree_of.target = 10.0, target
    tree_of.replace_open([(bound, tree_of.alive)])
    assert run.closing_well(before) is well


def test_what_probing_could_not_rule_out_below_a_lower_step_time_is_not_probed(monkeypatch):
    asked = []
    monkeypatch.setattr(tree_run.TreeRun, "_probe", lambda run, pool: asked.append(run))
    for fruitless in (0.0, np.inf):
        run = resting_run(TreeMemory(fruitless=fruitless), monkeypatch)
        assert run.search() is tree_run.TreeEnd.LEFT
        assert len(asked) == (fruitless > 0.0)


@pytest.mark.slow
def test_a_solve_that_is_stopped_again_and_again_goes_on_where_it_was(monkeypatch):
    set_parameter(monkeypatch, "heuristics.long_searches", 0)
    set_parameter(monkeypatch, "tree.first_slice", 1)
    left, report = [0], tree_run.TreeRun._report

    def stopped(run):
        report(run)
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime

    monkeypatch.setattr(tree_run.TreeRun, "_report", stopped)
    resumed = 0
    for _, problem, truth in problems(25, 24):
        for few in (0, 2000):  # priced, and listed
            set_parameter(monkeypatch, "tree.few_tuples", few)
            memory = TreeMemory()
            for attempt in range(400):
                resumed += memory.tree is not None
                left[0] = attempt % 3
                solution = tree.branch_and_cut(problem, SolveOptions(memory=memory))
                assert solution.bound is None or solution.bound <= truth.objective * (1 + 1e-6)
                if solution.status == OPTIMAL:
                    break
            assert solution.objective == pytest.approx(truth.objective, rel=1e-6)
    assert resumed > 6


@pytest.mark.slow
def test_trees_that_keep_the_order_of_kinds_and_those_that_leave_it_open_hold_prices_apart(monkeypatch):
    problem = alternating_problem(np.random.default_rng([5, 44]))
    truth = enumerate_optimum(problem, 100_000)
    whole, kept_order = tree_run.TreeRun._probe, []

    def left_where_all_are_listed(run, pool):
        kept_order.append(run.tree.columns.ordered)
        if not kept_order[-1]:
            raise OutOfTime
        whole(run, pool)
        return False

    set_parameter(monkeypatch, "tree.first_slice", 0)
    monkeypatch.setattr(tree_run.TreeRun, "_probe", left_where_all_are_listed)
    solution = tree.branch_and_cut(problem)
    assert truth is not None and solution.bound <= truth.objective * (1 + 1e-9)
    assert solution.objective >= truth.objective * (1 - 1e-9)
    assert kept_order == [True, False]
