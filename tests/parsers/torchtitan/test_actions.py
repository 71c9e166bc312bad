"""The table of torch's actions says the tasks of a schedule in their order, read back by a plain reader."""

from __future__ import annotations

import re

import pytest

from taylor.base.errors import InputError
from taylor.parsers.export import export_order
from taylor.parsers.torchtitan.actions import actions_table
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule, ScheduleSpec

ACTION = re.compile(r"(\d+)([FIWB])(\d+)")
SCHEDULES = [
    ("1f1b", 1, 3, 4), ("gpipe", 1, 2, 3), ("interleaved", 2, 2, 4), ("zb-h1", 1, 3, 5), ("zb-h2", 1, 2, 4),
    ("zbv", 2, 3, 6), ("dualpipev", 2, 2, 6),
]  # fmt: skip


def made(name: str, interleaves: int, stages: int, micro_batches: int) -> Schedule:
    return build_schedule(ScheduleSpec(name), stages, interleaves, micro_batches)


@pytest.mark.parametrize(("name", "interleaves", "stages", "micro_batches"), SCHEDULES)
def test_every_row_is_its_ranks_order_with_whole_backwards_put_together(
    name: str, interleaves: int, stages: int, micro_batches: int
) -> None:
    schedule = made(name, interleaves, stages, micro_batches)
    apart = (schedule.order[:, :, 0] == WEIGHT_GRADIENT).any()
    rows = actions_table(schedule).split("\n")
    assert len(rows) == stages
    chunk_at = {schedule.position(v, s): (v, s) for v in range(interleaves) for s in range(stages)}
    for s, row in enumerate(rows):
        tasks: list[list[int]] = []
        for action in row.split(","):
            part, letter, micro_batch = ACTION.fullmatch(action).groups()  # type: ignore[union-attr]
            v, rank = chunk_at[int(part)]
            assert rank == s
            kinds = {"F": [FORWARD], "I": [BACKWARD], "W": [WEIGHT_GRADIENT]}
            kinds["B"] = [BACKWARD, WEIGHT_GRADIENT] if apart else [BACKWARD]
            if letter == "W" and apart:
                assert tasks[-1] != [BACKWARD, v, int(micro_batch), 0]
            tasks += [[kind, v, int(micro_batch), 0] for kind in kinds[letter]]
        assert tasks == schedule.order[s].tolist()
        assert apart or "I" not in row


def test_a_row_worked_by_hand() -> None:
    assert actions_table(made("1f1b", 1, 2, 2)) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"
    assert actions_table(made("interleaved", 2, 1, 1)) == "0F0,1F0,1B0,0B0"


def test_pieces_of_sequences_are_refused_and_plans_have_no_order() -> None:
    split = build_schedule(ScheduleSpec("seqpipe", seq_splits=2), 2, 1, 2)
    with pytest.raises(InputError, match="no pieces of sequences"):
        actions_table(split)
    whole = made("1f1b", 1, 2, 2)
    assert export_order(whole, "torch-actions") == actions_table(whole)
    assert export_order(whole, "json") is None
