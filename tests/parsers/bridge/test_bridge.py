"""Megatron-Bridge's resolved configurations, and scripts that start one of its published recipes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.bridge_recipes import Function, Source, record, table
from taylor.base.errors import InputError
from taylor.parsers.bridge.container import BridgeContainer, layout_chunks
from taylor.parsers.bridge.recipes import known_recipe, precision, recipe_names
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.register.adapters import JOINED_QKV, OUTPUT, Adapters
from tests.parsers.bridge.files import CONTAINER, SCRIPT


def written(folder: Path, text: str, name: str = "ConfigContainer.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_resolved_configuration_states_the_model_and_the_job(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, CONTAINER))
    assert config.launcher == "bridge" and config.model is not None
    assert (config.model.n_layers, config.model.hidden, config.model.vocab) == (32, 4096, 128256)
    assert (config.model.n_kv_heads, config.model.gated_mlp, config.model.tied_embedding) == (8, True, False)
    assert (config.strategy.tp, config.strategy.pp, config.strategy.sp, config.rules.seq_length) == (2, 4, True, 8192)


def test_the_mixed_precision_goes_before_the_fields_that_it_sets(tmp_path: Path) -> None:
    path = written(tmp_path, CONTAINER)
    low = read_config(path)
    assert BridgeContainer.read(path).flags.has("grad-reduce-in-bf16")
    path.write_text(CONTAINER.replace("grad_reduce_in_fp32: false", "grad_reduce_in_fp32: true"), encoding="utf-8")
    assert not BridgeContainer.read(path).flags.has("grad-reduce-in-bf16")
    fp8 = read_config(written(tmp_path, CONTAINER.replace("  fp8: null\n  fp8_recipe", "  fp8: e4m3\n  fp8_recipe")))
    assert low.rules.narrow is None and fp8.rules.narrow is not None and fp8.rules.narrow.name == "tensorwise"


DORA = "peft:\n  _target_: megatron.bridge.peft.dora.DoRA\n"
LORA = "peft:\n  _target_: megatron.bridge.peft.lora.LoRA\n"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "peft: null",
            "peft:\n  _target_: megatron.bridge.peft.a.MultiLoRA",
            "another kind than LoRA and DoRA",
        ),
        ("peft: null", f"{DORA}  dropout: 0.1", "peft.dropout: runs the frozen layer again"),
        ("peft: null", f"{LORA}  dim: true", "peft.dim: must be a whole number from 1"),
        ("peft: null", f"{LORA}  dropout: 2", "peft.dropout: must be a number from 0 to 1"),
        ("peft: null", f"{LORA}  normalize_moe_lora: true", "peft.normalize_moe_lora: is not modelled"),
        ("peft: null", f"{LORA}  target_modules: []", "peft.target_modules: gives the head an adapter too"),
        ("peft: null", f"{LORA}  target_modules: [linear_qvk]", "names the module 'linear_qvk'"),
        ("peft: null", f"{LORA}  target_modules: ['*.layers.0.*.linear_qkv']", "by a pattern"),
        ("gpt_provider.GPTModelProvider", "qwen_vl.Qwen3VLModelProvider", "is no language model"),
        (
            "pipeline_model_parallel_layout: null",
            "pipeline_model_parallel_layout:\n    _target_: megatron.core.Layout\n    _call_: true",
            "does not state the layout",
        ),
    ],
)
def test_what_is_not_planned_is_refused_with_its_field(tmp_path: Path, old: str, new: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_config(written(tmp_path, CONTAINER.replace(old, new)))


def test_a_class_in_the_file_is_never_looked_up(tmp_path: Path) -> None:
    text = CONTAINER.replace("torch.nn.functional.silu", "os.system").replace(
        "save: /results/checkpoints", "save:\n    _target_: subprocess.run\n    _args_: [touch, made]"
    )
    assert read_config(written(tmp_path, text)).launcher == "bridge"
    assert not (tmp_path / "made").exists()


def test_layouts_as_lists_and_as_text_are_the_same_plan(tmp_path: Path) -> None:
    text = "Et*7|t*8|t*8|t*9L"
    names = {"E": "embedding", "t": "decoder", "L": "loss"}
    chunks = [["embedding", *["decoder"] * 7], ["decoder"] * 8, ["decoder"] * 8, [*["decoder"] * 9, "loss"]]
    assert {part for chunk in chunks for part in chunk} == set(names.values())
    field = "pipeline_model_parallel_layout: null"
    said = read_config(written(tmp_path, CONTAINER.replace(field, f"pipeline_model_parallel_layout: {text}")))
    listed = read_config(
        written(
            tmp_path,
            CONTAINER.replace(
                field,
                f"pipeline_model_parallel_layout: {json.dumps(chunks)}",
            ),
        )
    )
    assert said.plan is not None and said.plan == listed.plan
    assert said.plan.total_layers() == ((7, 8, 8, 9),)


@pytest.mark.parametrize(("text", "chunks"), [("Et*4|(t*4|)*14tmL", 16), ("Et|t|tL", 3), ("Ett|(tt|)*30L", 32)])
def test_chunks_of_a_layout_are_counted_through_its_repetitions(text: str, chunks: int) -> None:
    assert layout_chunks(text) == chunks


def test_a_plan_is_written_into_the_resolved_configuration_and_nothing_else_changes(tmp_path: Path) -> None:
    path = written(tmp_path, CONTAINER)
    config = read_config(path)
    assert config.plan is not None
    kind = next(iter(config.plan.layers))
    plan, _ = launcher_of(config).nearest_plan(PipelinePlan({kind: as_grid([[9, 8, 8, 7]])}, config.plan.recompute))
    write_plan(config, plan)
    assert read_config(path).plan == plan
    before, after = CONTAINER.splitlines(), path.read_text(encoding="utf-8").splitlines()
    changed = [line for line in after if line not in before]
    assert changed and all(line.strip().split(":")[0] in launcher_of(config).plan_keys for line in changed)


def test_a_script_is_its_recipe_with_the_overrides_of_the_first_round(tmp_path: Path) -> None:
    path = written(tmp_path, SCRIPT, "slurm_pretrain.sh")
    config = read_config(path)
    assert (config.launcher, config.strategy.tp, config.strategy.pp, config.strategy.ep) == ("bridge-script", 4, 2, 8)
    assert (config.strategy.dp, config.strategy.mbs, config.strategy.micro_batches) == (4, 2, 16)
    assert config.rules.seq_length == 2048 and config.model is not None and config.model.name == "qwen3-30b-a3b"
    assert any("first of 2 rounds" in note for note in config.notes)
    assert launcher_of(config).usual_device_of(config).name == "h100-80g"
    with started(ShellStart(None, {"TP": "2", "SP": "True"})):
        assert read_config(path).strategy.tp == 2


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        ("#SBATCH -N4 --gpus-per-node=h100:8", 32),
        ("#SBATCH --nodes=2 --ntasks-per-node=1\n#SBATCH --gres=gpu:8", 16),
        ("#SBATCH --nodes=2 --ntasks-per-node=8\necho\n#SBATCH --nodes=8", 16),
    ],
)
def test_the_ranks_of_a_recipe_are_those_of_the_lines_that_slurm_reads(tmp_path: Path, lines: str, ranks: int) -> None:
    text = SCRIPT.replace("#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8", lines)
    assert read_config(written(tmp_path, text, "slurm_pretrain.sh")).strategy.world_size == ranks


def test_dora_is_read_from_a_section_and_by_the_mode(tmp_path: Path) -> None:
    """Megatron-Bridge 067f987d src/megatron/bridge/peft/dora.py:60-70: rank 32 and no dropout."""
    own = CONTAINER.replace("peft: null", f"{DORA}  target_modules: [linear_qkv]")
    found = read_config(written(tmp_path, own)).rules.adapters
    assert found == Adapters(32, (JOINED_QKV,), gathers=True, shared_by_experts=True, decomposed=True)
    text = "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe qwen3_8b_peft_config --mode "
    plain, dora = (
        read_config(written(tmp_path, f"{text}{mode}\n", "job.sh")).rules.adapters for mode in ("lora", "dora")
    )
    assert plain is not None and dora == replace(plain, decomposed=True)


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (
            "qwen3_30b_a3b_peft_config --mode dora peft.target_modules=[linear_fc1]",
            "peft: is DoRA beside routed experts",
        ),
        ("qwen3_8b_sft_config --mode lora", "trains adapters that its text does not settle.*_peft_"),
        ("qwen3_8b_sft_config peft.dim=8", "peft.dim: is of a recipe that trains all weights"),
        ("qwen3_8b_pretrain_cfg", "is no recipe.*name qwen3_8b_pretrain_config"),
        ("$RECIPE", "known only when the job starts.*--env RECIPE=NAME"),
    ],
)
def test_a_recipe_that_cannot_be_priced_is_refused_by_its_name(tmp_path: Path, recipe: str, reason: str) -> None:
    text = f"torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe {recipe} train.micro_batch_size=1\n"
    with pytest.raises(InputError, match=reason):
        read_config(written(tmp_path, text, "job.sh"))


def test_the_start_of_the_performance_scripts_names_its_recipe_by_parts(tmp_path: Path) -> None:
    """Megatron-Bridge 067f987d scripts/performance/rubin_launch_interactive.sh starts bootstrap.py from an array."""
    text = (
        "RUN_CMD=(\n  scripts/performance/bootstrap.py\n  --model_family_name llama\n  --model_recipe_name llama3_8b\n"
        '  --gpu h100\n  --compute_dtype bf16\n  --num_gpus {}\n)\npython "${{RUN_CMD[@]}}"\n'
    )
    assert read_config(written(tmp_path, text.format(8), "job.sh")).strategy.world_size == 8
    with pytest.raises(InputError, match="llama2_8b_pretrain_8gpu_h100_bf16_config"):
        read_config(written(tmp_path, text.replace("name llama3", "name llama2").format(8), "job.sh"))


def test_adapters_are_those_of_the_section_or_of_the_recipe_with_its_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, CONTAINER.replace("peft: null", f"{LORA}  dim: 8\n  dropout: 0.1"))
    low, full = read_config(path), read_config(written(tmp_path, CONTAINER, "full.yaml"))
    assert low.rules == full.rules.replace(adapters=Adapters(8, dropout=True, gathers=True, shared_by_experts=True))
    # recipes/qwen/h100/qwen3.py:1630 and what follows it.
    line = "torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe qwen3_8b_peft_config"
    for more, rank, targets in (
        ("", 8, (OUTPUT, JOINED_QKV)),
        (" --mode lora peft.dim=64 'peft.target_modules=[linear_qkv]'", 64, (JOINED_QKV,)),
    ):
        found = read_config(written(tmp_path, f"{line}{more}\n", "job.sh")).rules.adapters
        assert found is not None and (found.rank, found.targets, found.gathers) == (rank, targets, True)


def test_every_published_name_has_a_recipe_and_every_precision_its_settings() -> None:
    names = recipe_names()
    assert len(names) > 700 and len(set(names)) == len(names)
    for name in names:
        recipe = known_recipe(name)
        assert recipe is not None and recipe.source
        assert recipe.adapters or recipe.options.get("train.global_batch_size", 1) >= 1
    settings = precision("bf16_with_mxfp8_mixed")
    assert settings is not None and settings["fp8_recipe"] == "mxfp8" and precision("none") is None


def test_the_table_is_made_from_syntax_trees_and_runs_nothing(tmp_path: Path) -> None:
    root = tmp_path / "src" / "megatron" / "bridge"
    (root / "recipes").mkdir(parents=True)
    (root / "perf_recipes").mkdir()
    (root / "recipes" / "__init__.py").write_text(
        "from megatron.bridge.recipes.one import big_config as named_config\n"
    )
    (root / "recipes" / "one.py").write_text(
        "import os\nos.system('touch made')\nSIZE = 2\n\n\n"
        "def _base(steps=1) -> ConfigContainer:\n"
        "    cfg = ConfigContainer(model=None, train=TrainingConfig(micro_batch_size=steps, global_batch_size=8))\n"
        "    return cfg\n\n\n"
        "def small_config() -> ConfigContainer:\n"
        "    cfg = _base(steps=SIZE * 2)\n"
        "    cfg.model = AutoBridge.from_hf_pretrained('owner/name').to_megatron_provider(load_weights=False)\n"
        "    cfg.model.tensor_model_parallel_size = 4 if SIZE > 1 else 1\n"
        "    cfg.model.recompute_modules = ['moe', 'layernorm']\n"
        "    if cfg.model.tensor_model_parallel_size > 1:\n"
        "        cfg.model.sequence_parallel = True\n"
        "    cfg.model.pipeline_model_parallel_layout = read_from_disk()\n"
        "    return cfg\n\n\n"
        "def big_config() -> ConfigContainer:\n"
        "    cfg = small_config()\n"
        "    cfg.model.pipeline_model_parallel_layout = 'Et|tL'\n"
        "    setattr(cfg.train, 'micro_batch_size', 1)\n"
        "    return cfg\n"
    )
    source = Source(tmp_path)
    module = source.module("megatron.bridge.recipes.one")
    assert module is not None
    small = record(source, "small_config", Function(module, module.functions["small_config"]))
    assert small is not None and small["model"] == "owner/name"
    assert small["options"]["model.tensor_model_parallel_size"] == 4 and small["options"]["model.sequence_parallel"]
    assert small["options"]["train.micro_batch_size"] == 4
    assert small["unsettled"] == ["model.pipeline_model_parallel_layout"]
    made = yaml.safe_load(table(tmp_path, "abc"))
    assert made["aliases"] == {"named_config": "big_config"} and set(made["recipes"]) == {"big_config", "small_config"}
    assert not (tmp_path / "made").exists() and not Path("made").exists()
