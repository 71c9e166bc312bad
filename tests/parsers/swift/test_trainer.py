"""Scripts of ms-swift's trainer on Hugging Face: read, refused, written, and its own settings by its own code."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, source
from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.swift.trainer import FSDP2, OTHER_LOSSES, PRESETS, table
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, zero_grid
from taylor.register.adapters import ALL_HUGGING_FACE

SCRIPT = """\
nproc_per_node=4
NPROC_PER_NODE=$nproc_per_node \\
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
swift {method} \\
    --model Qwen/Qwen2.5-7B-Instruct \\
    --per_device_train_batch_size 2 \\
    --max_length 2048{options}
"""


def written(folder: Path, options: str = "", method: str = "sft") -> Path:
    path = folder / "train.sh"
    path.write_text(SCRIPT.format(options=f" \\\n    {options}" if options else "", method=method), encoding="utf-8")
    return path


def read(folder: Path, options: str = "", method: str = "sft") -> TrainingConfig:
    return read_config(written(folder, options, method))


def test_what_a_command_leaves_out_is_ms_swift_s_default(tmp_path: Path) -> None:
    config = read(tmp_path)
    own, rules = config.strategy, config.rules
    assert (config.launcher, own.dp, own.pp, own.mbs, own.micro_batches) == ("swift-trainer", 4, 1, 2, 2)
    assert config.plan is not None and config.plan.uses(FULL) and rules.seq_length == 2048
    assert rules.adapters is not None and (rules.adapters.rank, rules.adapters.targets) == (8, ALL_HUGGING_FACE)
    assert rules.adapters.dropout and not rules.pairs


@pytest.mark.parametrize(("name", "shards"), [("zero1", 4), ("zero2", 4), ("zero3", 4), ("zero0", 1)])
def test_a_preset_of_deepspeed_is_read_by_its_name(tmp_path: Path, name: str, shards: int) -> None:
    config = read(tmp_path, f"--deepspeed {name} --tuner_type full")
    assert config.strategy.op == shards and config.rules.parameter_shard == (name == "zero3")


def test_accumulation_by_expr_and_ranks_that_share_a_sample(tmp_path: Path) -> None:
    options = "--gradient_accumulation_steps $(expr 32 / $nproc_per_node) --sequence_parallel_size 2"
    own = read(tmp_path, options).strategy
    assert (own.dp, own.cp, own.micro_batches) == (2, 2, 8)


def test_a_plug_in_among_the_options_hides_none_of_them(tmp_path: Path) -> None:
    config = read(tmp_path, "--external_plugins plugin/orm.py --max_completion_length 1000 --rlhf_type grpo", "rlhf")
    assert config.rules.seq_length == 3048
    assert any(found.name == "--rlhf_type" and found.memory == "more" for found in config.unmodelled)


def test_the_name_of_the_tuner_that_later_releases_refuse_is_remarked(tmp_path: Path) -> None:
    """ms-swift v4.0.0 swift/arguments/base_args/base_args.py:73, 151-153; 3602360a swift/pipelines/base.py:36-41."""
    old, new = read(tmp_path, "--train_type full"), read(tmp_path, "--tuner_type full")
    assert old.rules == new.rules and set(old.notes) - set(new.notes) == {note for note in old.notes if "4.0" in note}
    assert any("write --tuner_type" in note for note in old.notes)


def test_pairs_are_the_default_of_rlhf(tmp_path: Path) -> None:
    assert read(tmp_path, method="rlhf").rules.pairs


@pytest.mark.parametrize(("model", "bits"), [("Qwen2.5-7B-Instruct-AWQ", 4), ("Qwen2.5-7B-Instruct-GPTQ-Int8", 8)])
def test_a_quantized_checkpoint_is_known_by_its_name(tmp_path: Path, model: str, bits: int) -> None:
    adapters = read(tmp_path, f"--model Qwen/{model}").rules.adapters
    assert adapters is not None and adapters.base_bytes == pytest.approx(bits / 8, rel=0.05)


@pytest.mark.parametrize(
    ("options", "method", "reason"),
    [
        ("--tuner_type adalora", "sft", "tuner_type: trains a part of the model"),
        ("--tuner_type loar", "sft", "tuner_type: is none of ms-swift's.*write --tuner_type lora"),
        ("--torch_dtype bfloat61", "sft", "torch_dtype: is no type of weights.*write bfloat16"),
        ("--attn_impl eagr", "sft", "attn_impl: is no way of attention.*write eager"),
        ("--quant_bits 5", "sft", "quant_bits: has another number of bits.*write quant_bits 4 or 8"),
        ("--optim adamw_trch", "sft", "optim: has states.*write adamw_torch"),
        ("--task_type seq_cls", "sft", "task_type: ends in another head"),
        ("--rlhf_type gkd", "rlhf", "rlhf_type: trains beside a teacher"),
        ("--rlhf_type dop", "rlhf", "rlhf_type: is none of ms-swift's"),
        ("--deepspeed zero_2", "sft", "deepspeed: is no configuration.*write zero2"),
        ("--deepspeed none.json", "sft", "deepspeed: is not found"),
        ("--deepspeed zero2 --fsdp fsdp2", "sft", "fsdp: does not start with DeepSpeed"),
        ("--per_device_train_batch_size two", "sft", "per_device_train_batch_size: must be"),
        ("--tuner_type full --freeze_parameters_ratio 0.5", "sft", "freeze_parameters_ratio: freezes a part"),
        ("--sequence_parallel_size 8", "sft", "sequence_parallel_size: exchanges the 4 key-value heads over 4 ranks"),
    ],
)
def test_what_is_not_planned_is_refused_by_its_option(tmp_path: Path, options: str, method: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path, options, method)


def test_layers_spread_over_the_devices_of_a_process_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("node=4", "node=2"), encoding="utf-8")
    with pytest.raises(InputError, match=r"CUDA_VISIBLE_DEVICES: .* over 2 devices each.*NPROC_PER_NODE=4"):
        read_config(path)


@pytest.mark.parametrize(
    ("number", "reason"), [("four", "must be a whole number from 1"), ("$RANKS", "is known only when the job starts")]
)
def test_a_number_of_ranks_is_one_or_is_left_open(tmp_path: Path, number: str, reason: str) -> None:
    path = written(tmp_path)
    text = path.read_text(encoding="utf-8").replace("nproc_per_node=4", f"nproc_per_node={number}")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"NPROC_PER_NODE: {reason}.*give --env NPROC_PER_NODE=NUMBER"):
        read_config(path)


def test_a_script_without_a_length_says_how_to_state_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace(" \\\n    --max_length 2048", ""), encoding="utf-8")
    with pytest.raises(InputError, match="max_length: is not stated.*write --max_length"):
        read_config(path)


def test_a_plan_is_written_into_the_command_and_read_back(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.plan is not None
    plan = PipelinePlan(config.plan.layers, {FULL: zero_grid(1, 1)})
    _, text = launcher_of(config).with_plan(config, plan)
    path = tmp_path / "planned.sh"
    path.write_text(text, encoding="utf-8")
    again = read_config(path)
    assert again.plan is not None and not again.plan.uses(FULL)
    assert "--gradient_checkpointing False" in text
    assert again.strategy == config.strategy


YAML = """\
# As swift sft takes it.
model: Qwen/Qwen2.5-7B-Instruct
tuner_type: full
per_device_train_batch_size: 2
max_length: 2048
deepspeed: zero3
{more}"""


def test_the_same_options_stand_in_a_yaml(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(YAML.format(more="ENV:\n  NPROC_PER_NODE: 4\n"), encoding="utf-8")
    config = read_config(path)
    script = read(tmp_path, "--tuner_type full --deepspeed zero3")
    assert config.strategy == script.strategy and config.rules == script.rules
    plan = PipelinePlan(config.plan.layers, {FULL: zero_grid(1, 1)}) if config.plan else None
    assert plan is not None
    text = launcher_of(config).with_plan(config, plan)[1]
    assert "gradient_checkpointing: false" in text.lower() and text.startswith("# As swift sft takes it.")


def test_accelerate_starts_it_by_a_configuration_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "accelerate launch --config_file two.yaml swift/cli/sft.py --model Qwen/Qwen2.5-7B-Instruct --max_length 512\n",
        encoding="utf-8",
    )
    with pytest.raises(InputError, match="configuration of accelerate that is not found"):
        read_config(path)
    text = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "two.yaml").write_text(text, encoding="utf-8")
    config = read_config(path)
    assert config.strategy.dp == 2 and config.rules.parameter_shard


REVISION = "3602360a"


def own(path: str) -> str:
    try:
        return source("ms-swift", REVISION, path)
    except NotHere as reason:
        pytest.skip(str(reason))


def defaults(path: str) -> dict[str, Any]:
    """Defaults of the dataclasses of a file, as far as they are literals."""
    found: dict[str, Any] = {}
    for statement in ast.walk(ast.parse(own(path))):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            try:
                found[statement.target.id] = ast.literal_eval(statement.value)
            except ValueError:
                found[statement.target.id] = ...
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_ms_swift_s_file(name: str) -> None:
    theirs = json.loads(own(f"swift/config/{name}.json"))["zero_optimization"]
    for key, value in PRESETS[name].items():
        found = theirs[key]["device"] if isinstance(value, dict) else theirs[key]
        assert found == (value["device"] if isinstance(value, dict) else value), key
    for key in ("offload_optimizer", "offload_param"):
        assert theirs.get(key, {}).get("device", "none") == PRESETS[name].get(key, {}).get("device", "none")
    assert theirs["overlap_comm"] is False


def test_the_settings_of_fsdp2_are_ms_swift_s_file() -> None:
    theirs = json.loads(own("swift/config/fsdp2.json"))
    assert {key: theirs["fsdp_config"][key] for key in FSDP2} == FSDP2
    assert theirs["fsdp"] == "full_shard auto_wrap"


def test_the_defaults_are_those_of_ms_swift_s_dataclasses() -> None:
    training = defaults("swift/trainers/arguments.py")
    assert (training["per_device_train_batch_size"], training["gradient_checkpointing"]) == (1, True)
    assert training["gradient_accumulation_steps"] is None
    assert "math.ceil(16 / self.per_device_train_batch_size / world_size)" in own("swift/trainers/arguments.py")
    tuner = defaults("swift/arguments/tuner_args.py")
    assert (tuner["lora_rank"], tuner["lora_dropout"], tuner["freeze_vit"]) == (8, 0.05, True)
    assert defaults("swift/arguments/rlhf_args.py")["max_completion_length"] == 512
    assert "tuner_type: str = field(default='lora'" in own("swift/arguments/base_args/base_args.py").replace("\n", " ")


def test_every_loss_of_ms_swift_s_rlhf_is_read_or_refused_by_its_name() -> None:
    declared = re.search(r"rlhf_type: Literal(\[[^\]]*\])", own("swift/arguments/rlhf_args.py"))
    assert declared is not None
    assert set(ast.literal_eval(declared[1])) == {"dpo", "grpo", *OTHER_LOSSES}


@pytest.mark.parametrize(
    "path",
    [
        *(f"swift/arguments/base_args/{name}_args.py" for name in ("base", "model", "data", "template", "quant")),
        *(f"swift/arguments/{name}_args.py" for name in ("tuner", "sft", "rlhf")),
        "swift/trainers/arguments.py",
        "swift/rlhf_trainers/args_mixin.py",
    ],
)
def test_every_option_of_ms_swift_has_a_row(path: str) -> None:
    names = {name for name in defaults(path) if not name.startswith("_")}
    assert not [name for name in sorted(names) if table().find(name) is None]
