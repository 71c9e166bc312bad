"""A solve that is told what to beat: hopeless problems end with their bound, the others as ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import CUT_OFF, INFEASIBLE, OPTIMAL, Termination
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import reference_problem, small_problem

SOLVERS = ("HIGHS", "HIGHS-MILP")
EXACT = 1e-9
NEARLY_PROVEN = 0.99


@pytest.fixture(scope="module")
def optimum() -> float:
    found = solve(reference_problem())
    assert found.status == OPTIMAL and found.objective is not None
    return found.objective


@pytest.mark.parametrize("solver", SOLVERS)
@given(share=st.floats(0.3, 1.5))
@settings(max_examples=8, deadline=None)
def test_what_is_out_of_reach_is_cut_off_and_what_is_not_is_found(solver: str, share: float, optimum: float) -> None:
    asked = share * optimum
    found = solve(reference_problem(), SolveOptions(solver, cutoff=lambda: asked))
    assert found.bound is not None and found.bound <= optimum * (1 + EXACT)
    if found.status == CUT_OFF:
        assert asked <= found.bound * (1 + EXACT) and found.termination is Termination.CUT_OFF and found.message
    else:
        assert found.status == OPTIMAL and found.objective == pytest.approx(optimum, rel=2e-6)
        # A bound that passes what was asked and the optimum in one step has proven more than was asked.
        assert asked > NEARLY_PROVEN * optimum


def test_what_is_to_be_beaten_may_fall_while_the_solve_runs(optimum: float) -> None:
    asked = iter([2.0 * optimum])
    found = solve(reference_problem(), SolveOptions(cutoff=lambda: next(asked, 0.5 * optimum)))
    assert found.status == CUT_OFF and found.bound is not None and 0.5 * optimum <= found.bound <= optimum


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_that_share_a_tree_know_what_is_to_be_beaten(workers: int) -> None:
    problem = reference_problem(interleaves=2)
    whole = solve(problem, SolveOptions(time_limit=5.0))
    assert whole.objective is not None and whole.bound is not None
    asked = 0.5 * whole.bound
    found = solve(problem, SolveOptions(workers=workers, cutoff=lambda: asked))
    assert found.status == CUT_OFF and found.bound is not None and asked <= found.bound <= whole.objective


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_recompute_choice_for_all_chunks_is_cut_off_as_a_whole(solver: str) -> None:
    problem = small_problem(limit_mib=(36.0, 36.0), uniform_recompute=((FULL, 0), (FULL, 1), (FULL, 2)))
    best = solve(problem, SolveOptions(solver))
    assert best.status == OPTIMAL and best.objective is not None
    for share in (0.5, 0.7, 0.9, 0.98, 1.1):
        asked = share * best.objective
        found = solve(problem, SolveOptions(solver, cutoff=lambda asked=asked: asked))
        assert found.bound is not None and found.bound <= best.objective * (1 + EXACT)
        if found.status == CUT_OFF:
            assert share < 1 and found.bound >= asked * (1 - EXACT)
        else:
            # What is proven by then need not be cut off.
            assert share > 0.5 and found.status == OPTIMAL and found.objective == pytest.approx(best.objective)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_problem_without_any_plan_is_never_promised_one(solver: str) -> None:
    found = solve(small_problem(limit_mib=(20.0, 20.0)), SolveOptions(solver, cutoff=lambda: 1e9))
    assert found.status == INFEASIBLE
