"""How much work a step time leaves a stage, and the step of one stage, against pipelines counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import small_problem


def limits_of(**changes: object) -> WorkLimits:
    problem = small_problem(**changes)
    return WorkLimits(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))


def test_one_stage_works_the_whole_step() -> None:
    limits = limits_of(stages=1, static_mib=(5.0,), limit_mib=(100.0,))
    assert limits.under(24.0) == pytest.approx(24.0 / 4, rel=1e-7)
    # Four layers, forward and twice as long back, four times.
    assert limits.bound() == pytest.approx(4 * 4 * 3.0)


def test_the_last_of_two_stages_waits_for_a_forward_and_is_followed_by_a_backward() -> None:
    """One layer at the least on the first stage: 1 before and 2 after. The first stage itself begins and ends."""
    limits = limits_of()
    first, last = limits.under(24.0)
    assert first == pytest.approx(24.0 / 4, rel=1e-7)
    assert last == pytest.approx((24.0 - 3.0) / 4, rel=1e-7)


@pytest.mark.parametrize(("tail", "step_time"), [((), 12.0), ((5.0,), 17.0)])
def test_a_step_of_one_stage_is_its_work_and_what_follows_it(tail: tuple[float, ...], step_time: float) -> None:
    """Four micro-batches of one layer: a forward of 1 and a backward of 2 each."""
    problem = small_problem(stages=1, static_mib=(5.0,), limit_mib=(100.0,), tail=tail)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    assert paths.tails.tolist() == list(tail or (0.0,))
    assert paths.path(np.array([1.0, 2.0]))[0] == pytest.approx(step_time)
