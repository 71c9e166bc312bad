"""Task orders against published pictures, closed forms and the laws that every schedule keeps."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule, check_schedule
from taylor.pipeline.schedule import FORWARD, SCHEDULES, SEARCHED_NAMES, WEIGHT_GRADIENT, Schedule, ScheduleSpec
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.register.frameworks import FRAMEWORKS, MEGATRON, MINDFORMERS, TORCHTITAN, Framework

V_SHAPES = ("zero_bubble_v", "dualpipev", "zbv")


def shown(schedule: Schedule, stage: int) -> str:
    """A stage's order as pictures write it: F1 B1 …; interleaves a, b, …; pieces 1.1, 1.2."""
    words = []
    for direction, v, i, q in schedule.order[stage].tolist():
        word = "FBW"[direction] + (chr(ord("a") + v) if schedule.interleaves > 1 else "") + str(i + 1)
        words.append(word + (f".{q + 1}" if schedule.spec.seq_splits > 1 else ""))
    return " ".join(words)


def unit_time(schedule: Schedule, backward: float = 2.0) -> float:
    """Step time with forward 1 and backward 2 (1 each with weight gradients apart), no transfers."""
    graph = EventGraph.from_schedule(schedule, 0.0)
    durations = np.zeros((graph.directions * schedule.interleaves + 1, schedule.stages))
    durations[: schedule.interleaves] = 1.0
    durations[schedule.interleaves : graph.directions * schedule.interleaves] = (
        backward if graph.directions == 2 else backward / 2
    )
    return graph.longest_path(durations.reshape(-1))


def test_1f1b_is_the_order_of_the_megatron_paper() -> None:
    # Narayanan et al. 2021, figure 4 (top): 4 devices, 8 micro-batches.
    schedule = build_schedule(ScheduleSpec("1f1b"), 4, 1, 8)
    assert shown(schedule, 0) == "F1 F2 F3 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8"
    assert shown(schedule, 1) == "F1 F2 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 B7 B8"
    assert shown(schedule, 3) == "F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8"


def test_gpipe_is_the_order_of_the_megatron_paper() -> None:
    # Narayanan et al. 2021, figure 3: all forwards, then all backwards.
    schedule = build_schedule(ScheduleSpec("gpipe"), 4, 1, 8)
    for stage in range(4):
        assert shown(schedule, stage) == "F1 F2 F3 F4 F5 F6 F7 F8 B1 B2 B3 B4 B5 B6 B7 B8"


def test_megatron_interleaved_is_the_order_of_the_megatron_paper() -> None:
    # Narayanan et al. 2021, figure 4 (bottom): 4 devices, 8 micro-batches, 2 chunks a device.
    schedule = build_schedule(ScheduleSpec("megatron-interleaved"), 4, 2, 8)
    assert shown(schedule, 0) == (
        "Fa1 Fa2 Fa3 Fa4 Fb1 Fb2 Fb3 Fb4 Fa5 Fa6 Fa7 Bb1 Fa8 Bb2 Fb5 Bb3 Fb6 Bb4 Fb7 Ba1 Fb8 Ba2 "
        "Ba3 Ba4 Bb5 Bb6 Bb7 Bb8 Ba5 Ba6 Ba7 Ba8"
    )
    assert shown(schedule, 3) == (
        "Fa1 Fa2 Fa3 Fa4 Fb1 Bb1 Fb2 Bb2 Fb3 Bb3 Fb4 Bb4 Fa5 Ba1 Fa6 Ba2 Fa7 Ba3 Fa8 Ba4 "
        "Fb5 Bb5 Fb6 Bb6 Fb7 Bb7 Fb8 Bb8 Ba5 Ba6 Ba7 Ba8"
    )


