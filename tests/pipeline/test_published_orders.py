"""Task orders against the generators that their authors published (benchmarks/reliability/published_orders.py).

torch's are run here; the others' statements stand in for their code, which the campaign runs.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.reliability.published_orders import (
    OfStage,
    Order,
    dual_pipe_v_by_rule,
    megatron_interleaving,
    mindspore_interleaving,
    mindspore_zero_bubble_v,
    torch_order,
    torch_whole,
)
from benchmarks.reliability.schedules import order_faults
from taylor.cost_model.memory.alive import alive_micro_batches
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleSpec
from taylor.pipeline_solver.timing.event_graph import EventGraph

V_SHAPES = [(S, m) for S in (2, 3, 4, 5, 8) for m in range(1, 2 * S + 8)]


def assert_same(spec: ScheduleSpec, S: int, V: int, m: int, published: OfStage) -> None:
    """Every stage's order task by task, and the most activations alive at once."""
    assert order_faults(spec, (S, V, m), published) == []


# torch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("S", "m"), V_SHAPES)
def test_zbv_is_torchs_order(S: int, m: int) -> None:
    assert_same(ScheduleSpec("zbv"), S, 2, m, torch_order("ScheduleZBVZeroBubble", S, 2, m))


@pytest.mark.parametrize(
    ("S", "V", "m"),
    [(S, V, m) for S in (2, 3, 4, 6) for V in (2, 3) for m in range(1, 4 * S) if not m % max(1, m // S)],
)
def test_torchs_interleaving_has_equal_rounds_whatever_the_micro_batches(S: int, V: int, m: int) -> None:
    spec = ScheduleSpec("torch-interleaved")
    assert_same(spec, S, V, m, torch_order("ScheduleInterleaved1F1B", S, V, m))


@pytest.mark.parametrize(("S", "m"), [(2, 5), (2, 7), (3, 7), (4, 9), (4, 13)])
def test_what_torchs_interleaving_refuses_is_refused(S: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

    def of_base(self: Any, stages: list[Any], n_microbatches: int, **rest: Any) -> None:
        """What the base class would ask of real stages is left out."""

    monkeypatch.setattr(schedules._PipelineScheduleRuntime, "__init__", of_base)
    with pytest.raises(ValueError, match="multiple of the number of rounds"):
        schedules.ScheduleInterleaved1F1B([SimpleNamespace(group_size=S, group_rank=0)] * 2, m)
    with pytest.raises(ValueError, match="equal rounds"):
        build_schedule(ScheduleSpec("torch-interleaved"), S, 2, m)


Whole = list[set[tuple[int, int]]]
"""By stage: interleave and micro-batch of the backwards that run whole."""


def played(
    orders: list[Order], V: int, v_shape: bool, times: dict[tuple[int, int, int], float], lag: float, whole: Whole
) -> float:
    """Step time of published orders, task after task; `times` by (stage, direction, interleave)."""
    S, done, clock = len(orders), dict[tuple[int, int, int], float](), [0.0] * len(orders)
    chunks = [(v, S - 1 - s if v_shape and v % 2 else s) for v in range(V) for s in range(S)]
    left = [deque(order) for order in orders]
    while any(left):
        for s, order in enumerate(left):
            while order:
                direction, v, i, _ = order[0]
                place = chunks.index((v, s))
                if direction == FORWARD:
                    needed = (FORWARD, place - 1) if place else None
                elif direction == BACKWARD:
                    needed = (BACKWARD, place + 1) if place + 1 < len(chunks) else (FORWARD, place)
                    if place + 1 < len(chunks):
                        behind, on = chunks[place + 1]
                        needed = (2 if on != s and (behind, i) in whole[on] else BACKWARD, place + 1)
                else:
                    needed = (BACKWARD, place)
                if needed is not None:
                    if (*needed, i) not in done:
                        break
                    away = chunks[needed[1]][1] != s
                    clock[s] = max(clock[s], done[(*needed, i)] + lag * away)
                clock[s] += times[s, direction, v]
                done[direction, place, i] = clock[s]
                order.popleft()
    return max(clock)


def assert_same_times(
    spec: ScheduleSpec, S: int, V: int, m: int, published: OfStage, whole: Whole | None = None
) -> None:
    """Step time of the published orders, played here, under times unlike on every chunk."""
    rng = random.Random(f"{spec.name} {S} {V} {m}")
    times = {(s, d, v): rng.uniform(0.5, 2.0) for s in range(S) for d in range(3) for v in range(V)}
    graph = EventGraph.from_schedule(build_schedule(spec, S, V, m), 0.25)
    durations = [times[s, d, v] for d in range(3) for v in range(V) for s in range(S)] + [0.0] * S
    expected = played([published(s) for s in range(S)], V, spec.v_shape, times, 0.25, whole or [set()] * S)
    assert graph.longest_path(np.array(durations)) == pytest.approx(expected, rel=1e-12)


ZERO_BUBBLE = [(S, V, m) for S in (2, 3, 4, 5, 8) for V in (1, 2, 3) for m in range(1, 25) if not m % max(1, m // S)]


@pytest.mark.parametrize("S", (2, 3, 4, 5, 8))
def test_zero_bubble_on_straight_stages_is_torchs_order_and_takes_its_time(S: int) -> None:
    assert len(ZERO_BUBBLE) >= 200
    for _, V, m in (shape for shape in ZERO_BUBBLE if shape[0] == S):
        spec = ScheduleSpec("interleaved-zb" if V > 1 else "zb-h1")
        published = torch_order("ScheduleInterleavedZeroBubble", S, V, m)
        assert_same(spec, S, V, m, published)
        assert_same_times(spec, S, V, m, published)


@pytest.mark.parametrize("S", (2, 3, 4, 5, 6, 7, 8))
def test_dualpipev_is_torchs_order_and_takes_its_time(S: int) -> None:
    for m in range(2 * S, 2 * S + 29):  # 203 shapes with all stages
        published = torch_order("ScheduleDualPipeV", S, 2, m)
        assert_same(ScheduleSpec("dualpipev"), S, 2, m, published)
        whole = [torch_whole("ScheduleDualPipeV", S, 2, m, s) for s in range(S)]
        schedule = build_schedule(ScheduleSpec("dualpipev"), S, 2, m)
        assert schedule.whole is not None
        marked = [schedule.order[s][schedule.whole[s]][:, 1:3].tolist() for s in range(S)]
        assert [set(map(tuple, row)) for row in marked] == whole
        assert_same_times(ScheduleSpec("dualpipev"), S, 2, m, published, whole)


@pytest.mark.parametrize(("name", "most"), [("zb-h1", lambda S: S), ("zb-h2", lambda S: 2 * S - 1)])
def test_zero_bubble_keeps_its_paper_s_memory_on_every_stage(name: str, most: Callable[[int], int]) -> None:
    # Qi et al. 2023 (arXiv:2401.10241), table 1: p and 2p - 1 activations.
    for S, m in ((2, 4), (4, 8), (5, 12), (8, 40)):
        alive = alive_micro_batches(ScheduleSpec(name), S, 1, m)
        assert [max(map(sum, rows)) for rows in alive] == [most(S)] * S


@pytest.mark.parametrize(("name", "put_off"), [("zb-h1", 1), ("zb-h2", 2)])
def test_zero_bubble_idles_as_its_paper_says(name: str, put_off: int) -> None:
    # The same table: (p - 1)(F + B - kW) idle from a stage's first task to its last, k = 1 and 2; none below 0.
    f, b, w = 1.0, 1.25, 0.75
    for S, m in ((2, 4), (4, 8), (5, 12), (8, 40)):
        graph = EventGraph.from_schedule(build_schedule(ScheduleSpec(name), S, 1, m), 0.0)
        durations = np.repeat([f, b, w, 0.0], S)
        starts = graph.start_times(durations)
        lasting = max(float(starts[s, -1] + w - starts[s, 0]) for s in range(S))
        assert lasting == pytest.approx(m * (f + b + w) + (S - 1) * (f + b - put_off * w))


# Megatron-LM's interleaving in groups ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("S", "V", "m", "group"),
    [
        *[(S, V, m, group) for S in (2, 3, 4) for V in (2, 3) for m, group in ((3 * S, S), (4 * S, 2 * S), (5, 5))],
        (2, 2, 5, 3), (2, 3, 11, 4), (3, 2, 7, 4), (4, 2, 19, 5), (4, 2, 12, 8),
    ],
)  # fmt: skip
def test_megatrons_groups_of_micro_batches_are_its_schedule_table(S: int, V: int, m: int, group: int) -> None:
    spec = ScheduleSpec("megatron-interleaved", group_size=group)
    assert_same(spec, S, V, m, lambda s: megatron_interleaving(S, V, m, group, s))
    ahead = replace(spec, one_ahead=True)
    assert_same(ahead, S, V, m, lambda s: megatron_interleaving(S, V, m, group, s, overlapped=True))


def test_no_forward_of_a_merged_pair_is_what_its_backward_waits_for() -> None:
    """The last stage's forward of the last chunk and its backward are next to each other in 1F1B, but not ahead."""
    for ahead in (False, True):
        spec = ScheduleSpec("megatron-interleaved", one_ahead=ahead)
        tasks = build_schedule(spec, 4, 2, 8).order[3, :, :3].tolist()
        pairs = [(one, other) for one, other in itertools.pairwise(tasks) if (one[0], other[0]) == (FORWARD, BACKWARD)]
        assert any(one[1:] == other[1:] for one, other in pairs) != ahead
    # With one interleave, or in another order, there is nothing to be ahead of.
    assert ScheduleSpec("1f1b", one_ahead=True).ahead == ScheduleSpec("interleaved", one_ahead=True).ahead == 0


@pytest.mark.parametrize(("S", "m", "group"), [(4, 8, 3), (4, 8, 9), (4, 9, 8), (4, 10, None)])
def test_groups_that_megatron_refuses_are_refused(S: int, m: int, group: int | None) -> None:
    with pytest.raises(ValueError, match="megatron-interleaved needs micro-batches in"):
        build_schedule(ScheduleSpec("megatron-interleaved", group_size=group), S, 2, m)


# DeepSeek's DualPipeV ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("S", "m"), [(S, m) for S in (2, 3, 4, 5, 8) for m in range(2 * S - 1, 2 * S + 11)])
def test_dualpipev_is_deepseeks_order(S: int, m: int) -> None:
    assert_same(ScheduleSpec("dualpipev"), S, 2, m, lambda s: dual_pipe_v_by_rule(S, m, s))


@pytest.mark.parametrize("S", (2, 3, 4, 5, 8))
def test_dualpipev_has_the_phases_that_mindspeed_counts_from_its_fewest_micro_batches_on(S: int) -> None:
    """MindSpeed 028de58c mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py:310-334, stated anew."""
    for m in range(2 * S - 1, 2 * S + 6):
        schedule = build_schedule(ScheduleSpec("dualpipev", whole_drain=True), S, 2, m)
        for s in range(S):
            warm_up, both_forward, fill, overlap, half = (
                2 * (S - 1 - s),
                s + 1,
                S - s - 1,
                2 * (m - 2 * S + s + 1),
                S - s - 1,
            )
            assert overlap >= 0
            forwards = [int(v) for direction, v, *_ in schedule.order[s] if direction == 0]
            backwards = [int(v) for direction, v, *_ in schedule.order[s] if direction == 1]
            paired = overlap // 2
            assert forwards == [0] * warm_up + [0, 1] * both_forward + [1] * fill + [0, 1] * paired + [1] * half
            drain = [1, 0] * (s + 1) + [0] * (S - 1 - s)
            assert backwards == [1] * fill + [1, 0] * (paired + half) + drain
    with pytest.raises(ValueError, match=f"at least {2 * S - 1} micro-batches"):
        build_schedule(ScheduleSpec("dualpipev"), S, 2, 2 * S - 2)


# MindSpore's zero-bubble V ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("S", "m"), [(S, m) for S in (2, 3, 4, 5, 8) for m in range(2 * S - 1, 2 * S + 10)])
def test_zero_bubble_v_is_mindspores_order(S: int, m: int) -> None:
    assert_same(ScheduleSpec("zero_bubble_v"), S, 2, m, lambda s: mindspore_zero_bubble_v(S, m, s))


@pytest.mark.parametrize(("S", "m"), [(S, m) for S in (2, 3, 4, 5, 8) for m in (S, 2 * S - 2) if m < 2 * S - 1])
def test_with_too_few_micro_batches_mindspore_fails_and_so_does_the_order(S: int, m: int) -> None:
    with pytest.raises(IndexError):
        list(itertools.chain(*(mindspore_zero_bubble_v(S, m, s) for s in range(S))))
    with pytest.raises(ValueError, match=f"at least {2 * S - 1} micro-batches"):
        build_schedule(ScheduleSpec("zero_bubble_v"), S, 2, m)


# MindSpore's interleaving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_memory", (False, True))
@pytest.mark.parametrize(("S", "V"), [(2, 2), (3, 2), (4, 3), (5, 2)])
def test_interleaving_is_mindspores_order(S: int, V: int, low_memory: bool) -> None:
    for m in range(S, 3 * S + 2):
        spec = ScheduleSpec("interleaved", low_memory=low_memory)
        assert_same(spec, S, V, m, lambda s, m=m: mindspore_interleaving(S, V, m, low_memory, s))
