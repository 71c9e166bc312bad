"""Orders of tasks as words, and the known orders that a search begins from."""

from __future__ import annotations

import pytest

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.known_orders import known_orders
from taylor.pipeline.schedule import SCHEDULES, SEARCHED, SEARCHED_V, ScheduleSpec
from taylor.pipeline.words import tasks_of, word_of


def test_a_schedule_is_built_from_the_words_of_its_order() -> None:
    of = build_schedule(ScheduleSpec("zb-h2"), 3, 1, 6)
    again = build_schedule(ScheduleSpec(SEARCHED, words=tuple(map(word_of, of.order.tolist()))), 3, 1, 6)
    assert (again.order == of.order).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("F0 B0 W0",), "2 words of 3 tasks"),
        (("F0 B0", "F0 B0 W0"), "2 words of 3 tasks"),
        (("F0 B0 X0", "F0 B0 W0"), "'X0' names no task"),
        (("F0 B0 W", "F0 B0 W0"), "'W' names no task"),
        (("F0 B0 F0", "F0 B0 W0"), "must have 3 tasks"),
        (("F0 B0 W1", "F0 B0 W0"), "must have 3 tasks"),
        (("B0 F0 W0", "F0 B0 W0"), "deadlocks"),
        (("F0 W0 B0", "F0 B0 W0"), "deadlocks"),
    ],
)
def test_words_that_are_no_order_are_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        build_schedule(ScheduleSpec(SEARCHED, words=words), 2, 1, 1)


def test_there_is_a_known_order_for_every_shape() -> None:
    for S, m in ((2, 1), (3, 4), (4, 9)):
        for V in (1, 2, 3):
            assert known_orders(ScheduleSpec(SEARCHED), S, V, m)
        folded = known_orders(ScheduleSpec(SEARCHED_V), S, 2, m)
        assert "zbv" in folded
        for spec in folded.values():
            build_schedule(spec, S, 2, m)
    assert list(known_orders(ScheduleSpec(SEARCHED), 4, 1, 9)) == ["1f1b", "zb-h1", "zb-h2"]
    assert tasks_of("F0 F0")[1] == (0, 0, 1, 0)


def test_a_backward_that_runs_whole_is_followed_by_the_weight_gradient_of_its_chunk() -> None:
    """1F1B on two stages, by hand: the first stage fills with one forward more; words name interleaves."""
    orders = known_orders(ScheduleSpec(SEARCHED), 2, 1, 2)["1f1b"].words
    assert orders == ("F0 F0 B0 W0 B0 W0", "F0 B0 W0 F0 B0 W0")


def test_one_stage_needs_a_pipeline_of_none_but_the_orders_made_for_several() -> None:
    """GPipe and 1F1B run on any number of stages; seqpipe and zero bubbles fill what others leave idle."""
    needs = {name for name in SCHEDULES if ScheduleSpec(name).traits.needs_pipeline}
    assert not needs & {"1f1b", "gpipe", "interleaved", "megatron-interleaved", "torch-interleaved"}
    assert {"seqpipe", "zb-h1", "zb-h2"} <= needs