def test_the_first_round_of_the_interleaved_order_takes_the_remainder() -> None:
    schedule = build_schedule(ScheduleSpec("interleaved", low_memory=True), 2, 2, 5)
    # Rounds of 3 and 2 micro-batches; warm-up 3 + 1 on stage 0.
    assert shown(schedule, 0) == ("Fa1 Fa2 Fa3 Fb1 Fb2 Bb1 Fb3 Bb2 Fa4 Bb3 Fa5 Ba1 Fb4 Ba2 Fb5 Ba3 Bb4 Bb5 Ba4 Ba5")
    assert shown(schedule, 1) == ("Fa1 Fa2 Fa3 Fb1 Bb1 Fb2 Bb2 Fb3 Bb3 Fa4 Ba1 Fa5 Ba2 Fb4 Ba3 Fb5 Bb4 Bb5 Ba4 Ba5")


@pytest.mark.parametrize(("low_memory", "step"), [(True, 1), (False, 2)])
def test_low_memory_warms_up_with_one_more_forward_a_stage_instead_of_two(low_memory: bool, step: int) -> None:
    schedule = build_schedule(ScheduleSpec("interleaved", low_memory=low_memory), 4, 2, 10)
    first_backward = [int(np.argmax(schedule.order[s][:, 0] == 1)) for s in range(4)]
    # (V-1) * d0 + step * (S-1-s) warm-up forwards with d0 = 4 + 10 mod 4, then one more before the backward.
    assert first_backward == [6 + step * (3 - s) + 1 for s in range(4)]


def test_megatron_interleaved_equals_interleaved_without_low_memory_when_there_is_no_remainder() -> None:
    ours = build_schedule(ScheduleSpec("interleaved", low_memory=False), 4, 3, 8)
    assert np.array_equal(ours.order, build_schedule(ScheduleSpec("megatron-interleaved"), 4, 3, 8).order)


def test_seqpipe_sends_pieces_forward_in_order_and_backward_in_reverse() -> None:
    # Sun et al. 2024 (Seq1F1B), figure 1: the last stage runs a whole sequence before its first backward.
    schedule = build_schedule(ScheduleSpec("seqpipe", seq_splits=2), 4, 1, 3)
    assert shown(schedule, 3) == "F1.1 F1.2 B1.2 F2.1 B1.1 F2.2 B2.2 F3.1 B2.1 F3.2 B3.2 B3.1"
    assert shown(schedule, 0) == "F1.1 F1.2 F2.1 F2.2 F3.1 B1.2 F3.2 B1.1 B2.2 B2.1 B3.2 B3.1"


def test_1f1b_and_gpipe_take_the_fill_and_drain_of_s_minus_1_chunks() -> None:
    # Bubble (S-1)(f+b) in both (Narayanan et al. 2021, section 2.2).
    for name in ("1f1b", "gpipe"):
        for S, m in ((4, 8), (3, 7), (8, 8)):
            assert unit_time(build_schedule(ScheduleSpec(name), S, 1, m)) == (m + S - 1) * 3


def test_megatron_interleaving_divides_the_bubble_by_the_interleaves() -> None:
    # Narayanan et al. 2021, section 2.2: bubble (S-1)(f+b)/V, here with chunks of length 1.
    for S, V, m in ((4, 2, 8), (4, 3, 12), (2, 4, 6)):
        assert unit_time(build_schedule(ScheduleSpec("megatron-interleaved"), S, V, m)) == 3 * (V * m + S - 1)


def test_zero_bubble_v_has_no_bubble_but_the_fill_when_all_tasks_are_equal() -> None:
    # Qi et al. 2024: the V schedule with F = B = W runs without bubbles; stage s begins s units late.
    for S, m in ((2, 4), (4, 8), (4, 11), (8, 16), (8, 40)):
        for name in ("dualpipev", "zbv"):
            assert unit_time(build_schedule(ScheduleSpec(name), S, 2, m)) == 6 * m + S - 1


