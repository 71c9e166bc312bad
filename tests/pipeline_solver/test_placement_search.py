"""Stages of chunks chosen with the order of tasks, against an enumeration of all stages and orders."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.placements import LARGEST, assignments, faster_than, faults_of, played, random_chunks
from benchmarks.random_instances import instance, optimum_faults
from benchmarks.solver import deepseek
from taylor.pipeline.chunks import Placement
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, even_plan
from taylor.pipeline.schedule import SEARCHED, SEARCHED_FREE, ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.orders import placement_search
from taylor.pipeline_solver.orders.order_problem import OrderProblem
from taylor.pipeline_solver.orders.placement_search import (
    ChunkTasks,
    numbered,
    placements_in_all,
    placements_of,
    search_placement,
)
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import step_time


@pytest.mark.parametrize(("stages", "interleaves"), [(1, 3), (2, 1), (2, 3), (3, 2), (4, 2)])
def test_every_assignment_is_one_of_the_placements_with_its_stages_exchanged(stages, interleaves):
    listed = list(placements_of(stages, interleaves))
    every = set(itertools.permutations([s for s in range(stages) for _ in range(interleaves)]))
    assert {numbered(stage_of) for stage_of in every} == set(listed)
    assert len(listed) == len(set(listed)) == round(placements_in_all(stages, interleaves))
    assert all(one.stage_of[0] == 0 and one.stage_of[-1] in (0, stages - 1) for one in listed)


def test_the_best_placement_and_order_are_those_of_the_enumeration():
    drawn = [random_chunks(np.random.default_rng([1, number])) for number in range(12)]
    small = [one for one in drawn if (one.stages, one.interleaves, one.micro_batches) not in LARGEST]
    assert len(small) > 6
    for tasks in small:
        assert faults_of(tasks) == ""


def test_the_enumeration_finds_what_is_faster():
    tasks = random_chunks(np.random.default_rng([1, 0]))
    found = search_placement(tasks, [])
    better = faster_than(tasks, found.order.step * 1.001)
    assert better in set(assignments(tasks))


def test_a_local_search_over_many_placements_is_no_worse_than_the_known_ones(monkeypatch):
    monkeypatch.setattr(placement_search, "FEW_PLACEMENTS", 1)
    monkeypatch.setattr(placement_search, "STEPS", 200_000)
    monkeypatch.setattr(placement_search, "MOVES", 200_000)
    tasks = random_chunks(np.random.default_rng([1, 6]))
    S, V, m = tasks.stages, tasks.interleaves, tasks.micro_batches
    loop = Placement.shaped(S, V, v_shape=False)
    known = build_schedule(ScheduleSpec(SEARCHED_FREE, stage_of=loop.stage_of), S, V, m)
    found = search_placement(tasks, [(loop, known)])
    assert found.order.bound <= found.order.step <= tasks.on(loop).finish(known.blocks().astype(np.int16))
    assert played(tasks, found) == pytest.approx(found.order.step)


def test_the_tasks_of_a_placed_plan_are_those_of_its_order_problem():
    problem = deepseek(4, 2, 8, 14).replace(schedule=ScheduleSpec(SEARCHED), lag=0.25, tail=(0.5,) * 4)
    plan = even_plan({kind.name: kind.count for kind in problem.kinds}, 4, 2, recompute=FULL)
    tasks, straight = ChunkTasks.of(problem, plan, [problem, problem]), OrderProblem.of(problem, plan)
    on = tasks.on(problem.placement)
    for name in ("durations", "lag", "tail", "kept_mib", "free_mib"):
        assert np.allclose(getattr(on, name), getattr(straight, name)), name
    # Two neighbours on one stage hand nothing over.
    beside = numbered([s for s in range(problem.stages) for _ in range(problem.interleaves)])
    assert np.count_nonzero(tasks.on(beside).lag) == 2 * (problem.stages - 1)


@pytest.mark.slow
def test_plans_on_any_placement_are_those_of_the_enumeration_and_pass_the_checker():
    for number in range(3):
        problem, truth = instance(7, number, "placed")
        solution = solve(problem, SolveOptions(gap=0.0))
        assert optimum_faults(truth, solution) == []
        if truth.plan is not None:
            assert check(problem, truth.plan, step_time(problem, truth.plan)) == []
