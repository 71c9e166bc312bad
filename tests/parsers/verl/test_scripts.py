"""verl's scripts: sizes of the policy's step, the two kinds of trainer, refusals, plans written back."""

from __future__ import annotations

import difflib
import re
import subprocess
from dataclasses import replace

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.time.step import layer_time
from taylor.parsers.policy.job import packed_samples
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.parsers.verl.job import own_table
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.register.adapters import BESIDE, MEGATRON_TARGETS, ROUTERS
from taylor.register.model import DENSE
from taylor.register.registry import Registry
from tests.parsers.verl.files import MEGATRON, SHARDED, TUNING


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(MEGATRON, encoding="utf-8")
    return path


def changed(script, old, new):
    text = script.read_text(encoding="utf-8")
    assert old in text
    script.write_text(text.replace(old, new), encoding="utf-8")
    return script


def options_under_bash(script, *arguments):
    """The options that the script's program gets, by bash with a stand-in for python3 that prints its arguments."""
    printing = (
        'python3() { printf \'%s\\n\' "$@"; }; torchrun() { python3 "$@"; }; set -- ' + " ".join(arguments) + "\n"
    )
    text = printing + script.read_text(encoding="utf-8")
    run = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env={"HOME": "/root"})
    return dict(line.lstrip("+").split("=", 1) for line in run.stdout.splitlines() if "=" in line)


def test_a_megatron_policy_has_the_degrees_that_bash_hands_over(script):
    config, options = read_config(script), options_under_bash(script)
    actor = "actor_rollout_ref.actor."
    strategy = config.strategy
    assert config.launcher == "verl" and config.model.n_layers == 36
    assert strategy.tp == int(options[f"{actor}megatron.tensor_model_parallel_size"])
    assert strategy.pp == int(options[f"{actor}megatron.pipeline_model_parallel_size"])
    assert strategy.world_size == int(options["trainer.nnodes"]) * int(options["trainer.n_gpus_per_node"])
    samples = int(options[f"{actor}ppo_mini_batch_size"]) * int(options["actor_rollout_ref.rollout.n"])
    assert (strategy.global_batch, strategy.mbs, strategy.sp, strategy.op) == (samples, 1, True, strategy.dp)
    assert config.rules.seq_length == int(options["data.max_prompt_length"]) + int(options["data.max_response_length"])
    assert config.plan.recompute[FULL] == ((9, 9, 9, 9),) and config.rules.param_bytes == 2
    assert (
        any("taylor rl prices roll-outs" in note for note in config.notes) and config.rules.fused_accumulation is False
    )


