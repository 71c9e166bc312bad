"""Batches of files that count several samples as one: the answers to a prompt, or a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from tests.parsers.areal.files import SHARDED as AREAL
from tests.parsers.nemo_rl.files import SHARDED as NEMO_RL
from tests.parsers.verl.files import SHARDED as VERL

FILES = {
    "nemo_rl": ("dpo.yaml", NEMO_RL.replace("sft:\n", "dpo:\n"), {"mbs": 3}, "train_micro_batch_size"),
    "areal": ("grpo.yaml", AREAL.replace("n_samples: 4", "n_samples: 96"), {"micro_batches": 1}, "batch_size"),
    "verl": ("grpo.sh", VERL, {"micro_batches": 3, "mbs": 1}, "ppo_mini_batch_size"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_strategy_whose_samples_are_no_whole_number_of_these_is_refused(tmp_path: Path, name: str) -> None:
    file, text, changes, key = FILES[name]
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    config = read_config(path)
    with pytest.raises(InputError, match=rf"{key}: counts \d+ samples as one"):
        launcher_of(config).with_strategy(config, config.strategy.replace(**changes), None, {})
    assert launcher_of(config).with_strategy(config, config.strategy, None, {}) == text
