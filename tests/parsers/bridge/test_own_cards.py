"""Commands of Megatron-Bridge's verification cards, read to the degrees and batch that each card says it ran with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, folder_of
from taylor.parsers.read import read_config

CARDS = "examples/model_verification_cards"
STATED = re.compile(r"TP=?(\d+)/PP=?(\d+)(?:/VP=?\d+)?(?:/CP=?(\d+))?(?:/EP=?(\d+))?[\s\S]*?GBS/MBS (\d+)/(\d+)")
OF_ANOTHER_COMMIT = "glm52_sft_"
"""A library's recipes had these names when the cards ran; benchmarks have them now.

scripts/training/recipe_metadata.py:49-64.
"""


def runs(card: object) -> Iterator[Mapping[str, Any]]:
    """Parts of a card that state a command."""
    parts = list(card.values()) if isinstance(card, dict) else card if isinstance(card, list) else []
    if isinstance(card, dict) and "command" in card:
        yield card
    for part in parts:
        yield from runs(part)


def test_a_card_s_command_is_read_as_what_the_card_says_that_ran(tmp_path: Path) -> None:
    try:
        folder = folder_of("Megatron-Bridge", "067f987d", CARDS)
    except NotHere as reason:
        pytest.skip(str(reason))
    path, compared = tmp_path / "run.sh", 0
    for file in sorted(folder.glob("*/card.yaml")):
        for run in runs(yaml.safe_load(file.read_text(encoding="utf-8"))):
            said = STATED.search(str(run.get("expected_result", "")))
            command = str(run["command"])
            if said is None or "training/train.sh" not in command or OF_ANOTHER_COMMIT in command:
                continue
            path.write_text(f"{command}\n", encoding="utf-8")
            own = read_config(path).strategy
            found = (own.tp, own.pp, own.cp, own.ep, own.global_batch, own.mbs)
            stated = tuple(int(each or value) for each, value in zip(said.groups(), found, strict=True))
            assert found == stated, f"{file.parent.name}: {command}"
            compared += 1
    assert compared >= 30
