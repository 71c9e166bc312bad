"""NeMo RL's YAML: inheritance, ranks of the policy, the two kinds of trainer, refusals, plans written back."""

from __future__ import annotations

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.nemo_rl.experiment import RlExperiment
from taylor.parsers.nemo_rl.job import own_table
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.register.adapters import ALL_MEGATRON, BESIDE, DOWN, ROUTERS
from taylor.register.model import DENSE
from tests.parsers.nemo_rl.files import MEGATRON, SHARDED


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(MEGATRON, encoding="utf-8")
    return path


def child(file, text):
    path = file.parent / "recipes" / "child.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"defaults: ../{file.name}\n{text}", encoding="utf-8")
    return path


def changed(file, old, new):
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    return file


def test_a_megatron_policy_is_read_with_its_own_optimizer(file):
    config = read_config(file)
    strategy = config.strategy
    assert (config.launcher, config.model.name) == ("nemo_rl", "qwen3-8b")
    assert (strategy.world_size, strategy.dp, strategy.tp, strategy.pp, strategy.sp) == (16, 2, 2, 4, True)
    assert (strategy.global_batch, strategy.mbs, config.rules.seq_length) == (512, 1, 4096)
    assert config.plan.recompute[FULL] == ((9, 9, 9, 9),) and config.rules.optimizer.gradient_bytes == 2
    assert config.rules.fused_accumulation is False and config.rules.rotated_apart == 0.0


def test_frozen_routers_and_vision_parts_are_read(file):
    moe = changed(file, "Qwen/Qwen3-8B", "Qwen/Qwen3-VL-30B-A3B-Instruct")
    assert read_config(moe).rules.frozen == ()
    added = "freeze_moe_router: true\n    freeze_config: {freeze_vision_model: true}\n    tensor_model_parallel_size"
    assert read_config(changed(moe, "tensor_model_parallel_size", added)).rules.frozen == (BESIDE, ROUTERS)


def test_a_policy_on_dtensors_shards_its_fp32_weights_within_tensor_parallel_groups(file):
    file.write_text(SHARDED, encoding="utf-8")
    config = read_config(file)
    strategy, rules = config.strategy, config.rules
    assert (config.launcher, config.model.name) == ("nemo_rl-dtensor", "llama3-8b")
    assert (strategy.dp, strategy.tp, strategy.op, strategy.pp, strategy.global_batch) == (4, 2, 4, 1, 64)
    assert rules.parameter_shard and (rules.param_bytes, rules.compute_bytes) == (4, 2) and config.plan.uses(FULL)


def test_a_child_states_what_differs_from_its_base(file):
    path = child(file, "cluster: {num_nodes: 4}\npolicy:\n  megatron_cfg: {pipeline_model_parallel_size: 8}\n")
    config = read_config(path)
    assert (config.strategy.world_size, config.strategy.pp, config.strategy.tp) == (32, 8, 2)
    config = read_config(child(file, "policy:\n  generation: {colocated: {_override_: true, enabled: true}}\n"))
    assert config.strategy.world_size == 16


def test_a_section_at_the_top_that_overrides_drops_what_it_inherits_and_one_below_does_not(file):
    path = child(file, "cluster: {_override_: true, num_nodes: 3}\npolicy: {sequence_packing: {_override_: true}}\n")
    data = RlExperiment.read(path).data
    assert data["cluster"] == {"num_nodes": 3}
    assert data["policy"]["sequence_packing"].keys() == {"enabled", "train_mb_tokens"}


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("gone.yaml", "names a base that is not found"),
        ("child.yaml", "inherits itself"),
        ("../grpo.txt", "must name YAML files"),
    ],
)
def test_a_wrong_base_is_named(file, named, reason):
    path = child(file, "policy:\n  megatron_cfg: {enabled: true}\n")
    changed(path, f"../{file.name}", named)
    with pytest.raises(InputError, match=reason):
        read_config(path)


