"""A solution says how it ended and shows itself; options refuse what makes no sense."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.pipeline_solver.milp.cbc import cbc_path
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import FEASIBLE, NO_SOLUTION, OPTIMAL, Solution, Termination
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.solving.solvers import SOLVERS, solver_named
from tests.solver_cases import plan_of, reference_problem, small_problem

PLAN = plan_of({"body": [[2, 1], [1, 2]]}, {"full": [[1, 0], [0, 2]]})
FOUND = Solution(
    FEASIBLE, plan=PLAN, objective=20.0, bound=19.0, solver="HIGHS", seconds=1.25,
    peak_memory_mib=(900.0, 1200.4), memory_limit_mib=(1000.0, 1100.0),
)  # fmt: skip


def test_a_closed_gap_is_proven_or_reached_by_how_wide_it_is():
    assert FOUND.replace(bound=20.0).closed().termination is Termination.PROVEN
    reached = FOUND.closed()
    assert (reached.status, reached.termination, reached.message) == (OPTIMAL, Termination.GAP_REACHED, "")


@pytest.mark.parametrize("end", [Termination.TIME_LIMIT, Termination.INTERRUPTED, Termination.SOLVER_FAILURE])
def test_what_ends_a_search_is_said_with_and_without_a_plan(end):
    stopped, nothing = FOUND.ended_by(end), FOUND.replace(plan=None).ended_by(end)
    assert (stopped.status, stopped.message) == (FEASIBLE, end.sentence)
    assert (nothing.status, nothing.message) == (NO_SOLUTION, f"{end.sentence} before a plan was found")


def test_every_end_that_leaves_a_question_has_a_sentence():
    plain = {Termination.PROVEN, Termination.GAP_REACHED, Termination.INFEASIBLE, Termination.NOT_SOLVED}
    assert {end for end in Termination if not end.sentence} == plain


def test_the_summary_shows_the_plan_by_stage_with_its_memory():
    lines = FOUND.ended_by(Termination.TIME_LIMIT).summary().splitlines()
    assert lines == [
        "feasible (time limit), HIGHS, 1.25 s",
        "step time 20.000000 body-layer forwards",
        "proven bound 19.000000, gap 5.00e-02",
        "the time limit ended the search",
        "stage  body  recompute  peak MiB  limit MiB  free MiB",
        "    0   2+1        1+0       900      1,000       100",
        "    1   1+2        0+2     1,200      1,100      -100",
    ]


def test_a_solution_prints_its_summary_and_shows_it_in_a_notebook_escaped():
    solution = FOUND.replace(message="<none>")
    assert str(solution) == solution.summary()
    assert "<td>2+1</td>" in solution._repr_html_() and "&lt;none&gt;" in solution._repr_html_()


def test_a_summary_of_a_large_case_fits_a_page():
    text = solve(reference_problem(), SolveOptions(gap=1e-3)).summary()
    assert "bubble" in text and max(map(len, text.splitlines())) <= 100 and len(text.splitlines()) < 30


def test_a_summary_without_a_plan_says_why():
    text = solve(small_problem(limit_mib=(1.0, 1.0))).summary()
    assert text.startswith("infeasible, ") and "short by" in text


@pytest.mark.parametrize("wrong", [{"time_limit": -1.0}, {"time_limit": float("nan")}, {"gap": -1e-9}, {"workers": 0}])
def test_options_that_make_no_sense_are_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SolveOptions(**wrong)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_is_found_by_its_name_in_any_case_of_letters(name):
    assert solver_named(f" {name.lower()} ") is SOLVERS[name]
    assert solve(small_problem(), SolveOptions(solver=name.title())).status == OPTIMAL


def test_where_there_is_no_cbc_its_cure_is_named(monkeypatch):
    monkeypatch.setattr("taylor.pipeline_solver.milp.pyomo_solver.cbc_path", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match=r"HIGHS, HIGHS-MILP, .*or install it \(pip install 'pulp\[cbc\]'\)"):
        solve(small_problem(), SolveOptions(solver="CBC"))


def test_cbc_is_found_without_a_warning(recwarn):
    assert cbc_path() is not None and not recwarn.list
