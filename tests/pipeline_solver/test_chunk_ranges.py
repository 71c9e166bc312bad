"""Ranges of layers below a step time: every plan that is as short keeps them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum, random_problem, under_one_choice
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import check, exact_step_time
from taylor.pipeline_solver.milp.chunk_ranges import CHORD, RANGE, layer_ranges, narrow_ranges, rule_out_short
from taylor.pipeline_solver.milp.compact_milp import solve_compact
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.milp import MilpStatus
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL, RANGED_ROUNDS, Termination

COUNT, LAYERS = 3, 12


def two_interleaves(**changes) -> PipelineProblem:
    """Two stages of two interleaves, of whose layers each chunk recomputes three."""
    return PipelineProblem(
        2,
        2,
        4,
        (LayerKind("body", LAYERS, 1.0, 10.0, {NONE: 6.0, FULL: 1.0}),),
        (5.0, 7.0),
        (300.0, 300.0),
        ScheduleSpec("megatron-interleaved"),
        backward_ratio=2.0,
        head_forward=1.0,
        lag=0.1,
        uniform_recompute=((FULL, COUNT),),
    ).replace(**changes)


def plans_of(problem: PipelineProblem) -> list[tuple[float, PipelinePlan]]:
    """Every plan that the checker passes, with its step time in exact arithmetic: written out, one by one."""
    found = []
    for sizes in itertools.product(range(1, LAYERS), repeat=4):
        if sum(sizes) == LAYERS:
            held = np.array(sizes).reshape(2, 2)
            again = {FULL: as_grid(np.minimum(held, COUNT).tolist())}
            plan = PipelinePlan({"body": as_grid(held.tolist())}, again)
            if not check(problem, plan):
                found.append((float(exact_step_time(problem, plan)), plan))
    return sorted(found, key=lambda entry: entry[0])


def test_every_plan_below_the_step_time_is_within_the_ranges_and_above_the_chords():
    problem = two_interleaves()
    plans = plans_of(problem)
    assert len(plans) > 20
    narrowed, ruled_out = 0, 0
    for below in (plans[0][0], 1.02 * plans[0][0], plans[len(plans) // 2][0]):
        model = CompactModel.build(problem)
        model.seed()
        ranges = layer_ranges(model)
        before = sum(one.most - one.least for one in ranges)
        assert narrow_ranges(model, ranges, below * (1 + 1e-9)).status is MilpStatus.OPTIMAL
        narrowed += sum(one.most - one.least for one in ranges) < before
        settled = sum(one.least for one in ranges if one.taken)
        assert rule_out_short(model, ranges, below * (1 + 1e-9)).status is MilpStatus.OPTIMAL
        ruled_out += sum(one.least for one in ranges if one.taken) > settled
        rows = [row for row in model.form.rows if row.name in (RANGE, CHORD)]
        assert len(rows) >= len(ranges)
        for step_time, plan in plans:
            if step_time <= below:
                point = model.point_of(plan)
                for row in rows:
                    value = float(np.dot(row.coefficients, point[list(row.columns)]))
                    assert row.lower - 1e-9 <= value <= row.upper + 1e-9, (row, plan)
    assert narrowed == 3 and ruled_out


def test_ranges_prove_that_no_plan_lies_far_below_the_best_one():
    problem = two_interleaves()
    model = CompactModel.build(problem)
    model.seed()
    best = plans_of(problem)[0][0]
    assert narrow_ranges(model, layer_ranges(model), 0.8 * best).status is MilpStatus.INFEASIBLE


def test_targets_end_with_the_optimum_over_every_plan_and_below_it_are_cut_off():
    rng, by_ranges = np.random.default_rng(31), 0
    for _ in range(30):
        problem = random_problem(rng)
        if problem.interleaves == 1 or not problem.searched_modes:
            continue
        problem = under_one_choice(problem, rng)
        problem = problem.replace(uniform_recompute=problem.uniform_recompute[:1])
        truth = enumerate_optimum(problem, 2_000)
        if truth is None:
            continue
        found = solve_compact(problem)
        by_ranges += RANGED_ROUNDS in found.statistics
        if truth.plan is None:
            assert found.status == INFEASIBLE
            continue
        assert found.status == OPTIMAL and found.objective == pytest.approx(truth.objective, rel=1e-6)
        asked = truth.objective * 0.999
        cut = solve_compact(problem, SolveOptions(cutoff=lambda asked=asked: asked))
        assert cut.termination in (Termination.CUT_OFF, Termination.PROVEN)  # its first plan may be the best one
        assert asked * (1 - 1e-6) <= cut.bound <= truth.objective * (1 + 1e-9)
    assert by_ranges > 2
