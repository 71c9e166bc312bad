"""What devices do with their time: computation, communication that nothing hides, and idle time."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.pipeline.schedule import FORWARD
from taylor.report.intervals import cut, length, merged, uncovered, union
from taylor.report.planned import planned_timeline
from taylor.report.profile_source import load_profiles
from taylor.report.share_tables import MOST_LINES, device_shares, shares_table
from taylor.report.shares import WHOLE, gaps, over_steps, step_shares
from taylor.report.sources import load_worker_logs
from taylor.report.timeline import COMMUNICATION, Timeline, side_by_side
from tests.conftest import SHARED
from tests.parsers.tables.test_worker_log import line, write
from tests.report.test_profiles import write_rank
from tests.report_cases import deepseek, even_plan

SAMPLES = SHARED / "data" / "ascend_profiles"

STRETCHES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=25)


def ticks(stretches):
    """The unit ticks that stretches cover."""
    return {tick for begin, long in stretches for tick in range(begin, begin + long)}


def spans(stretches):
    start = np.array([float(begin) for begin, _ in stretches])
    return merged(start, start + np.array([float(long) for _, long in stretches]))


@settings(max_examples=200, deadline=None)
@given(STRETCHES, STRETCHES, st.integers(0, 40), st.integers(1, 40))
def test_lengths_of_stretches_are_those_of_a_count_tick_by_tick(a, b, begin, long):
    one, other = spans(a), spans(b)
    assert length(one) == len(ticks(a))
    assert length(union(one, other)) == len(ticks(a) | ticks(b))
    assert uncovered(one, other) == len(ticks(a) - ticks(b))
    assert length(cut(one, begin, begin + long)) == len(ticks(a) & set(range(begin, begin + long)))
    assert (one[1:, 0] > one[:-1, 1]).all()


def timeline_of(*jobs, marks=()):
    """A timeline of jobs (row, kind, begin, end, label)."""
    columns = list(zip(*jobs, strict=True))
    none = np.full(len(jobs), -1)
    return Timeline(
        "measured",
        tuple(f"device {row}" for row in range(max(columns[0]) + 1)),
        stage=np.array(columns[0]),
        direction=np.array(columns[1]),
        interleave=none,
        micro_batch=none,
        split=none,
        start=np.array(columns[2], dtype=float),
        end=np.array(columns[3], dtype=float),
        labels=tuple(columns[4]),
        unit_ms=1.0,
        marks=marks,
    )


def test_only_communication_that_no_computation_covers_is_exposed():
    timeline = timeline_of(
        (0, FORWARD, 0, 40, "forward"),
        (0, COMMUNICATION, 30, 60, "allreduce"),
        (0, COMMUNICATION, 55, 70, "recv"),
        (1, FORWARD, 90, 100, "forward"),
    )
    first, second = step_shares(timeline)
    assert (first.compute, first.exposed, first.receiving, first.hidden, first.idle) == (40, 30, 15, 10, 30)
    assert (second.compute, second.exposed, second.idle) == (10, 0, 90)
    assert first.span == second.span == 100


def test_a_device_that_waits_in_collectives_is_not_called_busy(tmp_path):
    """39 % computation, the rest of the step in a receive and a collective: nothing is idle, and most is exposed."""
    kernels = [("MatMul", 0.0, 390.0), ("hcom_receive_", 390.0, 500.0), ("hcom_allReduce_", 890.0, 110.0)]
    write_rank(tmp_path, 0, kernels)
    (one,) = device_shares(load_profiles(tmp_path))
    assert one.cells == ("rank 0", WHOLE, "1.000", "39.0 %", "61.0 %", "50.0 %", "0.0 %", "0.0 %")


def test_every_step_of_a_log_has_its_own_shares_and_their_sum(tmp_path):
    for device in (0, 1):
        at = [1000.0 * step + 10.0 * device for step in range(3)]
        jobs = [
            line(kind, 0, t + a, t + b)
            for t in at
            for kind, a, b in (("forward", 0, 20), ("backward", 60 - 20 * device, 100 - 20 * device))
        ]
        write(tmp_path / f"workerlog.{device}", *jobs)
    timeline = load_worker_logs(tmp_path)
    shares = step_shares(timeline)
    assert [(one.step, one.row) for one in shares] == [(f"step {n}", row) for n in range(3) for row in (0, 1)]
    assert {(one.span, one.compute, one.idle) for one in shares} == {(100.0, 60.0, 40.0)}
    # What lies between two steps belongs to neither.
    assert [(one.compute, one.span) for one in over_steps(shares)] == [(180.0, 300.0)] * 2
    assert {(gap.row, gap.step, gap.length) for gap in gaps(timeline)} == {
        (row, f"step {n}", 40.0 - 20.0 * row) for n in range(3) for row in (0, 1)
    }


def test_the_parts_of_a_plan_fill_its_step_and_the_gaps_are_its_idle_time():
    problem = deepseek(4, 1, 6, lag=0.2, tail=(1.0, 2.0, 0.5, 0.0))
    timeline = planned_timeline(problem, even_plan(problem))
    idle = [0.0] * 4
    for gap in gaps(timeline):
        idle[gap.row] += gap.length
    for share in step_shares(timeline):
        mine = timeline.stage == share.row
        assert share.compute == pytest.approx(float((timeline.end - timeline.start)[mine].sum()))
        assert share.exposed == 0 and share.compute + share.idle == pytest.approx(timeline.span)
        around = float(timeline.start[mine].min()) + timeline.span - float(timeline.end[mine].max())
        assert idle[share.row] + around == pytest.approx(share.idle)


def test_shares_are_the_same_in_ms_and_beside_another_timeline():
    problem = deepseek(4, 1, 6, unit_ms=3.0)
    plan = planned_timeline(problem, even_plan(problem))
    both = side_by_side({"a": plan, "b": plan})
    for share, later in zip(step_shares(plan), step_shares(both)[4:], strict=True):
        assert later.compute == pytest.approx(3.0 * share.compute) and later.idle == pytest.approx(3.0 * share.idle)


def test_ranks_measured_at_different_times_each_have_their_own_span(tmp_path):
    write_rank(tmp_path, 0, [("MatMul", 0.0, 300.0), ("hcom_send_", 300.0, 100.0)])
    write_rank(tmp_path, 1, [("MatMul", 60_000_000.0, 100.0)])
    first, second = step_shares(load_profiles(tmp_path))
    assert (first.span, second.span) == pytest.approx((0.4, 0.1)) and second.idle == pytest.approx(0.0)


def test_many_devices_and_steps_are_summed_and_cut_for_the_terminal(tmp_path):
    jobs = [(row, FORWARD, 100 * n, 100 * n + 50, "forward") for row in range(40) for n in range(2)]
    timeline = timeline_of(*jobs, marks=((0.0, "step 0"), (100.0, "step 1")))
    table = shares_table([device_shares(timeline)])
    assert table.row_count == MOST_LINES and "32 of 40 devices" in table.caption
    assert len(device_shares(timeline)) == 80


@pytest.mark.skipif(not SAMPLES.exists(), reason="the sample data are not here")
@pytest.mark.parametrize("sample", ["torch_npu_level0", "torch_npu_level1"])
def test_the_shares_of_a_real_profile_are_those_that_its_profiler_counted(sample):
    timeline = load_profiles(SAMPLES / sample)
    for share in step_shares(timeline):
        (path,) = (SAMPLES / sample).glob(f"rank{share.row}_ascend_pt/ASCEND_PROFILER_OUTPUT/step_trace_time.csv")
        (told,) = csv.DictReader(path.open())
        assert share.compute == pytest.approx(float(told["Computing"]) / 1e3, rel=1e-3)
        assert share.exposed == pytest.approx(float(told["Communication(Not Overlapped)"]) / 1e3, rel=1e-3)
        assert share.hidden == pytest.approx(float(told["Overlapped"]) / 1e3, rel=2e-3)
