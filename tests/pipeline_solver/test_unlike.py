"""One plan for micro-batches of unlike cost: against every plan, in exact arithmetic, and against equal ones."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.unlike_lengths import compare, every_plan, random_problem, random_scenarios
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.pipeline_solver.unlike.scenarios import ScenarioGraph, Scenarios
from taylor.pipeline_solver.unlike.solve import solve_expected


@pytest.mark.parametrize("seed", range(20))
def test_the_mean_is_the_least_over_every_plan_and_the_bound_no_larger(seed: int) -> None:
    compared = compare(np.random.default_rng([7, seed]))
    assert compared.faults == []


@pytest.mark.parametrize("seed", range(10))
def test_equal_micro_batches_have_the_step_of_the_usual_solver(seed: int) -> None:
    rng = np.random.default_rng([8, seed])
    problem = random_problem(rng)
    ones = np.ones((2, problem.micro_batches))
    found, usual = solve_expected(problem, Scenarios(ones, ones), gap=0.0), solve(problem)
    assert found.mean == pytest.approx(usual.objective, rel=1e-6)
    for plan in list(every_plan(problem))[:5]:
        steps = ScenarioGraph(problem, Scenarios(ones, ones)).step_times(plan)
        assert steps.tolist() == pytest.approx([step_time(problem, plan)] * 2, rel=1e-12)


def test_the_mean_step_is_at_least_the_step_of_the_mean_factors() -> None:
    """It is convex in them, so that the plan for the mean length has a bound of its own."""
    rng = np.random.default_rng(3)
    problem = random_problem(rng)
    scenarios = random_scenarios(rng, 8, problem.micro_batches)
    mean = Scenarios(scenarios.layers.mean(axis=0, keepdims=True), scenarios.ends.mean(axis=0, keepdims=True))
    least = solve_expected(problem, mean, gap=0.0).mean
    assert solve_expected(problem, scenarios, gap=0.0).mean >= least * (1 - 1e-9)


def test_a_step_ends_with_its_slowest_replica() -> None:
    rng = np.random.default_rng(4)
    problem = random_problem(rng)
    alone = random_scenarios(rng, 6, problem.micro_batches)
    pairs = Scenarios(alone.layers, alone.ends, replicas=2)
    plan = next(every_plan(problem))
    each = ScenarioGraph(problem, alone).step_times(plan).reshape(3, 2)
    assert ScenarioGraph(problem, pairs).step_times(plan).tolist() == each.max(axis=1).tolist()
    found = solve_expected(problem, pairs, gap=0.0)
    assert found.plan is not None and len(found.step_times) == 3 and found.bound <= found.mean


def test_a_plan_that_fits_nowhere_and_factors_that_do_not_fit_are_said() -> None:
    kind = LayerKind("a", 4, 1.0, 100.0, {NONE: 10.0, FULL: 1.0})
    problem = PipelineProblem(2, 1, 4, (kind,), (5.0, 5.0), (50.0, 50.0))
    ones = np.ones((1, 4))
    found = solve_expected(problem, Scenarios(ones, ones))
    assert found.infeasible and found.plan is None and found.gap == 1.0
    with pytest.raises(ValueError, match="3 factors a scenario do not fit 4 micro-batches"):
        ScenarioGraph(problem, Scenarios(np.ones((1, 3)), np.ones((1, 3))))
    with pytest.raises(ValueError, match="finite number above 0"):
        Scenarios(np.zeros((1, 4)), ones)
    with pytest.raises(ValueError, match="one row for each of a scenario's replicas"):
        Scenarios(np.ones((3, 4)), np.ones((3, 4)), replicas=2)


def test_the_costliest_first_is_the_shorter_step_of_an_even_plan_in_the_mean() -> None:
    """Long micro-batches that pass the stages together delay the others once."""
    kind = LayerKind("a", 8, 1.0, 1.0, {NONE: 1.0, FULL: 0.1})
    problem = PipelineProblem(4, 1, 32, (kind,), (0.0,) * 4, (1e6,) * 4)
    plan = PipelinePlan({"a": ((2, 2, 2, 2),)}, {})
    scenarios = random_scenarios(np.random.default_rng(1), 32, 32)
    drawn, sorted_first = (
        ScenarioGraph(problem, each).step_times(plan).mean() for each in (scenarios, scenarios.largest_first())
    )
    assert sorted_first < 0.9 * drawn
