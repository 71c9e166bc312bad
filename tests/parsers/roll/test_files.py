"""ROLL's YAML: the role that trains, its ranks and batch, the two kinds of trainer, refusals, plans written back."""

from __future__ import annotations

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.roll.job import devices_in, own_table
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.register.adapters import ALL_MEGATRON, BESIDE, QUERY
from taylor.register.model import DENSE
from tests.parsers.roll.files import MEGATRON, SHARDED


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rlvr.yaml"
    path.write_text(MEGATRON, encoding="utf-8")
    return path


def changed(file, *pairs):
    text = file.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
    return file


def test_a_megatron_actor_is_read_with_the_batch_of_its_ranks(file):
    config = read_config(file)
    strategy, rules = config.strategy, config.rules
    assert (config.launcher, config.model.name) == ("roll", "qwen3-8b")
    assert (strategy.world_size, strategy.dp, strategy.tp, strategy.pp, strategy.sp) == (16, 2, 2, 4, True)
    assert (strategy.mbs, strategy.micro_batches, strategy.global_batch, rules.seq_length) == (1, 32, 64, 4096)
    assert config.plan.recompute[FULL] == ((9, 9, 9, 9),) and rules.fused_accumulation is False
    # mcore_adapter/src/mcore_adapter/training_args.py:423: gradients are reduced in fp32 under bf16.
    assert rules.optimizer.gradient_bytes in (None, 4)
    costs = {each.name for each in config.unmodelled}
    assert "actor_train.strategy_args.strategy_config.bias_activation_fusion" in costs
    assert "is_offload_optimizer_states_in_train_step" in costs


def test_a_fine_tuning_on_fsdp2_shards_its_16_bit_weights(file):
    file.write_text(SHARDED, encoding="utf-8")
    config = read_config(file)
    strategy, rules = config.strategy, config.rules
    assert (config.launcher, strategy.dp, strategy.cp, strategy.op) == ("roll-fsdp2", 4, 2, 8)
    assert (strategy.global_batch, strategy.micro_batches) == (32, 8) and not config.plan.uses(FULL)
    assert rules.parameter_shard and (rules.param_bytes, rules.compute_bytes) == (2, 2)
    config = read_config(changed(file, ("      param_dtype: bf16\n", "")))
    assert config.rules.param_bytes == 4
    config = read_config(changed(file, ("fsdp_size: 8", "fsdp_size: 4"), ("disable_gradient_checkpointing: true", "")))
    assert config.strategy.op == 4 and config.plan.uses(FULL)


def test_packed_micro_batches_hold_as_many_of_the_longest_as_go_in(file):
    more = "  use_dynamic_batching_in_train: true\n  max_tokens_per_microbatch_in_train: 16384\n  infer_batch_size"
    config = read_config(changed(file, ("  infer_batch_size", more)))
    assert (config.strategy.mbs, config.strategy.micro_batches) == (4, 8)


def test_a_pair_counts_twice(file):
    """roll/pipeline/dpo/dpo_config.py:75."""
    text = MEGATRON[: MEGATRON.index("actor_infer:")]
    file.write_text(text, encoding="utf-8")
    config = read_config(file)
    assert (config.strategy.mbs, config.strategy.micro_batches, config.strategy.global_batch) == (2, 32, 128)
    assert "is_offload_optimizer_states_in_train_step" not in {each.name for each in config.unmodelled}


def test_a_students_loss_has_the_teachers_logits_where_nothing_states_them(file):
    changed(file, ("pretrain:", "student_pretrain:"), ("actor_train:", "student:"))
    found = {each.name: each.value for each in read_config(file).unmodelled}
    assert found["logits_topk"] == "64"  # roll/pipeline/distill/distill_config.py:44


