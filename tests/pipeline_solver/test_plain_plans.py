"""Plans without compiled kernels: even ones, else the one of least memory, else none with a true bound."""

from __future__ import annotations

import pytest

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, NO_SOLUTION, Termination
from taylor.pipeline_solver.solving import plain_plans
from taylor.pipeline_solver.solving.plain_plans import solve_plainly
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import evaluate

KIND = LayerKind("body", 8, 1.0, 100.0, {"none": 10.0, FULL: 1.0})


def problem(first_mib: float) -> PipelineProblem:
    """Eight layers on two stages; the first one's memory decides how many it takes."""
    return PipelineProblem(2, 1, 4, (KIND,), (0.0, 0.0), (first_mib, 10_000.0))


def test_an_even_plan_recomputes_as_much_as_its_memory_asks_for() -> None:
    for limit in (500.0, 460.0, 420.0):
        found = solve_plainly(problem(limit), None, None)
        assert found.status == FEASIBLE and found.plan.total_layers() == ((4, 4),)
        assert evaluate(problem(limit), found.plan).status == FEASIBLE
        assert found.bound <= solve(problem(limit)).objective <= found.objective + 1e-9


def test_where_no_even_plan_fits_the_one_of_least_memory_is_taken() -> None:
    found = solve_plainly(problem(250.0), None, None)
    assert found.status == FEASIBLE and found.termination is Termination.NOT_COMPILED
    assert evaluate(problem(250.0), found.plan).status == FEASIBLE and found.plan.total_layers()[0][0] < 4


def test_where_none_fits_that_is_proven() -> None:
    assert solve_plainly(problem(50.0), None, None).status == INFEASIBLE


def test_where_the_search_for_one_is_not_finished_there_is_none_and_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfinished(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(plain_plans, "most_frugal_plan", unfinished)
    found = solve_plainly(problem(250.0), None, 0.0)
    assert (found.status, found.plan) == (NO_SOLUTION, None)
    assert found.bound is not None and 0.0 < found.bound <= solve(problem(250.0)).objective