@pytest.mark.parametrize("name", V_SHAPES)
def test_a_v_shape_puts_first_and_last_chunk_on_the_first_stage(name: str) -> None:
    schedule = build_schedule(ScheduleSpec(name), 4, 2, 8)
    assert [schedule.chunk_at(k) for k in range(8)] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (1, 2), (1, 1), (1, 0)]
    assert all(schedule.chunk_at(schedule.position(v, s)) == (v, s) for v in range(2) for s in range(4))


def test_1f1b_keeps_as_many_micro_batches_alive_as_stages_follow() -> None:
    for S, m in ((4, 8), (8, 3), (16, 64)):
        vectors = alive_vectors(build_schedule(ScheduleSpec("1f1b"), S, 1, m))
        assert [rows.tolist() for rows in vectors] == [[[min(S - s, m)]] for s in range(S)]


def test_gpipe_keeps_everything_alive_and_seqpipe_counts_pieces() -> None:
    assert all(rows.tolist() == [[5.0, 5.0]] for rows in alive_vectors(build_schedule(ScheduleSpec("gpipe"), 3, 2, 5)))
    vectors = alive_vectors(build_schedule(ScheduleSpec("seqpipe", seq_splits=4), 4, 1, 8))
    assert [rows.tolist() for rows in vectors] == [[[1.75]], [[1.5]], [[1.25]], [[1.0]]]


def test_interleaving_stays_within_megatrons_published_count_of_alive_chunks() -> None:
    # Korthikanti et al. 2022, section 4.2.3: stage 0 keeps L(1 + (S-1)/(S V)) layers' activations alive,
    # which is S V + S - 1 chunks of L/(S V) layers.
    for S, V, m in ((4, 2, 8), (4, 3, 16), (8, 2, 32)):
        rows = alive_vectors(build_schedule(ScheduleSpec("megatron-interleaved"), S, V, m))[0]
        assert rows.sum(axis=1).max() == S * V + S - 1


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    name = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.integers(1, 6))
    traits = ScheduleSpec(name).traits
    interleaves = traits.fixed_interleaves or draw(st.integers(1, 4))
    micro_batches = max(draw(st.integers(1, 14)), traits.least_micro_batches(stages))
    if name in ("megatron-interleaved", "torch-interleaved", "interleaved-zb"):
        micro_batches = stages * draw(st.integers(1, 4))
    splits = draw(st.integers(1, 4)) if traits.sequence_splits else 1
    if traits.piece_rounds:
        stages = 2 * draw(st.integers(1, 3))
        interleaves, splits, micro_batches = max(2, interleaves), min(splits, stages), max(stages, micro_batches)
    return build_schedule(ScheduleSpec(name, draw(st.booleans()), splits), stages, interleaves, micro_batches)


@settings(max_examples=120, deadline=None)
@given(schedules())
def test_every_schedule_runs_every_task_once_and_ends(schedule: Schedule) -> None:
    check_schedule(schedule)
    directions = 3 if schedule.spec.traits.split_backward else 2
    per_stage = directions * schedule.interleaves * schedule.micro_batches * schedule.spec.seq_splits
    for row in schedule.order:
        assert len({tuple(task) for task in row.tolist()}) == len(row) == per_stage


@settings(max_examples=60, deadline=None)
@given(schedules())
def test_alive_vectors_dominate_every_moment_and_none_dominates_another(schedule: Schedule) -> None:
    frees = 2 if schedule.spec.traits.split_backward else 1
    for s, rows in enumerate(alive_vectors(schedule)):
        held = np.zeros(schedule.interleaves)
        for direction, v, _, _ in schedule.order[s].tolist():
            held[v] += {0: 1.0, frees: -1.0}.get(direction, 0.0) / schedule.spec.seq_splits
            assert (rows >= held - 1e-9).all(axis=1).any()
        assert np.allclose(held, 0.0)
        for i, row in enumerate(rows):
            assert not any((other >= row).all() for j, other in enumerate(rows) if j != i)


