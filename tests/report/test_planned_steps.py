"""Timelines of a small plan: offloaded and lent activations, tails, dry-runs and an encoder in the bubbles, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taylor.dryrun.stage_memory import Moment, StageMemory
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, ScheduleSpec
from taylor.pipeline_solver.model.insertion import EncoderRun, EncoderWork, Insertion
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind
from taylor.report.host_link import host_transfers, summed_choices
from taylor.report.memory_parts import MemoryParts, from_breakdown, from_dryrun, from_problem
from taylor.report.planned import hand_overs, inserted_timeline, planned_timeline, with_dryrun, without_dips
from taylor.report.timeline import OPTIMIZER
from tests.report_cases import even_plan
from tests.solver_cases import plan_of, small_problem

OFFLOAD = LayerChoice(link_time=0.5, host_mib=3.0, host_states_mib=2.0)
LEND = LayerChoice(link_time=0.25, lent_mib=3.0)
KINDS = (
    LayerKind("body", 4, 1.0, 10.0, {"none": 4.0, "full": 1.0, "host": 1.0, "lend": 1.0},
              choices={"host": OFFLOAD, "lend": LEND}),
)  # fmt: skip
CHOICE = small_problem(kinds=KINDS, choices=("host", "lend"), lenders=(1, -1), micro_batches=2,
                       host_limit_mib=(64.0, 32.0))  # fmt: skip
MOVED = plan_of({"body": [[2, 2]]}, {"full": [[0, 0]], "host": [[1, 2]], "lend": [[1, 0]]})
"""Stage 0 offloads a layer and lends one, stage 1 offloads two."""


def tasks(timeline):
    """(stage, direction, micro-batch): (start, end)."""
    columns = (timeline.stage, timeline.direction, timeline.micro_batch, timeline.start, timeline.end)
    return {(s, d, m): (a, b) for s, d, m, a, b in zip(*(column.tolist() for column in columns), strict=True)}


def test_costs_of_choices_are_summed_by_chunk_lent_ones_apart():
    assert summed_choices(CHOICE, MOVED, "link_time").tolist() == [[0.5, 1.0]]
    assert summed_choices(CHOICE, MOVED, "link_time", lent=True).tolist() == [[0.25, 0.0]]
    assert summed_choices(CHOICE, MOVED, "host_mib").tolist() == [[3.0, 6.0]]


def test_a_transfer_begins_a_layer_after_its_forward_and_is_back_a_layer_before_its_backward():
    timeline = planned_timeline(CHOICE, MOVED)
    of = tasks(timeline)
    assert of == {
        (0, 0, 0): (0.0, 2.0),
        (0, 0, 1): (2.0, 4.0),
        (0, 1, 0): (8.0, 12.0),
        (0, 1, 1): (14.0, 18.0),
        (1, 0, 0): (2.0, 4.0),
        (1, 1, 0): (4.0, 8.0),
        (1, 0, 1): (8.0, 10.0),
        (1, 1, 1): (10.0, 14.0),
    }
    moved = timeline.transfers
    rows = zip(moved.stage, moved.interleave, moved.micro_batch, moved.outward, moved.start, moved.end, strict=True)
    found = [tuple(value.item() for value in row) for row in rows]
    # Forwards last 2, a layer 1; backwards last 4, a layer 2; the link is busy for 0.5 and 1.
    expected = []
    for stage, busy in ((0, 0.5), (1, 1.0)):
        for outward, direction in ((False, BACKWARD), (True, FORWARD)):
            for micro_batch in range(2):
                begin, end = of[stage, direction, micro_batch]
                start = begin + 1 if outward else end - 2 - busy
                expected.append((stage, 0, micro_batch, outward, start, start + busy))
    assert found == expected
    assert timeline.lent.stage.tolist() == [0] * 4 and (timeline.lent.end - timeline.lent.start).tolist() == [0.25] * 4
    assert planned_timeline(CHOICE, plan_of({"body": [[2, 2]]}, {"full": [[0, 0]]})).transfers is None


def test_a_busy_link_carries_one_transfer_after_the_other():
    slow = CHOICE.replace(kinds=(replace(KINDS[0], choices={"host": replace(OFFLOAD, link_time=3.0), "lend": LEND}),))
    order = np.array([[[FORWARD, 0, 0, 0], [FORWARD, 0, 1, 0], [BACKWARD, 0, 0, 0], [BACKWARD, 0, 1, 0]]] * 2)
    start = np.array([[0.0, 2.0, 10.0, 14.0]] * 2)
    moved = host_transfers(slow, MOVED, order, start, start + np.array([2.0, 2.0, 4.0, 4.0]))
    first = moved.stage == 0
    assert moved.outward[first].tolist() == [False, False, True, True]
    # Out: from 1 on, then from 4 on. Back: the last ends at 16, a layer before its backward's end, the first at 12.
    assert moved.start[first].tolist() == [9.0, 13.0, 1.0, 4.0] and moved.end[first].tolist() == [12.0, 16.0, 4.0, 7.0]
    late = host_transfers(slow, MOVED, order, start, start + np.array([2.0, 2.0, 4.0, 1.0]))
    # A layer of the last backward takes 0.5: it ends at 14.5, and the one before it, 3 earlier, at 11.5.
    assert late.start[:2].tolist() == [8.5, 11.5]


def test_the_hosts_memory_is_counted_from_a_forwards_start_to_its_backwards_end():
    timeline = planned_timeline(CHOICE, MOVED)
    of = tasks(timeline)
    for stage, (states, kept, limit) in enumerate(((2.0, 3.0, 64.0), (4.0, 6.0, 32.0))):
        curve = timeline.host[stage]
        assert curve.limit_mib == limit and curve.peak_mib == states + kept * (2 if stage == 0 else 1)
        for moment in np.arange(0.1, timeline.finish, 0.25):
            alive = sum(of[stage, FORWARD, m][0] <= moment < of[stage, BACKWARD, m][1] for m in range(2))
            assert curve.mib[np.searchsorted(curve.time, moment, side="right") - 1] == states + kept * alive
    assert planned_timeline(CHOICE.replace(host_limit_mib=()), MOVED).host[0].limit_mib is None
    assert planned_timeline(small_problem(), even_plan(small_problem())).host == ()


def test_a_lender_reserves_what_it_keeps_for_others():
    curve = planned_timeline(CHOICE, MOVED).memory[1]
    # Static 7, two layers of 10, and two micro-batches of 3 lent by stage 0.
    assert curve.mib[0] == 7.0 + 20.0 + 6.0 and curve.limit_mib == 100.0


def test_a_rows_name_has_its_card_its_pace_and_its_chunks():
    problem = small_problem(cards=("h100", "a100"), slowness=(1.0, 1.25))
    assert planned_timeline(problem, even_plan(problem)).row_names == ("stage 0 (h100)", "stage 1 (a100, 1.25 x)")


def test_tails_end_the_step_and_belong_to_no_micro_batch():
    problem = small_problem(tail=(1.0, 3.0))
    timeline = planned_timeline(problem, even_plan(problem))
    assert timeline.stage[-2:].tolist() == [0, 1] and timeline.direction[-2:].tolist() == [OPTIMIZER] * 2
    for field in (timeline.interleave, timeline.micro_batch, timeline.split):
        assert field[-2:].tolist() == [-1, -1]
    backs = [timeline.end[(timeline.stage == s) & (timeline.direction == BACKWARD)].max() for s in (0, 1)]
    assert timeline.start[-2:].tolist() == backs and timeline.end[-2:].tolist() == [backs[0] + 1, backs[1] + 3]
    assert timeline.recompute[-2:].tolist() == [0.0, 0.0] and timeline.title == "plan"


def test_a_step_of_no_duration_is_dropped_unless_it_is_a_peak():
    curve = without_dips(np.array([0.0, 1.0, 1.0, 2.0, 2.0, 3.0]), np.array([5.0, 7.0, 6.0, 9.0, 4.0, 4.0]), 8)
    assert (curve.time.tolist(), curve.mib.tolist(), curve.limit_mib) == (
        [0.0, 1.0, 1.0, 2.0, 2.0, 3.0], [5.0, 7.0, 6.0, 9.0, 4.0, 4.0], 8.0,
    )  # fmt: skip
    dips = without_dips(np.array([0.0, 0.0, 1.0, 1.0, 1.0]), np.array([5.0, 6.0, 2.0, 6.0, 6.0]), None)
    assert (dips.time.tolist(), dips.mib.tolist(), dips.limit_mib) == ([0.0, 0.0, 1.0], [5.0, 6.0, 6.0], None)


def test_hand_overs_join_tasks_of_two_stages():
    from taylor.pipeline.generators import build_schedule

    schedule = build_schedule(ScheduleSpec("gpipe"), 2, 1, 2)
    # Forwards of stage 0 are tasks 0 and 1, those of stage 1 tasks 4 and 5, whose backwards are 6 and 7.
    pairs = {tuple(pair) for pair in hand_overs(schedule).tolist()}
    order = schedule.order.reshape(-1, 4)[:, [0, 2]].tolist()
    assert {(order[a][0], order[a][1], order[b][0], order[b][1], a < 4, b < 4) for a, b in pairs} == {
        (FORWARD, 0, FORWARD, 0, True, False), (FORWARD, 1, FORWARD, 1, True, False),
        (BACKWARD, 0, BACKWARD, 0, False, True), (BACKWARD, 1, BACKWARD, 1, False, True),
    }  # fmt: skip


def test_a_dry_run_is_drawn_task_by_task_and_goes_on_as_its_last_tasks():
    problem = small_problem(micro_batches=3, tail=(1.0, 1.0))
    timeline = planned_timeline(problem, even_plan(problem))
    moments = (Moment(FORWARD, 0, 0, 15.0, 18.0), Moment(BACKWARD, 0, 0, 12.0, 25.0), Moment(FORWARD, 0, 1, 16.0, 20.0))
    seen = with_dryrun(timeline, [StageMemory(1, 30.0, {}, moments), StageMemory(0, 1.0, {})])
    assert [len(curve.time) for curve in seen.dryrun][0] == 0
    of = sorted(
        (start, end, direction)
        for (stage, direction, _), (start, end) in tasks(timeline).items()
        if stage == 1 and direction != OPTIMIZER
    )
    assert [direction for _, _, direction in of] == [FORWARD, BACKWARD] * 3
    curve = seen.dryrun[1]
    assert curve.limit_mib == 100.0

    def at(moment):
        return curve.mib[np.searchsorted(curve.time, moment, side="right") - 1]

    # Peaks while they run; then the forward's and the backward's rise and change again: +4 (8), +4 (4), -3 (+10).
    during = [at((start + end) / 2) for start, end, _ in of]
    assert during == [18.0, 25.0, 20.0, 26.0, 21.0, 27.0]
    assert curve.mib[-1] == 14.0 and curve.time[-1] == of[-1][1]
    assert with_dryrun(timeline, []).dryrun == () and with_dryrun(replace(timeline, memory=()), [
        StageMemory(1, 30.0, {}, moments)
    ]).dryrun[1].limit_mib is None  # fmt: skip


def test_an_encoder_in_the_bubbles_delays_every_task_and_has_tasks_of_its_own():
    problem = small_problem(tail=(1.0, 1.0))
    plan = even_plan(problem)
    alone = planned_timeline(problem, plan)
    work = EncoderWork(2, 0.5, 1.5)
    runs = (EncoderRun(0, 0.25, 3, FORWARD, 2), EncoderRun(1, 40.0, 3, BACKWARD, 2))
    both = inserted_timeline(problem, plan, work, Insertion(2.0, 50.0, runs), "with")
    n = len(alone)
    assert both.title == "plan" or both.title == "with"
    assert (
        len(both) == n + 2 and both.stage[n:].tolist() == [0, 1] and both.direction[n:].tolist() == [FORWARD, BACKWARD]
    )
    assert both.micro_batch[n:].tolist() == [3, 3]
    assert both.interleave[n:].tolist() == both.split[n:].tolist() == [-1, -1]
    assert (both.start[n:].tolist(), both.end[n:].tolist()) == ([0.25, 40.0], [1.25, 43.0])
    assert both.labels[n:] == ("encoder forward 3 (2 layers)", "encoder backward 3 (2 layers)")
    assert both.labels[:n] == tuple(alone.task_names())
    work_of = alone.direction != OPTIMIZER
    assert np.allclose(both.start[:n][work_of], alone.start[work_of] + 2.0)
    assert np.allclose(both.end[:n][work_of], alone.end[work_of] + 2.0)
    # The optimizer of stage 1 waits for the encoder's backward there, stage 0's does not.
    tails = np.flatnonzero(~work_of)
    assert both.start[tails].tolist() == [alone.start[tails[0]] + 2.0, 43.0]
    assert both.end[tails].tolist() == [alone.end[tails[0]] + 2.0, 44.0]
    assert both.recompute.tolist() == [*alone.recompute.tolist(), 0.0, 0.0] and both.lane.tolist() == [0] * (n + 2)
    assert both.memory[0].time.tolist() == (alone.memory[0].time + 2.0).tolist()
    assert (both.host, both.transfers, both.lent, both.bubble) == ((), None, None, None)
    nothing = inserted_timeline(problem, plan, work, Insertion(0.0, 50.0, ()), "none")
    assert nothing.start.tolist() == alone.start.tolist()


def test_weight_gradients_end_the_life_of_activations_where_they_are_tasks():
    problem = small_problem(schedule=ScheduleSpec("zb-h1"), micro_batches=2)
    timeline = planned_timeline(problem, even_plan(problem))
    assert (timeline.direction == WEIGHT_GRADIENT).any()
    last = timeline.end[(timeline.stage == 0) & (timeline.direction == WEIGHT_GRADIENT)].max()
    assert timeline.memory[0].time[-1] == last and timeline.memory[0].mib[-1] == timeline.memory[0].mib[0]


def test_parts_of_memory_sum_up_and_those_that_are_nowhere_are_left_out():
    assert MemoryParts("x", {"a": [1.0, 2.0], "b": [3.0, 4.0]}).totals == [4.0, 6.0]
    plan = plan_of({"body": [[3, 1]]}, {"full": [[0, 0]]})
    parts = from_problem(small_problem(), plan, [50.0, 10.0])
    assert parts.mib == {"beside the layers": [5.0, 7.0], "body layers": [30.0, 10.0], "activations": [15.0, 0.0]}
    assert from_problem(small_problem(static_mib=(0.0, 0.0)), plan, [30.0, 10.0]).mib == {"body layers": [30.0, 10.0]}
    two = (KINDS[0], replace(KINDS[0], name="body#2", layer_mib=2.0))
    halves = plan_of({"body": [[1, 1]], "body#2": [[1, 1]]}, {"full": [[0, 0]]})
    assert from_problem(CHOICE.replace(kinds=two), halves, [99.0, 99.0]).mib["body layers"] == [12.0, 12.0]


def test_a_dry_run_gives_parts_where_it_saw_every_stage_by_category():
    stages = [StageMemory(1, 5.0, {"b": 2.0, "none": 0.0}), StageMemory(0, 5.0, {"a": 1.0})]
    assert from_dryrun(stages, 2).mib == {"a": [1.0, 0.0], "b": [0.0, 2.0]}
    assert from_dryrun(stages, 1).mib == {"a": [1.0]}
    assert from_dryrun(stages, 3) is None and from_dryrun([*stages[:1], StageMemory(0, 5.0, {})], 2) is None


@pytest.mark.parametrize(("apart", "agrees"), [(0.0, True), (1.0, True), (1.01, False), (-1.01, False)])
def test_the_analytical_model_gives_parts_where_its_totals_are_the_peaks(apart, agrees):
    class Stage:
        def categories(self):
            return {"weights": 1e5, "nothing": 0.0}

    found = from_breakdown([Stage()], [1e5 + apart])
    assert (found is not None) == agrees and (found is None or found.mib == {"weights": [1e5]})
