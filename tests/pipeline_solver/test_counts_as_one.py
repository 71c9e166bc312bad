"""Counts of recompute far above an even chunk's layers, tried as one: what stands for them, and how they fall apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum, random_problem
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, MILP_ROUNDS, OPTIMAL, RANGED_ROUNDS, Termination
from taylor.pipeline_solver.solving.recompute_cases import at_least
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_BOUND, solve_uniform
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from tests.pipeline_solver.scripted_choices import (
    FREE,
    GAP,
    INFINITE,
    NONE_FITS,
    Scripted,
    counts,
    cut_off,
    solved,
    stopped,
)
from tests.solver_cases import plan_of, small_problem

LAYERS = 16
KNOWN = plan_of({"body": [[4, 4, 4, 4]]}, {FULL: [[2, 2, 2, 2]]})
"""Sixteen layers on four stages, one micro-batch: four times twelve and, of each of two layers recomputed, one more."""

FEW = {choice: NONE_FITS for choice in counts(0, 1)}
"""Counts that no memory is enough for."""

SMALL = counts(2, 3, 4, 5, 6, 7)
ANSWERS = {choice: cut_off(55.0) for choice in SMALL}
"""Of the counts below twice an even chunk's layers: none beats the known plan by half the gap."""

BETTER = stopped(50.0, 36.0, plan_of({"body": [[13, 1, 1, 1]]}, {FULL: [[8, 1, 1, 1]]}))
"""A plan that beats the known one where no layer beyond the eighth is recomputed, nor takes memory."""


def long(**changes: Any) -> PipelineProblem:
    problem = small_problem(stages=4, micro_batches=1, static_mib=(5.0,) * 4, limit_mib=(120.0,) * 4, **changes)
    return problem.replace(kinds=tuple(replace(kind, count=LAYERS) for kind in problem.kinds))


def asked(answers: dict[Any, Any], *, most: int = 13, limit: float | None = 1e6) -> tuple[Any, Scripted]:
    run = Scripted({FREE: stopped(None, 20.0), **FEW, **ANSWERS, **answers})
    found = solved(run, counts(*range(most + 1)), problem=long(), warm_start=KNOWN, limit=limit)
    return found, run


def beyond(most: int) -> Any:
    return ("beyond", (FULL, most))


def test_great_counts_are_one_case_whose_proof_is_that_of_all() -> None:
    found, run = asked({beyond(8): cut_off(60.0)})
    assert run.asked == [FREE, *counts(0, 1), *SMALL, beyond(8)]
    assert (found.status, found.objective, found.bound) == (OPTIMAL, 56.0, pytest.approx(55.0))


def test_no_plan_for_as_much_memory_and_recompute_is_a_proof_too() -> None:
    found, run = asked({beyond(8): NONE_FITS})
    assert run.asked[-1] == beyond(8) and (found.status, found.bound) == (OPTIMAL, pytest.approx(55.0))


def test_a_better_plan_parts_the_least_counts_from_the_others_which_are_one_again() -> None:
    """A quarter more than eight is ten."""
    found, run = asked({beyond(8): BETTER, **{choice: cut_off(54.0) for choice in counts(8, 9)}, beyond(10): NONE_FITS})
    assert run.asked[-4:] == [beyond(8), *counts(8, 9), beyond(10)]
    assert (found.status, found.bound) == (OPTIMAL, pytest.approx(54.0))


def test_the_last_few_are_tried_one_by_one() -> None:
    few = counts(8, 9, 10, 11)
    roomy = {("roomy", choice): BETTER for choice in few}
    found, run = asked({beyond(8): BETTER, **{choice: cut_off(54.0) for choice in few}, **roomy}, most=11)
    assert [key for key in run.asked if key not in roomy][-5:] == [beyond(8), *few]
    assert found.bound == pytest.approx(54.0)


def test_without_a_time_limit_each_count_is_tried_by_itself() -> None:
    great = counts(8, 9, 10, 11, 12, 13)
    roomy = {("roomy", choice): BETTER for choice in [*SMALL, *great]}
    _, run = asked({choice: cut_off(55.0) for choice in great} | roomy, limit=None)
    assert [key for key in run.asked if key not in roomy] == [FREE, *counts(0, 1), *SMALL, *great]


