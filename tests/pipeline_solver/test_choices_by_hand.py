"""What becomes of the answers that a solver gives under each recompute choice, the answers written down here.

The layers, and how long a step takes with them, are those of `scripted_choices`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.heuristics.uniform_plans import better_of_two
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    MILP_ROUNDS,
    NO_SOLUTION,
    OPTIMAL,
    RANGED_ROUNDS,
    Solution,
    Status,
    Termination,
)
from taylor.pipeline_solver.model.uniform_rule import distinct_choices, uniform_choice
from taylor.pipeline_solver.solving import recompute_cases as rule
from taylor.pipeline_solver.solving.uniform_recompute import (
    UNRESTRICTED_BOUND,
    UNRESTRICTED_OBJECTIVE,
    solve_uniform,
)
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from tests.pipeline_solver import scripted_choices
from tests.pipeline_solver.scripted_choices import (
    FREE,
    GAP,
    INFINITE,
    NONE_FITS,
    Answer,
    Choice,
    Clock,
    Scripted,
    counts,
    cut_off,
    even,
    proven,
    solved,
    stopped,
    uneven,
)
from tests.solver_cases import plan_of, small_problem


def selective(**changes: Any) -> PipelineProblem:
    """Selective recompute too, for a tenth of a forward."""
    kind = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0, SELECT: 2.0})
    return small_problem(**{"kinds": (kind,), "recompute_ratio": {FULL: 1.0, SELECT: 0.1}, **changes})


# The choice that a plan keeps.


@pytest.mark.parametrize(
    ("layers", "recompute", "choice"),
    [
        ({"body": [[3, 1]]}, {}, 0),
        ({"body": [[3, 1]]}, {FULL: [[0, 0]]}, 0),
        ({"body": [[3, 1]]}, {FULL: [[1, 1]]}, 1),
        ({"body": [[3, 1]]}, {FULL: [[3, 1]]}, 2),
        ({"body": [[3, 1]]}, {FULL: [[2, 1]]}, None),
        ({"body": [[3, 1]]}, {FULL: [[1, 0]]}, None),
        ({"body": [[3, 1]]}, {FULL: [[0, 1]]}, None),
        ({"body": [[3, 1]]}, {FULL: [[1, 1]], SELECT: [[0, 0]]}, 1),
        ({"body": [[3, 1]]}, {FULL: [[1, 1]], SELECT: [[1, 0]]}, None),
        ({"body": [[3, 1]]}, {SELECT: [[2, 1]]}, 3),
        ({"body": [[3, 1]]}, {SELECT: [[1, 1]]}, None),
        ({"body": [[3, 1]]}, {SELECT: [[2, 1]], FULL: [[0, 0]]}, 3),
        # Two interleaves.
        ({"body": [[1, 1], [1, 1]]}, {FULL: [[1, 1], [1, 1]]}, 1),
        ({"body": [[1, 1], [1, 1]]}, {FULL: [[1, 1], [1, 0]]}, None),
        ({"body": [[1, 1], [2, 0]]}, {SELECT: [[1, 1], [2, 0]]}, 3),
        # A pinned layer is none that could be recomputed.
        ({"body": [[2, 2]], "mtp": [[0, 1]]}, {FULL: [[2, 2]]}, 2),
        ({"body": [[3, 1]], "mtp": [[0, 1]]}, {SELECT: [[2, 2]]}, None),
        ({"mtp": [[0, 1]]}, {FULL: [[0, 0]]}, 0),
    ],
)
def test_a_plan_keeps_the_choice_whose_count_every_chunk_has(
    layers: dict[str, list[list[int]]], recompute: dict[str, list[list[int]]], choice: int | None
) -> None:
    body = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0, SELECT: 2.0})
    last = LayerKind("mtp", 1, 2.0, 20.0, {NONE: 6.0, FULL: 6.0, SELECT: 6.0}, pinned_last=True)
    asked = (*counts(0, 1, 3), (SELECT, 2))
    problem = selective(
        kinds=(body, last), uniform_recompute=asked, interleaves=len(layers["mtp" if "mtp" in layers else "body"])
    )
    assert uniform_choice(problem, plan_of(layers, recompute)) == choice


# The problem without the rule.


def test_what_no_plan_at_all_fits_no_choice_does() -> None:
    run = Scripted({FREE: NONE_FITS})
    found = solved(run)
    assert run.asked == [FREE]
    assert (found.status, found.statistics) == (INFEASIBLE, {UNRESTRICTED_BOUND: 0.0})


def test_a_proven_plan_that_keeps_the_rule_by_itself_is_the_end() -> None:
    run = Scripted({FREE: proven(30.0)})
    found = solved(run)
    assert run.asked == [FREE]
    assert (found.status, found.objective, found.plan) == (OPTIMAL, 30.0, even())
    assert found.statistics == {UNRESTRICTED_BOUND: 30.0, UNRESTRICTED_OBJECTIVE: 30.0}


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_plan_that_is_not_proven_or_breaks_the_rule_is_not(one_by_one: bool) -> None:
    rest = {choice: cut_off(99.0) for choice in [*counts(0, 1, 2), counts(0, 1, 2)]}
    roomy = {("roomy", choice): cut_off(99.0) for choice in counts(1, 2)}
    for free in (stopped(30.0, 20.0), proven(28.0, uneven(1))):
        run = Scripted({FREE: free, **rest, **roomy})
        solved(run, one_by_one=one_by_one)
        assert len(run.asked) > 1


def test_the_plan_without_the_rule_is_brought_to_the_choice_that_makes_it_shortest_and_fits() -> None:
    """The first stage has room for 5 + 20 + twice what it keeps: all of 8 MiB, or one or two layers recomputed."""
    for limit, plan, objective in (
        (41.0, even(0), 30.0),
        (40.9, even(1), 35.0),
        (35.0, even(1), 35.0),
        (34.9, even(2), 40.0),
    ):
        run = Scripted({FREE: stopped(30.5, 10.0, uneven(1)), **{choice: NONE_FITS for choice in counts(0, 1, 2)}})
        found = solved(run, counts(2, 1, 0), problem=small_problem(limit_mib=(limit, 100.0)))
        assert (found.plan, found.objective) == (plan, objective)
        assert found.solver == "it"
    # A byte is no matter, two are: decimal figures of a profile are not exact.
    for off, objective in ((0.9e-6, 30.0), (1.1e-6, 35.0)):
        run = Scripted({FREE: stopped(30.5, 10.0, uneven(1)), **{choice: NONE_FITS for choice in counts(0, 1, 2)}})
        found = solved(run, problem=small_problem(limit_mib=(41.0 - off, 100.0)))
        assert found.objective == objective


def test_of_two_ways_of_recompute_the_shorter_one_is_taken_whichever_comes_first() -> None:
    """With 41 - 1 MiB one layer full or two selectively fit: 35 and 31."""
    for choices in (((FULL, 1), (SELECT, 2)), ((SELECT, 2), (FULL, 1)), ((SELECT, 1), (SELECT, 2), (FULL, 2))):
        rest = {choice: NONE_FITS for choice in choices}
        run = Scripted({FREE: stopped(30.5, 10.0, uneven(1)), **rest})
        found = solved(run, choices, problem=selective(limit_mib=(36.0, 100.0)))
        assert found.objective == pytest.approx(5 * (2 + 4 + 0.2))
        assert found.plan == plan_of({"body": [[2, 2]]}, {FULL: [[0, 0]], SELECT: [[2, 2]]})


def test_a_known_plan_that_keeps_the_rule_counts_from_the_beginning() -> None:
    run = Scripted({FREE: stopped(None, 10.0), **{choice: NONE_FITS for choice in counts(0, 1, 2)}})
    found = solved(run, warm_start=even(1))
    assert run.starts == [even(1), None, even(1), None]
    assert run.cutoffs == pytest.approx([INFINITE, 33.25, 33.25, 33.25])
    assert (found.objective, found.plan) == (35.0, even(1))
    breaking = Scripted({FREE: stopped(None, 10.0), **{choice: NONE_FITS for choice in counts(0, 1, 2)}})
    assert solved(breaking, warm_start=uneven(1)).status == INFEASIBLE
    assert breaking.cutoffs == [INFINITE] * 4


def test_what_nothing_without_the_rule_beats_nothing_beats_with_it(clock: Clock) -> None:
    run = Scripted({FREE: cut_off(25.0, seconds=3.0)}, clock)
    found = solved(run, cutoff=25.0)
    assert run.asked == [FREE]
    assert (found.status, found.termination, found.bound) == (Status.CUT_OFF, Termination.CUT_OFF, 25.0)
    assert (found.plan, found.solver, found.seconds) == (None, "it", 3.0)
    assert found.statistics == {UNRESTRICTED_BOUND: 25.0}
    known = solved(Scripted({FREE: cut_off(25.0)}), cutoff=25.0, warm_start=even(2))
    assert (known.status, known.bound, known.objective, known.plan) == (Status.CUT_OFF, 25.0, 40.0, even(2))


def test_a_solver_that_takes_all_choices_at_once_is_asked_for_them_in_all_the_time_that_is_left(clock: Clock) -> None:
    choices = counts(0, 1, 2)
    for bound, whole in ((20.0, 22.0), (24.0, 24.0), (None, None)):
        run = Scripted({FREE: stopped(31.0, 22.0, uneven(1), seconds=10.0), choices: stopped(35.0, bound)}, clock)
        found = solved(run, limit=100.0, one_by_one=False, warm_start=even(1))
        assert run.asked == [FREE, choices]
        assert run.limits == pytest.approx([9.0, 90.0])
        assert run.starts == [even(1), even(1)]
        assert (found.objective, found.bound) == (35.0, whole)
        assert found.statistics == {UNRESTRICTED_BOUND: 22.0, UNRESTRICTED_OBJECTIVE: 31.0}


@pytest.mark.parametrize("one_by_one", [True, False])
def test_an_interrupt_without_the_rule_leaves_the_choices_alone(one_by_one: bool) -> None:
    run = Scripted({FREE: stopped(30.5, 10.0, uneven(1), Termination.INTERRUPTED)})
    found = solved(run, one_by_one=one_by_one)
    assert run.asked == [FREE]
    assert (found.objective, found.bound, found.termination) == (30.0, 10.0, Termination.INTERRUPTED)


# One choice after the other.


def test_each_choice_must_beat_the_best_so_far_by_half_the_gap() -> None:
    answers = {FREE: stopped(None, 5.0), (FULL, 0): NONE_FITS, (FULL, 1): proven(35.0, even(1))}
    run = Scripted({**answers, (FULL, 2): stopped(40.0, 34.0)})
    found = solved(run)
    assert run.asked == [FREE, *counts(0, 1, 2)]
    assert run.cutoffs == pytest.approx([INFINITE, INFINITE, INFINITE, 35.0 * 0.95])
    assert (found.status, found.objective, found.bound, found.plan) == (OPTIMAL, 35.0, 34.0, even(1))
    assert found.termination is Termination.GAP_REACHED
    assert found.statistics == {UNRESTRICTED_BOUND: 5.0, UNRESTRICTED_OBJECTIVE: 35.0}


def test_a_step_time_to_beat_that_is_less_holds_for_every_choice() -> None:
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 0): NONE_FITS, (FULL, 1): proven(35.0), (FULL, 2): NONE_FITS})
    solved(run, cutoff=25.0)
    assert run.cutoffs == [25.0] * 4


def test_a_later_choice_of_the_same_step_time_leaves_the_first_plan_and_a_shorter_one_does_not() -> None:
    answers = {FREE: stopped(None, 5.0), (FULL, 0): NONE_FITS, (FULL, 1): proven(35.0, even(1))}
    assert solved(Scripted({**answers, (FULL, 2): proven(35.0, even(2))})).plan == even(1)
    assert solved(Scripted({**answers, (FULL, 2): proven(34.9, even(2))})).plan == even(2)


def test_the_bound_is_the_least_of_all_choices_and_none_is_below_that_without_the_rule() -> None:
    for floor, second, bound in ((5.0, 33.0, 33.0), (33.6, 33.0, 33.6), (5.0, 60.0, 35.0)):
        answers = {FREE: stopped(None, floor), (FULL, 0): NONE_FITS, (FULL, 1): proven(35.0)}
        found = solved(Scripted({**answers, (FULL, 2): stopped(None, second)}))
        assert (found.status, found.objective, found.bound) == (OPTIMAL, 35.0, bound)


def test_no_choice_that_fits_is_a_proof_that_there_is_no_plan_and_one_that_is_open_is_none(clock: Clock) -> None:
    none = {FREE: stopped(None, 7.0, seconds=1.0), (FULL, 0): NONE_FITS, (FULL, 1): NONE_FITS}
    found = solved(Scripted({**none, (FULL, 2): NONE_FITS}, clock))
    assert (found.status, found.termination, found.plan) == (INFEASIBLE, Termination.INFEASIBLE, None)
    assert (found.solver, found.seconds, found.statistics) == ("it", 1.0, {UNRESTRICTED_BOUND: 7.0})
    found = solved(Scripted({**none, (FULL, 2): stopped(None, 9.0)}, clock))
    assert (found.status, found.termination, found.bound) == (NO_SOLUTION, Termination.STALLED, 7.0)


def test_choices_that_cannot_win_may_have_plans_all_the_same() -> None:
    """What was to be beaten cut them off: that is no proof that there is no plan."""
    answers = {FREE: stopped(None, 7.0), (FULL, 0): cut_off(20.0), (FULL, 1): NONE_FITS, (FULL, 2): NONE_FITS}
    found = solved(Scripted(answers), cutoff=20.0)
    assert (found.status, found.termination, found.bound) == (Status.CUT_OFF, Termination.CUT_OFF, 20.0)


def test_an_interrupted_choice_ends_the_search_and_says_so_of_a_proof_too() -> None:
    answers = {FREE: stopped(None, 5.0), (FULL, 0): NONE_FITS, (FULL, 2): NONE_FITS}
    run = Scripted({**answers, (FULL, 1): stopped(35.0, 20.0, end=Termination.INTERRUPTED)})
    found = solved(run)
    assert run.asked == [FREE, *counts(0, 1)]
    # The third choice was not looked at.
    assert (found.status, found.bound, found.termination) == (FEASIBLE, 5.0, Termination.INTERRUPTED)
    last = {**answers, (FULL, 1): NONE_FITS, (FULL, 2): stopped(35.0, 35.0, end=Termination.INTERRUPTED)}
    found = solved(Scripted(last))
    assert (found.status, found.bound, found.termination) == (OPTIMAL, 35.0, Termination.INTERRUPTED)


@pytest.mark.parametrize(("to_beat", "end"), [(30.0, Termination.CUT_OFF), (30.1, Termination.STALLED)])
def test_a_bound_that_reaches_what_was_to_be_beaten_cuts_the_whole_off(to_beat: float, end: Termination) -> None:
    answers = {FREE: stopped(None, 5.0), (FULL, 0): NONE_FITS, (FULL, 1): stopped(35.0, 30.0)}
    found = solved(Scripted({**answers, (FULL, 2): NONE_FITS}), cutoff=to_beat)
    assert (found.termination, found.bound, found.objective) == (end, 30.0, 35.0)


def test_a_plan_of_another_choice_is_no_start_and_one_of_the_same_is() -> None:
    answers = {FREE: stopped(None, 5.0), (FULL, 1): stopped(35.0, 9.0, even(2)), (FULL, 2): stopped(None, 9.0)}
    run = Scripted(answers)
    solved(run, counts(1, 2))
    assert run.asked[:3] == [FREE, (FULL, 1), (FULL, 2)]
    assert run.starts[:3] == [None, None, even(2)]


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        (35.0, [(FULL, 2), (SELECT, 3)]),  # to be beaten: 33.25, in which no stage runs three layers
        (38.0, [(FULL, 2), (FULL, 3), (SELECT, 3)]),  # 36.1, in which it does
        (None, [(FULL, 2), (FULL, 3), (SELECT, 3)]),
    ],
)
def test_counts_beyond_the_layers_that_a_winning_stage_has_room_for_are_one_choice(
    first: float | None, asked: list[Choice]
) -> None:
    choices = ((FULL, 2), (FULL, 3), (SELECT, 3))
    answers = {choice: NONE_FITS for choice in choices}
    answers[(FULL, 2)] = NONE_FITS if first is None else proven(first, even(2))
    run = Scripted({FREE: stopped(None, 5.0), **answers})
    solved(run, choices, problem=selective())
    assert run.asked == [FREE, *asked]


def test_fewer_layers_than_a_winning_stage_has_room_for_are_another_choice() -> None:
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 1): proven(35.0, even(1)), (FULL, 2): NONE_FITS})
    solved(run, counts(1, 2))
    assert run.asked == [FREE, *counts(1, 2)]


def test_a_count_that_cannot_win_with_all_memory_ends_its_mode_and_no_other() -> None:
    choices = (*counts(1, 2, 3), (SELECT, 2))
    rest = {choice: NONE_FITS for choice in choices}
    run = Scripted({FREE: stopped(None, 5.0), **rest, (FULL, 1): cut_off(25.0), ("roomy", (FULL, 1)): cut_off(25.0)})
    solved(run, choices, cutoff=25.0, problem=selective(host_limit_mib=(7.0, 7.0)))
    assert run.asked == [FREE, (FULL, 1), ("roomy", (FULL, 1)), (SELECT, 2)]
    roomy, options = run.problems[2], run.options[2]
    assert roomy.host_limit_mib == () and len(roomy.limit_mib) == 2 and min(roomy.limit_mib) >= 1e12
    assert options.memory is None and options.time_limit == 1.0 and run.cutoffs[2] == 25.0


@pytest.mark.parametrize(
    ("roomy", "goes_on"),
    [
        (stopped(None, 10.0), True),
        (proven(24.0), True),
        (cut_off(25.0), False),
        (cut_off(25.0, told=(24.9, 1.0)), True),
        (cut_off(25.0, told=(25.0, 1.0)), False),
        (cut_off(25.0, told=(None, 1.0)), False),
    ],
)
def test_a_count_that_could_win_with_more_memory_does_not_end_its_mode(roomy: Answer, goes_on: bool) -> None:
    answers = {FREE: stopped(None, 5.0), (FULL, 1): cut_off(25.0), (FULL, 2): NONE_FITS}
    run = Scripted({**answers, ("roomy", (FULL, 1)): roomy})
    solved(run, counts(1, 2), cutoff=25.0)
    assert run.asked == [FREE, (FULL, 1), ("roomy", (FULL, 1)), *([(FULL, 2)] if goes_on else [])]


@pytest.mark.parametrize(
    ("choice", "answer"), [((FULL, 0), cut_off(25.0)), ((FULL, 1), NONE_FITS), ((FULL, 1), stopped(None, 9.0))]
)
def test_with_all_memory_only_a_recompute_that_was_cut_off_is_looked_at(choice: Choice, answer: Answer) -> None:
    run = Scripted({FREE: stopped(None, 5.0), choice: answer, (FULL, 2): NONE_FITS})
    solved(run, (choice, (FULL, 2)), cutoff=25.0)
    assert run.asked[:3] == [FREE, choice, (FULL, 2)]


def test_an_interrupt_with_all_memory_ends_the_search() -> None:
    roomy = stopped(None, 5.0, end=Termination.INTERRUPTED)
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 1): cut_off(25.0), ("roomy", (FULL, 1)): roomy})
    found = solved(run, counts(1, 2), cutoff=25.0)
    assert (len(run.asked), found.termination, found.bound) == (3, Termination.INTERRUPTED, 5.0)


@pytest.mark.parametrize(("free", "told"), [(28.0, 28.0), (30.5, 30.0)])
def test_without_the_rule_there_is_what_there_is_with_it(free: float, told: float) -> None:
    rest = {choice: NONE_FITS for choice in counts(1, 2)}
    run = Scripted({FREE: stopped(free, 20.0, uneven(1)), (FULL, 0): proven(30.0), **rest})
    assert solved(run).statistics[UNRESTRICTED_OBJECTIVE] == told


def test_the_cuts_of_one_choice_of_several_are_not_all_that_is_needed_and_other_figures_keep_their_names() -> None:
    figures = {"nodes": 7.0, MILP_ROUNDS: 3.0}
    best = proven(35.0, even(1))
    counted = replace(best, solution=best.solution.replace(statistics=figures))
    for choices, name in ((counts(1), MILP_ROUNDS), (counts(1, 2), RANGED_ROUNDS)):
        found = solved(Scripted({FREE: stopped(None, 5.0), (FULL, 1): counted, (FULL, 2): NONE_FITS}), choices)
        assert {key: found.statistics[key] for key in ("nodes", name)} == {"nodes": 7.0, name: 3.0}
        assert len({MILP_ROUNDS, RANGED_ROUNDS} & found.statistics.keys()) == 1


# The choices that are left open have further turns.


def test_of_few_chunks_the_choice_nearest_to_its_proof_has_the_next_turn() -> None:
    """The MILP begins anew each time; without a limit a turn that raises no bound is the last."""
    answers = {
        FREE: stopped(None, 5.0),
        (FULL, 0): stopped(30.0, 10.0),
        (FULL, 1): [stopped(None, 12.0), stopped(None, 13.0)],
    }
    run = Scripted(answers)
    found = solved(run, counts(0, 1))
    assert run.asked == [FREE, (FULL, 0), (FULL, 1), (FULL, 1), (FULL, 0)]
    assert run.limits == [None] * 5
    assert (found.status, found.termination, found.bound) == (FEASIBLE, Termination.STALLED, 10.0)


def many_chunks() -> PipelineProblem:
    """Twenty-six chunks, too many for the MILP to go on with."""
    return small_problem(
        interleaves=13,
        schedule=ScheduleSpec("interleaved"),
        kinds=(LayerKind("body", 52, 1.0, 1.0, {NONE: 0.1, FULL: 0.1}),),
    )


BROAD = plan_of({"body": [[2, 2]] * 13}, {FULL: [[0, 0]] * 13})


def two_kinds(**changes: Any) -> PipelineProblem:
    """Two layers of one kind and two of another, so that counts alone don't tell all."""
    kinds = (
        LayerKind("body", 2, 1.0, 10.0, {NONE: 4.0, FULL: 1.0}),
        LayerKind("last", 2, 1.0, 10.0, {NONE: 3.0, FULL: 1.0}),
    )
    return small_problem(**{"kinds": kinds, **changes})


