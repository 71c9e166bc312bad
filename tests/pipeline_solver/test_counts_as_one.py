"""Counts of recompute from an even chunk's layers on, tried as one: what stands for them, and how they fall apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum, random_problem
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.solution import INFEASIBLE, OPTIMAL
from taylor.pipeline_solver.solve import solve
from taylor.pipeline_solver.uniform_recompute import UNRESTRICTED_BOUND, at_least
from tests.pipeline_solver.scripted_choices import (
    FREE,
    INFINITE,
    NONE_FITS,
    Scripted,
    counts,
    cut_off,
    solved,
    stopped,
)
from tests.solver_cases import plan_of, small_problem

LAYERS = 12
KNOWN = plan_of({"body": [[6, 6]]}, {FULL: [[4, 4]]})
"""Twelve layers on two stages: 5 · 18 and, of each of four layers recomputed, 5 more."""

FEW = {choice: NONE_FITS for choice in counts(0, 1, 2, 3)}
"""Counts that no memory is enough for."""


def long(**changes: Any) -> PipelineProblem:
    problem = small_problem(**changes)
    return problem.replace(kinds=tuple(replace(kind, count=LAYERS) for kind in problem.kinds))


def asked(answers: dict[Any, Any], *, most: int = LAYERS - 1, limit: float | None = None) -> tuple[Any, Scripted]:
    run = Scripted({FREE: stopped(None, 50.0), **FEW, **answers})
    found = solved(run, counts(*range(most + 1)), problem=long(), warm_start=KNOWN, limit=limit)
    return found, run


def beyond(most: int) -> Any:
    return ("beyond", (FULL, most))


def test_counts_from_an_even_chunk_on_are_one_case_whose_proof_is_that_of_all() -> None:
    found, run = asked({(FULL, 4): cut_off(109.0), (FULL, 5): cut_off(120.0), beyond(6): cut_off(115.0)})
    assert run.asked == [FREE, *counts(0, 1, 2, 3, 4, 5), beyond(6)]
    assert (found.status, found.objective, found.bound) == (OPTIMAL, 110.0, pytest.approx(109.0))


def test_no_plan_for_as_much_memory_and_recompute_is_a_proof_too() -> None:
    found, run = asked({(FULL, 4): cut_off(109.0), (FULL, 5): NONE_FITS, beyond(6): NONE_FITS})
    assert run.asked[-1] == beyond(6) and (found.status, found.bound) == (OPTIMAL, pytest.approx(109.0))


def test_a_better_plan_parts_the_least_count_from_the_others_which_keep_what_was_proven() -> None:
    """A quarter more than six is seven: six alone, seven and more as one again, until few are left."""
    better = stopped(100.0, 90.0, plan_of({"body": [[11, 1]]}, {FULL: [[6, 1]]}))
    found, run = asked(
        {
            (FULL, 4): cut_off(109.0),
            **{choice: cut_off(105.0) for choice in counts(5, 6, 7, 8)},
            beyond(6): better,
            beyond(7): better,
            beyond(8): cut_off(103.0),
        }
    )
    assert run.asked == [FREE, *counts(0, 1, 2, 3, 4, 5), beyond(6), (FULL, 6), beyond(7), (FULL, 7), beyond(8)]
    assert found.bound == pytest.approx(103.0)


def test_the_last_few_counts_are_tried_one_by_one() -> None:
    """Of 9, 10 and 11 nothing is asked: no stage of a plan below 110 has room for more than eight layers."""
    better = stopped(100.0, 90.0, plan_of({"body": [[11, 1]]}, {FULL: [[6, 1]]}))
    few = counts(5, 6, 7, 8)
    answers = {choice: cut_off(105.0) for choice in few} | {("roomy", choice): better for choice in few}
    found, run = asked({(FULL, 4): cut_off(109.0), **answers, **{beyond(most): better for most in (6, 7, 8)}})
    assert run.asked[-2:] == [(FULL, 8), ("roomy", (FULL, 8))] and beyond(9) not in run.asked
    assert found.bound == pytest.approx(105.0)


def test_few_counts_are_no_case_of_their_own() -> None:
    few = {choice: cut_off(109.0) for choice in counts(4, 5, 6, 7, 8)}
    _, run = asked({**few, **{("roomy", choice): stopped(100.0, 90.0) for choice in few}}, most=8)
    assert not any(key[0] == "beyond" for key in run.asked if key != FREE)


def test_what_stands_open_bounds_the_whole_and_has_its_later_turns() -> None:
    answers = {(FULL, 4): cut_off(109.0), (FULL, 5): cut_off(120.0)}
    found, run = asked({**answers, beyond(6): [stopped(None, 70.0), stopped(None, 80.0), cut_off(115.0)]}, limit=1e6)
    assert run.asked.count(beyond(6)) == 3 and found.status == OPTIMAL
    found, _ = asked({**answers, beyond(6): stopped(None, 70.0)})
    assert found.bound == pytest.approx(70.0) and found.objective == 110.0


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
    problem = long(micro_batches=3).replace(
        static_mib=(5.0, 7.0),
        limit_mib=(float(rng.uniform(70, 110)), float(rng.uniform(75, 110))),
        head_forward=float(rng.uniform(0, 2)),
        uniform_recompute=counts(*range(LAYERS + 1)),
    )
    exact = [enumerate_optimum(problem.replace(uniform_recompute=(one,)), 20_000) for one in problem.uniform_recompute]
    best = min(one.objective for one in exact if one is not None)
    found = solve(problem)
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
