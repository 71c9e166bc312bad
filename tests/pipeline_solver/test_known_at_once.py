"""What a problem that is solved case by case knows before its first case: a plan that keeps the rule, and a bound."""

from __future__ import annotations

import pytest

from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.heuristics.uniform_plans import first_plan
from taylor.pipeline_solver.milp.compact_milp import solve_compact
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.places import placements
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, OPTIMAL, Solution
from taylor.pipeline_solver.model.solver import Solver
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.model.uniform_rule import uniform_choice
from taylor.pipeline_solver.solving import solve as solve_module
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from tests.pipeline_solver.test_uniform_recompute import uniform_problems
from tests.solver_cases import small_problem

ANY = tuple((FULL, most) for most in range(5))


def tight(**changes: object) -> PipelineProblem:
    """Two stages of which the first holds four micro-batches at the most: 5 + 20 + 4 · 2 · 4 MiB with no recompute."""
    return small_problem(limit_mib=(45.0, 45.0), uniform_recompute=ANY, **changes)


def reports(problem: PipelineProblem, **options: object) -> list[Progress]:
    heard: list[Progress] = []
    solve(problem, SolveOptions(**options), on_progress=heard.append)  # type: ignore[arg-type]
    return heard


@pytest.mark.slow
def test_a_first_plan_is_met_where_there_is_one_keeps_the_rule_and_is_never_better_than_the_optimum() -> None:
    met = 0
    for problem, truth in uniform_problems(900, 25):
        found = first_plan(problem, 0, Stopper(None))
        if truth.plan is None:
            assert found is None
            continue
        assert least_step_time(problem) <= truth.objective * (1 + 1e-9)
        assert found is not None and found.plan is not None and found.objective is not None
        assert check(problem, found.plan, found.objective) == [] and uniform_choice(problem, found.plan) is not None
        assert found.objective >= truth.objective * (1 - 1e-9)
        met += 1
    assert met >= 15


def test_the_first_report_has_the_even_plan_with_the_least_count_that_fits() -> None:
    first = reports(tight())[0]
    least = next(
        plan
        for most in range(3)
        if not check(tight(), plan := PipelinePlan({"body": ((2, 2),)}, {FULL: ((most, most),)}))
    )
    assert first.objective == pytest.approx(step_time(tight(), least)) and first.note == "first plan"
    assert first.bound == pytest.approx(least_step_time(tight()))


def test_where_no_even_plan_fits_a_walk_meets_one() -> None:
    """The last stage has room for one layer alone."""
    problem = tight().replace(limit_mib=(100.0, 7.0 + 10.0 + 1.0))
    found = first_plan(problem, 0, Stopper(None))
    assert found is not None and found.plan is not None and found.plan.layers["body"] == ((3, 1),)
    assert check(problem, found.plan, found.objective) == []


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_with_no_time_there_is_a_plan_and_a_bound(solver: str) -> None:
    found = solve(tight(), SolveOptions(solver=solver, time_limit=1e-3))
    assert found.status in (FEASIBLE, OPTIMAL) and found.plan is not None
    assert found.bound is not None and found.bound >= least_step_time(tight())


@pytest.mark.parametrize(
    ("bound", "objective", "floor", "limited", "expected"),
    [
        (24.0, 30.0, 25.5, False, 25.5),
        (26.0, 30.0, 25.5, False, 26.0),
        (None, 25.0, 25.5, False, 25.0),
        (24.0, None, 25.5, True, 25.5),
        (None, None, 0.0, False, None),
        (None, 30.0, 0.0, True, least_step_time(tight())),
    ],
)
def test_the_least_step_time_raises_a_lower_bound(
    bound: float | None, objective: float | None, floor: float, limited: bool, expected: float | None
) -> None:
    found = solve_module._bounded(tight(), Solution(FEASIBLE, objective=objective, bound=bound), floor, limited)
    assert found.bound == pytest.approx(expected)


def test_no_plan_is_told_of_where_none_fits_and_the_proof_stands() -> None:
    problem = tight().replace(limit_mib=(100.0, 7.0))
    assert {one.objective for one in reports(problem)} == {None}
    assert solve(problem).status is INFEASIBLE


def test_a_kind_with_places_is_bounded_from_the_first_report() -> None:
    """What all work asks for holds wherever the kind lies."""
    mtp = LayerKind("mtp", 1, 1.5, 5.0, {NONE: 4.0, FULL: 1.0}, pinned_last=True, places=(0, 1))
    problem = small_problem()
    problem = problem.replace(kinds=(*problem.kinds, mtp))
    heard = reports(problem)
    assert heard[0].bound == pytest.approx(least_step_time(problem))
    best = solve(problem)
    assert all(one.bound is not None and one.bound <= (best.objective or 0.0) * (1 + 1e-9) for one in heard)


@pytest.mark.parametrize("solver", [branch_and_cut, solve_compact])
def test_the_first_report_of_a_solver_bounds_the_step_by_its_work(solver: Solver) -> None:
    """Whatever is told around it."""
    heard: list[Progress] = []
    solver(small_problem(), SolveOptions(), warm_start=None, on_progress=heard.append)
    assert heard[0].bound is not None and heard[0].bound >= least_step_time(small_problem()) > 0.0


def test_a_first_plan_is_looked_for_in_every_place_of_a_kind_until_one_is_met() -> None:
    """The last stage has no room for the kind, and may be empty where it lies on the second."""
    mtp = LayerKind("mtp", 1, 1.0, 30.0, {NONE: 4.0, FULL: 1.0}, pinned_last=True, places=(1, 2))
    problem = small_problem(
        stages=3,
        static_mib=(5.0, 5.0, 7.0),
        limit_mib=(200.0, 200.0, 20.0),
        uniform_recompute=ANY,
        entries_alone=True,
    )
    problem = problem.replace(kinds=(*problem.kinds, mtp))
    assert [first_plan(one, 0, Stopper(None)) is not None for one in placements(problem)] == [False, True]
    assert reports(problem)[0].objective is not None
