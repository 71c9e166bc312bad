"""Configurations found by their price: the same that listing finds, and bounds that hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem, enumerate_optimum, random_problem
from taylor.pipeline_solver.bounds import stage_pricing
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.generation import Generation
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.stage_pricing import all_below, cheapest, columns_of, reduced_costs, stage_options
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns, stage_tuples
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree import branch_and_cut as tree
from tests.solver_cases import python_of
from tests.solver_params import set_parameter

NO_LIMIT = 1e6
"""Work limit that no stage of a small problem reaches."""


def options_of(problem: PipelineProblem) -> list[stage_pricing.StageOptions]:
    return stage_options(problem, np.full(problem.stages, NO_LIMIT))


def generation_of(problem: PipelineProblem, step_time: float, workers: int = 1) -> Generation:
    """Configurations made for plans below a step time, before any price."""
    graph = EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags)
    limits, paths = WorkLimits(problem, graph), PathCuts(problem, graph)
    return Generation(problem, step_time, limits, paths, Stopper(None), workers=workers)


def problems(number: int, seed: int):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        yield rng, random_problem(rng, 3)


def test_without_prices_every_configuration_that_listing_finds_is_found_and_no_other():
    compared = 0
    for _, problem in problems(60, 11):
        listed = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
        options = options_of(problem)
        chosen = [all_below(part, np.zeros(len(part.work)), NO_LIMIT, 1.0, 100_000)[0] for part in options]
        found, _ = columns_of(problem, options, chosen)
        for s in range(problem.stages):
            here = set()
            for columns in (listed, found):
                rows = slice(columns.start[s], columns.start[s + 1])
                here ^= {
                    (one.tobytes(), two.tobytes(), three.round(9).tobytes())
                    for one, two, three in zip(
                        columns.layers[rows], columns.recompute[rows], columns.durations[rows], strict=True
                    )
                }
            # Totals that the other stages cannot complete are left out of a listing alone.
            assert len(here) == len(found.durations[found.start[s] : found.start[s + 1]]) - (
                listed.start[s + 1] - listed.start[s]
            )
        compared += len(listed) > 0
    assert compared > 30


def test_what_options_cost_adds_up_to_the_reduced_costs_of_the_lp():
    compared = 0
    for _, problem in problems(30, 12):
        options = options_of(problem)
        chosen = [cheapest(part, part.work, NO_LIMIT, np.inf, 300)[0] for part in options]
        if any(not len(rows) for rows in chosen):
            continue
        columns, number = columns_of(problem, options, chosen)
        paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
        master = Master(columns, np.arange(len(columns)), paths.pool)
        master.rebuild(np.arange(len(columns)), partial=True)
        for cut in paths.seeds():
            master.keep(cut)
        result = master.solve()
        prices = master.prices()
        costs = [
            reduced_costs(problem, part, s, prices)[rows].sum(axis=1) - prices.stage[s]
            for s, (part, rows) in enumerate(zip(options, chosen, strict=True))
        ]
        assert result.reduced == pytest.approx(np.concatenate(costs)[number], rel=1e-7, abs=1e-6)
        compared += 1
    assert compared > 15


def test_the_cheapest_are_the_first_of_all_by_price():
    compared = 0
    for rng, problem in problems(60, 13):
        for part in options_of(problem):
            cost = rng.normal(size=len(part.work))
            limit = float(np.quantile(part.work, 0.5) * problem.interleaves) if len(part.work) else 0.0
            every, price = all_below(part, cost, limit, np.inf, 100_000)
            few, least = cheapest(part, cost, limit, np.inf, 5)
            assert sorted(least) == pytest.approx(sorted(price)[:5])
            assert cost[few].sum(axis=1) == pytest.approx(least)
            assert (part.work[every].sum(axis=1) <= limit * (1 + 1e-9)).all()
            below = float(np.median(price)) if len(price) else 0.0
            assert len(all_below(part, cost, limit, below, 100_000)[0]) == int((price < below).sum())
            compared += len(price) > 5
    assert compared > 30


def test_the_compiled_search_finds_what_the_plain_one_finds(monkeypatch):
    for rng, problem in problems(8, 14):
        part = options_of(problem)[0]
        cost = rng.normal(size=len(part.work))
        compiled = cheapest(part, cost, NO_LIMIT, 0.5, 20)
        with monkeypatch.context() as patched:
            patched.setattr(stage_pricing, "_search", python_of(stage_pricing._search))
            plain = cheapest(part, cost, NO_LIMIT, 0.5, 20)
        assert compiled[0].tolist() == plain[0].tolist() and compiled[1].tolist() == plain[1].tolist()


def test_more_configurations_than_may_be_are_refused():
    part = next(part for _, problem in problems(40, 15) for part in options_of(problem) if len(part.work) > 20)
    every = len(all_below(part, part.work, NO_LIMIT, np.inf, 100_000)[0])
    with pytest.raises(TooManyColumns, match=f"more than {every - 1}"):
        all_below(part, part.work, NO_LIMIT, np.inf, every - 1)


def test_no_plan_beats_what_prices_prove_and_every_better_plan_is_among_what_they_leave():
    proven = 0
    rng = np.random.default_rng(16)
    for _ in range(40):
        problem, truth = comparable_problem(rng, 20_000)
        if np.isinf(truth.objective):
            continue
        above = truth.objective * 1.05
        held = generation_of(problem, above)
        assert held.bound(above) <= truth.objective * (1 + 1e-7)
        left = held.columns_under(above, 100_000)
        assert left is not None and left.columns.find(truth.plan) is not None
        proven += held.bound(above) > 0.9 * truth.objective
    assert proven > 15


def test_stages_priced_together_prove_and_leave_the_same(monkeypatch):
    compared = refused = 0
    rng = np.random.default_rng(23)
    for _ in range(20):
        problem, truth = comparable_problem(rng, 20_000)
        if problem.stages == 1 or np.isinf(truth.objective):
            continue
        above = truth.objective * 1.05
        one, two = (generation_of(problem, above, workers) for workers in (1, 2))
        assert one.bound(above) == two.bound(above)
        left, same = one.columns_under(above, 100_000), two.columns_under(above, 100_000)
        assert left is not None and same is not None
        assert np.array_equal(left.columns.durations, same.columns.durations)
        assert left.first.tolist() == same.first.tolist()
        number = len(left.columns)
        for held in (one, two):
            assert held.few_under(above, number) and not held.few_under(above, number - 1)
            with pytest.raises(TooManyColumns, match=f"more than {number - 1}"):
                held.columns_under(above, number - 1)
            refused += 1
        compared += 1
    assert compared > 8 and refused > 16


@pytest.mark.slow
def test_what_prices_prove_does_not_depend_on_the_configurations_that_the_lp_begins_with(monkeypatch):
    """A poor beginning leaves the LP to its prices: what they pass over would count as proven."""
    compared = 0
    rng = np.random.default_rng(21)
    for _ in range(30):
        problem, truth = comparable_problem(rng, 20_000)
        if np.isinf(truth.objective):
            continue
        above = truth.objective * 1.05
        proven = []
        for spread, each in (((0.85, 0.9, 0.95, 1.0, 1.05, 1.1), 8), ((1.0,), 1)):
            set_parameter(monkeypatch, "bounds.first_spread", spread)
            set_parameter(monkeypatch, "bounds.first_of_each", each)
            proven.append(generation_of(problem, above).bound(above))
        assert proven[1] == pytest.approx(proven[0], rel=2 * DEFAULT_PARAMS.bounds.close)
        compared += proven[1] > 0.9 * truth.objective
    assert compared > 8


@pytest.mark.slow
def test_a_plan_barely_below_the_step_time_stays_and_few_others_do():
    """The last LP is solved to rounding: what it leaves out must not be the plan that just reaches its bound."""
    tight = kept = every = 0
    rng = np.random.default_rng(18)
    for _ in range(14):
        problem, truth = comparable_problem(rng, 20_000)
        if np.isinf(truth.objective):
            continue
        above = truth.objective * (1 + 1e-9)
        held = generation_of(problem, above)
        tight += held.bound(above) > truth.objective * (1 - 1e-7)
        left = held.columns_under(above, 100_000)
        assert left is not None and left.columns.find(truth.plan) is not None
        kept += len(left.columns)
        every += sum(
            len(all_below(stage, np.zeros(len(stage.work)), NO_LIMIT, np.inf, 100_000)[0]) for stage in held.options
        )
    assert tight > 5 and kept < 0.7 * every


def test_many_kinds_without_their_order_bound_every_plan_and_the_milp_closes_the_rest(monkeypatch):
    """Kinds that cost the same are told apart by their place alone, which columns without order leave open."""
    set_parameter(monkeypatch, "tree.many_kinds_tuples", 0)
    solved = closed = 0
    rng = np.random.default_rng(17)
    while solved < 6:
        problem, truth = comparable_problem(rng, 20_000, 3)
        if problem.interleaves == 1 or not len(problem.placed_kinds) >= 2 or np.isinf(truth.objective):
            continue
        first, second = problem.placed_kinds[:2]
        if first.count + second.count < 4:
            continue
        halves = [
            replace(kind, name=f"{kind.name}{half}", count=kind.count // 2 + half * (kind.count % 2))
            for half in (0, 1)
            for kind in (first, second)
        ]
        others = [kind for kind in problem.kinds if kind not in (first, second)]
        stack = problem.replace(kinds=(*[kind for kind in halves if kind.count], *others))
        if len(stack.placed_kinds) < 4:
            continue
        expected = enumerate_optimum(stack, 200_000)
        if expected is None or np.isinf(expected.objective):
            continue
        graph = EventGraph.from_schedule(schedule_of(stack), stack.boundary_lags)
        paths, limits = PathCuts(stack, graph), WorkLimits(stack, graph)
        above = expected.objective * 1.05
        generation = Generation(stack, above, limits, paths, Stopper(None), ordered=False)
        assert len(generation.problem.kinds) < len(stack.kinds)
        bound = generation.bound(above)
        assert bound <= expected.objective * (1 + 1e-7)
        solution = tree.branch_and_cut(stack)
        assert solution.status == OPTIMAL and solution.objective == pytest.approx(expected.objective, rel=1e-6)
        solved += 1
        closed += bound > 0.9 * expected.objective
    assert closed > 2
