"""The compiled event graph against its plain twin, and what a critical path must be."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.timing import event_kernels, event_paths
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.pipeline_solver.event_graph_reference import play

CASES = [
    ("1f1b", 1, {}),
    ("gpipe", 2, {}),
    ("interleaved", 2, {}),
    ("interleaved", 3, {"low_memory": False}),
    ("seqpipe", 1, {"seq_splits": 3}),
    ("seqpipe", 2, {"seq_splits": 2}),
    ("zbv", 2, {}),
]


def some_schedules(name: str, interleaves: int, options: dict) -> list[Schedule]:
    return [build_schedule(ScheduleSpec(name, **options), S, interleaves, m) for S in (1, 2, 3, 5) for m in (1, 4, 7)]


@pytest.mark.parametrize(("name", "interleaves", "options"), CASES)
def test_fast_and_plain_agree_on_every_time(name: str, interleaves: int, options: dict) -> None:
    rng = np.random.default_rng(1)
    for schedule in some_schedules(name, interleaves, options):
        lags = rng.choice([0.0, 0.4, 0.7], schedule.chunks - 1).tolist()
        graph = EventGraph.from_schedule(schedule, lags)
        durations = rng.random(graph.classes)
        expected, times = play(schedule, lags, durations)
        assert graph.longest_path(durations) == pytest.approx(expected, rel=1e-12)
        starts = graph.start_times(durations)
        for s in range(schedule.stages):
            for t, task in enumerate(schedule.order[s].tolist()):
                assert starts[s, t] == pytest.approx(times[(s, *task)][0], abs=1e-9)


@pytest.mark.parametrize(("name", "interleaves", "options"), CASES)
def test_a_critical_path_is_as_long_as_the_step_and_bounds_every_other_one(
    name: str, interleaves: int, options: dict
) -> None:
    rng = np.random.default_rng(2)
    for schedule in some_schedules(name, interleaves, options):
        lags = 0.3 if schedule.stages < 5 else rng.choice([0.1, 0.3, 0.3, 0.5], schedule.chunks - 1).tolist()
        graph = EventGraph.from_schedule(schedule, lags)
        durations, others = rng.integers(1, 4, graph.classes).astype(float), rng.random((20, graph.classes))
        for prefer in (0, 1):
            time, counts, lag = graph.critical_path(durations, prefer)
            assert time == pytest.approx(graph.longest_path(durations), rel=1e-12)
            assert counts @ durations + lag == pytest.approx(time, rel=1e-12)
            assert counts[-schedule.stages :].sum() == 1 and (counts >= 0).all()
            for other in others:
                assert counts @ other + lag <= graph.longest_path(other) + 1e-9


@pytest.mark.parametrize(("name", "interleaves", "options"), CASES)
def test_the_compiled_walk_back_is_the_plain_one(name: str, interleaves: int, options: dict) -> None:
    rng = np.random.default_rng(3)
    for schedule in some_schedules(name, interleaves, options):
        graph = EventGraph.from_schedule(schedule, 0.3)
        durations, ends = rng.integers(1, 4, graph.classes).astype(float), np.zeros(len(graph.before) + 1)
        arrays = graph.before, graph.needed, graph.task_class, graph.edge_lag, graph.last, durations, ends
        for prefer in (0, 1):
            found = []
            for sweeps in (event_paths, event_kernels):
                time = sweeps.longest_path(*arrays)
                found.append((time, *sweeps.walk_back(*arrays, time, prefer, graph.level, len(graph.lags))))
            assert found[0][0] == found[1][0]
            assert all(np.array_equal(plain, fast) for plain, fast in zip(found[0][1:], found[1][1:], strict=True))


def test_the_two_ways_of_breaking_ties_find_different_paths() -> None:
    graph = EventGraph.from_schedule(build_schedule(ScheduleSpec("1f1b"), 4, 1, 8), 0.0)
    durations = np.array([1.0] * 4 + [2.0] * 4 + [0.0] * 4)
    first, second = (graph.critical_path(durations, prefer)[1] for prefer in (0, 1))
    assert not np.array_equal(first, second)


def test_a_lag_lengthens_one_microbatch_by_its_transfers() -> None:
    schedule = build_schedule(ScheduleSpec("1f1b"), 4, 1, 1)
    durations = np.array([1.0] * 4 + [2.0] * 4 + [0.0] * 4)
    assert EventGraph.from_schedule(schedule, 0.5).longest_path(durations) == pytest.approx(12 + 6 * 0.5)
    folded = build_schedule(ScheduleSpec("zbv"), 4, 2, 1)
    graph = EventGraph.from_schedule(folded, 0.5)
    # Down the V and up again, the turn at its foot being no transfer: 6 forward and 6 backward ones.
    durations = np.array([1.0] * 16 + [0.0] * 8 + [0.0] * 4)
    assert graph.longest_path(durations) == pytest.approx(16 + 12 * 0.5)


def problem_with(spec: ScheduleSpec, interleaves: int) -> PipelineProblem:
    kinds = (
        LayerKind("dense", 2, 0.5, 1.0, {NONE: 1.0, SELECT: 1.0, FULL: 1.0}),
        LayerKind("moe", 6, 1.0, 1.0, {NONE: 1.0, SELECT: 1.0, FULL: 1.0}),
        LayerKind("mtp", 1, 1.25, 1.0, {NONE: 1.0, SELECT: 1.0, FULL: 1.0}, pinned_last=True),
    )
    return PipelineProblem(
        2,
        interleaves,
        4,
        kinds,
        (0.0, 0.0),
        (99.0, 99.0),
        spec,
        backward_ratio=2.0,
        recompute_ratio={FULL: 1.0, SELECT: 0.25},
        head_forward=1.5,
        embedding_forward=0.1,
        tail=(0.3, 0.4),
        weight_gradient_share=0.4,
    )


def test_durations_follow_the_formulas_by_hand() -> None:
    plan = PipelinePlan({"dense": ((2, 0),), "moe": ((2, 4),), "mtp": ((0, 1),)}, {FULL: ((3, 1),), SELECT: ((1, 2),)})
    forward = [2 * 0.5 + 2 + 0.1, 4 + 1.25 + 1.5]
    extra = [2 * 0.5 + 1 + 0.25, 1 + 2 * 0.25]
    expected = [*forward, 2 * forward[0] + extra[0], 2 * forward[1] + extra[1], 0.3, 0.4]
    assert chunk_durations(problem_with(ScheduleSpec("1f1b"), 1), plan) == pytest.approx(expected)
    halves = chunk_durations(problem_with(ScheduleSpec("seqpipe", seq_splits=2), 1), plan)
    assert halves == pytest.approx([*(value / 2 for value in expected[:4]), 0.3, 0.4])


def test_the_weight_gradient_takes_its_share_and_leaves_recompute_to_the_input_gradient() -> None:
    plan = PipelinePlan(
        {"dense": ((2, 0), (0, 0)), "moe": ((0, 2), (2, 2)), "mtp": ((0, 0), (1, 0))},
        {FULL: ((1, 0), (0, 0)), SELECT: ((0, 0), (0, 0))},
    )
    durations = chunk_durations(problem_with(ScheduleSpec("zbv"), 2), plan).reshape(-1, 2)
    forward = np.array([[1.1, 2.0], [2 + 1.25 + 1.5, 2.0]])  # the head sits on stage 0, at the V's end
    assert durations[:2] == pytest.approx(forward)
    assert durations[2:4] == pytest.approx(2 * 0.6 * forward + np.array([[0.5, 0.0], [0.0, 0.0]]))
    assert durations[4:6] == pytest.approx(2 * 0.4 * forward)
    assert durations[6] == pytest.approx([0.3, 0.4])


def test_a_transfer_takes_what_its_own_boundary_asks_for_in_either_direction() -> None:
    durations = np.array([1.0] * 4 + [2.0] * 4 + [0.0] * 4)
    graph = EventGraph.from_schedule(build_schedule(ScheduleSpec("1f1b"), 4, 1, 1), [0.25, 4.0, 0.5])
    assert graph.longest_path(durations) == 12 + 2 * (0.25 + 4.0 + 0.5)
    assert graph.critical_path(durations)[2] == 2 * (0.25 + 4.0 + 0.5)
    # Two interleaves on two stages: the second boundary joins the last stage to the first, and counts once each way.
    graph = EventGraph.from_schedule(build_schedule(ScheduleSpec("interleaved"), 2, 2, 1), [0.25, 4.0, 0.5])
    assert graph.longest_path(np.array([1.0] * 4 + [2.0] * 4 + [0.0] * 2)) == 12 + 2 * (0.25 + 4.0 + 0.5)
