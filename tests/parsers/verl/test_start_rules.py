"""Start-up checks of verl's programs; `tests/parsers/start_checks` has a case a rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.start_rules import misfits_of
from taylor.parsers.verl.programs import FSDP_SFT, FURTHER_PPO, PPO, SFT, Program, program_of
from taylor.parsers.verl.start_rules import START_RULES, start_rules_of
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import require_legal
from tests.parsers.verl.files import MEGATRON, SHARDED

ACTOR = "actor_rollout_ref.actor"
BASE = {
    "data.train_batch_size": "256",
    f"{ACTOR}.ppo_mini_batch_size": "64",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "2",
    f"{ACTOR}.strategy": "fsdp",
    "actor_rollout_ref.rollout.n": "5",
    "trainer.n_gpus_per_node": "8",
    "trainer.nnodes": "2",
}


def broken(**changes: str) -> list[str]:
    return [
        misfit.rule
        for misfit in misfits_of(
            START_RULES, {**BASE, **{key.replace("__", "."): text for key, text in changes.items()}}.get
        )
    ]


def script(folder: Path, text: str, batch: str) -> Path:
    file = folder / "train.sh"
    file.write_text(re.sub(r"train_batch_size=\d+", f"train_batch_size={batch}", text))
    return file


def test_settings_that_start_break_no_rule() -> None:
    assert broken() == []


def test_packing_by_tokens_checks_no_batch() -> None:
    packed = {f"{ACTOR}.use_dynamic_bsz": "True"}
    assert broken(**packed, **{"data.train_batch_size": "32", "trainer.nnodes": "3"}) == []


def test_megatron_s_replicas_take_a_micro_batch_each() -> None:
    degrees = {f"{ACTOR}.strategy": "megatron", f"{ACTOR}.megatron.tensor_model_parallel_size": "8"}
    assert broken(**degrees) == []
    assert broken(**degrees, **{f"{ACTOR}.ppo_micro_batch_size_per_gpu": "3"}) == ["round-by-ranks"]


def test_a_fine_tuning_makes_none_of_these_checks() -> None:
    assert start_rules_of(PPO) == START_RULES
    assert start_rules_of(SFT) == start_rules_of(FSDP_SFT) == ()


@pytest.mark.parametrize(
    ("word", "program"),
    [
        ("verl.trainer.main_ppo", PPO),
        ("verl.experimental.one_step_off_policy.main_ppo", PPO),
        ("verl.experimental.transfer_queue.main_ppo", PPO),
        ("verl/trainer/main_ppo.py", PPO),
        ("verl.trainer.main_ppo_sync", PPO),
        ("verl.trainer.main_ppo_v0", PPO),
        ("verl.experimental.fully_async_policy.fully_async_main", FURTHER_PPO),
        ("verl.experimental.vla.main_ppo", FURTHER_PPO),
        ("recipe.dapo.main_dapo", FURTHER_PPO),
    ],
)
def test_a_program_that_never_validates_checks_what_its_actor_s_class_does(word: str, program: Program) -> None:
    assert program_of(["-m", word]) is program
    checks = [rule.name for rule in start_rules_of(program)]
    assert checks == ([rule.name for rule in START_RULES] if program is PPO else ["one-micro-batch"])


def test_ulysses_of_fsdp_s_own_key_is_not_checked() -> None:
    split = {f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": "2"}
    assert broken(**split, **{"actor_rollout_ref.model.use_remove_padding": "False"}) == []


@pytest.mark.parametrize("text", [MEGATRON, SHARDED])
def test_a_script_that_breaks_a_rule_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    config = read_config(script(tmp_path, text, "5"))
    assert config.misfits[0].rule == "mini-batch-in-round"
    with pytest.raises(InputError, match="breaks the rule mini-batch-in-round"):
        require_legal(config, choose_device(config).spec)


@pytest.mark.parametrize("text", [MEGATRON, SHARDED])
def test_a_batch_that_only_the_start_knows_breaks_no_rule(text: str, tmp_path: Path) -> None:
    above_the_usual = re.sub(r"ppo_mini_batch_size=\d+", "ppo_mini_batch_size=2048", text)
    assert not read_config(script(tmp_path, above_the_usual, "$1")).misfits
