"""The least memory with which a problem has a plan: exact, fast, and named in the message."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.milp.least_memory import LeastMemory, explain_infeasible, least_device_memory
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import reference_problem, small_problem


def raised(problem, by_mib):
    return problem.replace(limit_mib=tuple(limit + by_mib for limit in problem.limit_mib))


@pytest.mark.slow
def test_it_is_exact_on_random_infeasible_problems():
    """With the raise a plan exists, by the enumeration of every plan; with a hundredth of a MiB less none does."""
    rng = np.random.default_rng(8)
    seen = 0
    while seen < 8:
        problem, truth = comparable_problem(rng, 5_000)
        if truth.plan is not None:
            continue
        least = least_device_memory(problem)
        if least is None:
            assert "no plan has" in explain_infeasible(problem) or "layers" in explain_infeasible(problem)
            continue
        seen += 1
        assert least.short_by_mib > 0
        assert solve(raised(problem, least.short_by_mib), SolveOptions(solver="HIGHS-MILP")).status == OPTIMAL
        assert solve(raised(problem, least.short_by_mib - 0.01), SolveOptions(solver="HIGHS-MILP")).status == INFEASIBLE


def test_the_reference_case_needs_46586_mib():
    """Worked by hand: at 59 MoE layers on 16 stages some stage holds 4 of them, all recomputed.

    The first stage with 4 MoE layers and no more room elsewhere is as far back as the others' limits
    allow; 2382 + 4 · 10691 + a · 4 · 30 with a = 12 alive on stage 4 is 46586.
    """
    assert 2382 + 4 * 10691 + 12 * 4 * 30 == 46586
    assert least_device_memory(reference_problem(limit_mib=40000)) == LeastMemory(46586.0, 4, 6586.0)
    assert solve(reference_problem(limit_mib=46586), SolveOptions(solver="HIGHS-MILP")).status == OPTIMAL
    assert solve(reference_problem(limit_mib=46585), SolveOptions(solver="HIGHS-MILP")).status == INFEASIBLE


@pytest.mark.parametrize(("interleaves", "low_memory"), [(1, True), (2, True), (2, False), (3, True)])
def test_infeasibility_of_the_reference_case_is_explained(interleaves, low_memory):
    problem = reference_problem(interleaves=interleaves, low_memory=low_memory, limit_mib=46000)
    message = explain_infeasible(problem)
    least = least_device_memory(problem)
    assert f"stage {least.stage} is short by {least.short_by_mib:.0f} MiB" in message
    assert f"{least.device_mib:.0f} MiB" in message


def test_enough_memory_is_said_to_be_enough():
    assert least_device_memory(reference_problem()).short_by_mib == 0
    assert explain_infeasible(reference_problem()) is None


def test_stages_with_limits_of_their_own_are_raised_together():
    """41 and 35 MiB are needed without recompute, 29 and 29 with it all; stage 1 lacks 9 of its 20."""
    problem = small_problem(limit_mib=(29.0, 20.0), min_layers=2)
    assert least_device_memory(problem) == LeastMemory(38.0, 1, 9.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stages": 5, "static_mib": (0.0,) * 5, "limit_mib": (99.0,) * 5}, "4 layers cannot fill 5 stages"),
        ({"fixed_layers": {(0, 0): 1, (0, 1): 1}}, "allow 2 to 2 layers in all, the model has 4"),
        ({"max_layers": {(0, 0): 1, (0, 1): 2}}, "allow 2 to 3 layers in all, the model has 4"),
        ({"fixed_layers": {(0, 0): 9}}, "given 9 layers, outside the allowed 1 to 4"),
        ({"fixed_layers": {(0, 0): 2}, "fixed_recompute": {(FULL, 0, 0): 3}}, "contradict each other"),
    ],
)
def test_counts_that_cannot_be_met_are_named_and_not_put_down_to_memory(changes, said):
    problem = small_problem(**changes)
    assert said in explain_infeasible(problem)
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    assert solution.status == INFEASIBLE
    assert said in solution.message


def test_an_optimum_that_highs_finds_a_billionth_off_is_an_answer():
    """HiGHS 1.15.1 calls its own optimum of this problem an error, off by 1.00044e-9."""
    kinds = tuple(
        LayerKind(name, count, forward, states, {"none": kept, "full": 20.0})
        for name, count, forward, states, kept in (
            ("dense", 2, 0.8783275063036483, 520.4003906250001, 289.515625),
            ("layer", 22, 1.0, 1238.2910156250005, 450.546875),
        )
    )
    problem = PipelineProblem(
        8, 1, 32, kinds, (1650.8022117614742, *[1285.1772117614742] * 6, 1938.8539695739742), (5077.687807477387,) * 8,
        backward_ratio=1.6038584917062653, max_layers={(0, stage): 7 for stage in range(8)},
        uniform_recompute=tuple((FULL, count) for count in range(25)),
    )  # fmt: skip
    least = least_device_memory(problem)
    assert least is not None and least.short_by_mib == pytest.approx(636.0392, abs=1e-3)
    solution = solve(problem, SolveOptions(time_limit=20))
    assert solution.status is INFEASIBLE and "short by 637 MiB" in solution.message
