"""ms-swift's scripts of megatron pt, sft and rlhf: model by name, defaults, refusals, plans written back."""

from __future__ import annotations

import difflib
import json

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.adapters import trained_parameters
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.named_model import named_model
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.register.adapters import ALL_MEGATRON, BESIDE, EMBEDDING, HEAD, JOINED_QKV, OUTPUT, Adapters
from taylor.register.model import DENSE, MOE
from tests.parsers.swift.files import SWIFT


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "sft.sh"
    path.write_text(SWIFT, encoding="utf-8")
    return path


def changed(script, old, new):
    text = script.read_text(encoding="utf-8")
    assert old in text
    script.write_text(text.replace(old, new), encoding="utf-8")
    return script


def test_a_script_is_read_with_the_model_that_it_names(script):
    config = read_config(script)
    assert (config.launcher, config.model.name, config.model.n_layers) == ("swift", "qwen3-8b", 36)
    strategy = config.strategy
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.sp, strategy.micro_batches) == (1, 2, 4, True, 16)
    assert config.rules.seq_length == 2048 and config.plan.layers[DENSE] == ((9, 9, 9, 9),)
    assert config.plan.recompute[FULL] == ((9, 9, 9, 9),)


@pytest.mark.parametrize("option", ["--load", "--mcore_model"])
def test_a_checkpoint_whose_name_is_the_models_says_which_model_it_is(script, option):
    """Issues 5615 and 5737 of ms-swift: scripts that name a converted checkpoint alone."""
    config = read_config(changed(script, "--model Qwen/Qwen3-8B-Base", f"{option} /ckpt/Qwen3-8B-Base-mcore"))
    assert config.model.name == "qwen3-8b"
    note = f"{option} /ckpt/Qwen3-8B-Base-mcore is taken for the registered model qwen3-8b"
    assert any(note in each for each in config.notes)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("deepseek-ai/deepseek-coder-6.7b-instruct", "deepseek-coder-6.7b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Math-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", "qwen3-coder-480b-a35b"),
    ],
)
def test_words_inside_a_name_go_once_no_end_of_it_is_left(script, name, model):
    found, _ = named_model(name, script, "--model")
    assert found.name == model


def test_a_model_without_mtp_modules_gets_those_that_the_option_asks_for(script):
    """ms-swift 3602360a examples/models/qwen3_next/mtp.sh, whose last layer has attention and experts."""
    model = read_config(changed(script, "Qwen3-8B-Base", "Qwen3-Next-80B-A3B-Instruct --mtp_num_layers 1")).model
    assert model.mtp_layers == 1 and model.mtp_kinds == ("attn+moe",)
    model = read_config(
        changed(script, "Qwen3-Next-80B-A3B-Instruct --mtp_num_layers 1", "Qwen3-8B --mtp_num_layers 2")
    ).model
    assert model.mtp_layers == 2


def test_a_checkpoint_whose_name_says_no_model_asks_for_the_model(script):
    with pytest.raises(InputError, match="--model: is missing, and the name of --load ./out/v3 says no model"):
        read_config(changed(script, "--model Qwen/Qwen3-8B-Base", "--load ./out/v3"))


def test_what_ms_swift_does_by_default_counts_where_the_script_says_nothing(script):
    """swift/megatron/arguments/megatron_args.py:483-598 of 3602360a."""
    text = script.read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not any(word in line for word in ("recompute", "batch_size"))]
    script.write_text("\n".join(kept) + "\n", encoding="utf-8")
    config = read_config(script)
    assert config.plan.uses(SELECT) and not config.plan.uses(FULL)
    assert (config.strategy.global_batch, config.strategy.mbs) == (16, 1)
    assert config.rules.parallel_optimizer and config.rules.param_bytes == 2 and not config.rules.dropout


def test_a_model_folder_beside_the_script_goes_before_registered_ones(script, tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    sizes = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8}
    sizes |= {"intermediate_size": 4096, "vocab_size": 32000, "model_type": "qwen3", "head_dim": 64}
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    config = read_config(changed(script, "Qwen/Qwen3-8B-Base", "small"))
    assert (config.model.n_layers, config.model.hidden) == (8, 1024)


def test_a_name_that_nobody_registered_is_named_with_the_ways_out(script):
    with pytest.raises(InputError, match="--model: is no registered model.*'a/Unknown-7B'.*config.json"):
        read_config(changed(script, "Qwen/Qwen3-8B-Base", "a/Unknown-7B"))


