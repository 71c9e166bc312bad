"""Evaluation of a given plan: its figures, and where its idle time comes from."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem, random_plan, random_problem
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import exact_peak_memory, exact_step_time
from taylor.pipeline_solver.model.problem import LayerKind
from taylor.pipeline_solver.model.solution import OVER_LIMIT
from taylor.pipeline_solver.timing.evaluate import bubble_shares, evaluate, peak_memory_mib
from tests.solver_cases import plan_of, small_problem

EVEN = plan_of({"body": [[2, 2]]})


def test_an_even_plan_has_the_textbook_bubble_and_nothing_else():
    """(S − 1) / (m + S − 1) for 1F1B (Narayanan et al. 2021 §2.2.1, as a share of the step)."""
    shares = bubble_shares(small_problem(), EVEN)
    assert shares.total == pytest.approx(1 / 5)
    assert shares.ideal == pytest.approx(1 / 5)
    assert (shares.imbalance, shares.recompute, shares.communication) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("forward", [1e-3, 1 / 30, 1.0, 50.0])
def test_bubbles_are_shares_whatever_unit_the_times_have(forward):
    kinds = (LayerKind("body", 4, forward, 10.0, {NONE: 4.0, FULL: 1.0}),)
    assert bubble_shares(small_problem(kinds=kinds), EVEN).total == pytest.approx(1 / 5)


def test_a_step_without_work_has_no_bubble():
    kinds = (LayerKind("body", 4, 0.0, 10.0, {NONE: 4.0, FULL: 1.0}),)
    assert bubble_shares(small_problem(kinds=kinds), EVEN).total == 0.0


def test_the_head_counts_as_work_and_its_place_as_imbalance():
    """Stage 1 works 3 forward instead of 2: the even spread would take 5 · 2.5 · 3."""
    shares = bubble_shares(small_problem(head_forward=1.0), EVEN)
    step = 2 + 4 * (3 + 6) + 4
    assert shares.total == pytest.approx((step - 4 * 2.5 * 3) / step)
    assert shares.ideal == pytest.approx(2.5 * 3 / step)
    assert shares.imbalance == pytest.approx((step - 5 * 2.5 * 3) / step)


def test_recompute_on_every_layer_is_all_put_down_to_recompute():
    plan = plan_of({"body": [[2, 2]]}, {FULL: [[2, 2]]})
    shares = bubble_shares(small_problem(), plan)
    assert shares.recompute == pytest.approx((5 * 8 - 5 * 6) / (5 * 8))
    assert shares.imbalance == 0.0


def test_transfers_and_the_tail_are_communication():
    shares = bubble_shares(small_problem(lag=0.5, tail=(1.0, 1.0)), EVEN)
    step = float(exact_step_time(small_problem(lag=0.5, tail=(1.0, 1.0)), EVEN))
    assert step > 31
    assert shares.communication == pytest.approx((step - 30) / step)
    assert shares.imbalance == pytest.approx(0.0, abs=1e-12)


def test_shares_sum_to_the_total_and_are_not_negative_on_random_plans():
    rng = np.random.default_rng(3)
    seen = 0
    while seen < 15:
        problem, truth = comparable_problem(rng, 20_000)
        if truth.plan is None:
            continue
        seen += 1
        shares = bubble_shares(problem, truth.plan)
        parts = (shares.ideal, shares.imbalance, shares.recompute, shares.communication)
        assert sum(parts) == pytest.approx(shares.total, abs=1e-12)
        assert min(parts) >= -1e-9, (problem, shares)
        assert 0 <= shares.total < 1


@pytest.mark.slow
def test_memory_and_time_agree_with_the_checker_on_random_plans():
    """Two separate roads: alive vectors and the event graph here, a walk and a played step there."""
    rng = np.random.default_rng(4)
    compared = 0
    for _ in range(30):
        problem = random_problem(rng)
        plan = random_plan(problem, rng)
        if plan is not None:
            compared += 1
            solution = evaluate(problem, plan)
            assert solution.objective == pytest.approx(float(exact_step_time(problem, plan)), rel=1e-12)
            exact = list(map(float, exact_peak_memory(problem, plan)))
            assert list(solution.peak_memory_mib) == pytest.approx(exact, rel=1e-12)
    assert compared > 15


def test_a_plan_over_its_limit_is_reported_with_stage_and_excess():
    solution = evaluate(small_problem(limit_mib=(30.0, 100.0)), EVEN)
    assert solution.status == OVER_LIMIT
    assert solution.message == "stage 0 needs 41 MiB, 11 MiB above its limit of 30 MiB"
    assert solution.peak_memory_mib == peak_memory_mib(small_problem(), EVEN) == (41.0, 35.0)


def test_a_sequence_split_has_a_smaller_bubble():
    whole = bubble_shares(small_problem(), EVEN).total
    split = bubble_shares(small_problem(schedule=ScheduleSpec("seqpipe", seq_splits=2)), EVEN).total
    assert 0 < split < whole