def test_of_many_chunks_the_choice_of_the_least_bound_has_the_next_turn() -> None:
    first = [stopped(900.0, 10.0, BROAD), stopped(900.0, 14.0, BROAD), stopped(900.0, 13.0, BROAD)]
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 0): first, (FULL, 1): [stopped(None, 12.0), stopped(None, 15.0)]})
    found = solved(run, counts(0, 1), problem=many_chunks())
    assert run.asked == [FREE, (FULL, 0), (FULL, 1), (FULL, 0), (FULL, 1), (FULL, 0)]
    # What was proven once stays proven.
    assert (found.bound, found.termination) == (14.0, Termination.STALLED)


def test_further_turns_go_on_with_what_the_first_has_left_to_the_choice() -> None:
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 0): stopped(900.0, 10.0, BROAD), (FULL, 1): stopped(None, 12.0)})
    solved(run, counts(0, 1), problem=many_chunks())
    memories = [options.memory for options in run.options]
    assert memories[1] is memories[3] and memories[1] is not memories[2] and memories[0] is not memories[1]
    assert memories[1] is not None and memories[1].bound == 5.0


def test_what_reaches_the_best_plan_by_half_the_gap_is_not_pending() -> None:
    """To be beaten: 28.5. The other choice is proven, and the bound of the first is what is asked no more of."""
    first = [stopped(30.0, 20.0), stopped(30.0, 28.5)]
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 0): first, (FULL, 1): stopped(None, 28.5)})
    found = solved(run, counts(0, 1))
    assert run.asked == [FREE, (FULL, 0), (FULL, 1), (FULL, 0)]
    assert (found.status, found.bound) == (OPTIMAL, 28.5)