def test_few_counts_are_no_case_of_their_own() -> None:
    few = counts(8, 9, 10)
    roomy = {("roomy", choice): BETTER for choice in [*SMALL, *few]}
    _, run = asked({choice: cut_off(55.0) for choice in few} | roomy, most=10)
    assert [key for key in run.asked if key not in roomy] == [FREE, *counts(0, 1), *SMALL, *few]


def test_what_stands_open_bounds_the_whole() -> None:
    found, _ = asked({beyond(8): stopped(None, 30.0, end=Termination.INTERRUPTED)})
    assert found.bound == pytest.approx(30.0) and found.objective == 56.0


def test_counts_that_stay_open_have_one_later_turn_as_one() -> None:
    """Then the least of them are alone. Both turns are shares of a minute, however long the limit."""
    answers = {choice: cut_off(60.0) for choice in counts(8, 9)}
    found, run = asked({**answers, beyond(8): stopped(None, 30.0), beyond(10): cut_off(60.0)})
    assert run.asked[-5:] == [beyond(8), beyond(8), *counts(8, 9), beyond(10)] and found.status == OPTIMAL
    turns = [limit for key, limit in zip(run.asked, run.limits, strict=True) if key == beyond(8)]
    assert turns == [pytest.approx(6.0, rel=1e-2), pytest.approx(15.0, rel=1e-2)]


def test_a_count_is_hopeless_only_where_it_cannot_win_not_where_it_is_near() -> None:
    """Counts are parted while later turns leave a little open: what ends the greater ones leaves nothing."""
    few = counts(8, 9, 10, 11)
    roomy = {("roomy", choice): cut_off(54.9) for choice in few}
    answers = {beyond(8): stopped(None, 30.0), **{choice: cut_off(54.9) for choice in few}, **roomy}
    _, run = asked(answers, most=11)
    cutoffs: dict[Any, set[float]] = {}
    for key, cutoff in zip(run.asked, run.cutoffs, strict=True):
        cutoffs.setdefault(key, set()).add(round(cutoff / run.cutoffs[1], 6))
    assert cutoffs[(FULL, 8)] >= {1.0 - DEFAULT_PARAMS.solving.near}  # once it is near, what is open is asked for
    assert cutoffs[("roomy", (FULL, 8))] == {1.0}


def test_counts_as_one_of_which_probing_rules_out_little_end_there_and_more_of_them_are_alone() -> None:
    class Probed(Scripted):
        """Leaves word in the memory, as a tree does, that probing ruled out too little."""

        def __call__(self, *problem: Any, **how: Any) -> Any:
            found = super().__call__(*problem, **how)
            memory = self.options[-1].memory
            cutoff = self.options[-1].cutoff
            if self.asked[-1] == beyond(8) and memory is not None and cutoff is not None:
                assert cutoff() > 0.0
                memory.fruitless = 55.0
                assert cutoff() == 0.0  # the run has nothing left to prove
            return found

    alone = counts(*range(8, 14))  # those up to half of eight above it, and two, which are too few to be one
    answers = {choice: cut_off(60.0) for choice in alone} | {("roomy", choice): BETTER for choice in alone}
    run = Probed({FREE: stopped(None, 20.0), **FEW, **ANSWERS, **answers, beyond(8): stopped(None, 30.0)})
    found = solved(run, counts(*range(14)), problem=long(), warm_start=KNOWN, limit=1e6)
    tried = [key for key in run.asked if key[0] != "roomy"]
    assert tried[-7:] == [beyond(8), *alone] and found.status == OPTIMAL


def again(answers: dict[Any, Any]) -> tuple[list[Any], Scripted]:
    """Two solves with one memory: their solutions, and what they asked."""
    run = Scripted({**FEW, **ANSWERS, **answers})
    options = SolveOptions(gap=GAP, time_limit=1e6, memory=TreeMemory())
    problem = long().replace(uniform_recompute=counts(*range(14)))
    return [solve_uniform(problem, options, run=run, one_by_one=True, warm_start=KNOWN) for _ in range(2)], run