def test_a_value_that_only_the_start_knows_names_its_variable(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(re.sub(r"(ppo_mini_batch_size)=\S+", r"\1=$((PROMPTS / 4))", SHARDED), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_config(path)
    assert refused.value.cure == "write it out, or give --env PROMPTS=VALUE"
    with started(ShellStart(None, {"PROMPTS": "1024"})):
        assert read_config(path).strategy.global_batch == 256 * 5


def test_a_policy_on_fsdp_shards_its_fp32_weights_over_all_ranks(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SHARDED, encoding="utf-8")
    config = read_config(path)
    strategy, rules = config.strategy, config.rules
    assert config.launcher == "verl-fsdp" and config.model.name == "qwen3-8b"
    assert (strategy.dp, strategy.cp, strategy.pp, strategy.op) == (4, 2, 1, 8)
    assert (strategy.global_batch, strategy.mbs, strategy.micro_batches) == (256 * 5, 8, 40)
    assert rules.parameter_shard and (rules.param_bytes, rules.compute_bytes, rules.ulysses_degree) == (4, 2, None)
    assert config.plan.recompute[FULL] == ((36,),)
    [code] = [each for each in config.unmodelled if each.name == "the layers' own code"]
    assert code.may_raise_memory and "torchtitan" in code.sentence


def test_the_older_key_of_ulysses_replaces_the_newer_one(tmp_path):
    path, newer = tmp_path / "run.sh", "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    path.write_text(SHARDED.replace("trainer.nnodes=1", f"trainer.nnodes=1 {newer}=4"), encoding="utf-8")
    assert read_config(path).strategy.cp == 2
    path.write_text(
        SHARDED.replace("actor.ulysses_sequence_parallel_size=2", "actor.fsdp_config.ulysses_sequence_parallel_size=4")
    )
    assert read_config(path).strategy.cp == 4


def test_inputs_of_recomputed_layers_on_the_host_leave_two_on_the_device(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SHARDED, encoding="utf-8")
    kept = read_config(path)
    path.write_text(
        SHARDED.replace(
            "model.enable_grad", "model.enable_activation_offload=True \\\n    actor_rollout_ref.model.enable_grad"
        )
    )
    moved = read_config(path)
    assert moved.rules == kept.rules.replace(inputs_on_host=True)

    def peak(config, mode):
        return stage_breakdown(config.model, config.strategy, config.rules, recompute=mode)[0].total

    # Eight samples of 1,536 tokens over two ranks, hidden 4,096, in bf16: 48 MiB a layer.
    assert peak(kept, FULL) - peak(moved, FULL) == pytest.approx((36 - 2) * 8 * 1536 / 2 * 4096 * 2 / 2**20)
    # On a link of 0.1 GB/s both moves take longer than the passes beside them.
    device = replace(Registry.load().device("h100-80g"), host_link_gb_s=0.1)
    slow, fast = (layer_time(each.model, DENSE, each.strategy, each.rules, device) for each in (moved, kept))
    each_move = 48 * 2**20 / (1e6 * HOST_LINK_SHARE * 0.1)
    behind = fast.recompute[FULL] + fast.backward
    assert slow.recompute[FULL] - fast.recompute[FULL] == pytest.approx(2 * each_move - fast.forward - behind)
    assert slow.forward == fast.forward < each_move > behind
    path.write_text(path.read_text(encoding="utf-8").replace("checkpointing=True", "checkpointing=False"))
    alone = read_config(path)
    assert not alone.rules.inputs_on_host
    assert [each.may_lower_memory for each in alone.unmodelled if "activation_offload" in each.name] == [True]


def test_a_fine_tuning_takes_its_ranks_from_torchrun(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(TUNING, encoding="utf-8")
    open_config = read_config(path)
    assert open_config.open_ranks is not None and open_config.strategy.world_size == 2
    with started(ShellStart(("8",))):
        config = read_config(path)
    assert config.strategy.world_size == 8 and config.strategy.global_batch == 64 and config.strategy.mbs == 4
    assert config.model.n_layers == 24 and config.model.tied_embedding


def test_packed_micro_batches_have_as_many_samples_as_go_into_their_tokens(script):
    changed(script, "ppo_micro_batch_size_per_gpu=1", "use_dynamic_bsz=True")
    assert read_config(script).strategy.mbs == 2  # 16384 tokens by default, samples of 8192
    options = {each.name for each in read_config(script).unmodelled}
    assert "actor_rollout_ref.actor.use_dynamic_bsz" in options
    for tokens, length, each in ((100, 30, 7), (100, 30, 6), (10, 30, 6), (10**6, 1, 12)):
        count = packed_samples(tokens, length, each)
        assert each % count == 0 and (count == 1 or count * length <= tokens)


def test_a_configuration_of_the_checkout_stands_behind_the_command(script, tmp_path):
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "multiturn.yaml").write_text(
        "defaults:\n  - ppo_megatron_trainer\n  - _self_\nactor_rollout_ref:\n  rollout: {n: 3}\n"
        "  actor: {ppo_mini_batch_size: 7}\n",
        encoding="utf-8",
    )
    changed(script, "'ppo_megatron_trainer.yaml'", "'multiturn'")
    changed(script, "    actor_rollout_ref.rollout.n=${n_resp_per_prompt} \\\n", "")
    assert read_config(script).strategy.global_batch == 32 * 3
    with pytest.raises(InputError, match=r"--config-name: takes its options from elsewhere\.yaml, which is not found"):
        read_config(changed(script, "'multiturn'", "'elsewhere'"))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "actor_rollout_ref.model.lora.rank=8 actor_rollout_ref.model.lora.type=canonical_lora",
            "lora.type: names adapters that are not modelled",
        ),
        ("actor_rollout_ref.model.lora_adapter_path=a", "lora_adapter_path: trains adapters"),
        ("actor_rollout_ref.actor.strategy=veomni", "trains by VeOmni, which is not read"),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=two", "must be a whole number"),
        ("actor_rollout_ref.model.path=some/other-7B", "is no registered model"),
    ],
)
def test_what_is_not_read_is_refused_by_its_option(script, more, reason):
    with pytest.raises(InputError, match=reason):
        read_config(changed(script, "trainer.nnodes=2", f"{more} trainer.nnodes=2"))


