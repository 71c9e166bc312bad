"""The memory that a dry-run saw, laid over the plan's timeline and beside the closed forms."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.dryrun.stage_memory import Moment, StageMemory
from taylor.parsers.read import read_config
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.breakdown import comparison_table
from taylor.report.planned import planned_timeline, with_dryrun
from taylor.report.timeline import Timeline, side_by_side
from tests.dryrun_cases import LLAMA
from tests.report_cases import deepseek, even_plan

PROBLEM = deepseek(4, micro_batches=6)
PLAN = even_plan(PROBLEM)


def tasks_of(timeline, stage):
    rows = np.flatnonzero(timeline.stage == stage)
    return rows[np.argsort(timeline.start[rows], kind="stable")]


def moments_of(timeline, stage):
    """A made-up memory: 100 times the task's place while it runs, 10 less after it."""
    return tuple(
        Moment(int(timeline.direction[i]), 0, int(timeline.micro_batch[i]), 100.0 * at + 90.0, 100.0 * at + 100.0)
        for at, i in enumerate(tasks_of(timeline, stage))
    )


def level(curve, time):
    return float(curve.mib[np.searchsorted(curve.time, time, side="right") - 1])


def test_a_task_shows_its_peak_while_it_runs_and_what_is_left_after_it():
    timeline = planned_timeline(PROBLEM, PLAN)
    shown = with_dryrun(timeline, [StageMemory(2, 1200.0, {}, moments_of(timeline, 2))])
    assert [len(curve.time) > 0 for curve in shown.dryrun] == [False, False, True, False]
    tasks = tasks_of(timeline, 2)
    for at, task in enumerate(tasks):
        begin, end = timeline.start[task], timeline.end[task]
        assert level(shown.dryrun[2], (begin + end) / 2) == 100.0 * at + 100.0
        after = timeline.start[tasks[at + 1]] if at + 1 < len(tasks) else end + 1.0
        if after > end:
            assert level(shown.dryrun[2], (end + after) / 2) == 100.0 * at + 90.0
    assert shown.dryrun[2].peak_mib == 1200.0 and shown.dryrun[2].limit_mib == PROBLEM.limit_mib[2]


def test_tasks_after_the_dry_runs_end_are_drawn_as_the_last_of_their_kind():
    timeline = planned_timeline(PROBLEM, PLAN)
    tasks = tasks_of(timeline, 2)
    kept = {FORWARD: 50.0, BACKWARD: -50.0}
    live, moments = 1000.0, []
    for i in tasks[:6]:
        direction = int(timeline.direction[i])
        moments.append(Moment(direction, 0, int(timeline.micro_batch[i]), live + kept[direction], live + 70.0))
        live += kept[direction]
    assert {moment.direction for moment in moments} == {FORWARD, BACKWARD}
    shown = with_dryrun(timeline, [StageMemory(2, 1200.0, {}, tuple(moments))])
    live = 1000.0
    for i in tasks:
        begin, end = float(timeline.start[i]), float(timeline.end[i])
        assert level(shown.dryrun[2], (begin + end) / 2) == pytest.approx(live + 70.0)
        live += kept[int(timeline.direction[i])]
    assert level(shown.dryrun[2], timeline.finish + 1.0) == live == 1000.0


def test_without_moments_nothing_is_drawn():
    timeline = planned_timeline(PROBLEM, PLAN)
    assert with_dryrun(timeline, [StageMemory(0, 1.0, {})]).dryrun == () == with_dryrun(timeline, []).dryrun


def test_laid_beside_another_plan_the_curve_stays_with_its_own_rows():
    timeline = planned_timeline(PROBLEM, PLAN, "own")
    shown = with_dryrun(timeline, [StageMemory(0, 1200.0, {}, moments_of(timeline, 0))])
    both = side_by_side([planned_timeline(PROBLEM, PLAN, "other"), shown])
    assert [len(curve.time) > 0 for curve in both.dryrun] == [False] * 4 + [True] + [False] * 3
    assert both.dryrun[4].peak_mib == shown.dryrun[0].peak_mib


def test_the_table_shows_both_by_category_and_how_far_apart_they_are():
    config = read_config(LLAMA)
    closed = stage_breakdown(config.model, config.strategy, config.rules)
    parts = closed[1].categories() | {"weights": closed[1].weights * 2}
    measured = StageMemory(1, sum(parts.values()), parts)
    console = Console(width=200, file=io.StringIO())
    console.print(comparison_table([measured], closed, 60_000.0))
    text = console.file.getvalue()
    lines = [line for line in text.splitlines() if "dry-run" in line or "forms" in line]
    assert f"{2 * closed[1].weights:,.0f}" in lines[1] and f"{closed[1].weights:,.0f}" in lines[2]
    apart = (closed[1].total - measured.peak_mib) / measured.peak_mib
    assert f"{apart:+.1%}" in lines[2] and apart < 0
    assert "60,000 MiB" in text


@pytest.mark.parametrize("wrong", [1, 5])
def test_a_timeline_refuses_curves_that_are_not_one_a_row(wrong):
    timeline = planned_timeline(PROBLEM, PLAN)
    with pytest.raises(ValueError, match="one entry a row"):
        Timeline(**{**timeline.__dict__, "dryrun": timeline.memory[:1] * wrong})
