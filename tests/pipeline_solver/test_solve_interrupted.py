"""What a solve reports: the plan that was known when Ctrl-C comes first, and the step time of its evaluation."""

from __future__ import annotations

import pytest

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.solution import Termination
from taylor.pipeline_solver.solving import uniform_recompute
from taylor.pipeline_solver.solving.solve import complete, solve
from taylor.pipeline_solver.timing.evaluate import evaluate
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


def test_a_solved_plan_has_the_step_time_of_its_evaluation_to_the_last_digit() -> None:
    """A solver that adds durations up in another order is off by some units in the last place."""
    problem = small_problem()
    solution = solve(problem)
    assert solution.plan is not None and solution.objective is not None
    off = solution.replace(objective=solution.objective * (1 + 1e-15), bound=solution.objective * (1 + 1e-15))
    again = complete(problem, off)
    assert again.objective == again.bound == evaluate(problem, solution.plan).objective