@pytest.mark.parametrize("option", ["tuner_type", "train_type"])
def test_adapters_train_alone_with_ms_swifts_defaults(script, option):
    """Rank 8 and dropout 0.05 beside all linear modules, an adapter for each expert (megatron_args.py:460-467)."""
    config = read_config(changed(script, "--max_length", f"--{option} lora --max_length"))
    assert config.rules.adapters == Adapters(8, ALL_MEGATRON, dropout=True)
    more = f"--{option} lora --lora_rank 4 --lora_dropout 0 --target_modules linear_qkv linear_proj --max_length"
    config = read_config(changed(script, "--max_length", more))
    assert config.rules.adapters == Adapters(4, (OUTPUT, JOINED_QKV))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("--tuner_type lora_llm", "--tuner_type: trains a part of the model.*found 'lora_llm'"),
        ("--tuner_type lora --target_regex .*", "--target_regex: names modules by a pattern"),
        ("--tuner_type lora --target_modules all-embedding", "--target_modules: names the module 'all-embedding'"),
        ("--tuner_type lora --modules_to_save norm", "--modules_to_save: trains a module whole.*found 'norm'"),
    ],
)
def test_adapters_that_no_figure_knows_are_refused_by_their_option(script, more, problem):
    with pytest.raises(InputError, match=problem):
        read_config(changed(script, "--max_length", f"{more} --max_length"))


def test_copies_of_embedding_and_head_train_whole_beside_the_adapters(script):
    """ms-swift 3602360a examples/megatron/lora/new_special_tokens.sh; swift/megatron/utils/utils.py:129-151."""
    more = "--tuner_type lora --modules_to_save word_embeddings output_layer --max_length"
    config = read_config(changed(script, "--max_length", more))
    assert config.rules.adapters == Adapters(8, ALL_MEGATRON, dropout=True, saved=(EMBEDDING, HEAD))
    assert not any("modules" in flag.name for flag in config.unmodelled)


def test_a_training_of_the_vision_part_alone_is_refused(script):
    with pytest.raises(InputError, match="--freeze_llm: trains the vision part alone"):
        read_config(changed(script, "--max_length", "--freeze_llm true --max_length"))


@pytest.mark.parametrize(
    ("more", "counts", "frozen"),
    [
        ("--freeze_parameters embedding.", {"dense": 36}, (EMBEDDING,)),
        ("--freeze_parameters embedding. output_layer", {"dense": 36}, (EMBEDDING, HEAD)),
        (
            "--freeze_parameters embedding. decoder.layers.0. decoder.layers.1.",
            {"dense+passed": 2, "dense": 34},
            (EMBEDDING,),
        ),
        ("--freeze_parameters decoder.layers.1", {"dense": 25, "dense+passed": 11}, ()),
        (
            "--freeze_parameters embedding decoder output --trainable_parameters decoder.layers.35.",
            {"dense+passed": 35, "dense": 1},
            (EMBEDDING, HEAD),
        ),
        ("--freeze_parameters_ratio 0.5", {"dense+passed": 18, "dense": 18}, (EMBEDDING,)),
        ("--tuner_type lora --freeze_parameters_ratio 0.5", {"dense": 36}, ()),
    ],
)
def test_frozen_weights_are_those_of_ms_swift(script, more, counts, frozen):
    """By the beginning of a parameter's name, 1 and 10 to 19 alike, or a part of all from the first on; of full
    training alone (swift/utils/transformers_utils.py:70-130, swift/megatron/utils/utils.py:176-182)."""
    changed(script, "--pipeline_model_parallel_size 4", "--pipeline_model_parallel_size 1")
    one_stage = changed(script, "--max_length", f"{more} --max_length")
    config = read_config(one_stage)
    assert (config.model.body_counts, config.rules.frozen) == (counts, frozen)
    assert sum(map(sum, (row for grid in config.plan.layers.values() for row in grid))) == 36


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("--freeze_parameters decoder.layers.0.mlp", "--freeze_parameters: freezes a part of layer 0"),
        ("--freeze_parameters embedding decoder output", "--freeze_parameters: leaves nothing that trains"),
        (
            "--freeze_parameters decoder.layers.0.",
            "--freeze_parameters: freezes layers of a pipeline",
        ),
        ("--freeze_parameters_ratio 0.5", "--freeze_parameters_ratio: freezes layers"),
        # Of the embedding alone, and beside adapters: megatron_args.py:473 asks neither.
        ("--freeze_parameters_ratio 0.08", "--freeze_parameters_ratio: freezes layers"),
        ("--tuner_type lora --freeze_parameters_ratio 0.5", "--freeze_parameters_ratio: freezes layers"),
    ],
)
def test_frozen_weights_that_are_not_modelled_are_refused(script, more, problem):
    with pytest.raises(InputError, match=problem):
        read_config(changed(script, "--max_length", f"{more} --max_length"))


