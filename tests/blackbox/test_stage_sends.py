"""Transfers from stage to stage beside the sends of ring attention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from taylor.blackbox.step_laws import _to_next_stage
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer


def run(**groups: tuple[int, ...]) -> Any:
    """A run with sends of these bytes in each group."""
    samples, transfers = [], {}
    for group, sizes in groups.items():
        for size in sizes:
            name = f"send_{len(samples)}"
            samples.append(OperatorSample(Operator("hcom_send_", "HCCL"), 0, 1, 0, name))
            transfers[name] = Transfer(group, size, 1e3)
    return SimpleNamespace(samples=samples, transfers=transfers)


def sent(one: Any, hand_over: int) -> list[int]:
    return [transfer.bytes for _, transfer in _to_next_stage(one, hand_over)]


def test_sends_of_ring_attention_are_no_transfers_between_stages():
    assert sent(run(ring=(40, 40, 40, 40), stage=(10_000, 10_000)), 10_000) == [10_000, 10_000]


def test_of_two_groups_that_send_as_much_the_one_that_sends_less_often_is_the_stages():
    assert len(sent(run(ring=(10_000,) * 6, stage=(10_000,) * 2), 10_000)) == 2


def test_sends_that_are_not_what_a_layer_hands_on_count_where_there_are_no_others():
    assert sent(run(stage=(20_000,)), 10_000) == [20_000]
    assert sent(run(), 10_000) == []