def test_adapters_on_megatron_are_gathered_and_stand_beside_its_four_matrices(script):
    more = "actor_rollout_ref.model.lora.rank=8 actor_rollout_ref.model.lora.dropout=0.1 trainer.nnodes=2"
    found = read_config(changed(script, "trainer.nnodes=2", more)).rules.adapters
    assert (found.rank, found.targets, found.dropout, found.gathers) == (8, MEGATRON_TARGETS, True, True)


def test_a_tiled_mlp_on_fsdp_has_four_parts_unless_stated(tmp_path):
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    for more, tiles in (
        ("", 0),
        ("enabled=True", 4),
        ("enabled=True actor_rollout_ref.model.tiled_mlp.num_shards=8", 8),
    ):
        added = f"actor_rollout_ref.model.tiled_mlp.{more} {key}" if more else key
        (tmp_path / "run.sh").write_text(SHARDED.replace(key, added), encoding="utf-8")
        assert read_config(tmp_path / "run.sh").rules.mlp_tiles == tiles


def test_frozen_routers_on_megatron_are_read(script):
    text = script.read_text(encoding="utf-8")
    script.write_text(re.sub(r"(model\.path=)\S+", r"\1Qwen/Qwen3-30B-A3B", text), encoding="utf-8")
    assert read_config(script).rules.frozen == ()
    more = "actor_rollout_ref.model.override_config.moe_config.freeze_moe_router=True trainer.nnodes=2"
    assert read_config(changed(script, "trainer.nnodes=2", more)).rules.frozen == (ROUTERS,)


@pytest.mark.parametrize(("text", "frozen"), [(SHARDED, (BESIDE,)), (MEGATRON, ())])
def test_a_policys_frozen_vision_part_is_read_by_fsdp_alone(tmp_path, text, frozen):
    """verl b178a3cd verl/workers/fsdp_workers.py:474."""
    path = tmp_path / "run.sh"
    text = re.sub(r"(model\.path=)\S+", r"\1Qwen/Qwen2.5-VL-7B-Instruct", text)
    path.write_text(f"{text.rstrip()} actor_rollout_ref.actor.freeze_vision_tower=True\n", encoding="utf-8")
    assert read_config(path).rules.frozen == frozen


def test_dora_on_megatron_is_bridges(script):
    """verl b178a3cd verl/workers/config/megatron_peft.py:100-110."""
    more = "actor_rollout_ref.model.lora.rank=8 actor_rollout_ref.model.lora.type=dora trainer.nnodes=2"
    found = read_config(changed(script, "trainer.nnodes=2", more)).rules.adapters
    assert (found.decomposed, found.gathers, found.targets) == (True, True, MEGATRON_TARGETS)


def test_adapters_on_fsdp_stand_beside_weights_of_the_stored_type(tmp_path):
    (tmp_path / "run.sh").write_text(SHARDED, encoding="utf-8")
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    assert SHARDED.count(key) == 1
    more = f"actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.target_modules=[q_proj,v_proj] {key}"
    (tmp_path / "run.sh").write_text(SHARDED.replace(key, more), encoding="utf-8")
    found = read_config(tmp_path / "run.sh").rules.adapters
    assert (found.rank, found.targets, found.base_bytes, found.gathers) == (32, ("query", "value"), 4.0, False)