def test_a_later_solve_goes_on_with_the_cases_that_were_left() -> None:
    """What was proven of the problem without the rule is not proven again, nor are the choices that are settled."""
    pressed = stopped(None, 45.0, end=Termination.INTERRUPTED)
    (first, second), run = again({FREE: stopped(None, 40.0), beyond(8): [pressed, cut_off(60.0)]})
    assert (first.bound, second.bound, second.status) == (pytest.approx(45.0), pytest.approx(55.0), OPTIMAL)
    assert run.asked.count(FREE) == 1 and run.asked[-1] == run.asked[-2] == beyond(8)


def test_a_problem_of_which_only_the_work_is_known_is_looked_at_again() -> None:
    work = least_step_time(long())
    pressed = stopped(None, work, end=Termination.INTERRUPTED)
    solutions, run = again({FREE: [stopped(None, work), stopped(None, 1.5 * work)], beyond(8): pressed})
    assert run.asked.count(FREE) == 2
    assert [one.bound for one in solutions] == [pytest.approx(work), pytest.approx(1.5 * work)]


def test_what_was_too_much_to_list_goes_to_the_milp_at_once() -> None:
    """Unless what is to be beaten is less by a hundredth."""
    problem = small_problem()
    best = solve(problem).objective
    assert best is not None
    for unlisted, by_milp in ((best, True), (1.05 * best, False), (INFINITE, False)):
        found = branch_and_cut(problem, SolveOptions(memory=TreeMemory(unlisted=unlisted), cutoff=lambda: best * 1.01))
        assert found.objective == pytest.approx(best)
        assert (MILP_ROUNDS in found.statistics or RANGED_ROUNDS in found.statistics) is by_milp


def test_no_plan_of_a_greater_count_is_faster_than_what_stands_for_it() -> None:
    rng = np.random.default_rng(5)
    compared = tighter = 0
    while compared < 60:
        problem = random_problem(rng)
        if FULL not in problem.searched_modes:
            continue
        least = int(rng.integers(0, problem.layers))
        stands = enumerate_optimum(at_least(problem, FULL, least), 2_000)
        for most in range(least, problem.layers + 1):
            exact = enumerate_optimum(problem.replace(uniform_recompute=((FULL, most),)), 2_000)
            if exact is None or stands is None:
                continue
            compared += 1
            tighter += exact.objective > stands.objective * (1 + 1e-9)
            assert stands.objective <= exact.objective * (1 + 1e-9)
    assert tighter


@pytest.mark.parametrize("seed", range(6))
def test_the_optimum_over_all_counts_is_that_of_the_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = long().replace(
        stages=2,
        interleaves=2,
        micro_batches=2,
        schedule=ScheduleSpec("interleaved"),
        static_mib=(5.0, 7.0),
        limit_mib=(float(rng.uniform(90, 130)), float(rng.uniform(90, 130))),
        head_forward=float(rng.uniform(0, 2)),
        uniform_recompute=counts(*range(LAYERS + 1)),
    )
    exact = [enumerate_optimum(problem.replace(uniform_recompute=(one,)), 20_000) for one in problem.uniform_recompute]
    best = min(one.objective for one in exact if one is not None)
    found = solve(problem, SolveOptions(time_limit=600.0))
    if best == INFINITE:
        assert found.status == INFEASIBLE
    else:
        assert found.status == OPTIMAL and found.objective == pytest.approx(best, rel=1e-6)
        assert found.statistics[UNRESTRICTED_BOUND] <= best * (1 + 1e-9)


def test_what_stands_for_greater_counts_keeps_no_more_of_any_layer() -> None:
    problem = long()
    relaxed = at_least(problem, FULL, 6)
    (kind,) = relaxed.kinds
    assert kind.activation_mib[NONE] == kind.activation_mib[FULL] == 1.0
    assert relaxed.uniform_recompute == ((FULL, 6),) and relaxed.limit_mib == problem.limit_mib
