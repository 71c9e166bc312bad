"""AReaL's YAML: degrees of its backend, samples and tokens, refusals, plans written back."""

from __future__ import annotations

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from tests.parsers.areal.files import SHARDED


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(SHARDED, encoding="utf-8")
    return path


def changed(file, *pairs):
    text = file.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return file


def test_an_actor_has_the_degrees_of_its_backend_and_answers_count(file):
    config = read_config(file)
    strategy, rules = config.strategy, config.rules
    assert (config.launcher, config.model.name) == ("areal-fsdp", "qwen3-8b")
    assert (strategy.dp, strategy.tp, strategy.cp, strategy.op, strategy.global_batch) == (4, 1, 1, 4, 256)
    assert (rules.seq_length, strategy.mbs) == (2048, 4)  # 10,240 tokens hold five; four divide a rank's 64.
    # Weights are stored in the type of `dtype` (areal/engine/fsdp_engine.py:976-986), and Adam's moments with them.
    assert (rules.param_bytes, rules.optimizer.moments_bytes) == (2, 4) and config.plan.uses(FULL)
    config = read_config(changed(file, ("fsdp:d4p1t1", "fsdp:d2t2c2"), ("type: adam\n", "type: adam_bf16\n")))
    strategy = config.strategy
    assert (strategy.dp, strategy.tp, strategy.cp, strategy.op, strategy.sp) == (2, 2, 2, 4, True)
    assert config.rules.optimizer.moments_bytes == 6


def test_minibatches_pairs_and_missing_lengths_change_the_samples(file):
    # Four steps a batch where nothing is stated.
    config = read_config(changed(file, ("  dtype: bfloat16", "  ppo_n_minibatches: 1\n  dtype: bfloat16")))
    assert config.strategy.global_batch == 1024
    config = read_config(changed(file, ("  type: rl", "  type: dpo")))
    assert (config.strategy.global_batch, config.rules.seq_length) == (512, 1024)
    config = read_config(changed(file, ("  type: dpo\n  max_length: 1024", "  type: sft")))
    # areal/utils/seqpack.py:239: no sample is longer than a micro-batch.
    assert (config.rules.seq_length, config.strategy.mbs, config.strategy.global_batch) == (10240, 1, 256)


def test_a_former_allocation_is_read_where_it_names_an_engine(file):
    changed(file, ('  backend: "fsdp:d4p1t1"\n', ""), ("# GRPO", "allocation_mode: sglang:d4+fsdp:d2c2\n# GRPO"))
    assert (read_config(file).strategy.dp, read_config(file).strategy.cp) == (2, 2)
    with pytest.raises(InputError, match="names no engine that trains"):
        read_config(changed(file, ("+fsdp:d2c2", "+d2c2")))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("fsdp:d4p1t1", "megatron:d4p1t1", "trains by megatron, which is not read"),
        ("fsdp:d4p1t1", "archon:d4", "trains by archon, which is not read"),
        ("fsdp:d4p1t1", "megatron:(attn:d1p4t2|ffn:e4)", "trains by megatron"),
        ("fsdp:d4p1t1", "fsdp:d4e2", "states degrees that are not read"),
        ("fsdp:d4p1t1", "fsdp:" + "d9" * 4000, "states degrees|names no engine|does not divide|no multiple"),
        ("    type: adam", "    type: sgd", "is not modelled"),
        ("dtype: bfloat16", "dtype: int4", "is no type that is read"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(file, old, new, reason):
    with pytest.raises(InputError, match=reason):
        read_config(changed(file, (old, new)))


def test_recompute_and_batch_are_written_and_degrees_are_not(file):
    config = read_config(file)
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: as_grid([[0]])}), micro_batches=32)
    after = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert (after["actor"]["gradient_checkpointing"], after["train_dataset"]["batch_size"]) == (False, 512)
    reread = read_config(file)
    assert reread.strategy.global_batch == 512 and not reread.plan.uses(FULL)
    with pytest.raises(InputError, match="is stated by no option"):
        launcher_of(reread).with_strategy(reread, reread.strategy.replace(tp=2, dp=2), None, {})