def test_bases_that_multiply_are_bounded(file):
    for level in range(6):
        names = f"[{', '.join([f'l{level + 1}.yaml'] * 9)}]" if level < 5 else f"[{file.name}]"
        (file.parent / f"l{level}.yaml").write_text(f"defaults: {names}\npolicy: {{megatron_cfg: {{enabled: true}}}}\n")
    with pytest.raises(InputError, match="too many files"):
        read_config(file.parent / "l0.yaml")


def test_interpolations_that_grow_are_bounded(file):
    chain = "".join(f"  a{level}: ${{grpo.a{level + 1}}}${{grpo.a{level + 1}}}\n" for level in range(40))
    changed(file, "grpo:\n", f"grpo:\n{chain}  a40: '7'\n")
    changed(file, "train_global_batch_size: 512", "train_global_batch_size: ${grpo.a0}")
    with pytest.raises(InputError, match="known only when the job starts"):
        read_config(file)


def test_ranks_of_a_reward_model_do_not_train(file):
    resources = "{gpus_per_node: 4, num_nodes: 1}"
    reward = f"data: {{default: {{env_name: reward_model}}}}\nenv: {{reward_model: {{resources: {resources}}}}}\n"
    apart = "  generation:\n    colocated: {enabled: false, resources: {gpus_per_node: 2, num_nodes: null}}\n"
    tp_of_one = "policy:\n  megatron_cfg: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1}\n"
    for more, nodes, ranks in (("", 1, 4), (apart, 1, 2), ("", 2, 8)):
        path = child(file, f"{reward}{tp_of_one}{more}cluster: {{num_nodes: {nodes}}}\n")
        assert read_config(path).strategy.world_size == ranks, (more, nodes)
    path = child(file, reward.replace("reward_model}", "math}") + tp_of_one + "cluster: {num_nodes: 1}\n")
    assert read_config(path).strategy.world_size == 8


def test_ranks_of_roll_outs_and_teachers_do_not_train(file):
    apart = "policy:\n  generation:\n    colocated: {enabled: false, resources: {gpus_per_node: 8, num_nodes: 1}}\n"
    assert read_config(child(file, apart + "cluster: {num_nodes: 3}\n")).strategy.world_size == 16
    teachers = (
        "on_policy_distillation:\n  teacher_model_by_agent_name: {a: x, b: x, c: y}\n"
        "  non_colocated_teachers:\n    enabled: true\n    default_teacher_cfg: {num_nodes: 1}\n"
        "    teacher_overrides: {c: {num_nodes: 2}}\n"
    )
    path = child(file, apart + teachers + "cluster: {num_nodes: 6}\n")
    assert read_config(path).strategy.world_size == 16  # 6 nodes, less 1 of roll-outs, 1 of x, 2 of y
    config = read_config(path)
    with pytest.raises(InputError, match="counts ranks of roll-outs"):
        launcher_of(config).with_strategy(config, config.strategy.replace(dp=4, op=4, micro_batches=128), None, {})
    with pytest.raises(InputError, match="leaves no ranks for the policy"):
        read_config(child(file, apart + teachers + "cluster: {num_nodes: 4}\n"))


def test_a_pair_of_answers_is_two_samples(file):
    changed(file, "grpo:\n", "dpo:\n")
    config = read_config(file)
    assert config.strategy.global_batch == 1024


def test_interpolations_are_resolved_and_unknown_ones_named(file):
    changed(file, "train_global_batch_size: 512", "train_global_batch_size: ${mul:${grpo.num_prompts_per_step}, 4}")
    assert read_config(file).strategy.global_batch == 64 * 4
    changed(file, "${mul:${grpo.num_prompts_per_step}, 4}", "${oc.env:SAMPLES}")
    with pytest.raises(InputError, match="train_global_batch_size: has a value that is known only when the job starts"):
        read_config(file)
    changed(file, "${oc.env:SAMPLES}", "${policy.train_global_batch_size}")
    with pytest.raises(InputError, match="known only when the job starts"):
        read_config(file)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("policy:\n  quant_cfg: a.yaml\n", "quant_cfg: trains through simulated quantization"),
        ("policy:\n  megatron_cfg: {enabled: false}\n", "nothing trains the policy"),
        ("policy:\n  model_name: some/other\n", "model_name: is no registered model"),
    ],
)
def test_what_is_not_read_is_refused_by_its_option(file, more, reason):
    with pytest.raises(InputError, match=reason):
        read_config(child(file, more))


