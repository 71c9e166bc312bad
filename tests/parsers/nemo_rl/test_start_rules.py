"""Start-up checks of NeMo RL's policies; `tests/parsers/start_checks` has a case a rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.nemo_rl.start_rules import START_RULES, with_ranks
from taylor.parsers.read import read_config
from taylor.parsers.start_rules import misfits_of
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import require_legal
from tests.parsers.nemo_rl.files import SHARDED

DTENSOR = {
    "policy.dtensor_cfg.enabled": "true",
    "policy.dtensor_cfg._v2": "true",
    "policy.dtensor_cfg.tensor_parallel_size": "2",
    "policy.train_micro_batch_size": "1",
    "policy.logprob_batch_size": "2",
}
MEGATRON = {
    "policy.megatron_cfg.enabled": "true",
    "policy.megatron_cfg.tensor_model_parallel_size": "2",
    "policy.train_micro_batch_size": "1",
    "policy.logprob_batch_size": "2",
}


def broken(settings: dict[str, str]) -> list[str]:
    return [misfit.rule for misfit in misfits_of(START_RULES, with_ranks(settings.get, 16))]


def test_settings_that_start_break_no_rule() -> None:
    assert broken(DTENSOR) == broken(MEGATRON) == []


def test_megatron_s_tensor_parallelism_wants_one_batch_too() -> None:
    degrees = {**MEGATRON, "policy.megatron_cfg.tensor_model_parallel_size": "4"}
    assert broken(degrees) == ["log-probabilities-batch-under-tp"]
    assert broken({**degrees, "policy.logprob_batch_size": "1"}) == []


def test_replicas_divide_the_ranks_that_train_and_not_those_of_roll_outs(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    replicas = SHARDED.replace("sft:", "grpo:").replace("size: 64", "size: 48")
    replicas = replicas.replace("dtensor_cfg:\n", "dtensor_cfg:\n    _v2: true\n    dp_replicate_size: 3\n")
    apart = "generation: {colocated: {enabled: false, resources: {gpus_per_node: 2}}}"
    file.write_text(replicas)
    whole = read_config(file)
    assert [misfit.rule for misfit in whole.misfits] == ["replicas-in-ranks"]
    with pytest.raises(InputError, match="breaks the rule replicas-in-ranks"):
        require_legal(whole, choose_device(whole).spec)
    file.write_text(replicas.replace("policy:\n", f"policy:\n  {apart}\n"))
    assert not read_config(file).misfits
