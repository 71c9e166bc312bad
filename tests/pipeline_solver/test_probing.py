"""What old prices and probing rule out: nothing that a plan below the cut-off needs, by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem
from taylor.pipeline_solver import branch_and_cut as tree
from taylor.pipeline_solver import probing, tree_run
from taylor.pipeline_solver.columns import build_columns
from taylor.pipeline_solver.cut_pool import PathCuts
from taylor.pipeline_solver.durations import schedule_of
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.price_pool import ColumnFloors, PricePool, column_costs
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.root import start_search
from taylor.pipeline_solver.solution import OPTIMAL
from taylor.pipeline_solver.stage_tuples import stage_tuples
from taylor.pipeline_solver.stopping import Stopper
from taylor.pipeline_solver.tree_search import Search


def problems(number: int, seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        problem, truth = comparable_problem(rng, 20_000)
        if np.isfinite(truth.objective):
            yield rng, problem, truth


def search_of(problem: PipelineProblem, target: float) -> Search:
    columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.lag))
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
    floors = ColumnFloors(search.columns, pool)
    floors.room = 4
    floors.tighten(np.ones(len(search.columns), dtype=bool), np.inf)
    assert floors.values.tolist() == [5.0, 6.0, 7.0, 8.0]


def test_probing_leaves_every_plan_below_the_cut_off_and_nothing_where_there_is_none():
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


def test_a_tree_that_is_probed_at_once_finds_the_optimum(monkeypatch):
    monkeypatch.setattr(tree_run, "FIRST_SLICE", 0)
    monkeypatch.setattr(tree, "FEW_TUPLES", 0)
    monkeypatch.setattr(tree, "LONG_WALKS", 0)
    probed = []
    whole = tree_run.TreeRun._probe

    def noted(run, pool, patient):
        before = int(run.tree.alive.sum())
        done = whole(run, pool, patient)
        probed.append(int(run.tree.alive.sum()) < before)
        return done

    monkeypatch.setattr(tree_run.TreeRun, "_probe", noted)
    for _, problem, truth in problems(25, 24):
        solution = tree.branch_and_cut(problem)
        assert solution.status == OPTIMAL
        assert solution.objective == pytest.approx(truth.objective, rel=1e-6)
    assert sum(probed) > 3
