"""A model's plan is one that its framework can run: the file that is written says it, and is read as it was planned."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

import pytest
import tomllib
import yaml

from taylor.base.errors import InputError
from taylor.command_lines.model_start import framework_of
from taylor.parsers.new_file import NewJob, difference
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.register.frameworks import MINDFORMERS
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.workflows.searching import model_job
from taylor.workflows.searching.model_job import ModelJob, choose_strategy, model_file, state_model
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.problem import uniform_choices
from tests.conftest import ROOT
from tests.parsers.huggingface.test_launcher import written

DENSE = ("gpt2-13b", "llama3-8b", "qwen2.5-7b", "qwen3-0.6b")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "glm-4.5-air", "deepseek-v2-lite", "deepseek-v3-671b")

CASES = [
    ("llama3-8b", "megatron", "h100-80g", 16, {"pp": 4, "tp": 2}),
    ("llama3-8b", "mindspeed", "ascend-910b", 16, {"pp": 4, "tp": 4}),
    ("llama3-8b", "mindformers", "ascend-910b", 16, {"pp": 4, "tp": 2}),
    ("llama3-8b", "torchtitan", "h100-80g", 16, {"pp": 4, "tp": 2}),
    ("qwen3-30b-a3b", "megatron", "a100-80g", 32, {"pp": 4, "ep": 8, "tp": 1}),
    ("deepseek-v2-lite", "mindspeed", "ascend-a3", 16, {"pp": 2, "ep": 8, "tp": 1}),
    ("qwen3-30b-a3b", "mindformers", "ascend-a3", 32, {"pp": 4, "ep": 8, "tp": 1}),
]


def accepts(path: Path) -> None:
    """What starts the file's program can read it."""
    if path.suffix == ".sh":
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0
    elif path.suffix == ".toml":
        tomllib.loads(path.read_text())
    else:
        assert yaml.safe_load(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("model, framework, device, ranks, fix", CASES)
def test_the_file_that_is_written_is_read_with_the_same_step_memory_and_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, framework: str, device: str, ranks: int, fix: dict
) -> None:
    monkeypatch.setattr(model_job, "SOLVED_STRATEGIES", 1)
    job = ModelJob(
        model_file(model, tmp_path), ranks, gbs=4 * ranks, fix=fix | {"vpp": 1}, device=device, framework=framework
    )
    how = SolveOptions(time_limit=20.0, workers=1)
    path = choose_strategy(job, how, 1, tmp_path)
    target = tmp_path / f"run{path.suffix}"
    plan_job = FileJob(path, dryrun=False, check=False, device=device, made_for_model=True)
    planned = solve_file(plan_job, how, Outputs(tmp_path / "out", write_to=target)).result().to_dict()
    accepts(target)
    again = evaluate_file(FileJob(target, dryrun=False, check=False, device=device), Outputs(tmp_path / "again"))
    read = again.result().to_dict()
    for key in ("step_ms", "peak_memory", "layers", "recompute", "offset", "mfu"):
        assert read[key] == planned[key], key
    assert planned["own_plan"] is None and not planned["unmodelled"]
    assert target.read_text().count(model) and again.config.strategy.world_size == ranks


@pytest.mark.parametrize("framework", NEW_FILES)
@pytest.mark.parametrize("model", (*DENSE, *EXPERTS))
def test_a_file_made_for_a_model_describes_it_or_is_refused(tmp_path: Path, framework: str, model: str) -> None:
    spec = Registry.load().model(model)
    job = ModelJob(model_file(model, tmp_path), 64, gbs=96, device="h100-80g", framework=framework)
    try:
        path = state_model(job, tmp_path)
    except InputError as error:
        assert framework in ("mindformers", "torchtitan") and "cannot describe" in str(error)
        return
    accepts(path)
    config = read_config(path)
    asked = spec.replace(mtp_layers=0) if framework == "torchtitan" else spec
    assert difference(asked, config.model) is None
    assert (config.strategy.world_size, config.strategy.global_batch) == (64, 96)
    assert not config.unmodelled


def test_what_a_framework_cannot_say_of_a_model_is_named(tmp_path: Path) -> None:
    path = model_file("qwen3-next-80b-a3b", tmp_path)
    with pytest.raises(InputError, match="--framework.*cannot describe .* its linear attention"):
        state_model(ModelJob(path, 8, framework="mindformers"), tmp_path)
    assert state_model(ModelJob(path, 8, device="ascend-910b"), tmp_path).suffix == ".json"
    assert state_model(ModelJob(path, 8), tmp_path).suffix == ".sh"
    assert state_model(ModelJob(path, 8, framework="json"), tmp_path).suffix == ".json"


