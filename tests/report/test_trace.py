"""Timelines of plans and their Chrome traces, held against the evaluation and the schedule's own rules."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.pipeline_solver.timing.evaluate import evaluate, peak_memory_mib
from taylor.report.chrome_trace import write_chrome_trace
from taylor.report.memory_parts import from_problem
from taylor.report.planned import planned_timeline
from taylor.report.timeline import OPTIMIZER, DrawingWindow, drawing_windows, side_by_side, window_shares
from tests.pipeline_solver.test_entries import with_two_depths
from tests.report_cases import deepseek, even_plan
from tests.solver_cases import plan_of

CASES = {
    "1f1b": deepseek(16),
    "1f1b with lags and a tail": deepseek(4, 1, 9, lag=0.3, tail=(1.0, 2.0, 0.5, 0.0), unit_ms=7.25),
    "gpipe": deepseek(4, 1, 6, "gpipe"),
    "interleaved": deepseek(4, 3, 10, "interleaved", unit_ms=9.1),
    "seqpipe": deepseek(4, 1, 6, "seqpipe", 3),
    "zero-bubble V": deepseek(4, 2, 8, "zero_bubble_v", lag=0.1),
}
EACH = pytest.mark.parametrize("problem", CASES.values(), ids=CASES.keys())


def trace_of(problem, path):
    write_chrome_trace(planned_timeline(problem, even_plan(problem)), path)
    return json.loads(path.read_text(encoding="utf-8"))


def blocks(trace):
    """The tasks of a trace (recompute blocks left out), in units."""
    unit = trace["otherData"]["unit_us"]
    return [
        event | {"start": event["ts"] / unit, "end": (event["ts"] + event["dur"]) / unit}
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["cat"] != "recompute"
    ]


@EACH
def test_the_last_end_in_the_trace_is_the_objective(problem, tmp_path):
    trace = trace_of(problem, tmp_path / "trace.json")
    objective = evaluate(problem, even_plan(problem)).objective
    assert max(block["end"] for block in blocks(trace)) == pytest.approx(objective, rel=1e-6)


@EACH
def test_the_trace_holds_every_task_of_the_schedule_once(problem, tmp_path):
    directions = {"forward": FORWARD, "backward": BACKWARD, "weight gradient": WEIGHT_GRADIENT}
    drawn = sorted(
        (
            block["pid"] - 1,
            directions[block["cat"]],
            block["args"]["interleave"],
            block["args"]["micro_batch"],
            block["args"]["split"],
        )
        for block in blocks(trace_of(problem, tmp_path / "trace.json"))
        if block["cat"] in directions
    )
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    assert drawn == sorted((s, *map(int, task)) for s in range(problem.stages) for task in schedule.order[s])


@EACH
def test_no_two_tasks_overlap_on_a_stage(problem, tmp_path):
    stages = defaultdict(list)
    for block in blocks(trace_of(problem, tmp_path / "trace.json")):
        stages[block["pid"]].append((block["start"], block["end"]))
    assert len(stages) == problem.stages
    for tasks in stages.values():
        tasks.sort()
        assert all(b[0] >= a[1] - 1e-6 for a, b in zip(tasks, tasks[1:], strict=False))


@EACH
def test_every_dependency_holds_with_its_lag(problem, tmp_path):
    """Forwards go from chunk to chunk in model order, backwards the other way, each after the last transfer."""
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    when = {
        (
            block["cat"],
            schedule.position(block["args"]["interleave"], block["pid"] - 1),
            block["args"]["micro_batch"],
            block["args"]["split"],
        ): block
        for block in blocks(trace_of(problem, tmp_path / "trace.json"))
        if "micro_batch" in block["args"]
    }
    checked = 0
    for (kind, position, micro_batch, split), block in when.items():
        if kind == "forward":
            before = ("forward", position - 1) if position else None
        elif kind == "backward":
            before = ("backward", position + 1) if position + 1 < schedule.chunks else ("forward", position)
        else:
            before = ("backward", position)
        if before is None:
            continue
        need = when[(*before, micro_batch, split)]
        lag = problem.lag if need["pid"] != block["pid"] else 0.0
        assert block["start"] >= need["end"] + lag - 1e-6
        checked += 1
    assert checked == len(when) - problem.micro_batches * problem.schedule.seq_splits


@EACH
def test_memory_counters_peak_at_the_reported_peak(problem, tmp_path):
    used = defaultdict(float)
    for event in trace_of(problem, tmp_path / "trace.json")["traceEvents"]:
        if event["ph"] == "C" and event["name"] == "memory MiB":
            used[event["pid"] - 1] = max(used[event["pid"] - 1], event["args"]["used"])
    expected = peak_memory_mib(problem, even_plan(problem))
    np.testing.assert_allclose([used[s] for s in range(problem.stages)], expected, rtol=1e-9)


def test_memory_that_a_stage_has_once_for_all_mtp_layers_is_drawn_and_listed_beside_the_layers():
    problem = with_two_depths()
    plan = plan_of({"body": [[2, 1, 1]], "mtp": [[0, 0, 1]], "mtp#2": [[0, 0, 1]]})
    peaks = peak_memory_mib(problem, plan)
    assert [steps.peak_mib for steps in planned_timeline(problem, plan).memory] == pytest.approx(peaks)
    parts = from_problem(problem, plan, peaks).mib
    assert parts["beside the layers"] == [5.0, 6.0, 7.0 + 10.0]
    assert parts["activations"] == [2 * 4.0, 4.0, 4.0 + 2 * 6.0]  # of one micro-batch


@EACH
def test_memory_ends_where_it_began(problem):
    for steps in planned_timeline(problem, even_plan(problem)).memory:
        assert steps.mib[-1] == pytest.approx(steps.mib[0])
        assert (np.diff(steps.time) >= 0).all()


@EACH
def test_flows_pair_up_between_different_stages_and_run_forward_in_time(problem, tmp_path):
    ends = defaultdict(dict)
    for event in trace_of(problem, tmp_path / "trace.json")["traceEvents"]:
        if event["ph"] in "sf":
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
    assert ends
    for pair in ends.values():
        assert set(pair) == {"s", "f"} and pair["s"]["pid"] != pair["f"]["pid"]
        assert pair["s"]["ts"] <= pair["f"]["ts"] and pair["f"]["bp"] == "e"


@EACH
def test_each_end_of_a_flow_lies_inside_a_task_of_its_stage(problem, tmp_path):
    """A flow binds to the block around its moment: elsewhere no arrow is drawn."""
    events = trace_of(problem, tmp_path / "trace.json")["traceEvents"]
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for event in events:
        if event["ph"] in "sf":
            assert any(start < event["ts"] < end for start, end in lanes[event["pid"], event["tid"]])


@EACH
def test_activations_are_there_from_the_forwards_start_to_the_end_of_the_last_backward_of_the_piece(problem):
    """Memory at the middle of every task, counted anew from the tasks that hold activations then."""
    plan = even_plan(problem)
    timeline = planned_timeline(problem, plan)
    by_kind = plan.recompute_by_kind()
    kept = {
        (v, s): sum(
            kind.activation_mib[mode] * by_kind[kind.name][mode][v][s]
            for kind in problem.kinds
            for mode in ("none", "full")
        )
        / problem.schedule.seq_splits
        for v in range(problem.interleaves)
        for s in range(problem.stages)
    }
    last = WEIGHT_GRADIENT if (timeline.direction == WEIGHT_GRADIENT).any() else BACKWARD
    rows = zip(
        timeline.stage.tolist(),
        timeline.direction.tolist(),
        timeline.interleave.tolist(),
        timeline.micro_batch.tolist(),
        timeline.split.tolist(),
        timeline.start.tolist(),
        timeline.end.tolist(),
        strict=True,
    )
    tasks = {row[:5]: row[5:] for row in rows}
    for s in range(problem.stages):
        held = problem.static_mib[s] + sum(
            kind.layer_mib * plan.layers[kind.name][v][s] for kind in problem.kinds for v in range(problem.interleaves)
        )
        lives = [
            (kept[key[2], s], start, tasks[(s, last, *key[2:])][1])
            for key, (start, _) in tasks.items()
            if key[0] == s and key[1] == FORWARD
        ]
        steps = timeline.memory[s]
        for key, (start, end) in tasks.items():
            if key[0] == s and end > start and key[1] != OPTIMIZER:
                moment = (start + end) / 2
                expected = held + sum(mib for mib, born, gone in lives if born <= moment < gone)
                at = int(np.searchsorted(steps.time, moment, side="right")) - 1
                assert steps.mib[at] == pytest.approx(expected)


def test_one_forward_one_backward_hands_over_each_micro_batch_to_each_neighbour_twice():
    problem = deepseek(4, 1, 6)
    assert len(planned_timeline(problem, even_plan(problem)).flows) == 2 * 3 * 6


@EACH
def test_recompute_lies_at_the_beginning_of_its_backward_and_lasts_as_the_formula_says(problem, tmp_path):
    trace = trace_of(problem, tmp_path / "trace.json")
    unit = trace["otherData"]["unit_us"]
    backwards = {(b["pid"], round(b["ts"], 3)): b for b in blocks(trace) if b["cat"] == "backward"}
    seen = set()
    plan = even_plan(problem)
    by_kind = plan.recompute_by_kind()
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["cat"] != "recompute":
            continue
        owner = backwards[event["pid"], round(event["ts"], 3)]
        assert event["ts"] + event["dur"] <= owner["ts"] + owner["dur"] + 1e-3
        s, v = event["pid"] - 1, owner["args"]["interleave"]
        expected = sum(kind.forward * by_kind[kind.name]["full"][v][s] for kind in problem.kinds)
        assert event["dur"] / unit == pytest.approx(expected / problem.schedule.seq_splits)
        seen.add((s, v))
    assert seen == {
        (s, v) for s in range(problem.stages) for v in range(problem.interleaves) if plan.recompute["full"][v][s]
    }


@EACH
def test_stages_are_named_and_in_order(problem, tmp_path):
    events = trace_of(problem, tmp_path / "trace.json")["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    order = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    assert [names[pid] for pid in sorted(order, key=order.__getitem__)] == [f"stage {s}" for s in range(problem.stages)]


def test_the_trace_is_in_real_time_when_the_unit_is_known_and_says_so(tmp_path):
    problem = deepseek(4, 1, 6, unit_ms=7.25)
    trace = trace_of(problem, tmp_path / "trace.json")
    objective = evaluate(problem, even_plan(problem)).objective
    last = max(event["ts"] + event["dur"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert last == pytest.approx(objective * 7.25 * 1000)
    assert trace["otherData"]["unit"] == "real time"
    assert "1 ms" in trace_of(deepseek(4, 1, 6), tmp_path / "units.json")["otherData"]["unit"]


def test_the_end_of_step_tail_is_a_task_of_its_own():
    problem = CASES["1f1b with lags and a tail"]
    timeline = planned_timeline(problem, even_plan(problem))
    tails = timeline.direction == OPTIMIZER
    assert (timeline.end - timeline.start)[tails].tolist() == pytest.approx([1.0, 2.0, 0.5, 0.0])


def test_a_plan_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="the plan is for 4 stages x 1 virtual stages, the problem for 16 x 1"):
        planned_timeline(deepseek(16), even_plan(deepseek(4)))


def test_two_plans_side_by_side_keep_their_rows_tasks_and_lengths():
    problem = deepseek(4, 1, 6, unit_ms=2.0)
    one = planned_timeline(problem, even_plan(problem, 1), "own")
    two = planned_timeline(problem, even_plan(problem, 5), "even")
    both = side_by_side({"own": one, "even": two})
    assert both.row_names[:1] == ("own: stage 0",) and both.row_names[4:5] == ("even: stage 0",)
    assert len(both) == len(one) + len(two) and len(both.flows) == len(one.flows) + len(two.flows)
    assert both.unit_ms == 1.0
    lower = both.stage >= 4
    assert both.end[~lower].max() == pytest.approx(one.span * 2.0)
    assert both.end[lower].max() == pytest.approx(two.span * 2.0)
    assert [m.peak_mib for m in both.memory] == [m.peak_mib for m in (*one.memory, *two.memory)]


def test_units_and_milliseconds_do_not_lie_on_one_clock():
    with pytest.raises(ValueError, match="unit_ms"):
        side_by_side(
            [
                planned_timeline(deepseek(4, 1, 6), even_plan(deepseek(4, 1, 6))),
                planned_timeline(deepseek(4, 1, 6, unit_ms=2.0), even_plan(deepseek(4, 1, 6))),
            ]
        )


def test_a_big_job_is_drawn_as_warm_up_steady_state_and_drain_while_the_trace_holds_all(tmp_path):
    problem = deepseek(64, 1, 240).replace(
        kinds=tuple(
            kind if kind.name == "dense" else type(kind)("moe", 125, 1.0, 100.0, kind.activation_mib)
            for kind in deepseek().kinds
        )
    )
    timeline = planned_timeline(problem, even_plan(problem))
    views = drawing_windows(timeline)
    assert [view.name for view in views] == ["warm-up", "steady state", "drain"]
    assert views[0].begin == timeline.begin and views[-1].end == timeline.finish
    assert all(a.end <= b.begin + 1e-9 for a, b in zip(views, views[1:], strict=False))
    assert sum(len(timeline.window(view.begin, view.end)) for view in views) < 25_000
    trace = json.loads(write_chrome_trace(timeline, tmp_path / "big.json").read_text(encoding="utf-8"))
    assert len(blocks(trace)) == 64 * 240 * 2


def test_a_trace_of_a_plan_without_recompute_marks_none(tmp_path):
    problem = deepseek(4, 1, 6)
    plan = PipelinePlan(even_plan(problem).layers, {})
    timeline = planned_timeline(problem, plan)
    assert timeline.recompute.max() == 0
    write_chrome_trace(timeline, tmp_path / "trace.json")
    assert '"recompute"' not in (tmp_path / "trace.json").read_text(encoding="utf-8")


def test_tasks_of_every_virtual_stage_are_named_with_it_where_there_are_several():
    problem = deepseek(4, 2, 4, "interleaved")
    names = planned_timeline(problem, even_plan(problem)).task_names()
    assert {name.rpartition(" (")[2] for name in names} == {"virtual stage 0)", "virtual stage 1)"}
    alone = deepseek(4, 1, 4)
    assert not any("virtual" in name for name in planned_timeline(alone, even_plan(alone)).task_names())


def test_windows_of_a_drawing_are_as_wide_as_they_are_long_and_none_is_a_sliver():
    def shares(*lengths):
        return window_shares([DrawingWindow("", 0.0, float(length)) for length in lengths])

    assert shares(30, 40, 30) == pytest.approx([0.3, 0.4, 0.3])
    narrow, wide = shares(1, 999)
    assert narrow + wide == pytest.approx(1) and 0.15 < narrow < 0.25
