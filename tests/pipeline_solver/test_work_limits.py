"""How much work a step time leaves a stage, against pipelines counted by hand."""

from __future__ import annotations

import pytest

from taylor.pipeline_solver.durations import schedule_of
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.work_limits import WorkLimits
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
