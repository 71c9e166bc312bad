"""The options of the performance launcher, against its own parser and its own overrides."""

from __future__ import annotations

import ast
import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.base.errors import InputError
from taylor.parsers.bridge import performance
from taylor.parsers.bridge.recipes import known_recipe, recipe_names
from taylor.parsers.bridge.script import OPTIONS, BridgeScript
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of

START = "python scripts/performance/setup_experiment.py -a me -p all -m qwen3 -mr qwen3_30b_a3b -g h100"


def job(folder: Path, options: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"{START} {options}\n", encoding="utf-8")
    return path


def fields(folder: Path, options: str) -> dict[str, Any]:
    return dict(BridgeScript.read(job(folder, options)).fields)


def test_short_options_select_the_recipe_and_set_its_fields(tmp_path: Path) -> None:
    config = read_config(job(tmp_path, "-c bf16 -ng 16 -gb 512 -tp 2 --cuda_graph_impl none"))
    assert (config.strategy.world_size, config.strategy.tp, config.strategy.global_batch) == (16, 2, 512)
    assert fields(tmp_path, "-ng 16 -tp 2")["model.sequence_parallel"] is True
    found = fields(tmp_path, "-ng 16 --recompute_modules moe_act,layernorm --moe_flex_dispatcher_backend None")
    assert found["model.recompute_modules"] == ["moe_act", "layernorm"]
    assert found["model.moe_token_dispatcher_type"] == "alltoall"
    assert found["optimizer.use_precision_aware_optimizer"] is True


def test_an_option_wins_over_an_override_but_with_recipes_of_the_library(tmp_path: Path) -> None:
    """Megatron-Bridge 067f987d scripts/performance/run_script.py:78-82, run_recipe.py (options before overrides)."""
    both = "-ng 16 -mb 2 train.micro_batch_size=4"
    assert fields(tmp_path, both)["train.micro_batch_size"] == 2
    assert fields(tmp_path, f"{both} --use_recipes")["train.micro_batch_size"] == 4


@pytest.mark.parametrize(("ranks", "batch"), [(16, 1024), (32, 2048), (64, 1024)])
def test_another_number_of_devices_keeps_the_samples_of_each_rank(tmp_path: Path, ranks: int, batch: int) -> None:
    """No canonical recipe has 32 ranks: that of 16 stands for it, as utils/utils.py:90-91 says."""
    config = read_config(job(tmp_path, f"-ng {ranks}"))
    assert config.strategy.world_size == ranks
    known = known_recipe(f"qwen3_30b_a3b_pretrain_{ranks}gpu_h100_bf16_config")
    assert config.strategy.global_batch == (batch if known is None else known.options["train.global_batch_size"])


TRAIN = "./scripts/training/train.sh --nodes {} --gpus-per-node 8"
BENCHMARK = f"{TRAIN} --recipe qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"


@pytest.mark.parametrize(
    ("command", "batch"),
    [
        (BENCHMARK.format(2), 1024),
        (BENCHMARK.format(4), 2048),
        (f"{BENCHMARK.format(2)} -tp 2", 512),
        (f"{BENCHMARK.format(4)} -gb 96", 96),
        (f"{BENCHMARK.format(4)} train.global_batch_size=64", 64),
    ],
)
def test_the_training_launcher_keeps_the_samples_of_each_rank_of_a_benchmark(
    tmp_path: Path, command: str, batch: int
) -> None:
    """Megatron-Bridge 067f987d scripts/training/README.md (benchmark recipes), run_recipe.py:343-374."""
    path = tmp_path / "job.sh"
    path.write_text(command, encoding="utf-8")
    assert read_config(path).strategy.global_batch == batch


@pytest.mark.parametrize(
    "length", ["-sl 8192", "dataset.seq_length=8192", "dataset.seq_length=8192 model.seq_length=2048"]
)
def test_the_length_of_the_data_is_the_model_s_in_the_training_launcher(tmp_path: Path, length: str) -> None:
    """Megatron-Bridge 067f987d scripts/training/recipe_runner.py:471-487."""
    path = tmp_path / "job.sh"
    path.write_text(f"{BENCHMARK.format(2)} {length}", encoding="utf-8")
    assert read_config(path).rules.seq_length == 8192


