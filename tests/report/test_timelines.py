"""Timelines cut, selected, scaled, named and laid side by side, task by task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.pipeline_solver.model.solution import BubbleShares
from taylor.report.intervals import Activity
from taylor.report.timeline import (
    COMMUNICATION,
    OPTIMIZER,
    DrawingWindow,
    MemorySteps,
    Timeline,
    drawing_windows,
    side_by_side,
    window_shares,
)
from tests.report.test_shares import timeline_of


def ints(*values):
    return np.array(values, dtype=np.int64)


def floats(*values):
    return np.array(values, dtype=float)


CURVE = MemorySteps(floats(2, 4), floats(10, 30), 64.0)
ACTIVITY = Activity(floats(2, 3)[None], floats(3, 4)[None], floats(3, 4)[None])
STEP = Timeline(
    "plan", ("stage 0", "stage 1"), stage=ints(0, 1, 1, 0), direction=ints(FORWARD, FORWARD, BACKWARD, BACKWARD),
    interleave=ints(0, 1, 1, 0), micro_batch=ints(3, 3, 3, 3), split=ints(0, 0, 0, 1), start=floats(2, 3, 4, 6),
    end=floats(3, 4, 6, 8), recompute=floats(0, 0, 0.5, 1), lane=ints(0, 0, 0, 1), flows=np.array([[0, 1], [2, 3]]),
    unit_ms=2.0, memory=(CURVE, CURVE), dryrun=(CURVE, MemorySteps(floats(), floats())), marks=((2.0, "a"), (6.0, "b")),
    notes=("n",),
)  # fmt: skip
PER_TASK = ("stage", "direction", "interleave", "micro_batch", "split", "start", "end", "recompute", "lane")
EMPTY = STEP.select(ints())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end": floats(3, 4, 6)}, r"end must have one entry a task \(4\), found 3"),
        ({"lane": ints(0)}, r"lane must have one entry a task \(4\), found 1"),
        ({"labels": ("a",)}, r"labels must be empty or have one entry a task \(4\), found 1"),
        ({"memory": (CURVE,)}, "memory must be empty or have one entry a row"),
        ({"activity": (ACTIVITY,)}, "activity must be empty or have one entry a row"),
        ({"stage": ints(0, 1, 2, 0)}, "a task's stage has no row name"),
        ({"stage": ints(0, 1, -1, 0)}, "a task's stage has no row name"),
        ({"end": floats(3, 4, 6, 5.9)}, "a task ends before it starts"),
    ],
)
def test_a_timeline_refuses_columns_of_unlike_length_and_impossible_tasks(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(STEP, **changes)


def test_a_timeline_may_be_empty_or_end_a_task_where_it_starts():
    assert (len(EMPTY), EMPTY.begin, EMPTY.finish, EMPTY.span) == (0, 0.0, 0.0, 0.0)
    assert replace(STEP, end=floats(3, 4, 6, 6)).finish == 6.0
    assert MemorySteps(floats(), floats()).peak_mib == 0.0 and CURVE.peak_mib == 30.0
    assert (STEP.begin, STEP.finish, STEP.span, STEP.span_ms, STEP.rows) == (2.0, 8.0, 6.0, 12.0, 2)


def test_the_heading_has_time_and_bubble_or_the_sources():
    bubble = BubbleShares(0.1234, 0.1, 0.0, 0.0, 0.0234)
    assert STEP.heading == "plan: 12.00 ms"
    assert replace(STEP, bubble=bubble, unit_ms=None).heading == "plan: 6.00 units, bubble 12.3%"
    assert replace(STEP, sources=("a: 1", "b: 2")).heading == "a: 1  |  b: 2"


def test_times_in_ms_scale_with_all_that_has_a_time():
    shown = replace(STEP, activity=(ACTIVITY, ACTIVITY)).in_ms()
    assert shown.unit_ms == 1.0 and shown.in_ms() is shown
    assert (shown.start.tolist(), shown.end.tolist()) == ([4.0, 6.0, 8.0, 12.0], [6.0, 8.0, 12.0, 16.0])
    assert shown.recompute.tolist() == [0.0, 0.0, 1.0, 2.0]
    assert shown.memory[0].time.tolist() == shown.dryrun[0].time.tolist() == [4.0, 8.0]
    assert shown.memory[0].mib.tolist() == [10.0, 30.0] and shown.marks == ((4.0, "a"), (12.0, "b"))
    assert shown.activity[1].compute.tolist() == [[4.0, 6.0]]
    plain = replace(STEP, unit_ms=None)
    assert plain.in_ms() is plain and plain.span_ms is None


def test_a_row_computes_and_communicates_as_its_tasks_say():
    jobs = timeline_of(
        (0, FORWARD, 0, 4, "f"), (0, BACKWARD, 3, 6, "b"), (0, COMMUNICATION, 5, 8, "Send"),
        (0, COMMUNICATION, 7, 9, "RECV x"), (1, FORWARD, 0, 1, "f"),
    )  # fmt: skip
    doing = jobs.doing(0)
    assert [part.tolist() for part in (doing.compute, doing.communication, doing.receive)] == [
        [[0.0, 6.0]], [[5.0, 9.0]], [[7.0, 9.0]],
    ]  # fmt: skip
    bare = replace(jobs, labels=()).doing(0)
    assert bare.receive.tolist() == bare.communication.tolist() == [[5.0, 9.0]]
    assert replace(jobs, activity=(ACTIVITY, ACTIVITY)).doing(1) is ACTIVITY


def test_a_selection_keeps_whole_tasks_and_the_flows_between_them():
    part = STEP.select(ints(3, 2))
    for name in PER_TASK:
        assert getattr(part, name).tolist() == getattr(STEP, name)[[3, 2]].tolist()
    assert part.flows.tolist() == [[1, 0]] and part.labels == ()
    assert STEP.select(ints(0, 2)).flows.tolist() == []
    assert replace(STEP, labels=tuple("wxyz")).select(ints(2)).labels == ("y",)
    alone = replace(STEP, flows=np.zeros((0, 2), dtype=np.int64))
    assert alone.select(ints(1)).flows.shape == (0, 2)


def test_a_window_has_what_runs_in_it_and_a_step_what_starts_in_it():
    assert STEP.window(3.0, 6.0).start.tolist() == [3.0, 4.0]
    assert STEP.window(2.9, 6.1).start.tolist() == [2.0, 3.0, 4.0, 6.0]
    assert STEP.window(2.0, 6.0).marks == STEP.marks and STEP.window(2.1, 5.9).marks == ()
    assert STEP.step(0).start.tolist() == [2.0, 3.0, 4.0] and STEP.step(1).start.tolist() == [6.0]
    assert STEP.step(1).marks == ((6.0, "b"),) and STEP.steps(0, 1).marks == STEP.marks
    early = replace(STEP, start=floats(1, 3, 4, 6))
    # What starts before the first mark belongs to the first step.
    assert early.step(0).start.tolist() == [1.0, 3.0, 4.0]
    for first, last in ((-1, 0), (0, 2), (2, 2)):
        with pytest.raises(ValueError, match="of 2 does not exist"):
            STEP.steps(first, last)


def test_tasks_are_named_by_what_tells_them_apart():
    assert STEP.task_names() == [
        "forward 3.0 (virtual stage 0)", "forward 3.0 (virtual stage 1)", "backward 3.0 (virtual stage 1)",
        "backward 3.1 (virtual stage 0)",
    ]  # fmt: skip
    plain = replace(STEP, split=ints(0, 0, 0, 0), interleave=ints(0, 0, 0, 0), micro_batch=ints(0, 3, -1, 3))
    assert plain.task_names() == ["forward 0", "forward 3", "backward", "backward 3"]
    mixed = replace(STEP, split=ints(-1, 0, 0, 1), interleave=ints(-1, 1, 0, 0))
    assert mixed.task_names()[:2] == ["forward 3", "forward 3.0 (virtual stage 1)"]
    assert replace(STEP, labels=tuple("wxyz")).task_names() == list("wxyz")


def big(rows=2, pairs=10, gap=0.0, marks=()):
    """Rows that run `pairs` forwards of 1 and then as many backwards of 2, a row later by 1 each, forward and back."""
    jobs = []
    for row in range(rows):
        for n in range(pairs):
            jobs.append((row, FORWARD, row + n, row + n + 1, "f"))
            at = pairs + 2 * rows - row + gap + 2 * n
            jobs.append((row, BACKWARD, at, at + 2, "b"))
    return timeline_of(*jobs, marks=marks)


def windows(timeline, *arguments, **named):
    return [
        (one.name, round(one.begin, 6), round(one.end, 6)) for one in drawing_windows(timeline, *arguments, **named)
    ]


def test_a_small_step_is_one_window_and_a_big_one_three():
    timeline = big()
    assert len(timeline) == 40 and (timeline.begin, timeline.finish) == (0.0, 34.0)
    assert windows(timeline) == windows(timeline, 40) == [("whole step", 0.0, 34.0)]
    # 20 tasks a row: four of them take 34 * 4 / 20 = 6.8 of time; the last row's first backward begins at 13, beyond
    # a third of the step, and the first row's last forward ends at 10, 24 before the end.
    assert windows(timeline, 39, per_row=4) == [
        ("warm-up", 0.0, round(34 / 3, 6)), ("steady state", 13.6, 20.4), ("drain", round(34 - 34 / 3, 6), 34.0),
    ]  # fmt: skip
    marked = big(marks=((0.0, "a"), (20.0, "b")))
    assert [name for name, _, _ in windows(marked, 39)] == ["beginning", "middle", "end"]
    assert windows(big(marks=((0.0, "a"),)), 39)[0][0] == "warm-up"
    # No window is longer than a third.
    assert windows(timeline, 39, per_row=1000)[1] == ("steady state", round(34 / 3, 6), round(68 / 3, 6))
    assert [one.name for one in drawing_windows(big(pairs=1000), 1600)] == ["warm-up", "steady state", "drain"]
    assert drawing_windows(big(pairs=400), 1600)[0].name == "whole step"
    assert windows(replace(timeline, start=timeline.start * 0, end=timeline.end * 0), 39) == [("whole step", 0.0, 0.0)]


def test_warm_up_and_drain_are_drawn_whole_where_they_are_short():
    # One forward, one backward at a time after a fill of two and before a drain of two tasks of 1.
    jobs = []
    for row, first in ((0, 0.0), (1, 10.0)):
        for n in range(50):
            jobs += [
                (row, FORWARD, first + 2 * n, first + 2 * n + 1, "f"),
                (row, BACKWARD, first + 2 * n + 1, first + 2 * n + 2, "b"),
            ]
    timeline = timeline_of(*jobs)
    # The last row's first backward begins at 11, the first row's last forward ends at 99; the step at 110.
    assert windows(timeline, 100, per_row=1) == [
        ("warm-up", 0.0, 11.55), ("steady state", 54.45, 55.55), ("drain", 98.45, 110.0),
    ]  # fmt: skip
    assert windows(timeline, 100, per_row=20)[0] == ("warm-up", 0.0, 22.0)
    # Communication and optimizer do not count as tasks of a row where there are others.
    talks = replace(timeline, direction=np.where(timeline.start >= 56, COMMUNICATION, timeline.direction))
    assert windows(talks, 100, per_row=1)[1][2] - windows(talks, 100, per_row=1)[1][1] == pytest.approx(
        110 / 56, abs=1e-5
    )
    only = replace(timeline, direction=np.full(len(timeline), OPTIMIZER))
    assert windows(only, 100, per_row=1) == [
        ("warm-up", 0.0, 1.1),
        ("steady state", 54.45, 55.55),
        ("drain", 108.9, 110.0),
    ]
    weights = replace(timeline, direction=np.full(len(timeline), WEIGHT_GRADIENT))
    assert windows(weights, 100, per_row=1)[0] == ("warm-up", 0.0, 1.1)
    assert windows(timeline, 100)[1] == ("steady state", round(55 - 13.2, 6), round(55 + 13.2, 6))


def test_windows_share_the_width_by_their_length_but_none_below_a_share():
    spans = [DrawingWindow("", 5.0, 6.0), DrawingWindow("", 0.0, 9.0)]
    assert window_shares(spans) == pytest.approx([0.22 / 1.12, 0.9 / 1.12])
    assert window_shares(spans, 0.0) == pytest.approx([0.1, 0.9])
    assert window_shares([DrawingWindow("", 3.0, 3.0)]) == [1.0]


def test_timelines_side_by_side_begin_together_and_keep_all_their_parts():
    other = replace(STEP, unit_ms=1.0, memory=(), dryrun=(), marks=((5.0, "c"),), notes=("m",), labels=tuple("wxyz"))
    both = side_by_side({"a": STEP, "b": other}, "both")
    assert both.title == "both" and both.unit_ms == 1.0
    assert both.row_names == ("a: stage 0", "a: stage 1", "b: stage 0", "b: stage 1")
    assert both.stage.tolist() == [0, 1, 1, 0, 2, 3, 3, 2]
    assert both.start.tolist() == [0.0, 2.0, 4.0, 8.0, 0.0, 1.0, 2.0, 4.0]
    assert both.end.tolist() == [2.0, 4.0, 8.0, 12.0, 1.0, 2.0, 4.0, 6.0]
    assert both.flows.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert both.recompute.tolist() == [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.5, 1.0]
    assert both.lane.tolist() == [0, 0, 0, 1] * 2 and both.micro_batch.tolist() == [3] * 8
    assert both.labels == (*STEP.task_names(), *"wxyz")
    assert [curve.time.tolist() for curve in both.memory] == [[0.0, 4.0], [0.0, 4.0], [], []]
    assert [curve.time.tolist() for curve in both.dryrun] == [[0.0, 4.0], [], [], []]
    assert both.marks == ((0.0, "a: a"), (3.0, "b: c"), (8.0, "a: b")) and both.notes == ("a: n", "b: m")
    assert both.sources == ("a: 12.00 ms", "b: 6.00 ms")
    assert [one.compute.tolist() for one in both.activity] == [
        [[0.0, 2.0], [8.0, 12.0]], [[2.0, 8.0]], [[0.0, 1.0], [4.0, 6.0]], [[1.0, 4.0]],
    ]  # fmt: skip
    unnamed = side_by_side([STEP, replace(other, title="b")])
    assert unnamed.title == "plan / b"
    bare = side_by_side([other])
    assert bare.memory == () and bare.dryrun == ()
    units = side_by_side([replace(STEP, unit_ms=None)])
    assert units.unit_ms is None and units.finish == 6.0
    with pytest.raises(ValueError, match="at least one timeline"):
        side_by_side({})
