"""Ctrl-C before the solver hears of it leaves the plan that was known."""

from __future__ import annotations

import pytest

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver import uniform_recompute
from taylor.pipeline_solver.solution import Termination
from taylor.pipeline_solver.solve import solve
from tests.solver_cases import small_problem


def test_a_plan_that_is_known_outlives_an_interrupt_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem()
    every = sum(kind.count for kind in problem.kinds)
    problem = problem.replace(uniform_recompute=((FULL, 0), (FULL, every)))

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uniform_recompute, "solve_uniform", pressed)
    solution = solve(problem)
    assert solution.plan is not None and solution.termination is Termination.INTERRUPTED
    assert solution.bound is not None and solution.objective is not None and solution.bound <= solution.objective
