"""What becomes of the answers that a solver gives for each place of a kind, the answers written down here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.places import placements
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    NO_SOLUTION,
    OPTIMAL,
    Solution,
    Status,
    Termination,
)
from taylor.pipeline_solver.solving.entries import solve_places
from tests.pipeline_solver.test_entries import with_mtp
from tests.solver_cases import plan_of

PLANS = {place: plan_of({"body": [[2, 1, 1]], "mtp": [[int(place == s) for s in range(3)]]}) for place in (0, 1, 2)}


def answer(place: int, objective: float | None, bound: float | None, termination: Termination) -> Solution:
    status = NO_SOLUTION if objective is None else OPTIMAL if termination is Termination.PROVEN else FEASIBLE
    if termination is Termination.INFEASIBLE:
        status = INFEASIBLE
    plan = None if objective is None else PLANS[place]
    return Solution(status, termination, plan=plan, objective=objective, bound=bound)


class Scripted:
    """A solver that gives a written answer for each place, in the order of their turns, and keeps what it was asked."""

    def __init__(self, *answers: tuple[float | None, float | None, Termination]) -> None:
        self.answers = answers
        self.places: list[int] = []
        self.cutoffs: list[float] = []
        self.starts: list[Any] = []

    def __call__(
        self, asked: PipelineProblem, options: SolveOptions, *, warm_start: Any = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Solution:  # fmt: skip
        assert options.cutoff is not None
        self.cutoffs.append(options.cutoff())
        self.starts.append(warm_start)
        place = next(kind for kind in asked.kinds if kind.name == "mtp").places[0]
        if place not in self.places:
            self.places.append(place)
        given = self.answers[self.places.index(place)]
        if on_progress is not None and given[0] is not None:
            on_progress(Progress(0.0, given[0], given[1], "found"))
        return answer(place, *given)


def solved(
    run: Scripted, limit: float | None = None, cutoff: float | None = None, gap: float = 0.1, **more: Any
) -> Solution:
    options = SolveOptions(time_limit=limit, gap=gap, cutoff=None if cutoff is None else lambda: cutoff)
    return solve_places(with_mtp(min_layers=0), options, run=run, **more)


INFINITE = float("inf")
NONE_FITS = (None, None, Termination.INFEASIBLE)


def test_each_place_must_beat_the_best_so_far_by_half_the_gap() -> None:
    run = Scripted((10.5, 10.5, Termination.PROVEN), (10.9, 10.2, Termination.TIME_LIMIT), NONE_FITS)
    found = solved(run)
    assert run.cutoffs == pytest.approx([INFINITE, 0.95 * 10.5, 0.95 * 10.5])
    assert (found.status, found.objective, found.bound) == (OPTIMAL, 10.5, 10.2)
    assert found.plan == PLANS[run.places[0]]


def test_a_step_time_to_beat_that_is_less_holds_for_every_place() -> None:
    run = Scripted((10.5, 10.0, Termination.TIME_LIMIT), (None, 9.5, Termination.CUT_OFF), NONE_FITS)
    solved(run, cutoff=9.5)
    assert run.cutoffs[:3] == [9.5, 9.5, 9.5]


def test_the_best_plan_of_all_places_stands_under_the_least_bound_of_all() -> None:
    run = Scripted(
        (12.0, 7.0, Termination.STALLED), (10.0, 8.0, Termination.STALLED), (11.0, 9.0, Termination.STALLED)
    )  # fmt: skip
    found = solved(run)
    assert (found.objective, found.bound, found.plan) == (10.0, 7.0, PLANS[run.places[1]])
    assert (found.status, found.termination) == (FEASIBLE, Termination.STALLED)


@pytest.mark.parametrize(
    ("answers", "cutoff", "status", "termination", "bound"),
    [
        ([NONE_FITS] * 3, None, INFEASIBLE, Termination.INFEASIBLE, None),
        # One place is open still: nothing is proven.
        ([NONE_FITS, (None, 4.0, Termination.STALLED), NONE_FITS], None, NO_SOLUTION, Termination.TIME_LIMIT, 4.0),
        ([NONE_FITS, (None, 6.0, Termination.CUT_OFF), NONE_FITS], 6.0, Status.CUT_OFF, Termination.CUT_OFF, 6.0),
        ([NONE_FITS, (None, 5.9, Termination.STALLED), NONE_FITS], 6.0, NO_SOLUTION, Termination.TIME_LIMIT, 5.9),
    ],
)
def test_without_a_plan_the_end_says_what_is_proven(
    answers: list[Any], cutoff: float | None, status: Status, termination: Termination, bound: float | None
) -> None:
    found = solved(Scripted(*answers), limit=None, cutoff=cutoff)
    assert (found.status, found.termination, found.bound, found.plan) == (status, termination, bound, None)


def test_an_interrupted_place_ends_the_search_with_the_best_plan() -> None:
    run = Scripted((12.0, 7.0, Termination.STALLED), (10.0, 8.0, Termination.INTERRUPTED), NONE_FITS)
    found = solved(run)
    assert len(run.cutoffs) == 2
    # The third place was not looked at.
    assert (found.objective, found.bound, found.termination) == (10.0, 0.0, Termination.INTERRUPTED)


def test_a_known_plan_starts_the_place_that_it_lies_in_which_comes_first() -> None:
    run = Scripted((12.0, 12.0, Termination.PROVEN), (13.0, 12.0, Termination.STALLED), NONE_FITS)
    solved(run, warm_start=PLANS[1])
    assert run.starts == [PLANS[1], None, None]
    assert len(placements(with_mtp(min_layers=0))) == 3


def test_progress_tells_the_best_of_all_places_and_a_bound_once_all_have_one() -> None:
    run = Scripted(
        (10.0, 9.0, Termination.STALLED), (12.0, 8.0, Termination.STALLED), (11.0, 8.5, Termination.STALLED)
    )  # fmt: skip
    told: list[Progress] = []
    solved(run, gap=1e-3, on_progress=told.append)
    assert [each.objective for each in told[:3]] == [10.0, 10.0, 10.0]
    assert [each.bound for each in told[:4]] == [None, None, None, 8.0]