def test_a_deadlock_a_missing_task_and_pieces_out_of_order_are_refused() -> None:
    schedule = build_schedule(ScheduleSpec("1f1b"), 2, 1, 2)
    swapped = schedule.order.copy()
    swapped[1, [0, 1]] = swapped[1, [1, 0]]
    with pytest.raises(ValueError, match="deadlocks: stage [01] never runs"):
        check_schedule(dataclasses.replace(schedule, order=swapped))
    doubled = schedule.order.copy()
    doubled[0, 1] = doubled[0, 0]
    with pytest.raises(ValueError, match="twice"):
        check_schedule(dataclasses.replace(schedule, order=doubled))
    below = schedule.order.copy()
    below[0, 0, 2] = -1
    with pytest.raises(ValueError, match="must have 4 tasks"):
        check_schedule(dataclasses.replace(schedule, order=below))
    pieces = build_schedule(ScheduleSpec("seqpipe", seq_splits=2), 1, 1, 1)
    reversed_pieces = pieces.order.copy()
    reversed_pieces[0, [0, 1]] = reversed_pieces[0, [1, 0]]
    with pytest.raises(ValueError, match="out of order"):
        check_schedule(dataclasses.replace(pieces, order=reversed_pieces))


def test_frameworks_run_gpipe_with_one_interleave_and_interleaving_with_any() -> None:
    # torch.distributed.pipelining: ScheduleGPipe is a PipelineScheduleSingle; ScheduleInterleaved1F1B takes any number.
    assert [ScheduleSpec("gpipe").traits.offered_with(V) for V in (1, 2)] == [True, False]
    assert [ScheduleSpec("torch-interleaved").traits.offered_with(V) for V in (1, 2, 9)] == [False, True, True]


@pytest.mark.parametrize(
    ("spec", "stages", "interleaves", "micro_batches", "reason"),
    [
        (ScheduleSpec("1f1b"), 4, 2, 8, "use interleaved"),
        (ScheduleSpec("megatron-interleaved"), 4, 2, 6, "multiples"),
        (ScheduleSpec("zero_bubble_v"), 4, 3, 8, "two virtual stages"),
        (ScheduleSpec("zero_bubble_v"), 4, 2, 6, "at least 7 micro-batches"),
        (ScheduleSpec("dualpipev"), 4, 2, 6, "at least 7 micro-batches"),
        (ScheduleSpec("torch-interleaved"), 4, 2, 9, "2 equal rounds"),
        (ScheduleSpec("pipedream"), 4, 1, 8, "unknown schedule"),
        (ScheduleSpec("1f1b", seq_splits=2), 4, 1, 8, "seqpipe"),
        (ScheduleSpec("1f1b"), 0, 1, 8, ">= 1"),
    ],
)
def test_numbers_that_a_schedule_cannot_run_are_refused(
    spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        build_schedule(spec, stages, interleaves, micro_batches)


@pytest.mark.parametrize(
    ("framework", "several"),
    [(MINDFORMERS, "interleaved"), (MEGATRON, "megatron-interleaved"), (TORCHTITAN, "torch-interleaved")],
    ids=lambda each: getattr(each, "name", each),
)
def test_1f1b_with_several_interleaves_is_the_framework_s_own_order(framework: Framework, several: str) -> None:
    plain = ScheduleSpec("1f1b", low_memory=False)
    assert plain.for_interleaves(1, framework) == plain
    folded = plain.for_interleaves(3, framework)
    assert folded == ScheduleSpec(several, low_memory=False)
    assert folded.for_interleaves(1, framework) == plain
    assert folded.name_without_interleaves == "1f1b"


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=lambda each: each.name)
def test_a_schedule_that_was_asked_for_by_name_stays(framework: Framework) -> None:
    for name in ("interleaved", "megatron-interleaved", "torch-interleaved"):
        assert ScheduleSpec(name).for_interleaves(2, framework) == ScheduleSpec(name)
    for name in ("gpipe", "seqpipe", *V_SHAPES):
        for vpp in (1, 2, 3):
            assert ScheduleSpec(name).for_interleaves(vpp, framework) == ScheduleSpec(name)
            assert ScheduleSpec(name).name_without_interleaves == name


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_table_of_schedules_says_what_their_orders_show(name: str) -> None:
    spec = ScheduleSpec(name)
    traits = spec.traits
    vpp = traits.fixed_interleaves or 2
    schedule = build_schedule(spec, 4, vpp, 8)
    directions = schedule.order[:, :, 0]
    assert traits.split_backward == bool((directions == WEIGHT_GRADIENT).any())
    firsts = [int(np.argmax(row != FORWARD)) for row in directions]
    assert traits.keeps_all == all(first == vpp * 8 for first in firsts)
    if (step := spec.warm_up_step(vpp)) is not None:
        assert {early - late for early, late in itertools.pairwise(firsts)} == {step}
    other = build_schedule(ScheduleSpec(name, low_memory=True), 4, vpp, 8)
    assert traits.low_memory_switch == (not np.array_equal(other.order, schedule.order))
    assert schedule.chunk_at(schedule.chunks - 1)[1] == spec.head_stage(4)
    few = traits.whole_rounds or traits.least_micro_batches(4) > 6
    for refused, expected in ((few, (4, vpp, 6)), (traits.fixed_interleaves is not None, (4, 3, 8))):
        if refused:
            with pytest.raises(ValueError, match="multiples|runs (one|two)|at least"):
                build_schedule(spec, *expected)
        else:
            build_schedule(spec, *expected)
    pieces = ScheduleSpec(name, seq_splits=2)
    if traits.sequence_splits:
        assert build_schedule(pieces, 4, vpp, 8).order[:, :, 3].max() == 1
    else:
        with pytest.raises(ValueError, match="sequence splits belong to seqpipe"):
            build_schedule(pieces, 4, vpp, 8)


