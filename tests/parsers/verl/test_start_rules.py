"""Start-up checks of verl's policies: settings that verl.utils.config.validate_config refuses, by the rule's name."""

from __future__ import annotations

import pytest

from taylor.parsers.start_rules import misfit_of
from taylor.parsers.verl.programs import FSDP_SFT, PPO, SFT
from taylor.parsers.verl.start_rules import START_RULES, start_rules_of

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
    found = misfit_of(START_RULES, {**BASE, **{key.replace("__", "."): text for key, text in changes.items()}}.get)
    return [] if found is None else [misfit.rule for misfit in found.every]


def test_settings_that_start_break_no_rule() -> None:
    assert broken() == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({f"{ACTOR}.ppo_micro_batch_size": "16"}, "one-micro-batch"),
        ({"data.train_batch_size": "32"}, "mini-batch-in-round"),
        ({"trainer.nnodes": "3"}, "round-by-ranks"),
        (
            {f"{ACTOR}.ulysses_sequence_parallel_size": "2", "actor_rollout_ref.model.use_remove_padding": "False"},
            "ulysses-without-padding",
        ),
    ],
)
def test_a_setting_that_verl_refuses_is_refused_by_name(changes: dict[str, str], rule: str) -> None:
    assert broken(**changes) == [rule]


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