def test_an_unknown_option_is_named_and_roll_outs_are_not(script):
    changed(script, "trainer.nnodes=2", "actor_rollout_ref.actor.ppo_mini_batch_sise=2 trainer.nnodes=2")
    found = {each.name: each for each in read_config(script).unmodelled}
    assert found["actor_rollout_ref.actor.ppo_mini_batch_sise"].meant == "actor_rollout_ref.actor.ppo_mini_batch_size"
    assert not any(name.startswith(("actor_rollout_ref.rollout", "trainer", "algorithm")) for name in found)


def test_a_plan_is_written_as_options_and_bash_hands_it_over(script):
    before, config = script.read_text(encoding="utf-8"), read_config(script)
    plan = PipelinePlan({DENSE: as_grid([[8, 9, 9, 10]])}, {FULL: as_grid([[2, 2, 2, 2]])})
    write_plan(config, plan, micro_batches=64)
    after = script.read_text(encoding="utf-8")
    reread = read_config(script)
    assert reread.plan.layers == plan.layers and reread.plan.recompute[FULL] == plan.recompute[FULL]
    assert reread.strategy == config.strategy.replace(micro_batches=64)
    options, prefix = options_under_bash(script), "actor_rollout_ref.actor.megatron.override_transformer_config."
    assert options[f"{prefix}num_layers_in_first_pipeline_stage"] == "8"
    assert options[f"{prefix}num_layers_in_last_pipeline_stage"] == "10"
    assert (options[f"{prefix}recompute_method"], options[f"{prefix}recompute_num_layers"]) == ("block", "2")
    assert options["actor_rollout_ref.actor.ppo_mini_batch_size"] == "8"
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    assert sum(line.startswith("- ") for line in lines) == 3 and sum(line.startswith("+ ") for line in lines) == 5


def test_quotes_inside_an_option_are_hydras_and_a_plan_written_there_stays_readable(script):
    """verl examples/grpo_trainer/run_deepseek_v4_flash_megatron.sh quotes its layout twice, for bash and for Hydra."""
    layout = "actor_rollout_ref.actor.megatron.override_transformer_config.pipeline_model_parallel_layout"
    text = script.read_text(encoding="utf-8")
    quoted = f"""    "++{layout}='Et*10|t*9|t*9|t*8L'" \\\n    trainer.n_gpus_per_node=8"""
    script.write_text(text.replace("    trainer.n_gpus_per_node=8", quoted), encoding="utf-8")
    config = read_config(script)
    assert config.plan.layers[DENSE] == ((10, 9, 9, 8),)
    assert options_under_bash(script)[layout].startswith("'")
    plan = PipelinePlan({DENSE: as_grid([[8, 10, 10, 8]])}, {FULL: as_grid([[8, 10, 10, 8]])})
    write_plan(config, plan)
    assert read_config(script).plan.layers == plan.layers


def test_stages_of_the_reference_stay_where_a_variable_states_both(script):
    """The actor's stages come of a chain of variables that the reference's come of too."""
    config = read_config(script)
    other = launcher_of(config).with_strategy(
        config, config.strategy.replace(pp=2, dp=4, op=4, micro_batches=128), None, {}
    )
    script.write_text(other, encoding="utf-8")
    options = options_under_bash(script)
    assert options["actor_rollout_ref.actor.megatron.pipeline_model_parallel_size"] == "2"
    assert options["actor_rollout_ref.ref.megatron.pipeline_model_parallel_size"] == "4"
    assert read_config(script).strategy.pp == 2


def test_recompute_of_fsdp_is_a_switch_that_bash_hands_over(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SHARDED, encoding="utf-8")
    config = read_config(path)
    write_plan(config, PipelinePlan(config.plan.layers, {}), micro_batches=20)
    options = options_under_bash(path)
    assert options["actor_rollout_ref.model.enable_gradient_checkpointing"] == "False"
    assert options["actor_rollout_ref.actor.ppo_mini_batch_size"] == "128"
    assert not read_config(path).plan.uses(FULL)


def test_every_row_of_the_table_has_its_source():
    assert all(
        row.source.startswith(("verl b178a3cd", "EasyR1 b44b311b", "Megatron-LM")) for row in own_table().rows.values()
    )
