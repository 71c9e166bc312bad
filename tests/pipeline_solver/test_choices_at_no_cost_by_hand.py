"""The problem in which choices cost nothing: how it is made, how long it is looked at and what it proves of all.

The layers are those of `scripted_choices`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL, Solution, Termination
from taylor.pipeline_solver.solving.recompute_cases import without_choices
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_BOUND, UNRESTRICTED_OBJECTIVE
from tests.pipeline_solver.scripted_choices import (
    FREE,
    INFINITE,
    NONE_FITS,
    OFFLOAD,
    OUT_OF_TIME,
    Choice,
    Clock,
    Scripted,
    counts,
    cut_off,
    proven,
    solved,
    stopped,
)
from tests.solver_cases import small_problem


def with_offload(**changes: Any) -> PipelineProblem:
    """Layers that may be offloaded, for which a forward takes half as long more."""
    cost = LayerChoice(forward=0.5)
    kind = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0, OFFLOAD: 0.5}, choices={OFFLOAD: cost})
    return small_problem(**{"kinds": (kind,), "choices": (OFFLOAD,), **changes})


def test_without_its_choices_a_layer_keeps_the_least_that_a_searched_choice_leaves() -> None:
    costs = {OFFLOAD: LayerChoice(forward=0.5, states_mib=-6.0), "more": LayerChoice(states_mib=2.0)}
    kept = {NONE: 4.0, FULL: 1.5, SELECT: 0.25, OFFLOAD: 3.0, "more": 2.0}
    body = LayerKind("body", 4, 1.0, 10.0, kept, choices=costs)
    last = LayerKind("mtp", 1, 2.0, 20.0, {**kept, NONE: 8.0}, pinned_last=True, choices=costs)
    problem = small_problem(
        kinds=(body, last),
        choices=(OFFLOAD, "more"),
        recompute_ratio={FULL: 1.0, SELECT: 0.1},
        unsearched=(SELECT,),
        host_limit_mib=(9.0, 9.0),
        fixed_recompute={(FULL, 0, 0): 1},
        uniform_recompute=counts(1),
    )
    least = without_choices(problem)
    assert least.kinds == (replace(body, layer_mib=4.0, activation_mib={NONE: 1.5}, choices={}), last)
    assert (least.choices, least.unsearched, least.uniform_recompute, least.host_limit_mib) == ((), (), (), ())
    assert (least.recompute_ratio, least.fixed_recompute) == ({}, {})
    assert (least.limit_mib, least.static_mib, least.layers) == (problem.limit_mib, problem.static_mib, 4)


def offloaded(run: Scripted, *further: Choice, **more: Any) -> Solution:
    return solved(run, ((FULL, 0), (OFFLOAD, 1), *further), problem=more.pop("problem", with_offload()), **more)


def test_a_plan_at_no_cost_that_is_as_good_with_the_rule_is_proven_without_a_choice(clock: Clock) -> None:
    """All of it fits with nothing recomputed: 30, to be beaten by half the gap. Turns begin as shares of a minute."""
    first = stopped(30.0, 20.0, end=OUT_OF_TIME, seconds=15.0)
    run = Scripted({FREE: [first, stopped(30.0, 28.5, end=OUT_OF_TIME)]}, clock)
    found = offloaded(run, limit=100.0)
    assert run.asked == [FREE, FREE]
    assert run.limits == pytest.approx([9.0, 0.85 * 45.0])
    assert run.cutoffs == pytest.approx([INFINITE, 28.5])
    assert run.problems[0].choices == () and run.problems[0].kinds[0].activation_mib == {NONE: 0.5}
    assert run.options[0].memory is run.options[1].memory is not None
    assert (found.status, found.objective, found.bound) == (OPTIMAL, 30.0, 28.5)
    assert UNRESTRICTED_BOUND not in found.statistics and UNRESTRICTED_OBJECTIVE not in found.statistics


def test_no_plan_at_no_cost_is_a_proof_for_all_choices() -> None:
    run = Scripted({FREE: NONE_FITS})
    assert offloaded(run).status == INFEASIBLE
    assert run.asked == [FREE]


def test_a_plan_at_no_cost_that_no_choice_comes_near_leaves_the_choices_to_be_tried(clock: Clock) -> None:
    """In 28 MiB neither stage holds two layers that keep anything: no choice makes a plan of it."""
    small = with_offload(limit_mib=(28.0, 28.0))
    free = stopped(30.0, 20.0, end=OUT_OF_TIME, seconds=15.0)
    run = Scripted({FREE: free, **{choice: NONE_FITS for choice in ((FULL, 0), (OFFLOAD, 1))}}, clock)
    run.answers["roomy", (OFFLOAD, 1)] = [proven(20.0)]
    offloaded(run, limit=100.0, problem=small)
    assert run.asked == [FREE, ("roomy", (OFFLOAD, 1)), (OFFLOAD, 1), (FULL, 0)]


def test_without_a_limit_the_problem_at_no_cost_is_looked_at_once() -> None:
    """A second look is worth it only where one begun is gone on with."""
    rest = {(FULL, 0): NONE_FITS, (OFFLOAD, 1): NONE_FITS, ("roomy", (OFFLOAD, 1)): proven(20.0)}
    run = Scripted({FREE: stopped(30.0, 20.0), **rest})
    found = offloaded(run)
    assert run.asked == [FREE, ("roomy", (OFFLOAD, 1)), (OFFLOAD, 1), (FULL, 0)]
    assert (found.objective, found.status) == (30.0, OPTIMAL)


def test_the_problem_at_no_cost_has_half_a_second_at_the_least(clock: Clock) -> None:
    run = Scripted({FREE: stopped(None, 20.0, seconds=2.0)}, clock)
    offloaded(run, limit=2.0)
    assert run.limits == [0.5]


def test_a_choice_beside_recompute_that_cannot_win_with_all_memory_is_proven_at_once() -> None:
    rest = {("roomy", (OFFLOAD, 1)): cut_off(34.0), (FULL, 0): proven(33.0)}
    run = Scripted({FREE: stopped(None, 20.0), **rest})
    found = offloaded(run, cutoff=34.0)
    assert run.asked == [FREE, ("roomy", (OFFLOAD, 1)), (FULL, 0)]
    assert (found.status, found.objective, found.bound) == (OPTIMAL, 33.0, 33.0)


def test_choices_that_are_proven_no_further_than_at_no_cost_go_on_with_that(clock: Clock) -> None:
    """Two bounds that say no more than that at no cost does are raised together, for half of what is left of a minute;
    one alone by its own turn."""
    free = [stopped(None, 20.0, end=OUT_OF_TIME, seconds=10.0), stopped(None, 28.5, end=OUT_OF_TIME, seconds=5.0)]
    rest = {(FULL, 0): stopped(30.0, 20.0), (OFFLOAD, 1): stopped(None, 20.0), ("roomy", (OFFLOAD, 1)): proven(20.0)}
    run = Scripted({FREE: free, **rest}, clock)
    found = offloaded(run, limit=100.0)
    assert run.asked == [FREE, ("roomy", (OFFLOAD, 1)), (OFFLOAD, 1), (FULL, 0), FREE]
    assert run.limits[-1] == pytest.approx(25.0)
    assert (found.status, found.bound) == (OPTIMAL, 28.5)
    rest[(OFFLOAD, 1)] = stopped(None, 21.0)
    run = Scripted({FREE: free, **rest, (FULL, 0): [stopped(30.0, 20.0), stopped(30.0, 30.0)]}, clock)
    run.answers[(OFFLOAD, 1)].append(stopped(None, 30.0))
    offloaded(run, limit=100.0)
    assert run.asked.count(FREE) == 1


@pytest.mark.parametrize(("reached", "looks"), [(28.4, 1), (28.5, 2)])
def test_a_plan_at_no_cost_that_a_choice_would_have_to_beat_is_looked_at_no_longer(
    reached: float, looks: int, clock: Clock
) -> None:
    """The plan with nothing recomputed takes 30, and 28.5 is to be beaten."""
    free = [stopped(reached, 20.0, end=OUT_OF_TIME), stopped(reached, 27.0, end=Termination.INTERRUPTED)]
    rest = {(FULL, 0): proven(30.0), (OFFLOAD, 1): NONE_FITS, ("roomy", (OFFLOAD, 1)): proven(20.0)}
    run = Scripted({FREE: free, **rest}, clock)
    offloaded(run, limit=100.0)
    assert run.asked.count(FREE) == looks


def test_a_problem_at_no_cost_that_is_solved_is_not_looked_at_again(clock: Clock) -> None:
    first = {(FULL, 0): [stopped(30.0, 26.0), stopped(30.0, 30.0)], (OFFLOAD, 1): [stopped(None, 26.0), NONE_FITS]}
    run = Scripted({FREE: proven(26.0), **first, ("roomy", (OFFLOAD, 1)): proven(20.0)}, clock)
    found = offloaded(run, limit=100.0)
    assert run.asked.count(FREE) == 1
    assert (found.status, found.objective, found.bound) == (OPTIMAL, 30.0, 30.0)


def test_an_interrupt_at_no_cost_ends_the_search() -> None:
    run = Scripted({FREE: stopped(30.0, 20.0, end=Termination.INTERRUPTED)})
    found = offloaded(run)
    assert run.asked == [FREE]
    assert (found.objective, found.bound, found.termination) == (30.0, 20.0, Termination.INTERRUPTED)


def test_at_no_cost_the_bound_is_told_and_no_step_time_but_that_of_a_plan_at_hand() -> None:
    first = stopped(30.0, 20.0, end=OUT_OF_TIME, told=(11.0, 9.0))
    second = stopped(30.0, 29.0, end=OUT_OF_TIME, told=(12.0, 15.0))
    told: list[Progress] = []
    offloaded(Scripted({FREE: [first, second]}), limit=50.0, on_progress=told.append)
    assert [(each.objective, each.bound) for each in told] == [(None, 9.0), (30.0, 20.0)]
    nothing: list[Progress] = []
    offloaded(Scripted({FREE: replace(NONE_FITS, told=(None, None))}), on_progress=nothing.append)
    assert [(each.objective, each.bound) for each in nothing] == [(None, None)]
