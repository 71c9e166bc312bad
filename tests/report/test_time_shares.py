"""Time splits, gaps and slices of a small measured step, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.report.facts import Share
from taylor.report.intervals import Activity, cut, merged, uncovered, union
from taylor.report.lanes import lanes_of
from taylor.report.share_tables import (
    MOST_LINES,
    device_shares,
    gaps_page_table,
    shares_page_table,
    shares_table,
)
from taylor.report.shares import critical_row, gap_lines, gaps, over_steps, step_shares
from taylor.report.slices import slice_marks
from taylor.report.timeline import COMMUNICATION, OPTIMIZER, OTHER
from tests.report.test_shares import timeline_of
from tests.report_cases import block, printed

TWO = timeline_of(
    (0, FORWARD, 0, 40, "forward 0"),
    (0, COMMUNICATION, 30, 60, "Recv 0"),
    (0, BACKWARD, 80, 100, "backward 0"),
    (1, COMMUNICATION, 10, 50, "send 0"),
    (1, FORWARD, 50, 90, "forward 0"),
    (0, FORWARD, 200, 300, "forward 1"),
    (1, FORWARD, 210, 240, "forward 1"),
    (1, BACKWARD, 260, 290, "backward 1"),
    marks=((0.0, "step 0"), (200.0, "step 1")),
)
ONE = timeline_of((0, FORWARD, 2, 10, "forward"), (0, COMMUNICATION, 8, 20, "send and receive"))


def test_merged_stretches_touch_and_keep_their_outer_ends():
    spans = merged(np.array([5.0, 0.0, 1.0, 9.0, 3.0]), np.array([7.0, 4.0, 2.0, 9.0, 5.0]))
    assert spans.tolist() == [[0.0, 7.0]]
    assert merged(np.array([1.0]), np.array([1.0])).shape == (0, 2)
    assert union(spans, np.array([[8.0, 9.0]])).tolist() == [[0.0, 7.0], [8.0, 9.0]]
    assert cut(spans, 2.0, 5.0).tolist() == [[2.0, 5.0]] and cut(spans, 7.0, 9.0).shape == (0, 2)
    assert uncovered(spans, np.array([[1.0, 2.0], [6.0, 20.0]])) == 5.0
    activity = Activity(spans, spans + 1, spans + 2)
    assert activity.scaled(2.0).compute.tolist() == [[0.0, 14.0]]
    assert [getattr(activity.scaled(2.0), name)[0, 1] for name in ("communication", "receive")] == [16.0, 18.0]
    later = activity.shifted(3.0)
    assert [getattr(later, name).tolist() for name in ("compute", "communication", "receive")] == [
        [[3.0, 10.0]], [[4.0, 11.0]], [[5.0, 12.0]],
    ]  # fmt: skip


def test_jobs_at_once_lie_in_lanes_and_a_free_lane_is_taken_again():
    row, start, end = (
        np.array([0, 0, 0, 1, 0]),
        np.array([0.0, 1.0, 2.0, 1.0, 3.0]),
        np.array([9.0, 2.0, 5.0, 2.0, 4.0]),
    )
    assert lanes_of(row, start, end).tolist() == [0, 1, 1, 0, 2]
    # The shorter one of two that begin together is first.
    assert lanes_of(np.zeros(2, int), np.zeros(2), np.array([2.0, 1.0])).tolist() == [1, 0]


def test_the_shares_of_every_device_and_step_add_up():
    found = [
        (one.step, one.row, one.begin, one.end, one.compute, one.exposed, one.receiving, one.hidden, one.idle)
        for one in step_shares(TWO)
    ]
    assert found == [
        ("step 0", 0, 0.0, 100.0, 60.0, 20.0, 20.0, 10.0, 20.0),
        ("step 0", 1, 0.0, 100.0, 40.0, 40.0, 0.0, 0.0, 20.0),
        ("step 1", 0, 200.0, 300.0, 100.0, 0.0, 0.0, 0.0, 0.0),
        ("step 1", 1, 200.0, 300.0, 60.0, 0.0, 0.0, 0.0, 40.0),
    ]
    sums = [(one.row, one.begin, one.end, one.compute, one.exposed, one.idle) for one in over_steps(step_shares(TWO))]
    assert sums == [(0, 0.0, 200.0, 160.0, 20.0, 20.0), (1, 0.0, 200.0, 100.0, 40.0, 60.0)]
    assert critical_row(TWO) == 0 and critical_row(TWO.select(np.zeros(0, dtype=int))) == 0
    alone = TWO.select(np.flatnonzero(TWO.stage == 1))
    assert critical_row(alone) == 1


def test_a_step_without_a_job_has_no_shares_and_the_last_mark_ends_with_its_last_job():
    marked = replace(TWO, marks=((0.0, "a"), (100.0, "b"), (205.0, "c")))
    # What begins before a mark belongs to the step before it, which ends at the mark.
    assert [(one.step, one.begin, one.end) for one in step_shares(marked) if one.row == 0] == [
        ("a", 0.0, 100.0), ("b", 100.0, 205.0), ("c", 205.0, 290.0),
    ]  # fmt: skip
    late = replace(TWO, marks=((0.0, "a"), (400.0, "b")))
    assert [one.step for one in step_shares(late)] == ["a", "a"]


def test_rows_measured_at_different_times_have_no_step_in_common():
    apart = replace(TWO, apart=True)
    assert [(one.step, one.begin, one.end) for one in step_shares(apart)] == [("all", 0.0, 300.0), ("all", 10.0, 290.0)]
    empty = replace(apart, row_names=("a", "b", "c"))
    assert [one.row for one in step_shares(empty)] == [0, 1]


def test_gaps_lie_between_two_jobs_of_a_step_and_the_longest_is_first():
    found = [(gap.row, gap.step, gap.begin, gap.end, gap.before, gap.after) for gap in gaps(TWO)]
    assert found == [
        (0, "step 0", 60.0, 80.0, "Recv 0", "backward 0"), (1, "step 1", 240.0, 260.0, "forward 1", "backward 1"),
    ]  # fmt: skip
    assert len(gaps(TWO, least=20.0)) == 2 and gaps(TWO, least=20.1) == []
    assert gap_lines(TWO, 1) == ["gap of 20.000 ms on device 0 in step 0 at 60.000, between Recv 0 and backward 0"]
    unknown = replace(TWO, unit_ms=None, marks=())
    assert gap_lines(unknown)[0].startswith(
        "gap of 120.000 units on device 1 at 90.000, between forward 0 and forward 1"
    )
    many = timeline_of(*((0, FORWARD, 10 * n, 10 * n + 10 - n / 10, f"f{n}") for n in range(1, 30)))
    assert len(gap_lines(many)) == 5 and gap_lines(many)[0].startswith("gap of 2.800 ms on device 0 at 287.200")
    doubled = replace(TWO, unit_ms=2.0, marks=())
    assert gap_lines(doubled)[1].startswith(
        "gap of 200.000 ms on device 0 at 200.000, between backward 0 and forward 1"
    )


def test_a_gap_inside_a_block_is_named_by_the_block():
    inside = Activity(np.array([[0.0, 4.0], [6.0, 10.0]]), np.zeros((0, 2)), np.zeros((0, 2)))
    block_of = replace(timeline_of((0, FORWARD, 0, 10, "run")), activity=(inside,))
    assert [(gap.length, gap.before, gap.after) for gap in gaps(block_of)] == [(2.0, "run", "run")]


def test_shares_stand_in_a_terminals_table():
    both = [device_shares(TWO), device_shares(ONE)]
    assert printed(shares_table(both), 100) == block(
        """
                                            exposed      of it   hidden
        device    step         ms  compute    comm.  receiving    comm.     idle
        device 0  step 0  100.000   60.0 %   20.0 %     20.0 %   10.0 %   20.0 %
        device 1  step 0  100.000   40.0 %   40.0 %      0.0 %    0.0 %   20.0 %
        device 0  step 1  100.000  100.0 %    0.0 %      0.0 %    0.0 %    0.0 %
        device 1  step 1  100.000   60.0 %    0.0 %      0.0 %    0.0 %   40.0 %
        device 0  all      18.000   44.4 %   55.6 %     55.6 %   11.1 %    0.0 %
        shares of the step; exposed: communication while the device computes
        nothing
        """
    )
    assert printed(shares_table(both), 60) == block(
        """
                                          exposed      of it   hidde
        device  step         ms  compute    comm.  receiving    comm
        devic…  step 0  100.000   60.0 %   20.0 %     20.0 %   10.0
        devic…  step 0  100.000   40.0 %   40.0 %      0.0 %    0.0
        devic…  step 1  100.000  100.0 %    0.0 %      0.0 %    0.0
        devic…  step 1  100.000   60.0 %    0.0 %      0.0 %    0.0
        devic…  all      18.000   44.4 %   55.6 %     55.6 %   11.1
        shares of the step; exposed: communication while the device
        nothing
        """
    )
    assert printed(shares_table([device_shares(ONE)]), 100) == block(
        """
                                    exposed      of it   hidden
        device         ms  compute    comm.  receiving    comm.     idle
        device 0   18.000   44.4 %   55.6 %     55.6 %   11.1 %    0.0 %
        shares of the step; exposed: communication while the device
        computes nothing
        """
    )


def test_many_lines_are_summed_over_the_steps():
    jobs = [(row, FORWARD, 100 * n, 100 * n + 50, "forward") for row in range(17) for n in range(2)]
    marks = ((0.0, "step 0"), (100.0, "step 1"))
    table = shares_table([device_shares(timeline_of(*jobs, marks=marks))])
    assert table.row_count == 17 and [str(column.header) for column in table.columns][:2] == ["device", "ms"]
    assert "devices, --html" not in str(table.caption)
    jobs = jobs[:MOST_LINES]
    table = shares_table([device_shares(timeline_of(*jobs, marks=marks))])
    assert table.row_count == MOST_LINES and [str(column.header) for column in table.columns][1] == "step"


def test_shares_and_gaps_stand_in_a_pages_tables():
    table = shares_page_table(device_shares(TWO)[:1])
    assert list(table.columns) == [
        "device",
        "step",
        "ms",
        "compute | exposed | idle",
        "compute",
        "exposed communication",
        "of it receiving",
        "hidden",
        "idle",
    ]
    assert table.rows == [
        [
            "device 0",
            "step 0",
            "100.000",
            Share(parts=(("compute", 0.6), ("exposed communication", 0.2), ("idle", 0.2))),
            "60.0 %",
            "20.0 %",
            "20.0 %",
            "10.0 %",
            "20.0 %",
        ]
    ]
    none = replace(device_shares(ONE)[0].share, begin=0.0, end=0.0)
    empty = replace(device_shares(ONE)[0], share=none)
    assert shares_page_table([empty]).rows[0][3].parts == (
        ("compute", 0.0), ("exposed communication", 0.0), ("idle", 0.0),
    )  # fmt: skip
    assert empty.cells[2:] == ("0.000", "-", "-", "-", "-", "-")
    assert gaps_page_table(ONE) is None
    found = gaps_page_table(TWO)
    assert (found.columns[2], found.columns[3]) == ("from, ms", "length, ms")
    assert found.rows == [
        ["device 0", "step 0", "60.000", "20.000", "Recv 0", "backward 0"],
        ["device 1", "step 1", "240.000", "20.000", "forward 1", "backward 1"],
    ]
    assert found.note.startswith("The longest 2 of 2 stretches")
    assert gaps_page_table(replace(TWO, unit_ms=None)).columns[2] == "from, units"
    many = timeline_of(*((0, FORWARD, 10 * n, 10 * n + 5, f"f{n}") for n in range(23)))
    assert gaps_page_table(many).note.startswith("The longest 20 of 22 stretches")
    assert len(gaps_page_table(many).rows) == 20


@pytest.mark.parametrize(
    ("count", "marks"),
    [(10, ["FFFFrBBBBO", "CCCCCWxx.."]), (5, ["FFBBB", "CCCx."])],
)
def test_a_slice_has_the_mark_of_its_main_kind_or_of_idle(count, marks):
    timeline = timeline_of(
        (0, FORWARD, 0, 4, "f"), (0, BACKWARD, 4, 9, "b"), (0, OPTIMIZER, 9, 10, "o"),
        (1, COMMUNICATION, 0.5, 5, "c"), (1, WEIGHT_GRADIENT, 5.25, 5.75, "w"), (1, OTHER, 6, 8, "x"),
        (1, FORWARD, 8, 8.49, "f"),
    )  # fmt: skip
    timeline = replace(timeline, recompute=np.where(timeline.direction == BACKWARD, 1.0, 0.0))
    assert slice_marks(timeline, [0, 1], 0.0, 10.0, count) == marks
    assert slice_marks(timeline, [1], 5.0, 9.0, 4) == [marks[1][5:9] if count == 10 else "Wxx."]
