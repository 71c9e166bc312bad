"""The compiled kernels against plain twins, written from what they are to do."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.layerwise.exact.contents import _hardly_slower, undominated
from taylor.layerwise.exact.events import LaggedGraph
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import ScheduleSpec
from tests.pipeline_solver.event_graph_reference import play

SEEDS = range(5)


def grouped(keys, values):
    """Rows by key, then by value, and where each key begins."""
    order = np.lexsort((values, keys))
    starts = np.concatenate([[0], np.nonzero(np.diff(keys[order]))[0] + 1, [len(keys)]])
    return order, starts


def drawn(seed):
    """Keys and figures of few values, so that many rows are equal or beat each other."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, 60), rng.integers(0, 5, (60, 3)).astype(float)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_rows_with_a_key_just_those_stay_that_no_other_beats(seed):
    keys, figures = drawn(seed)
    keep = undominated(keys, figures, *grouped(keys, figures.sum(axis=1)))
    for row in range(len(keys)):
        rivals = [r for r in np.nonzero(keys == keys[row])[0] if (figures[r] <= figures[row]).all()]
        beaten = any((figures[r] < figures[row]).any() for r in rivals)
        equals = [r for r in rivals if (figures[r] == figures[row]).all()]
        assert sum(keep[r] for r in equals) == (0 if beaten else 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_go_one_by_one_where_one_that_stays_is_hardly_slower(seed):
    keys, times = drawn(seed)
    limits = times + 1.0
    order, starts = grouped(keys, times.sum(axis=1))
    stays: list[int] = []
    for row in order:
        if not any(keys[k] == keys[row] and (times[k] <= limits[row]).all() for k in stays):
            stays.append(row)
    assert np.nonzero(_hardly_slower(times, limits, order, starts))[0].tolist() == sorted(stays)


@pytest.mark.parametrize("stages, interleaves, micro_batches", [(1, 1, 3), (3, 1, 5), (2, 2, 4), (3, 3, 6)])
def test_a_step_is_that_of_its_tasks_played_one_by_one_and_the_sum_of_a_path(stages, interleaves, micro_batches):
    name = "megatron-interleaved" if interleaves > 1 else "1f1b"
    schedule = build_schedule(ScheduleSpec(name), stages, interleaves, micro_batches)
    graph = LaggedGraph.of(schedule)
    rng = np.random.default_rng(stages)
    for _ in range(5):
        times = rng.uniform(0.1, 1.0, graph.classes)
        first_lag = 2 * schedule.chunks + stages
        played = play(schedule, times[first_lag:].tolist(), times[:first_lag].tolist())[0]
        assert graph.step(times) == pytest.approx(played, rel=1e-12)
        for prefer in (0, 1):
            step, counts = graph.path(times, prefer)
            assert step == pytest.approx(played, rel=1e-12) and counts @ times == pytest.approx(played, rel=1e-12)


def test_of_two_longest_paths_the_one_is_followed_that_crosses_to_the_other_stage_where_that_is_preferred():
    """A stage waits for nobody in its steady state, and its neighbour is ready just then: both ways are as long."""
    graph = LaggedGraph.of(build_schedule(ScheduleSpec("1f1b"), 3, 1, 6))
    times = np.zeros(graph.classes)
    times[: 2 * 3] = 1.0
    lags = slice(graph.lag(0), None)
    (own_step, own), (other_step, other) = (graph.path(times, prefer) for prefer in (0, 1))
    assert own_step == other_step == own @ times == other @ times
    assert other[lags].sum() > own[lags].sum() > 0
