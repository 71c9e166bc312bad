"""Commands of trl's own programs, with trl's defaults by trl's own files."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, source
from taylor.base.errors import InputError
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of, recognising
from taylor.parsers.trainer_script.trl import LENGTH, OLD_LENGTH, PRESETS, STARTS, USUAL
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, zero_grid
from taylor.register.adapters import ALL_HUGGING_FACE, QUERY, VALUE, named_targets

SFT = "trl sft --model_name_or_path Qwen/Qwen2.5-7B --dataset_name trl-lib/Capybara --output_dir out"


def read(folder: Path, command: str) -> TrainingConfig:
    path = folder / "run.sh"
    path.write_text(f"{command}\n", encoding="utf-8")
    return read_config(path)


def test_what_a_command_leaves_out_is_trl_s_default(tmp_path: Path) -> None:
    config = read(tmp_path, SFT)
    assert config.launcher == "trl" and config.open_ranks is not None
    assert config.plan is not None and config.plan.uses(FULL)
    assert (config.strategy.mbs, config.rules.seq_length, config.rules.compute_bytes) == (8, 1024, 2)
    assert not config.unmodelled


def test_adapters_are_trl_s_and_weights_loaded_in_fp32_stay_so(tmp_path: Path) -> None:
    found = read(tmp_path, f"{SFT} --use_peft").rules.adapters
    assert found is not None and (found.rank, set(found.targets), found.base_bytes) == (16, {QUERY, VALUE}, 4.0)
    narrow = read(tmp_path, f"{SFT} --use_peft --load_in_4bit --lora_target_modules q_proj k_proj").rules.adapters
    assert narrow is not None and narrow.base_bytes == pytest.approx(0.5, rel=0.05) and len(narrow.targets) == 2
    half = read(tmp_path, f"{SFT} --use_peft --dtype bfloat16").rules.adapters
    assert half is not None and half.base_bytes is None


@pytest.mark.parametrize(
    ("start", "ranks", "shards"),
    [
        (f"{SFT} --accelerate_config zero3 --num_processes 4", 4, True),
        (f"{SFT} --accelerate_config fsdp2", 8, True),
        (f"{SFT} --accelerate_config single_gpu", 1, False),
        (SFT.replace("trl sft", "accelerate launch --config_file a/deepspeed_zero3.yaml trl/scripts/sft.py"), 8, True),
        (SFT.replace("trl sft", "python trl/scripts/sft.py"), 1, False),
    ],
)
def test_ranks_and_sharding_are_those_of_accelerate(tmp_path: Path, start: str, ranks: int, shards: bool) -> None:
    config = read(tmp_path, start)
    assert (config.strategy.dp, config.rules.parameter_shard) == (ranks, shards)
    assert not config.unmodelled


def test_options_stand_in_the_yaml_behind_config_and_the_command_wins(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 4096\n", encoding="utf-8")
    config = read(tmp_path, "trl sft --config sft.yaml --max_length 2048 --output_dir out")
    assert (config.model.name, config.rules.seq_length) == ("qwen2.5-7b", 2048)


def test_a_plan_is_written_into_the_command_and_read_back(tmp_path: Path) -> None:
    config = read(tmp_path, SFT)
    assert config.plan is not None
    text = launcher_of(config).with_plan(config, PipelinePlan(config.plan.layers, {FULL: zero_grid(1, 1)}))[1]
    again = read(tmp_path, text)
    assert again.plan is not None and not again.plan.uses(FULL) and again.strategy == config.strategy


@pytest.mark.parametrize(
    ("start", "launcher"),
    [
        ("trl sft", "trl"),
        ("python examples/scripts/sft.py", "trl"),
        ("swift sft", "swift-trainer"),
        ("torchrun swift/cli/sft.py", "swift-trainer"),
        ("torchrun train.py", "trainer"),
        ("# once swift sft, or trl sft\ntorchrun train.py", "trainer"),
    ],
)
def test_a_script_of_the_trainer_s_options_is_the_program_s_that_it_starts(
    tmp_path: Path, start: str, launcher: str
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{start} --per_device_train_batch_size 1\n", encoding="utf-8")
    assert [each.name for each in recognising(path)] == [launcher]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (SFT.replace("sft", "grpo", 1), "trl: trains beside roll-outs"),
        (f"{SFT} --accelerate_config zero4", "--accelerate-config: is not found.*zero3"),
        (f"{SFT} --config none.yaml", "--config: is not found"),
        (f"{SFT} --dtype bfloat61", "dtype: is no type of weights.*write bfloat16"),
        (f"{SFT} --attn_implementation eagr", "attn_implementation: is no way of attention.*write eager"),
        (f"{SFT} --num_processes two", "--num_processes: must be a whole number"),
        (f"{SFT} --use_peft --lora_rank 8", "lora_rank: is no option beside --use_peft.*--lora_r"),
        (f"{SFT} --use_peft --lora_target_modules nothing q_proj", "lora_target_modules: .*nothing"),
        (f"{SFT} --use_peft --lora_target_modules q_proj", "lora_target_modules: is one name"),
        (f"{SFT} --use_peft --load_in_4bit --load_in_8bit", "load_in_8bit: does not start with --load_in_4bit"),
        (
            SFT.replace("Qwen/Qwen2.5-7B", "deepseek-ai/DeepSeek-V3") + " --use_peft",
            "lora_target_modules: is missing, and peft has no usual modules",
        ),
    ],
)
def test_what_is_not_planned_is_refused_by_its_option(tmp_path: Path, command: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read(tmp_path, command)


def test_a_misspelt_kind_of_accelerate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("distributed_type: DEEPSPED\nnum_processes: 4\n", encoding="utf-8")
    with pytest.raises(InputError, match="distributed_type: is none of accelerate's.*write DEEPSPEED"):
        read(tmp_path, f"{SFT} --accelerate_config own.yaml")


def test_pairs_are_read_of_dpo(tmp_path: Path) -> None:
    assert read(tmp_path, SFT.replace("sft", "dpo", 1)).rules.pairs


REVISION = "f2cd57710"


def own(path: str, revision: str = REVISION, repository: str = "trl") -> str:
    try:
        return source(repository, revision, path)
    except NotHere as reason:
        pytest.skip(str(reason))


def test_peft_s_usual_modules_are_queries_and_values_in_most_families_and_none_of_latent_attention() -> None:
    try:
        tree = ast.parse(source("peft", "5d602fdb", "src/peft/utils/constants.py"))
    except NotHere as reason:
        pytest.skip(str(reason))
    name = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"
    (table,) = [
        ast.literal_eval(part.value)
        for part in tree.body
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == name
    ]
    ends = ({"q_proj", "v_proj"}, {"q", "v"}, {"query", "value"})
    usual = {family for family, modules in table.items() if set(modules) in ends}
    assert usual >= {"llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2"} and len(usual) > len(table) / 2
    assert named_targets(["q_proj", "v_proj"], ALL_HUGGING_FACE) == tuple(sorted((QUERY, VALUE)))
    assert not [family for family in table if re.match("deepseek|kimi|glm4_moe|minicpm3", family)]


def test_trl_hands_a_single_module_on_as_a_text_and_refuses_two_precisions() -> None:
    text = own("trl/trainer/model_config.py")
    after = ast.parse(text[text.index("    def __post_init__") :].replace("    def", "def", 1).replace("\n    ", "\n"))
    space: dict[str, Any] = {}
    exec(compile(after, "model_config", "exec"), space)
    one = SimpleNamespace(load_in_8bit=False, load_in_4bit=False, lora_target_modules=["q_proj"])
    space["__post_init__"](one)
    assert one.lora_target_modules == "q_proj"
    one.load_in_8bit = one.load_in_4bit = True
    with pytest.raises(ValueError, match="same time"):
        space["__post_init__"](one)


def defaults(path: str, revision: str = REVISION) -> dict[str, Any]:
    """Defaults of the dataclasses of a file, each stated by ``field(default=…)``."""
    found: dict[str, Any] = {}
    for statement in ast.walk(ast.parse(own(path, revision))):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            words = statement.value.keywords if isinstance(statement.value, ast.Call) else []
            stated = [word.value for word in words if word.arg == "default"]
            plain = stated and isinstance(stated[0], ast.Constant)
            found[statement.target.id] = stated[0].value if plain else ...  # type: ignore[attr-defined]
    return found


def test_the_defaults_are_those_of_trl_s_configurations() -> None:
    base = defaults("trl/trainer/base_config.py")
    assert base["gradient_checkpointing"] is USUAL["gradient_checkpointing"]
    assert "self.bf16 = not (self.fp16) if self.bf16 is None else self.bf16" in own("trl/trainer/base_config.py")
    for name in ("sft", "dpo"):
        assert defaults(f"trl/trainer/{name}_config.py")["max_length"] == USUAL["max_length"]
    model = defaults("trl/trainer/model_config.py")
    assert (model["dtype"], model["use_peft"], model["lora_r"], model["lora_dropout"]) == ("float32", False, 16, 0.05)


def test_open_r1_starts_a_trl_that_has_the_trainer_s_defaults() -> None:
    assert '"trl[vllm]==0.18.0"' in own("setup.py", "1416fa0c", "open-r1")
    older = "v0.18.0"
    for name in ("sft", "dpo"):
        found = defaults(f"trl/trainer/{name}_config.py", older)
        assert found[LENGTH] == USUAL[LENGTH] and not {"gradient_checkpointing", "bf16"} & set(found)
    assert defaults("trl/trainer/sft_config.py", older)[OLD_LENGTH] is None
    assert "self.max_length = self.max_seq_length" in own("trl/trainer/sft_config.py", older)


@pytest.mark.parametrize(
    ("repository", "revision", "program"),
    [
        ("open-r1", "1416fa0c", "src/open_r1/sft.py"),
        ("open-r1", "1416fa0c", "src/open_r1/grpo.py"),
        ("alignment-handbook", "925acdf", "scripts/sft.py"),
        ("alignment-handbook", "925acdf", "scripts/dpo.py"),
        ("alignment-handbook", "925acdf", "scripts/orpo.py"),
    ],
)
def test_a_program_that_is_read_takes_its_yaml_by_trl_s_parser(repository: str, revision: str, program: str) -> None:
    assert "TrlParser((" in own(program, revision, repository)
    assert STARTS.search(f"accelerate launch {program} --config recipe.yaml")


@pytest.mark.parametrize("repository", ["open-r1", "alignment-handbook"])
def test_every_option_of_a_recipe_s_own_program_has_a_row(repository: str) -> None:
    revision, path = {
        "open-r1": ("1416fa0c", "src/open_r1/configs.py"),
        "alignment-handbook": ("925acdf", "src/alignment/configs.py"),
    }[repository]
    table = load_flag_table("taylor.parsers.trainer_script", "options.yaml")
    wanted = {"SFTConfig", "ScriptArguments"}
    classes = [each for each in ast.parse(own(path, revision, repository)).body if isinstance(each, ast.ClassDef)]
    fields = [
        each.target.id
        for one in classes
        if one.name in wanted
        for each in one.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    ]
    assert len(fields) > 1
    assert not [name for name in fields if table.find(name) is None and table.find(f"{name}.id") is None]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_trl_s_file(name: str) -> None:
    theirs = yaml.safe_load(own(f"trl/accelerate_configs/{name}.yaml"))
    for key, value in PRESETS[name].items():
        found = theirs[key]
        assert (found == value) if isinstance(value, str) else (value.items() <= found.items()), key
    assert theirs["num_processes"] == 8


@pytest.mark.parametrize("name", ["model", "sft", "dpo", "base"])
def test_every_option_of_trl_has_a_row(name: str) -> None:
    table = load_flag_table("taylor.parsers.trainer_script", "options.yaml")
    names = {each for each in defaults(f"trl/trainer/{name}_config.py") if not each.startswith("_")}
    assert not [each for each in sorted(names) if table.find(each) is None]


@pytest.mark.parametrize(("optim", "step_bytes"), [("adamw_torch", 4), ("adamw_torch_fused", 0), ("", 0)])
def test_the_step_of_an_adamw_that_is_not_fused_copies_the_second_moments(
    tmp_path: Path, optim: str, step_bytes: int
) -> None:
    config = read(tmp_path, f"{SFT} --optim {optim}" if optim else SFT)
    assert config.rules.optimizer.step_bytes == step_bytes
    assert any("torch before 2.8" in note for note in config.notes) == (not optim)


def test_torch_s_adamw_makes_that_copy() -> None:
    adam = pytest.importorskip("torch.optim.adam")
    text = inspect.getsource(adam._multi_tensor_adam)
    assert "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)" in text
    assert "_foreach_sqrt" not in inspect.getsource(adam._fused_adam)


RECIPE = """model_name_or_path: Qwen/Qwen2.5-7B
gradient_checkpointing_kwargs:
  use_reentrant: false
