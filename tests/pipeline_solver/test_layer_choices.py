"""Choices of a layer beside recompute: what they cost, what a plan with them must keep, and that none is forced."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.stage_pricing import stage_options
from taylor.pipeline_solver.check.checker import check, exact_host_memory, exact_peak_memory, exact_step_time
from taylor.pipeline_solver.columns.stage_runs import stage_runs
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerChoice
from taylor.pipeline_solver.model.solution import OVER_LIMIT, Termination
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.solving.exact import solve_exact
from taylor.pipeline_solver.solving.result import Result, problem_data
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from tests.solver_cases import plan_of, small_problem

OFFLOAD = LayerChoice(0.25, 0.5, 0.125, -6.0, host_mib=3.0, host_states_mib=6.0, link_time=0.5)


def with_offload(choice=OFFLOAD, **changes):
    """Two stages of two layers each (5 and 7 MiB static, 10 a layer and 4 a micro-batch), with a choice of offload."""
    problem = small_problem(**changes)
    (body,) = problem.kinds
    kind = replace(body, activation_mib={**body.activation_mib, "offload": 1.0}, choices={"offload": choice})
    return problem.replace(kinds=(kind,), choices=("offload",))


def test_a_choice_adds_to_the_forward_and_the_backward_and_leaves_states_and_activations_on_the_host():
    """f = 2 + 2·0.25 and b = 4 + 2·(0.5 + 0.125) on both stages; one micro-batch is alive on the last one."""
    problem, plan = with_offload(), plan_of({"body": [[2, 2]]}, {"offload": [[2, 2]]})
    assert exact_step_time(problem, plan) == 5 * (2.5 + 5.25)
    assert exact_peak_memory(problem, plan) == [5 + 2 * 4 + 2 * 2, 7 + 2 * 4 + 2]
    assert exact_host_memory(problem, plan) == [2 * 6 + 2 * 6, 2 * 6 + 6]
    assert check(problem, plan, 38.75) == []
    found = evaluate(problem, plan)
    assert (found.objective, found.peak_memory_mib) == (38.75, (17.0, 17.0))


def test_where_weight_gradients_are_tasks_a_choice_adds_to_them_alone_what_is_theirs():
    problem = with_offload(replace(OFFLOAD, forward=0.0, backward=0.0), schedule=ScheduleSpec("zbv"), interleaves=2)
    problem = problem.replace(kinds=(replace(problem.kinds[0], count=4),))
    plain = plan_of({"body": [[1, 1], [1, 1]]})
    plan = plan_of({"body": [[1, 1], [1, 1]]}, {"offload": [[1, 1], [1, 1]]})
    longer = exact_step_time(problem, plan) - exact_step_time(problem, plain)
    assert 0 < longer <= 0.125 * 2 * problem.micro_batches + 0.125 * 4
    assert evaluate(problem, plan).objective == float(exact_step_time(problem, plan))


def test_the_checker_tells_a_host_that_is_too_small_and_choices_in_another_order():
    problem = with_offload(host_limit_mib=(23.0, 100.0))
    plan = plan_of({"body": [[2, 2]]}, {"offload": [[2, 2]]})
    assert "keeps 24.000000 MiB on its host" in check(problem, plan)[0]
    told = evaluate(problem, plan)
    assert told.status == OVER_LIMIT and "stage 0 needs 24 MiB of the host" in told.message
    (kind,) = problem.kinds
    both = replace(
        kind,
        activation_mib={**kind.activation_mib, "other": 1.0},
        choices={**kind.choices, "other": LayerChoice()},
    )
    problem = problem.replace(kinds=(both,), choices=("other", "offload"))
    wrong = plan_of({"body": [[2, 2]]}, {"offload": [[1, 1]], "other": [[1, 1]]})
    assert "another order" in check(problem, wrong)[0]


@pytest.mark.parametrize(
    "listed",
    [
        lambda problem, stopper: stage_tuples(problem, 1000, stopper),
        lambda problem, stopper: stage_runs(problem, stopper),
        lambda problem, stopper: stage_options(problem, np.full(2, 1e6), stopper=stopper),
    ],
    ids=["layer tuples", "runs", "options"],
)
def test_choices_of_chunks_are_listed_no_longer_than_the_time_limit_allows(listed):
    listed(with_offload(), Stopper(None))
    with pytest.raises(OutOfTime):
        listed(with_offload(), Stopper(0.0))


@pytest.mark.parametrize(("solver", "interleaves"), [(solve_exact, 1), (branch_and_cut, 1), (branch_and_cut, 2)])
def test_without_time_to_list_choices_a_solve_gives_a_plan_with_a_bound(solver, interleaves):
    schedule = ScheduleSpec("interleaved" if interleaves > 1 else "1f1b")
    problem = with_offload(interleaves=interleaves, schedule=schedule, micro_batches=4)
    (body,) = problem.kinds
    problem = problem.replace(kinds=(replace(body, count=4),), limit_mib=(100.0, 100.0))
    for known in (None, plan_of({"body": [[2 // interleaves] * 2] * interleaves})):
        found = solver(problem, SolveOptions(time_limit=0.0), warm_start=known)
        assert found.termination is Termination.TIME_LIMIT and found.plan is not None
        assert 0 < found.bound <= found.objective


def test_offload_is_taken_where_recompute_costs_more_and_left_where_the_host_is_full():
    """Room for one micro-batch's activations less than the plan without recompute would keep."""
    cheap = LayerChoice(forward=0.125, host_mib=3.0)
    problem = with_offload(cheap, limit_mib=(5.0 + 20 + 12, 7.0 + 20 + 8))
    found = solve(problem)
    assert found.plan is not None and found.plan.recompute["offload"] == ((1, 0),)
    full = solve(problem.replace(host_limit_mib=(5.0, 5.0)))
    assert full.plan is not None and not full.plan.uses("offload") and full.plan.uses(FULL)
    assert found.objective < full.objective == solve(small_problem(limit_mib=problem.limit_mib)).objective


def test_a_result_with_choices_is_read_back_and_one_without_names_none_of_their_fields():
    problem = with_offload(host_limit_mib=(30.0, 30.0), limit_mib=(30.0, 30.0))
    solution = solve(problem)
    data = Result(problem, solution).to_dict()
    again = Result.from_dict(data)
    assert (again.problem, again.plan) == (problem, solution.plan) and again.plan.uses("offload")
    plain = problem_data(small_problem())
    assert not {"choices", "host_limit_mib"} & {*plain, *plain["kinds"][0]}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"choices": ("offload", "offload")}, "named once"),
        ({"choices": (FULL,)}, "named once"),
        ({"choices": ("of-f", "of.f")}, "differ in their letters"),
        ({"choices": ("absent",)}, "activation_mib lacks absent"),
        ({"host_limit_mib": (1.0,)}, "one entry a stage"),
        ({"host_limit_mib": (1.0, -1.0)}, "host_limit_mib must be >= 0"),
    ],
)
def test_choices_that_make_no_sense_are_refused_with_the_field_named(change, words):
    with pytest.raises(ValueError, match=words):
        with_offload().replace(**change)


def test_a_choice_that_frees_more_states_than_there_are_is_refused():
    with pytest.raises(ValueError, match="choice offload must have times and memory >= 0"):
        with_offload(LayerChoice(states_mib=-10.5))
    assert NONE not in with_offload().searched_modes
