"""Every event of a small timeline's Chrome trace."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.chrome_trace import trace_events, write_chrome_trace
from taylor.report.host_link import HostTransfers
from taylor.report.timeline import COMMUNICATION, OPTIMIZER, MemorySteps, Timeline


def ints(*values):
    return np.array(values, dtype=np.int64)


def floats(*values):
    return np.array(values, dtype=float)


STEP = Timeline(
    "two [stages]", ("stage 0", "stage 1"), stage=ints(0, 1, 1, 0, 0),
    direction=ints(FORWARD, FORWARD, BACKWARD, BACKWARD, OPTIMIZER),
    interleave=ints(0, 1, 1, 0, -1), micro_batch=ints(3, 3, 3, 3, -1), split=ints(0, -1, 0, 1, -1),
    start=floats(1, 2, 3, 5, 7), end=floats(2, 3, 5, 7, 8), recompute=floats(0, 0, 0.5, 9, 0), lane=ints(0, 0, 1, 0, 0),
    flows=np.array([[0, 1], [2, 3]]), unit_ms=2.0, notes=("a note",),
)  # fmt: skip


def events(timeline, **wanted):
    return [event for event in trace_events(timeline) if all(event.get(key) == value for key, value in wanted.items())]


def test_rows_and_lanes_are_named_in_order():
    named = [(event["name"], event["pid"], event.get("tid"), event["args"]) for event in events(STEP, ph="M")]
    assert named == [
        ("process_name", 1, None, {"name": "stage 0"}),
        ("process_sort_index", 1, None, {"sort_index": 0}),
        ("thread_name", 1, 1, {"name": "jobs"}),
        ("thread_sort_index", 1, 1, {"sort_index": 0}),
        ("process_name", 2, None, {"name": "stage 1"}),
        ("process_sort_index", 2, None, {"sort_index": 1}),
        ("thread_name", 2, 1, {"name": "jobs"}),
        ("thread_sort_index", 2, 1, {"sort_index": 0}),
        ("thread_name", 2, 2, {"name": "jobs at the same time (2)"}),
        ("thread_sort_index", 2, 2, {"sort_index": 1}),
    ]
    marked = replace(STEP, marks=((1.0, "step 4"),))
    assert [(event["pid"], event["args"]["name"]) for event in events(marked, ph="M", name="thread_name")][-1] == (
        3, "steps",
    )  # fmt: skip


def test_every_task_is_a_block_with_its_recompute_inside():
    assert [
        (
            event["name"],
            event["cat"],
            event["pid"],
            event["tid"],
            event["ts"],
            event["dur"],
            event["cname"],
            event["args"],
        )
        for event in events(STEP, ph="X")
    ] == [
        (
            "forward 3.0 (virtual stage 0)",
            "forward",
            1,
            1,
            2000.0,
            2000.0,
            "thread_state_running",
            {"direction": "forward", "micro_batch": 3, "interleave": 0, "split": 0},
        ),
        (
            "forward 3 (virtual stage 1)",
            "forward",
            2,
            1,
            4000.0,
            2000.0,
            "thread_state_running",
            {"direction": "forward", "micro_batch": 3, "interleave": 1},
        ),
        (
            "backward 3.0 (virtual stage 1)",
            "backward",
            2,
            2,
            6000.0,
            4000.0,
            "thread_state_iowait",
            {"direction": "backward", "micro_batch": 3, "interleave": 1, "split": 0, "recompute_us": 1000.0},
        ),
        ("recompute", "recompute", 2, 2, 6000.0, 1000.0, "thread_state_unknown", {}),
        (
            "backward 3.1 (virtual stage 0)",
            "backward",
            1,
            1,
            10000.0,
            4000.0,
            "thread_state_iowait",
            {"direction": "backward", "micro_batch": 3, "interleave": 0, "split": 1, "recompute_us": 18000.0},
        ),
        ("recompute", "recompute", 1, 1, 10000.0, 4000.0, "thread_state_unknown", {}),
        ("optimizer", "optimizer", 1, 1, 14000.0, 2000.0, "thread_state_sleeping", {"direction": "optimizer"}),
    ]


def test_a_hand_over_goes_from_middle_to_middle():
    assert [(event["ph"], event["id"], event["pid"], event["tid"], event["ts"]) for event in trace_events(STEP)
            if event["ph"] in "sf"] == [
        ("s", 1, 1, 1, 3000.0), ("f", 1, 2, 1, 5000.0), ("s", 2, 2, 2, 8000.0), ("f", 2, 1, 1, 12000.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "lanes", "category"),
    [("transfers", ((901, "to the host"), (902, "from the host")), "host link"),
     ("lent", ((903, "to the lender"), (904, "from the lender")), "lender's link")],
)  # fmt: skip
def test_a_link_has_threads_of_its_own(field, lanes, category):
    moved = HostTransfers(ints(0, 1, 1), ints(0, 1, 0), ints(3, 4, 5), np.array([True, True, False]),
                          floats(1, 2, 3), floats(1.5, 3, 5))  # fmt: skip
    timeline = replace(STEP, **{field: moved})
    names = [event for event in events(timeline, ph="M") if (event.get("tid") or 0) > 900]
    assert [(event["name"], event["pid"], event["tid"], event["args"]) for event in names] == [
        entry
        for pid in (1, 2)
        for tid, name in lanes
        for entry in (
            ("thread_name", pid, tid, {"name": f"link {name}"}), ("thread_sort_index", pid, tid, {"sort_index": tid}),
        )
    ]  # fmt: skip
    assert [
        (event["name"], event["pid"], event["tid"], event["ts"], event["dur"], event["args"])
        for event in events(timeline, ph="X", cat=category)
    ] == [
        (lanes[0][1], 1, lanes[0][0], 2000.0, 1000.0, {"micro_batch": 3, "interleave": 0}),
        (lanes[0][1], 2, lanes[0][0], 4000.0, 2000.0, {"micro_batch": 4, "interleave": 1}),
        (lanes[1][1], 2, lanes[1][0], 6000.0, 4000.0, {"micro_batch": 5, "interleave": 0}),
    ]


@pytest.mark.parametrize(
    ("field", "name"),
    [("host", "host memory MiB"), ("dryrun", "memory by dry-run MiB"), ("memory", "memory MiB")],
)
def test_memory_is_a_counter_of_its_row(field, name):
    curves = (MemorySteps(floats(0, 2), floats(10, 30)), MemorySteps(floats(3), floats(20)))
    counted = events(replace(STEP, **{field: curves}), ph="C")
    assert [(event["name"], event["pid"], event["ts"], event["args"]["used"]) for event in counted] == [
        (name, 1, 0.0, 10.0), (name, 1, 4000.0, 30.0), (name, 2, 6000.0, 20.0),
    ]  # fmt: skip


def test_a_limit_is_drawn_from_the_first_moment_to_the_end():
    curves = (MemorySteps(floats(0, 2), floats(10, 30), 64.0), MemorySteps(floats(), floats(), 32.0))
    limits = events(replace(STEP, memory=curves), name="memory limit MiB")
    assert [(event["pid"], event["ts"], event["args"]) for event in limits] == [
        (1, 0.0, {"limit": 64.0}), (1, 16000.0, {"limit": 64.0}),
    ]  # fmt: skip


def test_steps_are_blocks_below_all_rows_from_mark_to_mark():
    marked = replace(STEP, marks=((1.0, "step 4"), (5.0, "step 5"), (9.0, "step 6")))
    steps = events(marked, cat="step")
    assert [(event["name"], event["pid"], event["tid"], event["ts"], event["dur"]) for event in steps] == [
        ("step 4", 3, 1, 2000.0, 8000.0), ("step 5", 3, 1, 10000.0, 8000.0), ("step 6", 3, 1, 18000.0, 0.0),
    ]  # fmt: skip
    assert {event["ph"] for event in steps} == {"X"} and not events(STEP, cat="step")


def test_a_job_of_communication_has_no_micro_batch_and_splits_none_below_zero():
    talk = replace(STEP, direction=ints(COMMUNICATION, FORWARD, BACKWARD, BACKWARD, OPTIMIZER))
    assert [event["args"] for event in events(talk, ph="X")][:2] == [
        {"direction": "communication"}, {"direction": "forward", "micro_batch": 3, "interleave": 1},
    ]  # fmt: skip


def test_the_file_says_what_its_times_are(tmp_path):
    text = write_chrome_trace(STEP, tmp_path / "t.json").read_text()
    assert json.loads(text)["otherData"] == {
        "title": "two [stages]", "unit_us": 2000.0, "unit": "real time", "step_units": 7.0, "notes": ["a note"],
    }  # fmt: skip
    # A line an event.
    assert len(text.splitlines()) == 2 + len(list(trace_events(STEP)))
    plain = json.loads(write_chrome_trace(replace(STEP, unit_ms=None), tmp_path / "u.json").read_text())
    assert plain["otherData"]["unit_us"] == 1000.0 and "shown as 1 ms" in plain["otherData"]["unit"]