def test_adapters_are_those_of_the_backend_that_trains(file):
    path = child(file, "policy:\n  megatron_cfg: {peft: {enabled: true, dim: 16, exclude_modules: ['*linear_fc2*']}}\n")
    found = read_config(path).rules.adapters
    assert (found.rank, found.targets, found.gathers) == (16, tuple(t for t in ALL_MEGATRON if t != DOWN), True)
    lora = "lora_cfg: {enabled: true, dim: 8, match_all_linear: false, target_modules: [q_proj]}"
    path = child(
        file, f"policy:\n  megatron_cfg: {{enabled: false}}\n  dtensor_cfg: {{enabled: true, _v2: true, {lora}}}\n"
    )
    assert not read_config(path).misfits
    found = read_config(path).rules.adapters
    assert (found.rank, found.targets, found.base_bytes, found.gathers) == (8, ("query",), 4.0, False)
    assert not found.decomposed
    path.write_text(path.read_text(encoding="utf-8").replace("dim: 8", "dim: 8, use_dora: true"), encoding="utf-8")
    assert read_config(path).rules.adapters.decomposed


def test_dora_on_dtensors_goes_beside_a_model_of_experts_but_not_beside_the_experts(file):
    """Automodel 24b47e85 nemo_automodel/components/_peft/lora.py:545-548."""
    text = SHARDED.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B")
    lora = "  dtensor_cfg:\n    lora_cfg: {{enabled: true, dim: 8, use_dora: true, target_modules: [{}]}}\n"
    assert text != SHARDED and text.count("  dtensor_cfg:\n") == 1
    for modules, refused in (("q_proj", False), ("q_proj, down_proj", True)):
        file.write_text(text.replace("  dtensor_cfg:\n", lora.format(modules)), encoding="utf-8")
        if refused:
            with pytest.raises(InputError, match="use_dora: is refused by Automodel beside experts"):
                read_config(file)
        else:
            assert read_config(file).rules.adapters.decomposed


@pytest.mark.parametrize(("named", "beside"), [("", False), (", target_modules: [linear_fc1, linear_fc2]", True)])
def test_experts_have_one_adapter_a_rank_where_their_modules_are_named(file, named, beside):
    """Grouped GEMMs are none of the linear modules that an empty list matches (peft/module_matcher.py:147-163)."""
    model = "model_name: Qwen/Qwen3-30B-A3B\n  megatron_cfg"
    path = child(file, f"policy:\n  {model}: {{peft: {{enabled: true, dim: 16{named}}}}}\n")
    found = read_config(path).rules.adapters
    assert (found.beside_experts, found.shared_by_experts) == (beside, True)


def test_a_plan_is_written_into_the_file_that_was_given_and_nothing_else_changes(file):
    path = child(file, "# notes\npolicy:\n  megatron_cfg:\n    activation_checkpointing: true # all\n")
    base = file.read_text(encoding="utf-8")
    config = read_config(path)
    plan = PipelinePlan({DENSE: as_grid([[8, 10, 10, 8]])}, {})
    write_plan(config, plan, micro_batches=128)
    assert file.read_text(encoding="utf-8") == base
    written = yaml.safe_load(path.read_text(encoding="utf-8"))["policy"]
    assert written["train_global_batch_size"] == 256
    assert written["megatron_cfg"] == {
        "activation_checkpointing": False,
        "num_layers_in_first_pipeline_stage": 8,
        "num_layers_in_last_pipeline_stage": 8,
    }
    text = path.read_text(encoding="utf-8")
    assert "# notes" in text and "# all" in text
    reread = read_config(path)
    assert reread.plan.layers == plan.layers and not reread.plan.uses(FULL)


def test_every_row_of_the_table_has_its_source():
    assert all(row.source.startswith("NeMo RL 7ea279ab") for row in own_table().rows.values())
