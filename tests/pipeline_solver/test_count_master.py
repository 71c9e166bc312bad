"""The LP over counts: its times are the columns', its bounds hold, and trees over it end at the best of all plans."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum, random_problem, with_unlike_stages
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.bounds.column_floors import column_costs
from taylor.pipeline_solver.bounds.count_master import CountMaster
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.splits import StageSplits
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.model.uniform_rule import counts_suffice
from taylor.pipeline_solver.timing.durations import chunk_durations, schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from taylor.pipeline_solver.tree.root import start_search
from taylor.pipeline_solver.tree.tree_search import Search
from tests.solver_params import set_parameter

pytestmark = pytest.mark.usefixtures("without_enumeration")


@pytest.fixture(autouse=True)
def counts_whatever_the_columns(monkeypatch):
    """Of few columns, as here, the LP that weighs them would take its place."""
    set_parameter(monkeypatch, "bounds.price_above", 0)


MOST_CHUNKS = 8
"""Of more, the enumeration of all plans takes seconds."""


def problems(number: int, seed: int):
    """One kind of layers and nothing to choose but counts; every other one recomputes some layers of each chunk."""
    rng = np.random.default_rng(seed)
    while number:
        problem = random_problem(rng, most_kinds=1)
        if FULL not in problem.recompute_ratio or problem.stages * problem.interleaves > MOST_CHUNKS:
            continue
        problem = with_unlike_stages(problem, rng) if rng.random() < 0.3 else problem
        one = (FULL, int(rng.integers(1, 3)) * (number % 2))
        problem = problem.replace(fixed_recompute={}, uniform_recompute=(one,))
        assert counts_suffice(problem)
        truth = enumerate_optimum(problem, 3_000)
        if truth is not None:
            number -= 1
            yield rng, problem, truth


def search_of(problem) -> Search:
    columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    search = Search(problem, columns, paths, 1e-7, 0, Stopper(None))
    start_search(search, None)
    return search


def test_at_a_plans_counts_the_times_are_the_plans():
    compared = 0
    for _, problem, truth in problems(30, 5):
        if truth.plan is None:
            continue
        search = search_of(problem)
        master, chosen = search.lp(), search.columns.find(truth.plan)
        assert isinstance(master, CountMaster) and chosen is not None
        layers = search.columns.layers[chosen, :, 0].T.reshape(-1)
        point = np.concatenate([layers, np.minimum(layers, master.most)]).astype(float)
        expected = chunk_durations(problem, truth.plan)[: search.plans.paths.classes]
        assert master.durations(point) == pytest.approx(expected)
        compared += 1
    assert compared > 10


@pytest.mark.slow
def test_the_bound_holds_for_every_plan_that_is_allowed_and_the_prices_give_it_again():
    compared = exact = 0
    for rng, problem, truth in problems(30, 6):
        if truth.plan is None:
            continue
        search = search_of(problem)
        columns, master = search.columns, search.lp()
        best = columns.find(truth.plan)
        for share in (1.0, 0.7, 0.5):
            mask = rng.random(len(columns)) < share
            mask[best] = True
            master.allow(mask)
            for _ in range(30):
                result = master.solve()
                length, cut = search.plans.paths.path(master.durations(result.point))
                if master.keeps(cut):
                    break
                master.keep(cut)
            assert result.value <= truth.objective * (1 + 1e-7)
            assert result.bound <= truth.objective * (1 + 1e-7)
            costs = column_costs(columns, [master.prices()])[0]
            assert costs == pytest.approx(result.reduced, abs=1e-7)
            least = [costs[a:b][mask[a:b]].min() for a, b in zip(columns.start[:-1], columns.start[1:], strict=True)]
            assert result.value + sum(least) == pytest.approx(result.bound)
            compared += 1
            exact += result.bound >= truth.objective * (1 - 1e-7)
    assert compared > 30 and exact > 5


def test_a_split_leaves_every_column_on_one_side_and_takes_the_lps_counts_from_both():
    for rng, problem, truth in problems(20, 7):
        if truth.plan is None:
            continue
        columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
        splits, mask = StageSplits(columns, problem.interleaves), np.ones(len(columns), dtype=bool)
        layers = rng.uniform(1, 3, (problem.interleaves, problem.stages))
        time = np.stack([layers, 2 * layers])
        for split in splits.between(layers, time, mask)[0]:
            stage = np.unique(columns.stage[np.concatenate([split.above, split.below])])
            (s,) = stage
            both = np.sort(np.concatenate([split.above, split.below]))
            assert both.tolist() == np.nonzero(columns.stage == s)[0].tolist()
            assert len(split.above) and len(split.below)


@pytest.mark.slow
def test_a_chunk_whose_recompute_the_lp_understates_is_split_where_it_is_told_exactly():
    offered = 0
    for _, problem, truth in problems(80, 9):
        search = search_of(problem)
        master, columns = search.lp(), search.columns
        result = master.solve()
        if truth.plan is None or not master.most or result.point is None:
            continue
        mask = np.ones(len(columns), dtype=bool)
        held, again = result.point.reshape(2, problem.interleaves, problem.stages)
        found = master.ways(search.splits, result, mask)[0]
        for v, s in np.argwhere(np.minimum(held, master.most) - again > 1e-5).tolist():
            own = np.arange(columns.start[s], columns.start[s + 1])
            few = own[columns.layers[own, v, 0] < master.most]
            assert any(split.below.tolist() == few.tolist() for split in found)
            for gone in (few, np.setdiff1d(own, few)):
                side = mask.copy()
                side[gone] = False
                master.allow(side)
                after = master.solve()
                if after.point is not None:
                    x, y = after.point.reshape(2, problem.interleaves, problem.stages)[:, v, s]
                    assert y == pytest.approx(min(x, master.most), abs=1e-6)
            offered += 1
    assert offered > 10


@pytest.mark.parametrize("workers", [1, 2])
def test_trees_over_counts_end_at_the_best_of_all_plans(monkeypatch, workers):
    """With slices so small that every tree goes through many rounds, and none is handed over to the MILP."""
    set_parameter(monkeypatch, "tree.first_slice", 2)
    solved = []
    real = CountMaster.solve
    monkeypatch.setattr(CountMaster, "solve", lambda self, limit=None: solved.append(1) or real(self, limit))
    for _, problem, truth in problems(40 if workers == 1 else 8, 8):
        solution = branch_and_cut(problem, SolveOptions(workers=workers))
        assert solution.status == (INFEASIBLE if truth.plan is None else OPTIMAL)
        if truth.plan is not None:
            assert solution.objective == pytest.approx(truth.objective, rel=2e-6)
            assert solution.bound <= truth.objective * (1 + 1e-9)
    assert solved


def test_several_kinds_and_free_recompute_keep_the_lp_over_configurations():
    rng = np.random.default_rng(3)
    met = set()
    for _ in range(25):
        problem = random_problem(rng)
        if counts_suffice(problem) or problem.uniform_recompute:
            continue
        columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
        if (np.diff(columns.start) == 0).any():
            continue
        met.add(type(search_of(problem).lp()))
    assert met == {Master}