def test_the_time_is_shared_as_turns_are(clock: Clock) -> None:
    """Of 100 seconds 90 are left. First turns are shares of a minute, one takes 6; when 40 are gone all 90 are reckoned
    with, and half of what half of them leaves is for the next one."""
    choices = (*counts(1, 2), (SELECT, 2))
    answers = {
        FREE: stopped(None, 5.0, seconds=10.0),
        (FULL, 1): stopped(None, 9.0, seconds=40.0),
        (FULL, 2): stopped(None, 8.0, seconds=1.0),
        (SELECT, 2): [stopped(None, 7.0, seconds=1.0), stopped(None, 7.0, seconds=8.0)],
    }
    run = Scripted(answers, clock)
    found = solved(run, choices, limit=100.0, problem=selective())
    assert run.asked[:5] == [FREE, (FULL, 1), (FULL, 2), (SELECT, 2), (FULL, 1)]
    assert run.limits[:5] == pytest.approx([3.0, 6.0, 2.5, 4.0, 24.0])
    assert clock.now >= 1100.0
    assert (found.status, found.termination, found.bound) == (NO_SOLUTION, Termination.TIME_LIMIT, 5.0)


def test_under_a_time_limit_all_choices_are_brought_near_before_one_is_brought_to_the_end(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later turns leave a little open; with no choice open by more, they ask for the rest."""
    monkeypatch.setattr(scripted_choices, "GAP", 1e-6)
    near = 30.0 * (1.0 - DEFAULT_PARAMS.solving.near)
    answers = {
        FREE: stopped(None, 5.0, seconds=1.0),
        (FULL, 0): [stopped(30.0, 10.0, seconds=1.0), cut_off(near, seconds=1.0), cut_off(30.0, seconds=1.0)],
        (FULL, 1): [stopped(None, 20.0, seconds=1.0), cut_off(near, seconds=1.0), cut_off(30.0, seconds=1.0)],
    }
    run = Scripted(answers, clock)
    found = solved(run, counts(0, 1), limit=100.0)
    # The first turns ask for all; of few chunks the choice nearest to its proof comes first.
    assert run.asked == [FREE, (FULL, 0), (FULL, 1), (FULL, 1), (FULL, 0), (FULL, 0), (FULL, 1)]
    assert run.cutoffs[2:] == pytest.approx([30.0, near, near, 30.0, 30.0], rel=1e-6)
    assert (found.status, found.bound) == (OPTIMAL, 30.0)


def test_a_tree_that_was_cut_off_nearer_does_not_go_on_with_what_is_open_beyond(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes beyond are gone: only what was proven stays. One that was cut off farther may go on."""
    monkeypatch.setattr(scripted_choices, "GAP", 1e-6)

    class Leaving(Scripted):
        """Leaves a tree each time."""

        def __call__(self, *problem: Any, **how: Any) -> Any:
            memory = problem[1].memory
            stood.append(memory.tree is not None)
            found = super().__call__(*problem, **how)
            memory.tree = object()
            return found

    stood: list[bool] = []
    one = [stopped(30.0, 10.0, seconds=1.0), stopped(None, 29.9, seconds=1.0), cut_off(30.0, seconds=1.0)]
    answers = {FREE: stopped(None, 5.0, seconds=1.0), (FULL, 0): one, (FULL, 1): stopped(None, 30.0, seconds=1.0)}
    run = Leaving(answers, clock)
    found = solved(run, counts(0, 1), limit=100.0)
    turns = [
        (tree, cutoff) for key, tree, cutoff in zip(run.asked, stood, run.cutoffs, strict=True) if key == (FULL, 0)
    ]
    assert [tree for tree, _ in turns] == [False, True, False]
    assert [cutoff for _, cutoff in turns[1:]] == pytest.approx(
        [30.0 * (1.0 - DEFAULT_PARAMS.solving.near), 30.0], rel=1e-6
    )
    assert found.bound == 30.0


@pytest.mark.parametrize(("limit", "bound"), [(None, 10.0), (100.0, 29.9)])
def test_without_a_limit_or_more_open_a_choice_is_brought_to_the_end_at_once(
    limit: float | None, bound: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted_choices, "GAP", 1e-6)
    first = [stopped(30.0, bound, seconds=1.0), cut_off(30.0, seconds=1.0)]
    run = Scripted({FREE: stopped(None, 5.0), (FULL, 0): first, (FULL, 1): stopped(None, 30.0)}, clock)
    solved(run, counts(0, 1), limit=limit)
    assert run.asked == [FREE, (FULL, 0), (FULL, 1), (FULL, 0)]
    assert run.cutoffs[3] == pytest.approx(30.0, rel=1e-6)


@pytest.mark.parametrize(("problem", "share"), [(small_problem(), 3.0), (two_kinds(), 9.0)])
def test_where_counts_suffice_all_the_problem_without_the_rule_has_less_time(
    problem: PipelineProblem, share: float, clock: Clock
) -> None:
    run = Scripted({FREE: stopped(None, 5.0, seconds=1.0), (FULL, 0): stopped(None, 25.0)}, clock)
    solved(run, counts(0), limit=100.0, cutoff=25.0, problem=problem)
    assert run.asked[:2] == [FREE, (FULL, 0)] and run.limits[0] == share


def test_at_the_limit_nothing_more_is_asked(clock: Clock) -> None:
    run = Scripted({FREE: stopped(None, 5.0, seconds=10.0), (FULL, 1): stopped(35.0, 9.0, seconds=90.0)}, clock)
    found = solved(run, counts(1, 2), limit=100.0)
    assert run.asked == [FREE, (FULL, 1)]
    assert (found.status, found.termination, found.seconds) == (FEASIBLE, Termination.TIME_LIMIT, 100.0)


def test_a_solver_has_a_hundredth_of_a_second_at_the_least(clock: Clock) -> None:
    run = Scripted({FREE: stopped(None, 5.0)}, clock)
    solved(run, limit=0.0)
    assert run.limits == [0.01]
    run = Scripted({FREE: stopped(None, 5.0, seconds=2.0), counts(0, 1): stopped(None, 5.0)}, clock)
    solved(run, counts(0, 1), limit=1.0, one_by_one=False)
    assert run.limits == pytest.approx([0.15, 0.01])


def test_a_look_with_all_memory_takes_a_second_at_most_and_no_more_than_is_left(clock: Clock) -> None:
    for took, looked in ((10.0, 1.0), (89.5, 0.5)):
        answers = {FREE: stopped(None, 5.0, seconds=10.0), (FULL, 1): cut_off(25.0, seconds=took)}
        run = Scripted({**answers, ("roomy", (FULL, 1)): cut_off(25.0)}, clock)
        solved(run, counts(1), limit=100.0, cutoff=25.0)
        assert run.asked[-1] == ("roomy", (FULL, 1)) and run.limits[-1] == pytest.approx(looked)


# What is told meanwhile.


def test_what_is_told_without_the_rule_is_its_bound_and_the_known_plan_that_keeps_it(clock: Clock) -> None:
    free = cut_off(25.0, seconds=3.0, told=(12.0, 8.0))
    for start, objective in ((even(1), 30.0), (None, None)):
        told: list[Progress] = []
        solved(Scripted({FREE: free}, clock), cutoff=25.0, warm_start=start, on_progress=told.append)
        assert told == [Progress(3.0, objective, 8.0, "found")]


def test_what_is_told_of_a_choice_is_the_best_of_all_and_the_bound_that_holds_for_all(clock: Clock) -> None:
    answers = {FREE: stopped(None, 5.0, seconds=1.0), (FULL, 0): proven(36.0, told=(36.5, 30.0), seconds=1.0)}
    run = Scripted(
        {**answers, (FULL, 1): proven(35.0, even(1), told=(35.5, 31.0)), (FULL, 2): cut_off(40.0, told=(39.0, 38.0))},
        clock,
    )
    run.answers["roomy", (FULL, 2)] = [cut_off(40.0)]
    told: list[Progress] = []
    solved(run, on_progress=told.append)
    assert [each.objective for each in told] == [36.5, 35.5, 35.0]
    assert [each.bound for each in told] == [5.0] * 3
    assert [each.seconds for each in told] == [2.0, 2.0, 2.0]
    assert told[1].note == "full recompute of 1 layers a chunk: found"


def test_no_bound_is_told_of_a_choice_where_nothing_is_proven_without_the_rule() -> None:
    told: list[Progress] = []
    run = Scripted({FREE: stopped(None, None), (FULL, 0): stopped(36.0, None, told=(None, 9.0))})
    found = solved(run, counts(0), on_progress=told.append)
    assert [(each.objective, each.bound) for each in told] == [(None, None), (36.0, None)]
    assert found.bound == 0.0


# The parts.


@pytest.mark.parametrize(
    ("changes", "choices", "distinct"),
    [
        # Another chunk holds a layer at the least: three are the most of four.
        ({}, counts(4, 0, 3, 1), counts(0, 1, 3)),
        ({"min_layers": 2}, counts(0, 2, 3), counts(0, 2)),
        ({"min_layers": 0}, counts(5, 4, 3), counts(3, 4)),
        ({"interleaves": 2}, counts(0, 2), counts(0, 1)),
        # Between embedding and head, which may be alone, the middle one of three chunks may hold all four.
        (
            {"stages": 3, "static_mib": (5.0,) * 3, "limit_mib": (100.0,) * 3, "entries_alone": True},
            counts(3, 4, 5),
            counts(3, 4),
        ),
        ({}, ((SELECT, 0), (SELECT, 2), (FULL, 0)), ((SELECT, 0), (SELECT, 2))),
        ({}, ((SELECT, 2), (FULL, 2), (FULL, 1)), ((FULL, 1), (FULL, 2), (SELECT, 2))),
    ],
)
def test_choices_that_are_the_same_are_one(
    changes: dict[str, Any], choices: tuple[Choice, ...], distinct: tuple[Choice, ...]
) -> None:
    assert tuple(distinct_choices(selective(uniform_recompute=choices, **changes))) == distinct


def test_choices_beside_recompute_come_first_in_their_own_order() -> None:
    costs = {"z": LayerChoice(), "a": LayerChoice()}
    kind = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0, "z": 1.0, "a": 1.0}, choices=costs)
    asked = ((FULL, 1), ("a", 1), ("z", 2), ("a", 3), ("z", 1), (FULL, 0))
    problem = small_problem(kinds=(kind,), choices=("z", "a"), uniform_recompute=asked)
    assert distinct_choices(problem) == [("z", 1), ("z", 2), ("a", 1), ("a", 3), (FULL, 0), (FULL, 1)]