def test_adapters_and_frozen_vision_parts_are_read(file):
    changed(file, ("    dtype: bf16\n", "    dtype: bf16\n    lora_target: q_proj\n"))
    adapters = read_config(file).rules.adapters
    assert (adapters.rank, adapters.targets, adapters.gathers) == (8, (QUERY,), False)
    adapters = read_config(changed(file, ("lora_target: q_proj", "lora_target: all-linear\n    lora_rank: 64"))).rules
    assert (adapters.adapters.rank, adapters.adapters.targets) == (64, ALL_MEGATRON)
    changed(file, ("lora_target: all-linear\n    lora_rank: 64", "freeze_module_prefix: vision_model"),
            ("Qwen/Qwen3-8B", "Qwen/Qwen3-VL-30B-A3B-Instruct"))  # fmt: skip
    assert read_config(file).rules.frozen == (BESIDE,)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("megatron_train", "deepspeed_train", "trains by what ROLL 8eb27cc2 does not have"),
        ("mapping: list(range(0,16))\n  infer", "mapping: __import__('os')\n  infer", "is no list of devices"),
        ("mapping: list(range(0,16))\n  infer", "mapping: list(range(0,12))\n  infer", "TP x PP"),
        ("    dtype: bf16\n", "    freeze_module_prefix: model.layers.0\n", "freezes layers of the language model"),
        ("tensor_model_parallel_size: 2", "tensor_model_parallel_size: ${gone}", "known only when the job starts"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_key(file, old, new, reason):
    with pytest.raises(InputError, match=reason):
        read_config(changed(file, (old, new)))


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("list(range(0,8))", 8), ("[0, 1]", 2), ("list(range(0,2))+list(range(14,16))", 4), ("list([6,7,14])", 3),
        ("range(4)", 4), ("list(range(0,8))+[7]", 0), ("list(range(0,9999999))", 0), ("8", 0), ("", 0),
    ],
)  # fmt: skip
def test_devices_are_counted_and_no_code_is_run(written, count):
    assert devices_in(written) == count


def test_what_defaults_state_stands_below_the_file(file):
    (file.parent / "base.yaml").write_text("pretrain: Qwen/Qwen3-0.6B\nsequence_length: 2048\nwidth: 2\n")
    (file.parent / "empty.yaml").write_text("# nothing\n")
    changed(file, ("# A policy", "defaults: [base@_here_, empty, gone]\n# A policy"),
            ("tensor_model_parallel_size: 2", "tensor_model_parallel_size: ${width}"))  # fmt: skip
    config = read_config(file)
    assert (config.model.name, config.rules.seq_length, config.strategy.tp) == ("qwen3-8b", 2048, 2)
    assert any("gone.yaml is not found" in note for note in config.notes)


def test_a_plan_and_a_batch_are_written_into_the_strategy(file):
    config = read_config(file)
    plan = PipelinePlan({DENSE: ((8, 9, 10, 9),)}, {FULL: as_grid([[0, 9, 0, 0]])})
    nearest, _ = launcher_of(config).nearest_plan(plan)
    write_plan(config, nearest, micro_batches=16)
    after = yaml.safe_load(file.read_text(encoding="utf-8"))["actor_train"]
    assert after["training_args"]["gradient_accumulation_steps"] == 16
    reread = read_config(file)
    assert reread.plan.layers == nearest.layers and reread.strategy.global_batch == 32


def test_other_ranks_are_refused_because_other_roles_share_the_devices(file):
    config = read_config(file)
    with pytest.raises(InputError, match="lists devices that other roles share"):
        launcher_of(config).with_strategy(config, config.strategy.replace(dp=4), None, {})


def test_a_micro_batch_leaves_the_batch_as_it_is(file):
    config = read_config(file)
    text = launcher_of(config).with_strategy(config, config.strategy.replace(mbs=2, micro_batches=16), None, {})
    training = yaml.safe_load(text)["actor_train"]["training_args"]
    assert (training["per_device_train_batch_size"], training["gradient_accumulation_steps"]) == (2, 16)


def test_every_option_of_the_samples_is_known():
    assert all(row.source or row.status for row in own_table().rows.values())
    for text in (MEGATRON, SHARDED):
        assert yaml.safe_load(text)
