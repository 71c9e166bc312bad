"""Every solver against the enumeration of every plan, on random small problems.

`python -m benchmarks.brute_force` runs 500 and more of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.brute_force import (
    comparable_problem,
    enumerate_optimum,
    faults,
    random_problem,
    with_choices,
    with_unlike_lags,
    with_unlike_ratios,
    with_unlike_stages,
)
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.columns.stage_tuples import FEW_KINDS
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import StageTimes
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import plan_of, small_problem


def test_the_enumeration_knows_a_problem_worked_by_hand():
    """Stage 0 fits two layers only when one is recomputed (f = 2, b = 5 there; f = 2, b = 4 on stage 1).

    The critical path: F1 on both stages, B1 on both, F3 B2 F4 on stage 0, F4 B4 on stage 1, B4 on stage 0.
    """
    problem = small_problem(limit_mib=(36.0, 100.0))
    found = enumerate_optimum(problem)
    assert found.objective == (2 + 2) + (4 + 5) + (2 + 5 + 2) + (2 + 4) + 5
    assert found.plan == plan_of({"body": [[2, 2]]}, {FULL: [[1, 0]]})
    # Of 1 + 3 layers 2 · 4 ways to recompute, of 2 + 2 only 2 · 3 as the first stage lacks room, of 3 + 1 none.
    assert found.plans == 2 * 4 + 2 * 3


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_the_optimum_equals_that_over_every_plan(solver):
    rng = np.random.default_rng(100)
    for _ in range(25):
        problem, truth = comparable_problem(rng, 20_000)
        assert faults(problem, truth, solver) == [], problem


def test_the_optimum_of_many_kinds_equals_that_over_every_plan():
    rng = np.random.default_rng(150)
    many = 0
    while many < 4:
        problem, truth = comparable_problem(rng, 20_000, most_kinds=8)
        if len(problem.placed_kinds) > FEW_KINDS:
            many += problem.interleaves == 1
            assert faults(problem, truth, "HIGHS") == [], problem


@pytest.mark.slow
def test_the_optimum_and_the_model_file_agree_under_cbc():
    rng = np.random.default_rng(200)
    for _ in range(8):
        problem, truth = comparable_problem(rng, 20_000)
        assert faults(problem, truth, "CBC", mps=True) == [], problem


def test_the_checker_passes_the_enumerated_optimum_and_its_time():
    rng = np.random.default_rng(300)
    for _ in range(15):
        problem, truth = comparable_problem(rng, 20_000)
        if truth.plan is not None:
            assert check(problem, truth.plan, truth.objective) == []


def test_no_limit_that_is_relaxed_worsens_the_optimum():
    rng = np.random.default_rng(400)
    for _ in range(8):
        problem, truth = comparable_problem(rng, 20_000)
        relaxed = problem.replace(limit_mib=tuple(limit + rng.uniform(0, 40) for limit in problem.limit_mib))
        solution = solve(relaxed, SolveOptions(solver="HIGHS-MILP"))
        if truth.plan is not None:
            assert solution.objective <= truth.objective * (1 + 1e-6)


@pytest.mark.parametrize(("solver", "count"), [("HIGHS", 15), ("HIGHS-MILP", 8), ("CBC", 3)])
def test_the_optimum_with_transfers_unlike_by_boundary_equals_that_over_every_plan(solver, count):
    rng = np.random.default_rng(550)
    while count:
        problem, _ = comparable_problem(rng, 10_000)
        if problem.stages == 1:
            continue
        problem = with_unlike_lags(problem, rng)
        truth = enumerate_optimum(problem, 10_000)
        assert faults(problem, truth, solver, mps=solver == "CBC") == [], problem
        count -= 1


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_the_optimum_on_stages_of_unlike_speed_and_memory_equals_that_over_every_plan(solver):
    rng = np.random.default_rng(500)
    for _ in range(12):
        problem, truth = comparable_problem(rng, 20_000)
        problem = with_unlike_stages(problem, rng)
        truth = enumerate_optimum(problem, 100_000)
        if truth is not None:
            assert faults(problem, truth, solver) == [], problem


@pytest.mark.parametrize(("solver", "count"), [("HIGHS", 15), ("HIGHS-MILP", 8), ("CBC", 3)])
def test_the_optimum_on_cards_of_unlike_time_ratios_equals_that_over_every_plan(solver, count):
    rng = np.random.default_rng(900)
    while count:
        problem = random_problem(rng)
        if problem.stages * problem.interleaves > 9:  # minutes of enumeration: `make random-choices` has these
            continue
        if count % 3 == 0 and not problem.uniform_recompute:
            problem = with_choices(problem, rng, 3)
        problem = with_unlike_ratios(with_unlike_stages(problem, rng), rng)
        truth = enumerate_optimum(problem, 20_000)
        if truth is None:
            continue
        assert faults(problem, truth, solver, mps=solver == "CBC") == [], problem
        count -= 1


def test_the_ratios_of_each_stage_are_those_of_its_own_card():
    problem = small_problem(limit_mib=(1000.0, 1000.0), micro_batches=64)
    problem = problem.replace(kinds=(replace(problem.kinds[0], count=12),), backward_ratio=1.0)
    usual = StageTimes.of(problem)
    slow = replace(usual, backward_ratio=3.0)  # forward and backward take 2 on one card, 4 on the other
    assert solve(problem.replace(stage_times=(usual, slow))).plan.total_layers() == ((8, 4),)
    assert solve(problem.replace(stage_times=(slow, usual))).plan.total_layers() == ((4, 8),)


def test_a_stage_that_takes_twice_as_long_holds_half_as_many_layers():
    problem = small_problem(limit_mib=(1000.0, 1000.0), slowness=(1.0, 2.0), micro_batches=64)
    problem = problem.replace(kinds=(replace(problem.kinds[0], count=12),))
    assert solve(problem).plan.total_layers() == ((8, 4),)