def test_the_layers_of_a_step_are_the_most_whose_work_of_all_micro_batches_it_holds() -> None:
    long, short = (
        LayerKind("long", 3, 1.5, 1.0, {NONE: 1.0, FULL: 1.0}),
        LayerKind("short", 2, 0.5, 1.0, {NONE: 1.0, FULL: 1.0}),
    )
    pinned = LayerKind("mtp", 2, 0.25, 1.0, {NONE: 1.0, FULL: 1.0}, pinned_last=True)
    for pace, least in (((), 1.0), ((2.0, 0.5), 0.5)):
        problem = small_problem(kinds=(long, short, pinned), micro_batches=3, backward_ratio=1.5, slowness=pace)
        for step in (0.0, 3.7, 3.75, 3.8, 7.5, 14.0, 18.7, 18.75, 18.8, 30.0, 41.2, 41.3, 1000.0):
            held = [
                a + b
                for a, b in product(range(4), range(3))
                if 3 * 2.5 * least * (1.5 * a + 0.5 * b) <= step * (1 + 1e-12)
            ]
            assert rule._layers_within(problem, step) == max(held)


def test_layers_that_take_no_time_are_in_every_step() -> None:
    idle = LayerKind("idle", 2, 0.0, 1.0, {NONE: 1.0, FULL: 1.0})
    problem = small_problem(kinds=(*small_problem().kinds, idle))
    assert [rule._layers_within(problem, step) for step in (0.0, 11.9, 12.0, 48.0)] == [2, 2, 3, 6]