def test_every_schedule_is_offered_with_the_interleaves_and_micro_batches_of_its_paper() -> None:
    """Sources of each row: docs/mathematics.md, «Orders of tasks».

    Interleaved 1F1B needs two chunks a stage (Narayanan et al. 2021); V shapes have two (Qi et al. 2024, DualPipeV);
    ZB-H1 and ZB-H2 have one (Qi et al. 2023), and ZB-H2 fills the pipeline up and down.
    """
    several, one, two, any_number = {2, 3, 4}, {1}, {2}, {1, 2, 3, 4}
    rows = {
        "gpipe": (one, 1), "1f1b": (one, 1), "interleaved": (several, 1), "megatron-interleaved": (several, 1),
        "torch-interleaved": (several, 1), "seqpipe": (any_number, 1), "seqvpp": (several, 1),
        "seqsmartvpp": (several, 1), "zero_bubble_v": (two, 7), "dualpipev": (two, 7),
        "zbv": (two, 1), "zb-h1": (one, 1), "zb-h2": (one, 7), "interleaved-zb": (several, 1),
        "searched": (any_number, 1), "searched-v": (two, 1), "searched-free": (several, 1),
    }  # fmt: skip
    for name in (*SCHEDULES, *SEARCHED_NAMES):
        traits = ScheduleSpec(name).traits
        told = {V for V in range(1, 5) if traits.offered_with(V)}, int(traits.least_micro_batches(4))
        assert told == rows[name], name
        # The backward of plain and interleaved 1F1B is one task; zero-bubble orders part it.
        parted = name.startswith(("z", "dual", "searched")) or name == "interleaved-zb"
        assert traits.split_backward == parted and traits.v_shape == (rows[name][0] == two), name
        assert traits.needs_pipeline == (parted or name.startswith("seq")) and traits.keeps_all == (name == "gpipe"), (
            name
        )
        assert traits.put_off == {"zb-h1": 1, "zb-h2": 2, "interleaved-zb": 1}.get(name), name
    assert len(rows) == len(SCHEDULES) + len(SEARCHED_NAMES)
