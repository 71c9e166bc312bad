"""EasyR1, a fork of verl: its YAML under its command, its types and optimizer, adapters, and plans written back."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid

YAML = """\
data: {max_prompt_length: 2048, max_response_length: 2048}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    padding_free: true
    model: {model_path: Qwen/Qwen2.5-7B-Instruct, enable_gradient_checkpointing: true, lora: {rank: 0}}
    fsdp: {enable_full_shard: true}
  rollout: {n: 5}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""
SCRIPT = """\
#!/bin/bash
MODEL_PATH=Qwen/Qwen3-8B
python3 -m verl.trainer.main \\
    config=examples/config.yaml \\
    worker.actor.model.model_path=${MODEL_PATH} \\
    trainer.n_gpus_per_node=4
"""
BF16 = "    worker.actor.fsdp.torch_dtype=bf16 \\\n    worker.actor.optim.strategy=adamw_bf16 \\\n"
LAST = "    trainer.n_gpus_per_node=4"


@pytest.fixture
def script(tmp_path):
    folder = tmp_path / "examples"
    folder.mkdir()
    (folder / "config.yaml").write_text(YAML, encoding="utf-8")
    path = folder / "grpo.sh"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


def changed(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_the_command_stands_over_its_yaml_and_answers_count(script):
    config = read_config(script)
    strategy, rules = config.strategy, config.rules
    assert (config.launcher, config.model.name, strategy.world_size) == ("verl-fsdp", "qwen3-8b", 4)
    assert (strategy.global_batch, strategy.mbs, rules.seq_length) == (640, 1, 4096)
    # Weights are stored in fp32 where no type is stated (verl/workers/fsdp_workers.py:199).
    assert (rules.param_bytes, rules.compute_bytes) == (4, 2) and config.plan.uses(FULL)
    assert {each.name for each in config.unmodelled} == {"worker.actor.padding_free", "the layers' own code"}


def test_narrow_training_keeps_two_moments_and_a_compensation(script):
    config = read_config(changed(script, LAST, BF16 + LAST))
    optimizer = config.rules.optimizer
    assert config.rules.param_bytes == 2
    assert (optimizer.gradient_bytes, optimizer.master_bytes, optimizer.moments_bytes) == (2, 0, 6)


def test_adapters_lie_beside_weights_in_bf16(script):
    config = read_config(changed(script, LAST, f"    worker.actor.model.lora.rank=64 \\\n{LAST}"))
    adapters = config.rules.adapters
    assert (adapters.rank, adapters.base_bytes) == (64, 2.0)


def test_a_yaml_that_is_not_there_is_named(script):
    (script.parent / "config.yaml").unlink()
    with pytest.raises(InputError, match="names a YAML that is not found"):
        read_config(script)


def test_recompute_and_batch_are_written_into_the_command(script):
    config = read_config(script)
    none = PipelinePlan(config.plan.layers, {FULL: as_grid([[0]])})
    write_plan(config, none, micro_batches=80)
    text = script.read_text(encoding="utf-8")
    assert "worker.actor.model.enable_gradient_checkpointing=False" in text
    assert "worker.actor.global_batch_size=64" in text
    reread = read_config(script)
    assert not reread.plan.uses(FULL) and reread.strategy.global_batch == 320


def test_its_roll_outs_are_not_priced(script):
    config = read_config(script)
    with pytest.raises(InputError, match="is of EasyR1, whose roll-outs are not read"):
        launcher_of(config).iteration(config)
