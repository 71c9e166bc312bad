"""Backwards that run whole hand their gradient over at their end; those with a weight gradient apart, before it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from taylor.pipeline.generators import build_schedule, check_schedule
from taylor.pipeline.plan import FULL
from taylor.pipeline.schedule import BACKWARD, WEIGHT_GRADIENT, ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.check.enclosed_time import enclosed_step_time
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import small_problem

SHAPES = [(1, 4), (2, 4), (2, 7), (3, 6), (4, 9), (5, 16)]


def whole_of(name: str, stages: int, micro_batches: int, **more: bool) -> list[set[tuple[int, int]]]:
    schedule = build_schedule(ScheduleSpec(name, **more), stages, 2, micro_batches)
    if schedule.whole is None:
        return [set() for _ in range(stages)]
    rows = zip(schedule.order.tolist(), schedule.whole.tolist(), strict=True)
    return [{(v, i) for (_, v, i, _), mark in zip(*row, strict=True) if mark} for row in rows]


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_mindspore_s_are_whole_but_for_those_that_infer_need_detach_info_lists(stages: int, micro_batches: int) -> None:
    for s, whole in enumerate(whole_of("zero_bubble_v", stages, micro_batches)):
        half = (s + 1) // 2
        apart = {(1, i) for i in range(stages - s - 1)} | {(1, micro_batches - 1 - i) for i in range(half)}
        apart |= {(0, micro_batches - 1 - i) for i in range(stages - half)}
        assert whole == {(v, i) for v in (0, 1) for i in range(micro_batches)} - apart


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 4), (3, 6), (4, 9), (5, 16)])
def test_dual_pipe_v_s_are_apart_in_the_fill_and_from_the_middle_of_the_drain_on(
    stages: int, micro_batches: int
) -> None:
    every = {(v, i) for v in (0, 1) for i in range(micro_batches)}
    for s, whole in enumerate(whole_of("dualpipev", stages, micro_batches)):
        fill = {(1, i) for i in range(stages - s - 1)}
        half, below = (s + 1) // 2, stages - s - 1
        drain = {(1, i) for i in range(micro_batches - half, micro_batches)}
        drain |= {(0, i) for i in range(micro_batches - below - (s + 1 - half), micro_batches)}
        assert whole == every - fill - drain
    for s, whole in enumerate(whole_of("dualpipev", stages, micro_batches, whole_drain=True)):
        assert whole == every - {(1, i) for i in range(stages - s - 1)}


@pytest.mark.parametrize("name", ["zbv", "zb-h1", "interleaved-zb"])
def test_torch_s_input_gradients_are_sent_before_the_weight_gradient(name: str) -> None:
    interleaves = 1 if name == "zb-h1" else 2
    assert build_schedule(ScheduleSpec(name), 4, interleaves, 8).whole is None


def two_stages(lag: float = 0.25) -> PipelineProblem:
    """Four chunks of a layer: forward 1, input gradient and weight gradient 1 each."""
    kind = replace(small_problem().kinds[0], count=4, forward=1.0)
    return small_problem(
        stages=2, interleaves=2, micro_batches=4, kinds=(kind,), limit_mib=(1e6, 1e6),
        schedule=ScheduleSpec("zero_bubble_v"), backward_ratio=2.0, recompute_ratio={FULL: 1.0},
        head_forward=0.0, embedding_forward=0.0, lag=lag,
        weight_gradient_share=0.5,
    )  # fmt: skip


def test_the_stage_before_waits_for_all_of_a_whole_backward() -> None:
    problem = two_stages()
    schedule = build_schedule(problem.schedule, 2, 2, 4)
    assert schedule.whole is not None
    graph = EventGraph.from_schedule(schedule, problem.boundary_lags)
    durations = np.concatenate([np.ones(12), np.zeros(2)])
    starts = graph.start_times(durations)
    end = {
        (s, *task): start + 1
        for s in range(2)
        for task, start in zip(map(tuple, schedule.order[s].tolist()), starts[s], strict=True)
    }
    rows = [map(tuple, schedule.order[s][schedule.whole[s]].tolist()) for s in range(2)]
    crossing = 0
    for s, row in enumerate(rows):
        for direction, v, i, q in row:
            assert direction == BACKWARD
            place = schedule.position(v, s)
            if place and (to := schedule.chunk_at(place - 1))[1] != s:
                begins = end[to[1], BACKWARD, to[0], i, q] - 1
                assert begins >= end[s, WEIGHT_GRADIENT, v, i, q] + 0.25 - 1e-12
                crossing += 1
    assert crossing


def test_checker_evaluation_and_enclosed_step_agree_and_are_longer_than_half_way() -> None:
    problem = two_stages()
    solution = solve(problem)
    assert solution.plan is not None and solution.objective is not None
    assert check(problem, solution.plan, solution.objective) == []
    assert evaluate(problem, solution.plan).objective == pytest.approx(solution.objective)
    schedule = build_schedule(problem.schedule, 2, 2, 4)
    one = {(d, v, s, -1): Fraction(1) for d in range(3) for v in range(2) for s in range(2)}
    lags, tail = [Fraction(1, 4)] * 3, [Fraction(0)] * 2
    lower, upper = enclosed_step_time(schedule, one, lags, tail)
    durations = np.concatenate([np.ones(12), np.zeros(2)])
    longest = EventGraph.from_schedule(schedule, 0.25).longest_path(durations)
    assert float(lower) == pytest.approx(longest) and float(upper) == pytest.approx(longest)
    half_way = EventGraph.from_schedule(replace(schedule, whole=None), 0.25).longest_path(durations)
    assert longest > half_way
    assert check(problem, solution.plan, solution.objective * half_way / longest) != []


def test_a_mark_without_its_weight_gradient_behind_it_is_refused() -> None:
    schedule = build_schedule(ScheduleSpec("zero_bubble_v"), 2, 2, 4)
    assert schedule.whole is not None
    with pytest.raises(ValueError, match="followed by its weight gradient"):
        check_schedule(replace(schedule, whole=np.roll(schedule.whole, 1, axis=1)))