dataset_mixture:
  datasets:
  - id: some/data
max_seq_length: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
"""
ZERO3 = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"


@pytest.mark.parametrize(
    ("program", "recomputes"),
    [
        ("src/open_r1/sft.py --config", False),
        ("scripts/sft.py --config", True),
        ("scripts/run_sft.py", True),
        ("trl/scripts/sft.py --config", True),
    ],
)
def test_programs_that_take_a_recipe_are_read_with_the_defaults_of_their_trl(
    tmp_path: Path, program: str, recomputes: bool
) -> None:
    (tmp_path / "zero3.yaml").write_text(ZERO3, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    config = read(tmp_path, f"accelerate launch --config_file zero3.yaml {program} recipe.yaml")
    assert (config.launcher, config.strategy.dp, config.rules.parameter_shard) == ("trl", 8, True)
    assert (config.strategy.mbs, config.rules.seq_length) == (2, 4096)
    assert config.plan is not None and config.plan.uses(FULL) is recomputes
    assert not config.unmodelled


def test_a_recipe_alone_leaves_open_whether_it_fits_and_is_written_back(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    config = read_config(path)
    assert config.launcher == "trl-yaml" and config.plan is not None and config.plan.uses(FULL)
    [open_question] = config.unmodelled
    assert open_question.may_lower_memory and not open_question.spares_states
    text = launcher_of(config).with_plan(config, PipelinePlan(config.plan.layers, {FULL: zero_grid(1, 1)}))[1]
    assert "gradient_checkpointing: False" in text
    path.write_text(text, encoding="utf-8")
    again = read_config(path)
    assert again.plan is not None and not again.plan.uses(FULL) and again.strategy == config.strategy


def test_a_recipe_of_roll_outs_is_refused_and_one_of_pairs_is_read_as_such(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{RECIPE}num_generations: 16\n", encoding="utf-8")
    with pytest.raises(InputError, match="beside roll-outs"):
        read_config(path)
    path.write_text(RECIPE, encoding="utf-8")
    single = read_config(path)
    path.write_text(f"{RECIPE}beta: 0.1\n", encoding="utf-8")
    assert read_config(path).rules != single.rules
