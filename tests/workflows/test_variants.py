"""Variants of a job share the time, and the ones that stayed open have more of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution, Termination
from taylor.workflows.solving import variants
from tests.solver_cases import plan_of, small_problem

PLAN = plan_of({"body": [[2, 2]]})


def variant(name: str, forward: float) -> variants.Variant:
    """A variant whose layers take so long."""
    body = small_problem().kinds[0]
    problem = small_problem(kinds=(type(body)(name, 4, forward, 10.0, body.activation_mib),))
    file = SimpleNamespace(
        problem=lambda memory: problem, known_plan=lambda problem: None, config=SimpleNamespace(path="job.sh")
    )
    return variants.Variant(file, None, name)


def test_a_variant_that_was_stopped_early_has_another_turn_against_the_best_one(monkeypatch):
    """The hard one comes first by its bound, has half of the time, and what the others leave of theirs later."""
    turns = []

    def solve(problem, how, on_progress, store, name, known=None):
        turns.append((name, round(how.time_limit, 1), None if how.cutoff is None else how.cutoff()))
        if name == "easy":
            return Solution(FEASIBLE, plan=PLAN, objective=90.0, bound=90.0, seconds=0.1).closed(interrupted=False)
        if len(turns) == 1:
            return Solution(FEASIBLE, plan=PLAN, objective=100.0, bound=50.0, seconds=0.1).ended_by(
                Termination.TIME_LIMIT
            )
        return Solution(FEASIBLE, plan=PLAN, objective=80.0, bound=80.0, seconds=0.1).closed(interrupted=False)

    monkeypatch.setattr(variants, "solve_or_find", solve)
    chosen, _, solution, tried = variants.best_variant(
        [variant("easy", 2.0), variant("hard", 1.0)], SolveOptions(time_limit=60.0), None, None
    )
    assert chosen.name == "hard" and solution.objective == 80.0 and solution.gap == 0.0
    assert [name for name, _, _ in turns] == ["hard", "easy", "hard"]
    assert [cutoff for _, _, cutoff in turns] == [None, 100.0, 90.0]
    assert turns[0][1] == pytest.approx(30.0, abs=0.2) and turns[2][1] == pytest.approx(60.0, abs=0.5)
    assert [(one.label, one.objective) for one in tried] == [("hard", 80.0), ("easy", 90.0)]
