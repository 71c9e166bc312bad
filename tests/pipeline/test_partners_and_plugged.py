"""Passes that run as one, and schedules of plug-ins, at their borders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taylor.base.plugins import Group, PlugIn
from taylor.pipeline import generators
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.partners import combines, partners
from taylor.pipeline.plugged import OwnSchedule, PluggedSchedule, _accepted
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleSpec
from taylor.pipeline.traits import ScheduleTraits

ONE_AHEAD = ScheduleSpec("megatron-interleaved", one_ahead=True)
PLUGIN = PlugIn(Group.SCHEDULES, "own.1", "own:order", "own-dist", "1.0", lambda: None)


def test_only_schedules_that_warm_up_with_one_more_and_dualpipev_combine() -> None:
    assert combines(ONE_AHEAD) and combines(ScheduleSpec("dualpipev"))
    assert not combines(ScheduleSpec("megatron-interleaved")) and not combines(ScheduleSpec("1f1b"))


@pytest.mark.parametrize(("stages", "interleaves", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 4), (2, 3, 8)])
def test_every_forward_of_the_steady_state_has_the_backward_behind_it(
    stages: int, interleaves: int, micro_batches: int
) -> None:
    """Megatron-LM d98e8a64 megatron/core/pipeline_parallel/schedules.py: warm-up of 2 (pp - rank - 1) + (v - 1) pp,
    and one more; all forwards where these are fewer, and then no steady state."""
    schedule = build_schedule(ONE_AHEAD, stages, interleaves, micro_batches)
    found = partners(schedule)
    for stage in range(stages):
        warm_up = 2 * (stages - stage - 1) + (interleaves - 1) * stages + 1
        pairs = max(0, interleaves * micro_batches - warm_up)
        tasks = schedule.order[stage].tolist()
        beside = [at for at in range(len(tasks)) if found[stage, at] >= 0]
        assert len(beside) == 2 * pairs, (stage, pairs)
        for forward, backward in zip(beside[::2], beside[1::2], strict=True):
            assert backward == forward + 1
            assert [tasks[forward][0], tasks[backward][0]] == [FORWARD, BACKWARD]
            assert [found[stage, forward], found[stage, backward]] == [tasks[backward][1], tasks[forward][1]]


def test_schedules_are_kept_up_to_64_mib() -> None:
    assert generators.KEPT_BYTES == 64 * 2**20


def order(stages: int, interleaves: int, micro_batches: int) -> list[list[tuple[int, int, int, int]]]:
    return [[(0, 0, i, 0) for i in range(micro_batches)] + [(1, 0, i, 0) for i in range(micro_batches)]] * stages


def test_a_plug_in_s_order_has_its_number_of_stages_and_tasks() -> None:
    plugged = PluggedSchedule(PLUGIN, OwnSchedule(order))
    assert plugged.tasks(2, 1, 3) == [list(row) for row in order(2, 1, 3)]
    assert plugged.digest() == PluggedSchedule(PLUGIN, OwnSchedule(order)).digest()
    with pytest.raises(ValueError, match="must give 2 stages of 12 tasks of four numbers"):
        plugged.tasks(2, 2, 3)
    split = PluggedSchedule(PLUGIN, OwnSchedule(order, ScheduleTraits(split_backward=True)))
    with pytest.raises(ValueError, match="must give 2 stages of 9 tasks"):
        split.tasks(2, 1, 3)
    short: Any = lambda stages, interleaves, micro_batches: order(1, interleaves, micro_batches)  # noqa: E731
    with pytest.raises(ValueError, match="must give 2 stages of 6 tasks"):
        PluggedSchedule(PLUGIN, OwnSchedule(short)).tasks(2, 1, 3)

    def fails(stages: int, interleaves: int, micro_batches: int) -> list[Any]:
        raise KeyError("lost") if stages == 2 else ValueError("runs on two stages alone")

    with pytest.raises(ValueError, match="own-dist 1.0 .* fails: KeyError: 'lost'"):
        PluggedSchedule(PLUGIN, OwnSchedule(fails)).tasks(2, 1, 3)
    with pytest.raises(ValueError, match="^runs on two stages alone$"):
        PluggedSchedule(PLUGIN, OwnSchedule(fails)).tasks(3, 1, 3)


@pytest.mark.parametrize(
    ("name", "found", "words"),
    [
        ("own", SimpleNamespace(), "must be a taylor.pipeline.plugged.OwnSchedule"),
        ("Own", OwnSchedule(order), "small letters"),
        ("o" * 41, OwnSchedule(order), "small letters"),
        ("1f1b", OwnSchedule(order), "comes with Taylor"),
        ("auto", OwnSchedule(order), "comes with Taylor"),
        ("own", OwnSchedule(order, ScheduleTraits(put_off=1, whole_rounds=True)), "the traits .*whole_rounds.* belong"),
    ],
)
def test_a_plug_in_that_gives_no_schedule_of_its_own_is_refused(name: str, found: Any, words: str) -> None:
    plugin = PlugIn(Group.SCHEDULES, name, "own:order", "own-dist", "1.0", lambda: None)
    with pytest.raises((TypeError, ValueError), match=words):
        _accepted(plugin, found)


def test_a_plug_in_with_traits_of_its_own_is_taken() -> None:
    assert _accepted(PLUGIN, OwnSchedule(order)) == PluggedSchedule(PLUGIN, OwnSchedule(order))
    long = PlugIn(Group.SCHEDULES, "o" * 40, "own:order", "own-dist", "1.0", lambda: None)
    assert _accepted(long, OwnSchedule(order, ScheduleTraits(split_backward=True))).traits.split_backward