def test_a_misspelt_option_of_the_training_launcher_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(f"{BENCHMARK.format(2)} --micro_batch_sizes 2", encoding="utf-8")
    with pytest.raises(InputError, match="--micro_batch_sizes: is no option.*did you mean --micro_batch_size"):
        read_config(path)


@pytest.mark.parametrize(("mode", "ending"), [("pretrain", "pretrain"), ("sft", "sft"), ("lora", "peft")])
def test_a_model_and_a_mode_select_the_recipe_of_the_library(tmp_path: Path, mode: str, ending: str) -> None:
    """Megatron-Bridge 067f987d scripts/training/run_recipe.py:418-420."""
    path = tmp_path / "job.sh"
    path.write_text(f"{TRAIN.format(2)} --model qwen3_8b --mode {mode} --dataset mock\n", encoding="utf-8")
    recipe = known_recipe(f"qwen3_8b_{ending}_config")
    assert recipe is not None and BridgeScript.read(path).recipe == recipe
    assert (read_config(path).rules.adapters is not None) == (mode == "lora")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("-ng 16 -tp two", "-tp: is refused by the launcher.*write a whole number"),
        ("-ng 16 -tp $TP", "-tp: has a value that is known only when the job starts.*--env TP=VALUE"),
        ("-ng 16 --first_k_dense_replace 3", "--first_k_dense_replace: changes which layers have experts"),
        ("-ng 16 -cv large_scale", "-cv: is no recipe"),
        ("-ng eight", "-ng: must be a whole number"),
        ("-ng 16 -gb", "-gb: has no value"),
        ("-ng 16 --use_megatron_fsdp ture", "--use_megatron_fsdp: is refused.*write true or false"),
        ("-ng 16 --cuda_graph_impl locl", "--cuda_graph_impl: is refused.*write none or local or"),
        ("-ng 16 --cuda_graph_scope attn,mpl", "--cuda_graph_scope: is refused.*write full_iteration or"),
        ("-ng 16 --moe_flex_dispatcher_backend deepp", "--moe_flex_dispatcher_backend: is refused.*write deepep"),
        ("-ng 16 model.tensor_model_parallel_sise=2", "is no field.*did you mean model.tensor_model_parallel_size"),
        ("-ng 16 --global_batch_sise 64", "--global_batch_sise: is no option.*did you mean --global_batch_size"),
    ],
)
def test_what_an_option_leaves_open_is_refused_by_its_name(tmp_path: Path, options: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_config(job(tmp_path, options))


def test_the_beginning_of_a_long_option_is_the_option_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    """argparse takes it so: scripts/performance/argument_parser.py:166-169 does not switch it off."""
    launch = BridgeScript.read(job(tmp_path, "-ng 16 --tensor_model_parallel 2 -tpp 4"))
    assert launch.fields["model.tensor_model_parallel_size"] == 2
    assert [note for note in launch.notes if "no such option" in note] == [
        "-tpp is not known and is ignored: the performance launcher has no such option"
    ]


def test_the_device_is_that_of_the_selected_recipe(tmp_path: Path) -> None:
    path = job(tmp_path, "-ng 8")
    path.write_text(path.read_text(encoding="utf-8").replace("h100", "gb300"), encoding="utf-8")
    config = read_config(path)
    assert launcher_of(config).usual_device_of(config).name == "gb300-nvl72"


def test_a_recipe_s_name_may_be_written_in_capitals(tmp_path: Path) -> None:
    """Megatron-Bridge 067f987d scripts/performance/argument_parser.py:185-190 (``lower_str``)."""
    path = job(tmp_path, "-ng 16")
    path.write_text(path.read_text(encoding="utf-8").replace("qwen3_30b_a3b", "Qwen3_30B_A3B"), encoding="utf-8")
    assert BridgeScript.read(path).recipe.name == "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config"


REVISION = "067f987d"
FOLDER = "scripts/performance"


def program(name: str, *imports: str, **around: Any) -> Any:
    """A module of the launcher, its imports from other packages replaced."""
    try:
        text = source("Megatron-Bridge", REVISION, f"{FOLDER}/{name}")
    except NotHere as reason:
        pytest.skip(str(reason))
    text = re.sub(r"^from (?:megatron|utils)[^\n]* import \([^)]*\)\n", "", text, flags=re.M)
    return loaded(
        f"bridge_{Path(name).stem}", without_imports(text, "megatron", "utils", "omegaconf", *imports), **around
    )


class Section:
    """A section of a recipe that remembers what is set."""

    def __init__(self, name: str, found: dict[str, Any]) -> None:
        self.__dict__.update(_name=name, _found=found, num_moe_experts=128, moe_token_dispatcher_type="alltoall")

    def __getattr__(self, name: str) -> Any:
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value
        self._found[f"{self._name}.{name}"] = value


def own_fields(words: list[str]) -> dict[str, Any]:
    """Fields that the launcher's own functions set for options."""
    parser = program("argument_parser.py", "nemo_run", get_nemorun_home=lambda: "").parse_cli_args()
    found: dict[str, Any] = {}

    def flex(model: Section, backend: str) -> None:
        model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend = "flex", backend
        model.moe_shared_expert_overlap = False

    def dropped(model: Section, moe_expert_capacity_factor: float = 1.0, **more: bool) -> Section:
        model.moe_expert_capacity_factor = None if moe_expert_capacity_factor < 0 else moe_expert_capacity_factor
        model.moe_pad_expert_input_to_capacity = more.get("moe_pad_expert_input_to_capacity", True)
        return model

    def repeatable(recipe: Any) -> None:
        recipe.model.deterministic_mode, recipe.model.cross_entropy_loss_fusion = True, False
        recipe.comm_overlap.tp_comm_overlap = False

    overrides = program(
        "utils/overrides.py",
        ConfigContainer=object, TokenizerConfig=SimpleNamespace, WorkloadBaseConfig=object, CommOverlapConfig=Section,
        apply_flex_dispatcher_backend=flex, apply_moe_token_drop=dropped, apply_determinism_overrides=repeatable,
        create_mock_dataset_config=lambda **_: SimpleNamespace(),
        validate_cuda_graph_configuration=lambda *_, **__: None,
        cuda_graph_module_names=lambda model: model.cuda_graph_scope or [],
        set_cuda_graph_modules=lambda model, scope: setattr(model, "cuda_graph_scope", scope),
        is_full_iteration_cuda_graph=lambda _: False,
        set_deepseek_v3_pipeline_model_parallel_layout=None, _get_kimi_k2_pipeline_layout=None,
        _validated_data_parallel_size=None, _weak_scaled_global_batch_size=None, get_workload_base_config=None,
        topology_from_config=None,
    )  # fmt: skip
    names = ("model", "train", "ddp", "optimizer", "comm_overlap", "mixed_precision", "rng", "checkpoint", "logger",
             "dataset", "tokenizer", "dist", "rerun_state_machine")  # fmt: skip
    recipe = SimpleNamespace(**{name: Section(name, found) for name in names})
    with tempfile.TemporaryDirectory() as folder:
        args, _ = parser.parse_known_args([*words, "--save_config_filepath", f"{folder}/config.yaml"])
        overrides.set_user_overrides(recipe, args)
    return found


@pytest.mark.parametrize(
    "option",
    [
        "-gb 512", "-mb 2", "-sl 8192", "-tp 2", "-tp 1", "-pp 4", "-cp 2", "-vp 3", "-vp None", "-ep 8", "-et 1",
        "--hidden_size 1024", "--num_moe_experts 64", "--pipeline_model_parallel_layout Et|tL", "--nccl_ub true",
        "--nccl_ub false", "--use_megatron_fsdp y", "--cuda_graph_impl none", "--cuda_graph_impl transformer_engine",
        "--cuda_graph_impl transformer_engine --cuda_graph_scope attn,moe_router", "--moe_a2a_overlap true",
        "--moe_a2a_overlap no", "-rl 3", "-ol 4", "-ol 0", "--recompute_modules moe_act,layernorm",
        "--moe_flex_dispatcher_backend deepep", "--moe_flex_dispatcher_backend None", "--deterministic",
        "--use_tokendrop true", "--use_tokendrop false",
    ],
)  # fmt: skip
def test_an_option_sets_the_fields_that_the_launcher_s_own_code_sets(option: str) -> None:
    words = START.split()[2:] + ["-ng", "16"]
    chosen = performance.selection(words)
    recipe = None if chosen is None else chosen.recipe()
    assert chosen is not None and recipe is not None
    plain, theirs = own_fields(words), own_fields([*words, *option.split()])
    theirs = {name: value for name, value in theirs.items() if name not in plain or plain[name] != value}
    ours = performance.fields_of([*words, *option.split()], chosen, recipe, Path("job.sh"))
    del ours["optimizer.use_precision_aware_optimizer"]  # Of run_script.py itself.
    beside = ("average_in_collective", "rng_tracker", "meta_device", "checkpoint.", "logger.", "cpu_offloading_weights",
              "fsdp_manual_registration", "fp8_transpose_cache")  # fmt: skip
    relevant = {name: value for name, value in theirs.items() if not any(word in name for word in beside)}
    assert {name: value for name, value in ours.items() if "fp8_transpose_cache" not in name} == relevant


def test_the_recipe_of_another_number_of_devices_is_the_launcher_s_own_choice() -> None:
    """The launcher's own table and functions choose among the names of all recipes."""
    try:
        tree = ast.parse(source("Megatron-Bridge", REVISION, f"{FOLDER}/utils/utils.py"))
    except NotHere as reason:
        pytest.skip(str(reason))
    wanted = {"_PRECISION_NAME_MAP", "_DEFAULT_GPU_COUNT_OVERRIDES", "_normalize_precision_name",
              "_recipe_variant_suffix", "_recipe_variant_name", "_select_default_recipe_name", "_variant_pattern",
              "_matching_perf_recipe_names"}  # fmt: skip
    parts = [part for part in tree.body if _defined(part) in wanted]
    assert {_defined(part) for part in parts} == wanted
    text = "from __future__ import annotations\n" + ast.unparse(ast.Module(parts, []))
    own = loaded("bridge_utils", text, re=re, flat_perf_recipe_names=recipe_names)
    pattern = re.compile(r"(\w+)_(pretrain|sft|peft)_\d+gpu_([a-z]+\d+)_([a-z0-9]+?)(?:_(\w+))?_config")
    compared = {match.groups() for match in map(pattern.fullmatch, recipe_names()) if match}
    assert len(compared) > 100
    assert compared >= set(own._DEFAULT_GPU_COUNT_OVERRIDES)
    for stem, task, gpu, precision, variant in compared:
        words = dict(model_recipe_name=stem, task=task, gpu=gpu, precision=precision, config_variant=variant)
        theirs = own._select_default_recipe_name(**words, matches=own._matching_perf_recipe_names(**words))
        ours = performance.Selection(stem, task, gpu, precision, "7", variant or "").recipe()
        assert ours is not None and ours.name == theirs


def test_the_options_of_the_training_launcher_set_the_fields_that_its_own_table_names() -> None:
    try:
        tree = ast.parse(source("Megatron-Bridge", REVISION, "scripts/training/run_recipe.py"))
    except NotHere as reason:
        pytest.skip(str(reason))
    parts = [
        part for part in tree.body if _defined(part) in ("COMMON_OVERRIDE_FIELDS", "_HelpFormatter", "_build_parser")
    ]
    text = "from __future__ import annotations\nimport argparse\n" + ast.unparse(ast.Module(parts, []))
    own = loaded("bridge_run_recipe", text, DATASET_PRESETS=["mock"])
    fields = dict(own.COMMON_OVERRIDE_FIELDS)
    sections = ("train.", "model.", "dataset.")
    theirs = {
        name: fields[action.dest]
        for action in own._build_parser()._actions
        for name in action.option_strings
        if fields.get(action.dest, "").startswith(sections) and action.dest != "max_steps"
    }
    assert {name: OPTIONS[name] for name in theirs} == theirs
    # Options of the performance launcher and of programs of single models.
    assert set(OPTIONS) - set(theirs) == {"--seq-length", "--pipeline_model_parallel_layout"}


def _defined(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return statement.name if isinstance(statement, (ast.FunctionDef, ast.ClassDef)) else ""


def test_every_option_of_the_launcher_is_followed_or_said_to_change_nothing() -> None:
    parser = program("argument_parser.py", "nemo_run", get_nemorun_home=lambda: "").parse_cli_args()
    names = {name for action in parser._actions for name in action.option_strings}
    groups = {group.title: group._group_actions for group in parser._action_groups}
    beside = [*groups["Testing arguments"], *groups["Kubeflow arguments"]]
    names -= {name for action in beside for name in action.option_strings} | {"-h", "--help"}
    assert not names - performance.KNOWN