def test_a_frozen_vision_part_has_weights_alone(script):
    """``freeze_vit`` is on by default (megatron_args.py:451)."""
    frozen = read_config(changed(script, "Qwen/Qwen3-8B-Base", "Qwen/Qwen2.5-VL-7B-Instruct"))
    trained = read_config(changed(script, "--max_length", "--freeze_vit false --max_length"))
    assert (frozen.rules.frozen, trained.rules.frozen) == ((BESIDE,), ())
    assert frozen.model.extra_parameters == trained.model.extra_parameters > 5e8
    every = total_parameters(trained.model)
    assert trained_parameters(frozen.model, frozen.rules) == every - trained.model.extra_parameters


def test_samples_of_no_stated_length_are_refused_with_what_ms_swift_takes(script):
    """As in examples/megatron/grpo/real.sh."""
    with pytest.raises(InputError, match="--max_length: is not stated, and ms-swift then takes samples as long as"):
        read_config(changed(script, "--max_length", "--num_train_epochs"))


def test_an_export_is_named_as_one(script):
    with pytest.raises(InputError, match="export of ms-swift.*converts"):
        read_config(changed(script, "megatron sft", "megatron export"))


def test_a_comparison_of_answers_trains_pairs_and_names_the_reference_model(script):
    config = read_config(changed(script, "megatron sft", "megatron rlhf --rlhf_type dpo"))
    assert config.rules.pairs
    assert any(flag.name == "--rlhf_type" and "reference model" in flag.why for flag in config.unmodelled)


def test_rolled_out_samples_are_as_long_as_prompt_and_answer(script):
    text = "megatron rlhf --rlhf_type grpo --max_completion_length 1024"
    config = read_config(changed(script, "megatron sft", text))
    assert config.rules.seq_length == 2048 + 1024


def test_ranks_that_only_the_cluster_knows_are_assumed_and_said(script):
    config = read_config(changed(script, "NNODES=1", "NNODES=$WORLD_SIZE"))
    assert config.open_ranks is not None and any("does not say how many ranks" in note for note in config.notes)


def test_virtual_stages_are_read_by_ms_swifts_own_name(script):
    config = read_config(changed(script, "--max_length", "--virtual_pipeline_model_parallel_size 3 --max_length"))
    assert (config.strategy.vpp, config.plan.layers[DENSE]) == (3, ((3,) * 4,) * 3)


def test_experts_and_their_places_come_with_the_model(script):
    name = "moonshotai/Moonlight-16B-A3B-Instruct"
    options = "--decoder_first_pipeline_num_layers 7 --decoder_last_pipeline_num_layers 6 --max_length"
    config = read_config(changed(changed(script, "Qwen/Qwen3-8B-Base", name), "--max_length", options))
    assert config.plan.layers == {DENSE: ((1, 0, 0, 0),), MOE: ((6, 7, 7, 6),)}


def test_a_plan_changes_its_options_alone(script):
    config = read_config(script)
    before = script.read_text(encoding="utf-8")
    plan = PipelinePlan({DENSE: as_grid([[8, 10, 10, 8]])}, {FULL: as_grid([[4, 4, 4, 4]])})
    write_plan(config, plan, micro_batches=32)
    after = script.read_text(encoding="utf-8")
    new = [line[2:].strip() for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] == "+ "]
    assert sorted(new) == [
        "--decoder_first_pipeline_num_layers 8 \\",
        "--decoder_last_pipeline_num_layers 8 \\",
        "--global_batch_size 32 \\",
        "--recompute_method block \\",
        "--recompute_num_layers 4 \\",
    ]
    again = read_config(script)
    assert again.plan.layers == plan.layers and again.plan.recompute[FULL] == plan.recompute[FULL]


def test_no_recompute_is_written_as_a_word_for_the_default_recomputes(script):
    config = read_config(script)
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: as_grid([[0] * 4])}))
    assert "--recompute_granularity none" in script.read_text(encoding="utf-8")
    assert not read_config(script).plan.uses(SELECT)


def test_a_strategy_of_other_ranks_is_written_into_the_variables(script, tmp_path):
    config = read_config(script)
    strategy = config.strategy.replace(dp=4, op=4, micro_batches=4)
    text = launcher_of(config).with_strategy(config, strategy, None, {})
    assert "NPROC_PER_NODE=8" in text and "NNODES=4" in text
    other = tmp_path / "other.sh"
    other.write_text(text, encoding="utf-8")
    assert read_config(other).strategy.world_size == 32


