"""Solvers, in short: random instances checked, enumerated, solved under every setting, and stopped early."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.reliability import solver
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, NO_SOLUTION, OPTIMAL
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import small_problem
from tests.solver_params import set_parameter


def test_random_instances_pass_the_exact_checker():
    result = solver.checked(40, 1000)
    assert result["faults"] == [] and result["plans"] > 15 and result["infeasible"]


def test_random_instances_equal_brute_force():
    assert solver.enumerated(3, 1000)["faults"] == []


@pytest.mark.slow
def test_no_setting_changes_the_optimum():
    result = solver.settings(4, 1000)
    assert result["faults"] == [] and result["solves"] >= 4 * 19


def test_limits_are_labelled_and_hold_the_optimum_between_bound_and_objective():
    result = solver.stopped(10, 1000)
    assert result["faults"] == [] and result[FEASIBLE] + result[NO_SOLUTION] > 3


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"objective": 20.0, "bound": 20.0}, "instead|claimed|not"),
        ({"bound": 1e9}, "above the objective"),
        ({"bound": 1.0}, "called optimal with a gap"),
        ({"status": INFEASIBLE}, "with plan"),
        ({"status": FEASIBLE, "message": ""}, "without a word why"),
    ],
)
def test_a_false_answer_is_found_out(changes, words):
    """The campaign's own eyes: an answer with one untrue figure does not pass."""
    import re

    problem = small_problem()
    truth = solve(problem)
    assert truth.status == OPTIMAL and solver.stopped_faults(problem, truth, truth) == []
    found = solver.stopped_faults(problem, truth.replace(**changes), truth)
    assert any(re.search(words, text) for text in found), found


def test_a_bound_above_the_optimum_and_an_objective_below_it_are_found_out():
    problem = small_problem()
    truth = solve(problem)
    worse = truth.replace(status=FEASIBLE, bound=truth.objective * 1.01, message="stopped")
    assert any("above the optimum" in text for text in solver.stopped_faults(problem, worse, truth))
    assert any("below the optimum" in t for t in solver.stopped_faults(problem, truth, truth.replace(objective=99.0)))


@pytest.mark.slow
def test_middling_instances_need_a_tree_where_nothing_is_enumerated(monkeypatch):
    set_parameter(monkeypatch, "tree.most_cells", 0)
    rng = np.random.default_rng(4)
    nodes = [solve(solver.medium_problem(rng)).statistics.get("nodes", 0) for _ in range(30)]
    assert max(nodes) > 5
