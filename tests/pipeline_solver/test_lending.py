"""Activations that stages keep on the devices of others: what lenders hold, the optimum, its files and its proof."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.random_instances import instance, model_file_faults, optimum_faults
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline_solver.check.checker import check, exact_lent_memory, exact_peak_memory
from taylor.pipeline_solver.heuristics.lent_plans import lent_plans
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import (
    INFEASIBLE,
    OPTIMAL,
    OVER_LIMIT,
    UNLENT_BOUND,
    UNLENT_OBJECTIVE,
    Termination,
)
from taylor.pipeline_solver.solving.result import Result, problem_data
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import evaluate, lent_memory_mib, link_shares, peak_memory_mib

LIMIT = 300.0


def two_stages(lender_mib: float, **changes: object) -> PipelineProblem:
    """One layer of 100 MiB on each of two stages under 1F1B: two micro-batches alive on the first, one on the second.

    A micro-batch keeps 150 MiB, or 10 with recompute. Lent, it keeps 20 and 130 on the other stage.
    """
    body = LayerKind(
        "body", 2, 1.0, 100.0, {NONE: 150.0, FULL: 10.0, "lend": 20.0},
        choices={"lend": LayerChoice(forward=0.25, link_time=1.25, lent_mib=130.0)},
    )  # fmt: skip
    stated = {"lenders": (1, -1), **changes}
    return PipelineProblem(
        2, 1, 4, (body,), (0.0, 0.0), (LIMIT, lender_mib), backward_ratio=2.0, choices=("lend",), **stated
    )


def plan(full: tuple[int, int], lent: tuple[int, int]) -> PipelinePlan:
    return PipelinePlan({"body": ((1, 1),)}, {FULL: (full,), "lend": (lent,)})


def test_a_lender_holds_the_most_that_is_ever_there_for_the_whole_step() -> None:
    """Two micro-batches of 130 MiB beside its own 250 MiB; the first stage keeps 100 + 2 · 20."""
    problem = two_stages(510.0)
    lends = plan((0, 0), (1, 0))
    assert exact_lent_memory(problem, lends) == [Fraction(260), Fraction(0)]
    assert exact_peak_memory(problem, lends) == [Fraction(140), Fraction(510)]
    assert lent_memory_mib(problem, lends) == (260.0, 0.0)
    assert peak_memory_mib(problem, lends) == (140.0, 510.0)
    assert not check(problem, lends)
    assert [fault[:8] for fault in check(problem.replace(limit_mib=(LIMIT, 509.9)), lends)] == ["Stage 1 "]


def test_a_stage_without_a_lender_lends_nothing_and_a_limit_holds() -> None:
    problem = two_stages(1000.0)
    (fault,) = check(problem, plan((1, 0), (0, 1)))
    assert fault == "Stage 1 lends 130.000000 MiB away, but has no lender."
    assert evaluate(problem, plan((1, 0), (0, 1))).status == OVER_LIMIT
    (fault,) = check(problem.replace(lent_limit_mib=(259.0, 0.0)), plan((0, 0), (1, 0)))
    assert "lends 260.000000 MiB away, more than its limit of 259.000000 MiB" in fault


@pytest.mark.parametrize(
    ("lender_mib", "lent", "again"),
    [(510.0, (1, 0), (0, 0)), (509.0, (0, 0), (1, 0)), (370.0, (0, 0), (1, 0))],
    ids=["room", "a MiB short", "room if the lender recomputed"],
)
@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
def test_the_first_stage_lends_where_its_lender_has_room_and_recomputes_elsewhere(
    lender_mib: float, lent: tuple[int, int], again: tuple[int, int], solver: str
) -> None:
    """Lending adds 0.25 to a micro-batch, recompute 1. On both stages recompute would cost more than on the first."""
    problem = two_stages(lender_mib)
    found = solve(problem, SolveOptions(solver=solver))
    assert found.status == OPTIMAL and found.plan is not None
    assert found.plan.recompute["lend"] == (lent,) and found.plan.recompute[FULL] == (again,)
    # Played by hand on paper.
    assert found.objective == pytest.approx(15.75 if lent[0] else 18.0)


def test_lending_may_give_a_plan_where_there_is_none_without() -> None:
    """Where nothing is recomputed, the first stage of 400 MiB needs its lender."""
    problem = two_stages(510.0, recompute_ratio={})
    found = solve(problem)
    assert found.status == OPTIMAL and found.plan is not None and found.plan.recompute["lend"] == ((1, 0),)
    assert UNLENT_OBJECTIVE not in found.statistics
    short = solve(problem.replace(limit_mib=(LIMIT, 509.0)))
    assert short.status == INFEASIBLE and "stage" in short.message


def test_the_gain_has_the_time_without_lending_and_its_bound() -> None:
    found = solve(two_stages(510.0))
    assert found.statistics[UNLENT_OBJECTIVE] == pytest.approx(18.0)
    assert found.statistics[UNLENT_BOUND] == pytest.approx(18.0)
    assert found.objective == pytest.approx(15.75)
    result = Result(two_stages(510.0), found)
    data = result.to_dict()
    assert data["unlent"] == {"objective": pytest.approx(18.0), "bound": pytest.approx(18.0)}
    assert data["lent_memory"] == [260.0, 0.0]
    assert data["lent_link"][0] == pytest.approx(4 * 1.25 / 15.75, rel=1e-5)
    assert data["host_memory"] == [0.0, 0.0] and data["host_link"] == [0.0, 0.0]
    assert problem_data(two_stages(510.0))["lenders"] == [1, -1]
    assert "lenders" not in problem_data(two_stages(510.0).replace(lenders=(), lent_limit_mib=(1.0, 1.0)))


def test_a_known_plan_without_lending_is_what_the_gain_is_over() -> None:
    """The best one without lending, given at the start: no search beats it, so none returns it."""
    found = solve(two_stages(510.0), warm_start=plan((1, 0), (0, 0)))
    assert found.statistics[UNLENT_OBJECTIVE] == pytest.approx(18.0) and found.objective == pytest.approx(15.75)
    again = solve(two_stages(510.0), warm_start=plan((0, 0), (1, 0)))
    assert again.objective == pytest.approx(15.75) and again.statistics.get(UNLENT_OBJECTIVE, 18.0) >= 18.0 - 1e-9


def test_two_stages_share_what_one_lender_has_free() -> None:
    """Three stages, 3, 2 and 1 micro-batches alive: the third has 400 MiB free, for 3 or 2 · 130, not for both."""
    two = two_stages(0.0)
    problem = two.replace(
        stages=3, lenders=(2, 2, -1), kinds=(replace(two.kinds[0], count=3),), static_mib=(0.0,) * 3,
        limit_mib=(LIMIT, LIMIT, 650.0),
    )  # fmt: skip
    truth, found = enumerate_optimum(problem), solve(problem)
    assert truth is not None and found.objective == pytest.approx(truth.objective, rel=1e-12)
    assert found.plan is not None and sum(found.plan.recompute["lend"][0]) == 1
    wide = solve(problem.replace(limit_mib=(LIMIT, LIMIT, 900.0)))
    assert wide.plan is not None and wide.plan.recompute["lend"] == ((1, 1, 0),)


def test_one_choice_for_all_chunks_leaves_the_lent_layers_free() -> None:
    """The second stage cannot recompute without the first; lending serves the first alone."""
    problem = two_stages(510.0, uniform_recompute=((FULL, 0), (FULL, 1)))
    truth, found = enumerate_optimum(problem), solve(problem)
    assert truth is not None and found.objective == pytest.approx(truth.objective) == pytest.approx(15.75)
    assert found.plan is not None and found.plan.recompute["lend"] == ((1, 0),) and not found.plan.uses(FULL)
    assert check(problem, plan((1, 0), (0, 0))) and not check(problem, plan((1, 1), (0, 0)))
    with pytest.raises(ValueError, match="uniform_recompute must not name choices that lend"):
        two_stages(510.0, uniform_recompute=(("lend", 1),))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lenders": (1,)}, "one entry a stage"),
        ({"lenders": (0, -1)}, "lender of stage 0 must be another stage that lends nothing away, or -1, found 0"),
        ({"lenders": (2, -1)}, "found 2"),
        ({"lenders": (1, 0)}, "lender of stage 0 must be another stage that lends nothing away"),
        ({"lenders": ()}, "choices with lent_mib need lenders"),
        ({"lent_limit_mib": (1.0,)}, "lent_limit_mib must be empty or have one entry a stage"),
        ({"lent_limit_mib": (-1.0, 0.0)}, "lent_limit_mib must be >= 0"),
    ],
)
def test_lenders_that_cannot_be_are_refused_in_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        two_stages(510.0, **changes)


def test_links_to_the_host_and_to_the_lender_are_two() -> None:
    problem = two_stages(510.0)
    assert link_shares(problem, plan((0, 0), (1, 0)), lent=False) == (0.0, 0.0)
    assert link_shares(problem, plan((0, 0), (1, 0)), lent=True)[0] > 0


def test_a_stopped_search_has_a_plan_and_a_bound_on_all() -> None:
    """Without any time the plan without lending comes back where it is known, never a worse one."""
    problem = two_stages(510.0)
    known = plan((1, 0), (0, 0))
    found = solve(problem, SolveOptions(time_limit=0.0), warm_start=known)
    assert found.objective is not None and found.objective <= 18.0 + 1e-9
    assert found.bound is not None and found.bound <= 15.75 + 1e-9
    assert found.termination in (Termination.TIME_LIMIT, Termination.PROVEN, Termination.NOT_COMPILED)


NUMBERS = [10, 14, 32, 206]
"""Instances of the campaign in which boxes are split or plans lend."""


@pytest.mark.parametrize("number", NUMBERS)
def test_small_problems_have_the_optimum_of_all_plans_and_so_have_their_files(number: int) -> None:
    problem, truth = instance(0, number, "lending")
    found = solve(problem, SolveOptions(gap=0.0))
    assert not optimum_faults(truth, found)
    assert not model_file_faults(problem, found, truth.objective)


@pytest.mark.slow
def test_a_second_solver_and_every_plan_agree_on_more_problems() -> None:
    lent = 0
    for number in range(1000, 1040):
        problem, truth = instance(0, number, "lending")
        if truth.plan is None or problem.stages * problem.interleaves > 6:
            continue
        found = solve(problem, SolveOptions(gap=0.0))
        assert not optimum_faults(truth, found), number
        other = solve(problem, SolveOptions(solver="HIGHS-MILP"))
        assert other.objective == pytest.approx(truth.objective, rel=1e-6), number
        assert found.plan is not None
        lent += bool(np.any(lent_memory_mib(problem, found.plan)))
    assert lent >= 3


def test_first_plans_lend_the_fewest_layers_that_fit_under_each_recompute_choice() -> None:
    """Three layers a stage of 100 MiB, two micro-batches alive on the first stage: each lent one saves 2 · 130 of
    the 1,200 MiB there. Without recompute two are lent for a limit of 700, with one recomputed layer one is."""
    two = two_stages(5000.0, uniform_recompute=((FULL, 0), (FULL, 1), (FULL, 3)))
    problem = two.replace(kinds=(replace(two.kinds[0], count=6),), limit_mib=(700.0, 5000.0))
    known = PipelinePlan({"body": ((3, 3),)}, {FULL: ((3, 3),)})
    found = [(found.recompute[FULL][0], found.recompute["lend"][0]) for found in lent_plans(problem, known)]
    assert found == [((0, 0), (2, 0)), ((1, 1), (1, 0)), ((3, 3), (0, 0))]
    assert peak_memory_mib(problem, next(iter(lent_plans(problem, known))))[0] == 300 + 2 * (150 + 2 * 20)
    narrow = problem.replace(limit_mib=(300.0, 5000.0))
    assert [found.recompute["lend"][0] for found in lent_plans(narrow, known)] == [(3, 0), (2, 0), (0, 0)]
    free = two.replace(uniform_recompute=(), kinds=problem.kinds, limit_mib=(700.0, 5000.0))
    assert [(one.uses(FULL), one.recompute["lend"][0]) for one in lent_plans(free, known)] == [(False, (2, 0))]
