"""A result becomes JSON and a table row, and both are read back as they were."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL, Solution, Termination
from taylor.pipeline_solver.solving.result import Result, plan_of_row, read_result
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_BOUND, UNRESTRICTED_OBJECTIVE
from taylor.pipeline_solver.timing.evaluate import evaluate
from tests.solver_cases import plan_of, small_problem


def solved(**changes):
    problem = small_problem(**changes)
    return problem, solve(problem)


def test_what_is_written_as_json_is_read_back_as_it_was(tmp_path):
    problem, solution = solved(unit_ms=2.5)
    result = Result(
        problem, solution, "dry-run", 1, [{"stage": 0, "peak_mib": 1.0}], [{"name": "gpipe"}], {"mps": "m.mps"}
    )
    path = tmp_path / "result.json"
    path.write_text(result.to_json())
    again = read_result(path)
    assert again.to_dict() == result.to_dict() == json.loads(result.to_json())
    assert (again.problem, again.plan) == (problem, solution.plan)
    assert again.solution.status is OPTIMAL and again.solution.bubble == solution.bubble


def test_the_statistics_of_a_problem_without_its_recompute_rule_are_kept():
    problem, solution = solved()
    told = solution.replace(statistics={UNRESTRICTED_OBJECTIVE: 3.0, UNRESTRICTED_BOUND: 2.0})
    data = Result(problem, told).to_dict()
    assert data["unrestricted"] == {"objective": 3.0, "bound": 2.0}
    assert Result.from_dict(data).solution.statistics == told.statistics


def test_a_row_holds_its_plan_and_its_cost():
    problem, solution = solved(unit_ms=2.5)
    row = json.loads(json.dumps(Result(problem, solution).row()))
    assert row["cost"] == pytest.approx(2.5 * solution.objective) and row["status"] == "optimal"
    assert plan_of_row(row) == solution.plan


def test_a_row_names_every_mode_that_was_searched_and_reading_it_drops_those_unused():
    problem = small_problem()
    problem = problem.replace(
        recompute_ratio={FULL: 1.0, SELECT: 0.3},
        kinds=tuple(
            type(kind)(kind.name, kind.count, kind.forward, kind.layer_mib, {**kind.activation_mib, SELECT: 2.0})
            for kind in problem.kinds
        ),
    )
    plan = plan_of({"body": [[2, 2]]}, {FULL: [[1, 0]]})
    row = Result(problem, evaluate(problem, plan)).row()
    assert json.loads(row["recompute"]) == {FULL: [[1, 0]], SELECT: [[0, 0]]}
    assert plan_of_row(row) == plan


def test_a_result_without_a_plan_has_a_row_with_the_reason_and_no_plan():
    problem = small_problem()
    result = Result(problem, Solution(INFEASIBLE, Termination.INFEASIBLE, message="too small"))
    assert result.row()["reason"] == "too small" and plan_of_row(result.row()) is None
    assert result.to_dict()["layers"] == {} and result.to_dict()["offset"] is None
    with pytest.raises(ValueError, match="too small"):
        _ = result.plan


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": "splendid"}, "splendid"),
        ({"bubble": {"total": 1.0}}, "not a saved result"),
        ({"layers": {"body": [[4]]}, "recompute": {}}, "differ in stages"),
        ({"layers": {"body": [[-1, 5]]}}, "the plan is not one"),
        ({"layers": {}}, "has no solved plan"),
        ({"mtp_among_layers": 99}, "count of layers"),
        ({"problem": {"stages": 2}}, "problem"),
    ],
)
def test_data_that_are_no_result_are_refused_with_the_fault_named(change, words):
    data = Result(*solved()).to_dict() | change
    with pytest.raises(InputError, match=words):
        Result.from_dict(data)
