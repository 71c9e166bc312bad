"""Times between kernels and the pieces that they make, against counting nanosecond by nanosecond."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.profiles.folder import rank_sources
from taylor.parsers.profiles.kernels import (
    BACKWARD_MARKER,
    COLLECTIVE,
    COMPUTE,
    FORWARD_MARKER,
    NO_MARKER,
    RECEIVE,
    SEND,
    TRANSFER,
    RankProfile,
)
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.pipeline.schedule import FORWARD, ScheduleSpec
from taylor.profiling import extract
from taylor.profiling.match import MOST_BETWEEN, ProfileMisfit, match, reruns_attention_alone
from taylor.profiling.measure import (
    NamedSample,
    _ends_by_name,
    again_after_send,
    busy_intervals,
    common_beginning,
    measure_by_name,
    measure_windows,
)
from taylor.profiling.memory import ProfiledMemory, read_profiled_memory
from taylor.profiling.pattern import ATTENTION_ALONE, KernelWindow, Piece, StagePattern, stage_pattern
from taylor.profiling.tasks import names_tasks
from taylor.profiling.transfer import Transfers, expected_transfers, transfer_time, transfers_of
from tests.profiling.test_extract import MIXED, write

F, B, N = FORWARD_MARKER, BACKWARD_MARKER, NO_MARKER
DENSE_PAIR = PipelinePlan({"dense": ((1, 1),)}, {})


def profile(
    rows: list[tuple[int, int, int, int]], names: list[int] | None = None, steps: list[int] | None = None
) -> RankProfile:
    """Kernels as (start in ns, duration in ns, role, marker)."""
    start, took, role, marker = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    n = len(rows)
    return RankProfile(
        Path("p"), 0, start, took, role.astype(np.int8), marker.astype(np.int8),
        np.array(names or [0] * n, dtype=np.int32), np.array(steps or [-1] * n, dtype=np.int32),
        tuple(f"kernel {at}" for at in range(1 + max(names or [0]))),
    )  # fmt: skip


def drawn(seed: int, base: int) -> tuple[RankProfile, list[int]]:
    """Kernels of several streams at random, and the numbers of five that are attention."""
    draw = random.Random(seed)
    rows, now = [], base
    for _ in range(40):
        rows.append((now, draw.choice((1, 2, 5, 9)), draw.choice((COMPUTE, COMPUTE, COLLECTIVE, SEND)), N))
        now += draw.choice((0, 1, 3, 8, 15))
    at = sorted(draw.sample([number for number, row in enumerate(rows) if row[2] == COMPUTE], 5))
    return profile(rows), at


def covered(found: RankProfile, roles: tuple[int, ...]) -> set[int]:
    """Every nanosecond in which a kernel of some roles runs."""
    return {
        now
        for start, end, role in zip(found.start_ns.tolist(), found.end_ns.tolist(), found.role.tolist(), strict=True)
        if role in roles
        for now in range(start, end)
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("roles", [(COMPUTE,), (COMPUTE, COLLECTIVE), (RECEIVE,)])
def test_busy_stretches_cover_what_is_counted_by_nanosecond(seed: int, roles: tuple[int, ...]) -> None:
    found, _ = drawn(seed, 1_000_000)
    busy = covered(found, roles)
    starts, ends = busy_intervals(found, roles)
    assert sorted(now for low, high in zip(starts, ends, strict=True) for now in range(low, high)) == sorted(busy)
    assert (starts[1:] > ends[:-1]).all()


@pytest.mark.parametrize("seed", range(12))
def test_a_window_is_its_time_without_the_longest_pauses_one_a_border(seed: int) -> None:
    found, at = drawn(seed, 500)
    borders = (0, 1, 2, 3)
    pieces: tuple[tuple[Piece, float], ...] = ((("after", "moe"), 1.0), (("before", ""), 1.0))
    pattern = StagePattern(
        0, np.full(5, F, dtype=np.int8), tuple(KernelWindow(pieces, count) for count in borders),
        np.arange(4), np.zeros(5, dtype=np.int64), 1, 0,
    )  # fmt: skip
    busy = covered(found, (COMPUTE, COLLECTIVE))
    wanted = []
    for (one, other), count in zip(zip(at, at[1:], strict=False), borders, strict=True):
        low, high = int(found.start_ns[one]), int(found.start_ns[other])
        pauses = []
        for now in range(low, high):
            if now not in busy:
                pauses += [0] if now - 1 in busy or not pauses else []
                pauses[-1] += 1
        wanted.append((high - low - sum(sorted(pauses, reverse=True)[:count])) / 1e6)
    steps = np.array([at])
    assert measure_windows(found, pattern, steps)[0].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("one", "other", "same"), [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([5], [1], 0)]
)
def test_a_common_beginning_ends_with_the_first_difference(one: list[int], other: list[int], same: int) -> None:
    first, second = np.array(one, dtype=np.int32), np.array(other, dtype=np.int32)
    assert common_beginning(first, second) == common_beginning(second, first) == same


def test_names_part_a_window_where_they_can() -> None:
    """Recompute behind attention is a forward's end, ahead of it a forward's beginning; alone with one other piece."""
    moe, dense = np.array([1, 2], dtype=np.int32), np.array([3], dtype=np.int32)
    forward, backward = {"moe": moe, "dense": dense}, {"moe": np.array([4], dtype=np.int32)}

    def ends(*inside: Piece, f: dict[str, Any] = forward, b: dict[str, Any] = backward) -> list[Any]:
        return [
            None if found is None else (found[0], [each.tolist() for each in found[1]])
            for found in _ends_by_name(list(inside), f, b)
        ]

    again, back = ("again after", "moe"), ("back before", "moe")
    assert ends(again, back) == [(again, [[1, 2]]), None]
    assert ends(again, back, ("select", "moe")) == [None, None]
    assert ends(again, ("back after", "")) == [None, None]
    assert ends(("again after", "mtp"), ("back before", "mtp")) == [None, None]
    start, behind = ("again before", ""), ("back after", "")
    assert ends(behind, start) == [None, (start, [[1, 2], [3]])]
    assert ends(behind, start, f={}) == [None, None]
    assert ends(behind, start, ("weight", "moe")) == [None, None]
    turn = [("embedding", ""), ("back embedding", ""), behind, ("before", "")]
    assert ends(*turn) == [(behind, [[4]]), (("before", ""), [[1, 2], [3]])]
    assert ends(*turn, b={}) == [None, (("before", ""), [[1, 2], [3]])]
    assert ends(*turn, f={}) == [(behind, [[4]]), None]
    for missing in turn:
        assert ends(*(piece for piece in turn if piece != missing)) == [None, None]


def sent_at(time: int, extra: list[tuple[int, int, int, int]]) -> RankProfile:
    """Attention at 0, 1, 2 and 3 ms of a stage that sends its forward; work behind the first ends at 0.3 ms."""
    ms = 1_000_000
    rows = [(0, 10, COMPUTE, F), (ms // 10, ms // 5, COMPUTE, N), (ms, 10, COMPUTE, F), (2 * ms, 10, COMPUTE, B)]
    return profile(sorted([*rows, (3 * ms, 10, COMPUTE, B), (time, 7, SEND, N), *extra]))


@pytest.mark.parametrize(
    ("time", "took"), [(200_000, 0.2), (300_000, 0.3), (500_000, 0.3), (1_000_000, 0.3), (1_000_001, None)]
)
def test_a_task_ends_with_its_work_or_with_its_send_where_that_is_earlier(time: int, took: float | None) -> None:
    """A send that begins with the next attention kernel still belongs to the task; a later one does not."""
    found = sent_at(time, [])
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), DENSE_PAIR, 0)
    samples = [each for each in measure_by_name(found, pattern, match(found, pattern, 2)) if each.column == 0]
    assert samples == ([] if took is None else [NamedSample(("after", "dense"), 0, 0, pytest.approx(took))])


def test_a_profile_without_a_send_tells_no_end_of_a_task() -> None:
    ms = 1_000_000
    found = profile([(at * ms, 10, COMPUTE, marker) for at, marker in enumerate((F, F, B, B))])
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), DENSE_PAIR, 0)
    steps = match(found, pattern, 2)
    assert measure_by_name(found, pattern, steps) == [] == again_after_send(found, pattern, steps)


RECOMPUTED = PipelinePlan({"dense": ((1, 1),)}, {FULL: ((1, 0),)})


@pytest.mark.parametrize(
    ("send", "again", "same"),
    [
        (45, [1, 2, 9], 2),
        (15, [1, 2, 9], 1),
        (100, [1, 2, 9], 2),
        (101, [1, 2, 9], 0),
        (45, [7, 2], 0),
        (45, [1, 2], 2),
    ],
)
def test_recompute_behind_attention_ends_where_it_no_longer_runs_what_the_forward_ran(
    send: int, again: list[int], same: int
) -> None:
    """Kernels of 5 ns every 10 behind each attention: 1 and 2 of a forward, as far as its send; at 100 the next begins.

    A send behind 100 is the next forward's, and nothing of that one lies ahead of it.
    """
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), RECOMPUTED, 0)
    assert pattern.markers.tolist() == [F, F, F, B, F, B]
    rows, names = [], []
    for at, marker in enumerate(pattern.markers.tolist()):
        behind = [1, 2] if at < 2 else again if marker == F else [8]
        rows += [(100 * at, 5, COMPUTE, marker)] + [
            (100 * at + 10 * (k + 1), 5, COMPUTE, N) for k in range(len(behind))
        ]
        names += [0, *behind]
    order = sorted(range(len(rows) + 1), key=lambda at: ([*rows, (send, 1, SEND, N)][at][0], at != len(rows)))
    rows, names = [[*rows, (send, 1, SEND, N)][at] for at in order], [[*names, 20][at] for at in order]
    found = profile(rows, names)
    samples = again_after_send(found, pattern, match(found, pattern, 2))
    # The last kernel that is the same ends 15 or 25 ns behind its attention kernel; that kernel itself after 5.
    time = pytest.approx((10 * same + 5) / 1e6)
    assert samples == [NamedSample(("again after", "dense"), 0, column, time) for column in (2, 4)]


@pytest.mark.parametrize(("between", "alone"), [(0, True), (MOST_BETWEEN, True), (MOST_BETWEEN + 1, False)])
def test_six_kernels_may_lie_between_repeated_attention_and_its_backward(between: int, alone: bool) -> None:
    """A receive is no work, and does not count."""
    plan = PipelinePlan({"dense": ((1, 1),)}, {SELECT: ((1, 0),)})
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), plan, 0, ATTENTION_ALONE)
    assert MOST_BETWEEN == 6 and pattern.markers.tolist() == [F, F, F, B, F, B]
    rows: list[tuple[int, int]] = []
    for at, marker in enumerate(pattern.markers.tolist()):
        rows += [(COMPUTE, marker)] + ([(COMPUTE, N), (COLLECTIVE, N)] * 9)[: between if at in (2, 4) else 9]
        rows += [(RECEIVE, N)] * 3
    found = profile([(10 * at, 5, role, marker) for at, (role, marker) in enumerate(rows)])
    assert reruns_attention_alone(found, pattern, match(found, pattern, 2)) is alone


def test_the_step_whose_numbers_are_mixed_is_told() -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), DENSE_PAIR, 0)
    rows = [(10 * at, 5, COMPUTE, marker) for at, marker in enumerate([F, F, B, B] * 3)]
    match(profile(rows, steps=[5] * 4 + [6] * 4 + [7] * 4), pattern, 2)
    with pytest.raises(ProfileMisfit, match=r"different step numbers \(7, 8\)"):
        match(profile(rows, steps=[5] * 4 + [6] * 4 + [7] * 3 + [8]), pattern, 2)


@pytest.mark.parametrize(
    ("found", "steps", "says"),
    [
        ([], None, "no attention kernel of a known name .expected 2 forward and 2 backward"),
        ([F, F], None, "2 forward and 0 backward.*the backward attention kernel has another name"),
        ([B], None, "0 forward and 1 backward.*the forward attention kernel has another name"),
        ([F, F, B, B, F], None, "the order fits for 1 whole steps and then ends inside a step"),
        ([F, B, B, F, F, B, B], None, "the first step is not whole"),
        ([F, B, F, B], None, "over 1 steps, but kernel 2 is of the other direction"),
        ([F, F, B, B, B, F, F, B], None, "over 2 steps, but kernel 5 is of the other direction"),
        (
            [F, F, F, F, F, F, B, B],
            None,
            "over 1 steps: 2 layers of this stage run attention again and .* recomputes 0",
        ),
        ([F, F, F, B, F, B] * 2, None, "over 2 steps: 1 layers of this stage run attention again"),
        ([F, F, F, B, B, B], None, "the profile was cut short, or is of another configuration"),
        ([F, F, F, F, F, F, B, B, B, B, B, B], [1] * 12, "over 3 steps"),
        ([F, B, B, B] * 2, [0] * 4 + [1] * 4, "over 3 steps"),
        ([F, F, F, B, B, B] * 3, [0] * 6 + [1] * 6 + [-1] * 6, "the profile was cut short, or is of another"),
    ],
)
def test_a_misfit_says_what_was_found_and_why(found: list[int], steps: list[int] | None, says: str) -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), DENSE_PAIR, 0)
    assert pattern.markers.tolist() == [F, F, B, B]
    rows = [(10 * at, 5, COMPUTE, marker) for at, marker in enumerate(found)] or [(0, 5, COMPUTE, N)]
    with pytest.raises(ProfileMisfit, match=says):
        match(profile(rows, steps=steps), pattern, 2)


def test_weight_gradients_are_pieces_of_their_own_where_a_schedule_splits_them() -> None:
    """Zero bubble (H1) on one of two stages: what lies between attention kernels, and the last weight gradient not."""
    schedule = build_schedule(ScheduleSpec("zb-h1"), 2, 1, 2)
    pattern = stage_pattern(schedule, DENSE_PAIR, 1)
    order = schedule.order[1].tolist()
    inside: list[dict[Piece, float]] = [{}]
    for direction, *_ in order:
        parts: list[Piece | int] = {
            0: [("before", ""), F, ("after", "dense"), ("head", "")],
            1: [("back head", ""), ("back before", "dense"), B, ("back after", "")],
            2: [("weight head", ""), ("weight", "dense")],
        }[direction]
        for part in parts:
            if isinstance(part, int):
                inside.append({})
            else:
                inside[-1][part] = inside[-1].get(part, 0.0) + 1.0
    assert [dict(pattern.windows[number].pieces) for number in pattern.window] == inside[1:-1]


def test_what_operators_allocated_counts_where_the_record_shows_less(tmp_path: Path) -> None:
    head = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type"
    rows = ["PTA,1.000,100,200,100,0,NPU:0", "PTA,5.000,150,200,150,0,NPU:0"]
    (tmp_path / "memory_record.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    for operators, peak in ((170.0, 170.0), (120.0, 150.0)):
        (tmp_path / "operator_memory.csv").write_text(f"Name,Allocation Total Allocated(MB)\na,{operators}\nb,3\n")
        found, notes = read_profiled_memory(tmp_path, 5_000)
        assert found is not None and (found.peak_mib, found.static_mib, notes) == (peak, 100.0, [])
    (tmp_path / "memory_record.csv").unlink()
    # Alone it starts with the profile, and says nothing of what was there before.
    assert read_profiled_memory(tmp_path, 5_000) == (None, [])


def test_the_heavier_of_two_ranks_counts_figure_by_figure() -> None:
    one, other = ProfiledMemory(5.0, 2.0), ProfiledMemory(4.0, 3.0)
    assert one.worse(other) == other.worse(one) == ProfiledMemory(5.0, 3.0)
    assert ProfiledMemory(4.0, None).worse(ProfiledMemory(5.0, 1.0)) == ProfiledMemory(5.0, 1.0)
    assert ProfiledMemory(4.0, None).worse(ProfiledMemory(3.0, None)) == ProfiledMemory(4.0, None)


SCHEDULES = [(ScheduleSpec(), 3, 1, 3), (ScheduleSpec("interleaved"), 2, 2, 4), (ScheduleSpec("gpipe"), 4, 1, 2)]


@pytest.mark.parametrize("spec, stages, interleaves, micro_batches", SCHEDULES)
def test_a_transfer_is_the_shorter_of_a_send_and_its_receive(
    spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> None:
    """Every chunk hands its output to the next, and its gradient to the one before, of the same lane."""
    schedule = build_schedule(spec, stages, interleaves, micro_batches)
    strategy = Strategy(dp=2, tp=1, pp=stages, vpp=interleaves, micro_batches=micro_batches)
    draw = np.random.default_rng(stages)
    ranks, steps = {}, {}
    for rank in range(2 * stages):
        sends, receives = expected_transfers(schedule, rank // 2)
        steps[rank] = 2 + rank // 2 % 2
        ranks[rank] = Transfers(draw.random((steps[rank], len(sends))), draw.random((steps[rank], len(receives))))
    times = []
    for sender in ranks:
        for receiver in ranks:
            if sender % 2 != receiver % 2 or sender == receiver:
                continue
            sends, receives = (
                expected_transfers(schedule, sender // 2)[0],
                expected_transfers(schedule, receiver // 2)[1],
            )
            for i, (direction, position, micro_batch, split) in enumerate(sends):
                to = position + (1 if direction == FORWARD else -1)
                if schedule.chunk_at(to)[1] != receiver // 2:
                    continue
                j = receives.index((direction, position, micro_batch, split))
                for step in range(min(steps[sender], steps[receiver])):
                    sent, received = ranks[sender].sends, ranks[receiver].receives
                    assert sent is not None and received is not None
                    times.append(min(sent[step, i], received[step, j]))
    found, notes = transfer_time(schedule, strategy, ranks)
    assert found == pytest.approx(float(np.median(times))) and notes == []
    # All sends together are as many as all receives.
    both = [expected_transfers(schedule, stage) for stage in range(stages)]
    borders = 2 * (stages * interleaves - 1) * micro_batches
    assert sum(len(sends) for sends, _ in both) == sum(len(receives) for _, receives in both) == borders
    unknown = "the transfer time between stages is not measured"
    gone = {rank: each for rank, each in ranks.items() if rank in (0, 3)}
    assert transfer_time(schedule, strategy, gone) == (
        None,
        [f"{unknown}: no two neighbouring stages show matching sends and receives"],
    )
    lost = {rank: Transfers(None, None, batched=rank == 1) for rank in ranks}
    assert transfer_time(schedule, strategy, lost)[1] == [f"{unknown}: sends and receives are batched"]


def test_one_stage_has_no_transfer_and_says_nothing_of_it() -> None:
    schedule = build_schedule(ScheduleSpec("gpipe"), 1, 1, 2)
    assert transfer_time(schedule, Strategy(dp=1, tp=1, pp=1, micro_batches=2), {}) == (None, [])


def test_sends_and_receives_are_told_in_milliseconds_where_their_number_is_the_schedule_s() -> None:
    """The first of two stages sends two forwards and receives two gradients a step."""
    schedule = build_schedule(ScheduleSpec(), 2, 1, 2)
    rows = [(10 * at, 1000 * (at + 1), role, N) for at, role in enumerate([SEND, SEND, RECEIVE, RECEIVE] * 2)]
    found = transfers_of(profile(rows), schedule, 0, 2)
    assert found.sends is not None and found.receives is not None and not found.batched
    assert found.sends.tolist() == [[0.001, 0.002], [0.005, 0.006]]
    assert found.receives.tolist() == [[0.003, 0.004], [0.007, 0.008]]
    found = transfers_of(profile([*rows[:-1], (90, 5, TRANSFER, N)]), schedule, 0, 2)
    assert found.sends is not None and found.receives is None and found.batched


def test_one_range_names_tasks_where_no_attention_kernel_is_known() -> None:
    empty, attention = profile([(0, 5, COMPUTE, N)]), profile([(0, 5, COMPUTE, F)])
    one = {"task_start_ns": np.array([0]), "task_end_ns": np.array([5]), "task_marker": np.array([F], dtype=np.int8)}
    assert names_tasks(replace(empty, **one))
    assert not names_tasks(empty) and not names_tasks(replace(attention, **one))


def test_memory_is_asked_for_until_the_last_attention_kernel_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[Path, int] = {}

    def read(output: Path, until_ns: int) -> tuple[None, list[str]]:
        asked[output] = until_ns
        return None, []

    monkeypatch.setattr(extract, "read_profiled_memory", read)
    write(MIXED, tmp_path, memory_mib={0: (100.0, 300.0), 2: (100.0, 300.0)})
    extract.extract_ratios(MIXED, tmp_path)
    profiles = {source.path: source.read() for source in rank_sources(tmp_path) if source.has_memory_tables}
    assert asked == {path: found.end_ns[found.marker != N].max() for path, found in profiles.items()}
    assert asked