def test_options_in_a_file_are_named_and_not_missed(script):
    script.write_text("NPROC_PER_NODE=8 megatron rlhf --use_ray true --config job.yaml\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"takes its options by groups of Ray from job\.yaml, which is not read"):
        read_config(script)


OPTIONS = """\
# what to train
ENV: {MAX_PIXELS: '1003520'}
model: Qwen/Qwen3-8B-Base
dataset:
  - 'AI-ModelScope/alpaca-gpt4-data-zh#500'
tensor_model_parallel_size: 2
pipeline_model_parallel_size: 4
sequence_parallel: true
micro_batch_size: 1
global_batch_size: 16 # small
recompute_granularity: full
recompute_method: uniform
recompute_num_layers: 1
max_length: 2048
cross_entropy_loss_fusion: true
attention_backend: flash
"""


@pytest.fixture
def started_by_yaml(script):
    folder = script.parent / "examples"
    folder.mkdir()
    (folder / "sft.yaml").write_text(OPTIONS, encoding="utf-8")
    start = folder / "sft.sh"
    ways = "PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\\nNPROC_PER_NODE=8 \\\n"
    start.write_text(f"{ways}megatron sft \\\n    examples/sft.yaml\n", encoding="utf-8")
    return start


def test_options_in_a_yaml_mean_what_they_mean_in_the_command(script, started_by_yaml):
    by_command, by_yaml = read_config(script), read_config(started_by_yaml)
    assert by_yaml.strategy == by_command.strategy and by_yaml.plan == by_command.plan
    assert by_yaml.rules == by_command.rules and by_yaml.launcher == "swift"
    alone = read_config(started_by_yaml.with_suffix(".yaml"))
    # The allocator is set in the environment, which options alone do not have.
    assert alone.open_ranks is not None and alone.rules == by_command.rules.replace(expandable_segments=False)


def test_an_option_of_the_command_goes_before_the_yaml(started_by_yaml):
    changed(started_by_yaml, "sft.yaml", "sft.yaml --global_batch_size 32")
    config = read_config(started_by_yaml)
    assert config.strategy.global_batch == 32
    with pytest.raises(InputError, match="stands in the script's command, over the YAML"):
        write_plan(config, config.plan, micro_batches=8)


def test_a_plan_is_written_into_the_yaml_and_the_script_stays(started_by_yaml):
    start, config = started_by_yaml.read_text(encoding="utf-8"), read_config(started_by_yaml)
    plan = PipelinePlan({DENSE: as_grid([[8, 9, 9, 10]])}, {FULL: as_grid([[2, 2, 2, 2]])})
    write_plan(config, plan, micro_batches=8)
    assert started_by_yaml.read_text(encoding="utf-8") == start
    written = started_by_yaml.with_suffix(".yaml").read_text(encoding="utf-8")
    assert "global_batch_size: 8 # small" in written and written.startswith("# what to train\n")
    reread = read_config(started_by_yaml)
    assert reread.plan.layers == plan.layers and reread.plan.recompute[FULL] == plan.recompute[FULL]


def test_a_yaml_of_ray_groups_is_refused_as_such(started_by_yaml):
    path = started_by_yaml.with_suffix(".yaml")
    path.write_text(OPTIONS + "train: {gpus: 4, tuner_type: lora}\n", encoding="utf-8")
    with pytest.raises(InputError, match="states options by groups of Ray"):
        read_config(path)


def test_a_reward_models_head_is_not_the_vocabularys(script):
    """It is a classifier of one label (ms-swift 3602360a swift/megatron/arguments/rlhf_args.py:17-19)."""
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("megatron sft", "megatron rlhf --rlhf_type rm"), encoding="utf-8")
    found = {flag.name: flag for flag in read_config(script).unmodelled}
    assert found["--task_type"].may_lower_memory and found["--task_type"].may_raise_memory


def test_packed_samples_are_reported(script):
    text = script.read_text(encoding="utf-8")
    assert not any("packed" in note for note in read_config(script).notes)
    script.write_text(text.replace("--max_length", "--packing true --max_length"), encoding="utf-8")
    assert any("packed to 2048 tokens" in note for note in read_config(script).notes)


def test_a_name_that_newer_releases_dropped_is_remarked_on(script):
    """Issue 9403 of ms-swift: out of memory at a buffer of all weights, of a script that asks for LoRA so."""
    changed(script, "    --max_length 2048", "    --train_type lora \\\n    --max_length 2048")
    assert any("from 4.1 on it is refused: write --tuner_type lora" in note for note in read_config(script).notes)
    changed(script, "    --max_length 2048", "    --ignore_args_error True \\\n    --max_length 2048")
    config = read_config(script)
    assert config.rules.adapters is not None
    assert any("passed over, so that all weights train, as --ignore_args_error is on" in note for note in config.notes)