def test_the_better_of_two_is_the_one_with_a_plan_of_the_lesser_step_time() -> None:
    none, long, short = Solution(NO_SOLUTION), Solution(FEASIBLE, objective=9.0), Solution(FEASIBLE, objective=8.0)
    assert better_of_two(None, none) is None and better_of_two(long, none) is long
    assert better_of_two(None, long) is long and better_of_two(none, long) is long
    assert better_of_two(long, short) is short and better_of_two(short, long) is short


@pytest.mark.parametrize(("left", "begins"), [(40.0, 28.5), (20.0, 20.0), (INFINITE, INFINITE)])
@pytest.mark.parametrize("alike", [False, True], ids=["two kinds", "counts tell all"])
def test_a_tree_of_the_choice_that_the_best_plan_keeps_is_left_where_it_was_below_what_is_to_be_beaten(
    left: float, begins: float, alike: bool
) -> None:
    """But where counts tell all it is another tree, and begins as any."""
    memories: dict[Choice, TreeMemory] = {}
    (body,) = many_chunks().kinds
    two = replace(body, count=50), replace(body, name="last", count=2, forward=1.5)
    rows = {"body": [*[[2, 2]] * 12, [2, 0]], "last": [*[[0, 0]] * 12, [0, 2]]}
    plan = BROAD if alike else plan_of(rows, {FULL: [[0, 0]] * 13})

    def run(problem: PipelineProblem, options: SolveOptions = DEFAULT_OPTIONS, **_: Any) -> Solution:
        assert options.memory is not None
        if not problem.uniform_recompute:
            options.memory.left, options.memory.fruitless = left, 17.0
            return Solution(FEASIBLE, Termination.STALLED, plan, 800.0, 1.0)
        memories[problem.uniform_recompute[0]] = replace(options.memory)
        return Solution(INFEASIBLE, Termination.INFEASIBLE)

    asked = many_chunks().replace(uniform_recompute=counts(0, 1), **({} if alike else {"kinds": two}))
    solve_uniform(asked, SolveOptions(gap=GAP, cutoff=lambda: 28.5), run=run, one_by_one=True)
    kept = memories[FULL, 0]
    inherits = left < INFINITE and not alike
    assert (kept.left, kept.fruitless) == ((begins, 17.0) if inherits else (INFINITE, INFINITE))
    assert memories[FULL, 1].left == memories[FULL, 1].fruitless == INFINITE
