"""Recipes of NeMo Automodel, read, refused in true words, checked by the program's own rules, and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.read import read_config
from taylor.parsers.registry import recognising
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.register.adapters import ALL_HUGGING_FACE
from tests.parsers.automodel.files import ADAPTERS, PIPELINE, RECIPE


def read(folder: Path, text: str) -> TrainingConfig:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_a_recipe_says_model_degrees_batch_and_states(tmp_path: Path) -> None:
    config = read(tmp_path, RECIPE)
    assert (config.launcher, config.model.name, config.rules.seq_length) == ("automodel", "llama3-8b", 2048)
    own = config.strategy
    assert (own.dp, own.tp, own.op, own.sp, own.mbs, own.micro_batches) == (8, 2, 8, True, 4, 2)
    assert config.open_ranks is not None and "ci.nodes 2" in config.open_ranks.note
    # torch's Adam updates weights in bf16 as they are: weight, gradient and two moments of two bytes each.
    states = config.rules.optimizer
    assert (config.rules.param_bytes, states.gradient_bytes, states.master_bytes, states.moments_bytes) == (2, 2, 0, 4)
    assert states.reduced_bytes == 4 and config.rules.parameter_shard and not config.rules.stay_gathered
    assert config.length.steps == 100 and config.misfits == ()


def test_a_pipeline_has_the_chunks_of_the_published_benchmark(tmp_path: Path) -> None:
    """docs/performance-summary.mdx: 256 GPUs, PP 4, VP 8, EP 64, FSDP 64, one batch of 512 in one accumulation."""
    config = read(tmp_path, PIPELINE)
    own = config.strategy
    assert (own.world_size, own.pp, own.vpp, own.ep, own.op, own.mbs) == (256, 4, 8, 64, 64, 1)
    assert (config.schedule.name, own.micro_batches, own.global_batch) == ("torch-interleaved", 8, 512)
    assert config.plan is not None
    sizes = [sum(grid[v][s] for grid in config.plan.layers.values()) for v in range(8) for s in range(4)]
    # 61 layers over 32 chunks, the first 29 of which have one more (pipelining/functional.py:133-141).
    assert sizes == [2] * 29 + [1] * 3
    assert config.rules.dispatch_by_node and config.rules.stay_gathered and config.rules.engine_layers


@pytest.mark.parametrize(
    ("name", "published"),
    [("meta-llama/Llama-3.1-8B", 8.03e9), ("Qwen/Qwen3-30B-A3B", 30.5e9), ("deepseek-ai/DeepSeek-V3", 671.0e9)],
)
def test_parameters_are_those_of_the_models_cards(tmp_path: Path, name: str, published: float) -> None:
    config = read(tmp_path, RECIPE.replace("meta-llama/Llama-3.1-8B", name).replace("tp_size: 2", "tp_size: 1"))
    assert total_parameters(config.model) == pytest.approx(published, rel=0.002)


def test_adapters_stand_beside_frozen_weights_of_their_type(tmp_path: Path) -> None:
    adapters = read(tmp_path, ADAPTERS).rules.adapters
    assert adapters is not None and adapters.rank == 16
    assert adapters.targets == ALL_HUGGING_FACE and adapters.base_bytes is None
    narrow = ADAPTERS + "quantization:\n  load_in_4bit: true\n"
    quantized = read(tmp_path, narrow).rules.adapters
    assert quantized is not None and quantized.base_bytes == pytest.approx(0.516, abs=0.001)


def test_a_pattern_of_everything_reaches_joined_experts_and_one_of_linear_modules_does_not(tmp_path: Path) -> None:
    """components/_peft/lora.py:606-650: experts are one module, whose name a pattern must match."""
    moe = ADAPTERS.replace("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B").replace("tp_size: 2", "ep_size: 8")
    assert not read(tmp_path, moe).rules.adapters.beside_experts  # type: ignore[union-attr]
    every = read(tmp_path, moe.replace("'*_proj'", "['*']")).rules.adapters
    assert every is not None and every.beside_experts


def test_states_in_lower_precision_are_read(tmp_path: Path) -> None:
    fused = RECIPE.replace(
        "torch.optim.Adam",
        "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam\n  master_weights: true\n"
        "  store_param_remainders: true\n  exp_avg_dtype: torch.bfloat16",
    )
    states = read(tmp_path, fused).rules.optimizer
    assert (states.master_bytes, states.moments_bytes) == (2, 4)


def test_without_a_length_in_the_file_the_assumed_one_is_reported(tmp_path: Path) -> None:
    config = read(tmp_path, RECIPE.replace("  seq_length: 2048\n", ""))
    assert config.rules.seq_length == 256
    assert any("256 tokens are assumed" in note for note in config.notes)
    short = RECIPE.replace("  seq_length: 2048\n", "").replace("squad.make_squad_dataset", "hellaswag.HellaSwag")
    assert read(tmp_path, short).rules.seq_length == 160
    # Qwen's batches of the set, and those of examples/llm_finetune/deepseek_v4/deepseek_v4_flash_hellaswag.yaml.
    for multiple, tokens in ((168, 168), (64, 192), (16, 160)):
        padded = f"{short}dataloader:\n  collate_fn: {{pad_seq_len_divisible: {multiple}}}\n"
        assert read(tmp_path, padded).rules.seq_length == tokens


@pytest.mark.parametrize(
    ("ranks", "world"),
    [
        ("ci:\n  nodes: 2\n", 16),
        ("benchmark:\n  num_nodes: 4\n", 32),
        ("", 8),
        ("ci:\n  nodes: 4\n  cluster_tag: gb200\n", 16),
    ],
)
def test_ranks_come_from_what_starts_the_recipe(tmp_path: Path, ranks: str, world: int) -> None:
    config = read(tmp_path, RECIPE.replace("ci:\n  nodes: 2\n", ranks))
    assert config.strategy.world_size == world and config.open_ranks is not None
    stated = read(tmp_path, RECIPE.replace("dp_size: none", "dp_size: 4"))
    assert stated.strategy.world_size == 8 and stated.open_ranks is None


@pytest.mark.parametrize(
    ("recipe", "why"),
    [
        ("KnowledgeDistillationRecipeForNextTokenPrediction", "runs a teacher forward"),
        ("TrainEagle3Recipe", "trains a draft model"),
        ("TrainBiEncoderRecipe", "encoder of queries and passages"),
        ("DiffusionLMSFTRecipe", "denoiser of text"),
        ("TrainFinetuneRecipeForSequenceClassification", "classifier of sequences"),
        ("FinetuneRecipeForMultimodal", "makes images too"),
        ("AnotherRecipe", "is no recipe class"),
    ],
)
def test_a_recipe_that_trains_something_else_is_refused_by_its_class(tmp_path: Path, recipe: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as caught:
        read(tmp_path, RECIPE.replace("TrainFinetuneRecipeForNextTokenPrediction", recipe))
    assert caught.value.field == "recipe" and caught.value.value == recipe


def broken(folder: Path, text: str) -> list[str]:
    return [misfit.rule.removeprefix("automodel-") for misfit in read(folder, text).misfits]


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("global_batch_size: 64", "global_batch_size: 63", "batch-is-whole"),
        ("strategy: fsdp2", "strategy: ddp", "ddp-without-tp"),
        ("strategy: fsdp2", "strategy: megatron_fsdp\n  dp_replicate_size: 2", "megatron-fsdp-without-dp-replicate"),
        ("cp_size: 1", "cp_size: 1\n  dp_replicate_size: 8", "replicas-below-dp"),
        ("cp_size: 1", "cp_size: 1\n  dp_replicate_size: 3", "replicas-divide-dp"),
        ("activation_checkpointing: false", "pp_size: 2", "pipeline-is-stated"),
        ("cp_size: 1", "cp_size: 1\n  enable_prefetch: true", "known-option"),
        ("sequence_parallel: true", "enable_async_tensor_parallel: true", "async-tp-needs-sp"),
    ],
)
def test_the_programs_own_checks_name_their_key(tmp_path: Path, old: str, new: str, rule: str) -> None:
    found = read(tmp_path, RECIPE.replace("dp_size: none", "dp_size: 8").replace(old, new)).misfits
    assert rule in [misfit.rule.removeprefix("automodel-") for misfit in found]
    assert all("Automodel 36044ad3" in misfit.source for misfit in found)


def test_a_local_batch_fills_the_stages(tmp_path: Path) -> None:
    assert broken(tmp_path, PIPELINE) == []
    thin = PIPELINE.replace("local_batch_size: 8", "local_batch_size: 2")
    assert broken(tmp_path, thin) == ["micro-batches-fill-stages"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    round_virtual_stages_to_pp_multiple: up\n", "", "no multiple of PP"),
        ("pp_schedule: interleaved1f1b", "pp_schedule: 1f1b", "chunks a rank"),
        ("pp_schedule: interleaved1f1b", "pp_schedule: interleaved_1f1b", "is not a schedule"),
        ("pp_microbatch_size: 1", "pp_microbatch_size: 3", "must divide the local batch"),
    ],
)
def test_a_pipeline_that_the_program_cannot_split_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read(tmp_path, PIPELINE.replace(old, new))


@pytest.mark.parametrize("mode", [FULL, SELECT, None])
def test_recompute_is_written_and_read_again(tmp_path: Path, mode: str | None) -> None:
    config = read(tmp_path, RECIPE)
    assert config.plan is not None
    modes = {} if mode is None else {mode: as_grid([[32]])}
    write_plan(config, PipelinePlan(config.plan.layers, modes))
    again = read_config(config.path).plan
    assert again is not None and [again.uses(each) for each in (FULL, SELECT)] == [mode == FULL, mode == SELECT]


def test_an_uneven_split_is_written_module_by_module(tmp_path: Path) -> None:
    config = read(tmp_path, PIPELINE)
    assert config.plan is not None
    dense, moe = config.plan.layers["dense"], [list(row) for row in config.plan.layers["moe"]]
    moe[0][3], moe[7][3] = moe[0][3] - 1, moe[7][3] + 1
    layers = {"dense": dense, "moe": as_grid(moe)}
    total = PipelinePlan(layers, {}).total_layers()
    write_plan(config, PipelinePlan(layers, {FULL: total}))
    assert "module_fqns_per_model_part" in config.path.read_text(encoding="utf-8")
    again = read_config(config.path)
    assert again.plan is not None and again.plan.total_layers() == total and again.strategy == config.strategy


@pytest.mark.parametrize(
    "degrees", [{"dp": 4, "cp": 2, "op": 8}, {"dp": 8, "op": 4}, {"dp": 4, "tp": 4, "op": 4, "mbs": 2}]
)
def test_other_degrees_are_written_with_the_ranks_and_read_again(tmp_path: Path, degrees: dict[str, int]) -> None:
    config = read(tmp_path, RECIPE)
    wanted = config.strategy.replace(**{"micro_batches": 4, **degrees})
    again = read_config(emit_variant(config, wanted, tmp_path / "other.yaml", plan=None))
    assert again.strategy == wanted and again.open_ranks is None


def test_a_plan_on_other_ranks_than_the_assumed_ones_states_them(tmp_path: Path) -> None:
    config = read(tmp_path, RECIPE).on_ranks(32)
    assert config.plan is not None and config.strategy.dp == 16
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: as_grid([[32]])}))
    again = read_config(config.path)
    assert again.strategy == config.strategy and again.open_ranks is None


def test_a_tower_of_images_is_counted_and_frozen_by_default(tmp_path: Path) -> None:
    images = RECIPE.replace("TrainFinetuneRecipeForNextTokenPrediction", "FinetuneRecipeForVLM").replace(
        "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-VL-8B-Instruct"
    )
    config = read(tmp_path, images)
    assert config.model.extra_parameters == 576_388_336 and config.rules.frozen == ("beside",)
    trains = read(tmp_path, images + "freeze_config:\n  freeze_vision_tower: false\n")
    assert trains.rules.frozen == ()


def test_a_policy_that_names_the_package_is_nemo_rls(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(
        "grpo:\n  num_prompts_per_step: 8\npolicy:\n  train_global_batch_size: 8\n  dtensor_cfg:\n    enabled: true\n"
        "    automodel_kwargs: {_target_: nemo_automodel.NeMoAutoModelForCausalLM}\nrecipe: SomeRecipe\n",
        encoding="utf-8",
    )
    assert [launcher.name for launcher in recognising(path)] == ["nemo_rl-dtensor"]