@pytest.mark.parametrize(
    "change",
    [{"hidden": 1}, {"vocab": 1}, {"tied_embedding": True}, {"mtp_layers": 1}, {"n_layers": 3}, {"n_kv_heads": 1},
     {"ffn_hidden": 5}, {"qk_norm": True}, {"learned_positions": 9}],
)  # fmt: skip
def test_two_models_that_differ_in_one_size_are_told_apart(change: dict) -> None:
    model = ModelSpec("m", 4, 64, 8, 8, 8, 256, 1000)
    assert difference(model, model.replace(name="other")) is None
    assert difference(model, model.replace(**change)) is not None


def test_the_framework_follows_the_device_where_nobody_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="taylor")
    path = model_file("llama3-8b", tmp_path)
    for device, framework in (("h100-80g", "megatron"), ("ascend-910b", "mindspeed"), ("mi300x-192g", "megatron")):
        caplog.clear()
        state_model(ModelJob(path, 8, device=device), tmp_path)
        assert f"framework: {framework} (" in caplog.text and "assumed" in caplog.text


def test_a_script_of_slurm_is_a_file_of_the_frameworks_that_scripts_start() -> None:
    assert framework_of(argparse.Namespace(framework="megatron", o="run.sbatch")) == "megatron"
    with pytest.raises(InputError, match="-o: is no file of torchtitan"):
        framework_of(argparse.Namespace(framework="torchtitan", o="run.sbatch"))


def test_the_ranks_of_a_file_are_those_of_whole_hosts(tmp_path: Path) -> None:
    job = NewJob(Registry.load().model("llama3-8b"), 4096, 64, 64, 8)
    path = tmp_path / "run.sh"
    path.write_text(NEW_FILES["megatron"].text(job))
    assert "GPUS_PER_NODE=8\nNNODES=8\n" in path.read_text()


def test_a_hugging_face_folder_is_read_by_its_config(tmp_path: Path) -> None:
    path = written(tmp_path)
    folder = tmp_path / "Some-Model"
    folder.mkdir()
    path.rename(folder / "config.json")
    assert model_file(str(folder), tmp_path / "out") == folder / "config.json"
    assert read_config(folder).model.name == "Some-Model"


def test_a_json_plan_too_is_one_that_its_framework_can_say(tmp_path: Path) -> None:
    """Megatron has one recompute choice for all chunks, MindFormers one a chunk."""
    path = model_file("qwen2.5-7b", tmp_path)
    stated = state_model(ModelJob(path, 16, seq_length=32768, framework="json"), tmp_path)
    config = read_config(stated)
    assert config.rules.framework.name == "megatron" and uniform_choices(config, ("full",))
    assert not uniform_choices(config.replace(rules=config.rules.replace(framework=MINDFORMERS)), ("full",))


def has_flag(text: str, framework: str) -> bool:
    """Whether a release of the framework that is written for has a flag, by its row in the table of flags."""
    if framework == "mindspeed" and "MindSpeed" in text:
        return True
    found = re.search(r"Megatron-LM (?:core 0\.(\d+)|[\d.]+) to (?:core 0\.(\d+)|main)", text)
    newest = 12 if framework == "mindspeed" else 99
    return found is not None and int(found[1] or 0) <= newest and (found[2] is None or int(found[2]) >= 12)


@pytest.mark.parametrize("framework", ["megatron", "mindspeed"])
@pytest.mark.parametrize("model", (*DENSE, *EXPERTS, "qwen3-next-80b-a3b"))
def test_a_script_has_no_flag_that_its_framework_lacks(tmp_path: Path, framework: str, model: str) -> None:
    """MindSpeed-LLM 2.3.0 builds on Megatron-LM core 0.12."""
    text = NEW_FILES[framework].text(NewJob(Registry.load().model(model), 4096, 64, 64, 8))
    table = (ROOT / "parsers" / "megatron" / "flags.yaml").read_text()
    flags = re.findall(r"^    --([a-z0-9-]+)", text.partition("torchrun")[0], flags=re.MULTILINE)
    assert len(flags) > 20
    for flag in flags:
        row = re.search(rf"^ +{flag}: *\{{(.*)\}}$", table, flags=re.MULTILINE)
        assert row is not None and has_flag(row[1], framework), flag
