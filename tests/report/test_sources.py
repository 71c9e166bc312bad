"""Measured pipelines: generated multi-machine logs must give back the pipeline that wrote them."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.chrome_trace import write_chrome_trace
from taylor.report.lanes import lanes_of
from taylor.report.picture import write_picture
from taylor.report.planned import planned_timeline
from taylor.report.shares import critical_row, gap_lines, gaps
from taylor.report.sources import load_worker_logs
from taylor.report.timeline import OTHER, side_by_side
from tests.parsers.tables.test_worker_log import REAL, line, write
from tests.report_cases import deepseek, even_plan

EPOCH = 1697793307000.0


def planned(stages=8, micro_batches=12):
    problem = deepseek(stages, 1, micro_batches, unit_ms=3.0, lag=0.2)
    return planned_timeline(problem, even_plan(problem)).in_ms()


def write_logs(folder, timeline, machines, clocks, steps=2):
    """Logs of a pipeline whose stages are devices, spread over machines with clocks that differ, ms."""
    each = timeline.rows // machines
    for stage in range(timeline.rows):
        machine, device = divmod(stage, each)
        lines = []
        for step in range(steps):
            base = EPOCH + clocks[machine] + step * (timeline.span + 50.0)
            mine = [task for task in range(len(timeline)) if timeline.stage[task] == stage]
            lines += [
                line(
                    "forward" if timeline.direction[task] == FORWARD else "backward",
                    timeline.micro_batch[task],
                    base + timeline.start[task],
                    base + timeline.end[task],
                    job=k,
                )
                for k, task in enumerate(mine)
            ]
        path = folder / f"machine{machine}" if machines > 1 else folder
        write(path / f"workerlog.{device}", *lines)


def by_task(timeline, steps):
    """Start by (row, direction, micro-batch), each the sorted list over the steps."""
    found = defaultdict(list)
    for task in range(len(timeline)):
        key = (int(timeline.stage[task]), int(timeline.direction[task]), int(timeline.micro_batch[task]))
        found[key].append(float(timeline.start[task]))
    assert all(len(starts) == steps for starts in found.values())
    return {key: sorted(starts) for key, starts in found.items()}


@pytest.mark.parametrize("clocks", [(0, 0), (0, 87_000.0), (0, -3_600_000.0), (0, 41.5)])
def test_a_machine_with_another_clock_is_brought_onto_the_first_ones(tmp_path, clocks):
    truth = planned()
    write_logs(tmp_path, truth, 2, clocks)
    measured = load_worker_logs(tmp_path, multi_machine=True)
    assert measured.row_names == tuple(f"GPU{d}(machine:{m})" for m in (0, 1) for d in range(4))
    starts = by_task(measured, 2)
    for task in range(len(truth)):
        key = (int(truth.stage[task]), int(truth.direction[task]), int(truth.micro_batch[task]))
        # The hand-overs bound the clock to within the transfer time (0.6 ms), no better.
        assert starts[key][0] == pytest.approx(truth.start[task], abs=0.6 + 1e-3)
    moved = [note for note in measured.notes if note.startswith("machine 1: clock moved")]
    assert len(moved) == (clocks[1] != 0)


def test_after_the_shift_no_micro_batch_arrives_before_it_was_sent(tmp_path):
    truth = planned(12)
    write_logs(tmp_path, truth, 3, (0, 500.0, -9_000.0), steps=1)
    measured = load_worker_logs(tmp_path, multi_machine=True)
    end = {
        (int(s), int(d), int(m)): float(e)
        for s, d, m, e in zip(measured.stage, measured.direction, measured.micro_batch, measured.end, strict=True)
    }
    for (stage, direction, micro_batch), starts in by_task(measured, 1).items():
        feeder = (stage - 1 if direction == FORWARD else stage + 1, direction, micro_batch)
        if feeder in end:
            assert starts[0] >= end[feeder] - 1e-3


def test_copies_of_one_stage_with_equal_clocks_are_not_moved(tmp_path):
    """Machines that are data-parallel copies hand nothing on; their clocks must not be bent to look so."""
    truth = planned(4)
    for machine in (0, 1):
        for stage in range(4):
            mine = [t for t in range(len(truth)) if truth.stage[t] == stage]
            write(
                tmp_path / f"machine{machine}" / f"workerlog.{stage}",
                *[
                    line(
                        "forward" if truth.direction[t] == FORWARD else "backward",
                        truth.micro_batch[t],
                        EPOCH + truth.start[t],
                        EPOCH + truth.end[t],
                        job=k,
                    )
                    for k, t in enumerate(mine)
                ],
            )
    measured = load_worker_logs(tmp_path, multi_machine=True)
    assert not [note for note in measured.notes if "clock" in note]
    upper, lower = measured.stage < 4, measured.stage >= 4
    np.testing.assert_allclose(np.sort(measured.start[upper]), np.sort(measured.start[lower]))


@pytest.mark.skipif(not REAL.exists(), reason="the sample data are not here")
def test_the_two_real_lines_overlap_and_lie_in_two_lanes(tmp_path):
    (tmp_path / "workerlog.0").write_bytes(REAL.read_bytes())
    timeline = load_worker_logs(tmp_path)
    assert timeline.row_names == ("GPU0(machine:0)",) and timeline.lane.tolist() == [0, 1]
    assert timeline.start.tolist() == pytest.approx([0.0, 0.981934], abs=1e-3)
    assert timeline.span == pytest.approx(40.245118, abs=1e-3)
    trace = json.loads(write_chrome_trace(timeline, tmp_path / "trace.json").read_text())
    blocks = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == "forward"]
    assert [(event["name"], event["tid"]) for event in blocks] == [("forward 2", 1), ("forward 3", 2)]
    assert blocks[0]["dur"] == pytest.approx(40245.118, abs=1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=40))
def test_jobs_in_one_lane_never_overlap_and_there_is_no_lane_too_many(jobs):
    row = np.array([job[0] for job in jobs])
    start = np.array([float(job[1]) for job in jobs])
    end = start + np.array([float(job[2]) for job in jobs])
    lane = lanes_of(row, start, end)
    for a in range(len(jobs)):
        for b in range(a):
            if row[a] == row[b] and lane[a] == lane[b]:
                assert end[a] <= start[b] or end[b] <= start[a]
    for one in np.unique(row):
        mine = row == one
        # Jobs of no length count where they lie: they need a lane beside what runs then.
        most = max(
            ((start[mine] <= t) & ((end[mine] > t) | ((start[mine] == t) & (end[mine] == t)))).sum()
            for t in start[mine]
        )
        assert lane[mine].max() + 1 <= most


def test_steps_are_marked_with_the_numbers_that_the_log_announces(tmp_path):
    lines = ["Schedule Profiler start at step 5 and end at step 7"]
    for step in range(2):
        at = EPOCH + 100.0 * step
        lines += [
            line("lr", -1, at, at + 1),
            line("forward", 0, at + 1, at + 20, 1),
            line("backward", 0, at + 20, at + 60, 2),
            line("optimizer", -1, at + 60, at + 70, 3),
        ]
    write(tmp_path / "workerlog.0", *lines)
    timeline = load_worker_logs(tmp_path)
    assert timeline.marks == ((1.0, "step 5"), (101.0, "step 6"))
    assert timeline.direction.tolist().count(OTHER) == 2
    steps = [
        event
        for event in json.loads(write_chrome_trace(timeline, tmp_path / "t.json").read_text())["traceEvents"]
        if event["ph"] == "X" and event["cat"] == "step"
    ]
    assert [(event["name"], round(event["ts"])) for event in steps] == [("step 5", 1000), ("step 6", 101000)]


def test_gaps_and_the_critical_device_are_named(tmp_path):
    write(tmp_path / "workerlog.0", line("forward", 0, 0.0, 10.0), line("backward", 0, 30.0, 40.0))
    write(tmp_path / "workerlog.1", line("forward", 0, 10.0, 20.0), line("backward", 0, 20.0, 35.0))
    timeline = load_worker_logs(tmp_path)
    assert critical_row(timeline) == 1
    assert [(gap.row, gap.length, gap.before, gap.after) for gap in gaps(timeline)] == [
        (0, 20.0, "forward 0", "backward 0")
    ]
    assert gap_lines(timeline) == [
        "gap of 20.000 ms on GPU0(machine:0) in step 0 at 10.000, between forward 0 and backward 0"
    ]


def test_bad_lines_and_missing_devices_are_in_the_notes(tmp_path):
    write(tmp_path / "workerlog.0", line("forward", 0, 0.0, 10.0), line("backward", 0, 0.0, 10.0)[:110])
    write(tmp_path / "workerlog.2", line("forward", 0, 0.0, 10.0))
    notes = load_worker_logs(tmp_path).notes
    assert any(note.startswith("missing: workerlog.1") for note in notes)
    assert any("1 job line could not be read" in note for note in notes)
    assert any(note.startswith("workerlog.0:2: ") for note in notes)


def test_planned_and_measured_lie_under_each_other(tmp_path):
    truth = planned(4)
    write_logs(tmp_path / "logs", truth, 1, (0,), steps=1)
    both = side_by_side({"planned": truth, "measured": load_worker_logs(tmp_path / "logs")})
    assert both.rows == 8
    for kind in (FORWARD, BACKWARD):
        for stage in range(4):
            upper = np.sort(both.start[(both.stage == stage) & (both.direction == kind)])
            lower = np.sort(both.start[(both.stage == stage + 4) & (both.direction == kind)])
            np.testing.assert_allclose(upper, lower, atol=1e-3)
    assert write_picture(both, tmp_path / "both.png").stat().st_size > 10_000


def test_one_step_of_a_measurement_can_be_laid_beside_the_plan(tmp_path):
    truth = planned(4)
    write_logs(tmp_path, truth, 1, (0,), steps=3)
    measured = load_worker_logs(tmp_path)
    steps = [measured.step(number) for number in range(3)]
    assert [len(step) for step in steps] == [len(truth)] * 3
    assert [step.span for step in steps] == pytest.approx([truth.span] * 3, abs=1e-3)
    with pytest.raises(ValueError, match="step 3 of 3"):
        measured.step(3)
    assert len(measured.steps(0, 1)) == len(steps[0]) + len(steps[1])
    assert measured.steps(1, 2).marks == measured.marks[1:]
    assert len(measured.steps(0, 2)) == len(measured)


def test_a_time_window_keeps_the_jobs_that_run_in_it_and_their_marks(tmp_path):
    truth = planned(4)
    write_logs(tmp_path, truth, 1, (0,), steps=3)
    measured = load_worker_logs(tmp_path)
    part = measured.window(measured.marks[1][0] - 1, measured.marks[1][0] + 100)
    assert [name for _, name in part.marks] == ["step 1"] and 0 < len(part) < len(truth)
    assert (part.end > measured.marks[1][0] - 1).all() and (part.start < measured.marks[1][0] + 100).all()
