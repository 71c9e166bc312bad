"""A model of the register is a configuration like any other: named, planned, written, and given again."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from taylor.base.errors import InputError
from taylor.command_lines import parallel_tool, pipeline_parallel, pipeline_tool
from taylor.parsers.huggingface.registered import naming
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.register.registry import Registry
from taylor.workflows.searching.model_job import model_file

OWN = """\
n_layers: 8
hidden: 1024
n_heads: 8
n_kv_heads: 4
head_dim: 128
ffn_hidden: 3072
vocab: 32000
"""


def written(folder: Path, data: object) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("name", Registry.load().model_names())
def test_every_registered_model_is_read_as_it_is_registered(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(naming(name))
    config = read_config(path)
    assert config.model == Registry.load().model(name)
    assert launcher_of(config).title == "registered model"


def test_its_section_is_that_of_a_config_json(tmp_path: Path) -> None:
    section = {"parallel": {"dp": 2, "pp": 2}, "batch": {"global": 16, "sequence": 2048}}
    config = read_config(written(tmp_path, {"registered_model": "llama3_8B", "taylor": section}))
    assert config.model.name == "llama3-8b"
    assert (config.strategy.world_size, config.strategy.global_batch, config.rules.seq_length) == (4, 16, 2048)


@pytest.mark.parametrize(
    "data, told",
    [
        ({"registered_model": "llama3-7b"}, "registered_model: no model of that name.*did you mean llama3-"),
        ({"registered_model": 3}, "registered_model: must be a model's name"),
        ({"registered_model": "llama3-8b", "hidden_size": 8}, "hidden_size: is no known field"),
        ({"registered_model": "llama3-8b", "tailor": {}}, "tailor: is no known field.*did you mean taylor"),
    ],
)
def test_what_it_cannot_mean_is_refused_by_file_and_field(data: object, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"job.json: {told}"):
        read_config(written(tmp_path, data))


def test_a_name_of_the_users_own_register_becomes_a_file_inside_the_output(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(f"name: ../../ours\n{OWN}")
    path = model_file("../../ours", tmp_path / "out", tmp_path / "own")
    assert path.is_relative_to(tmp_path / "out" / "jobs")
    assert read_config(path, tmp_path / "own").model.hidden == 1024


@pytest.mark.slow
def test_a_model_and_a_cluster_are_all_that_a_plan_needs_and_the_plan_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--model", "qwen3-0.6b", "--device", "h100", "--world_size", "8", "--gbs", "32", "--fix", "pp=2,vpp=1"]
    pipeline_parallel.run([*words, "-workers", "1", "-check", "n", "-dryrun", "n", "--result_json", "result.json"])
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "optimal"
    target = tmp_path / "pipeline_output" / "jobs" / "qwen3-0.6b" / "qwen3-0.6b.sh"
    config = read_config(target)
    assert config.plan is not None
    assert (config.strategy.world_size, config.strategy.pp, config.strategy.global_batch) == (8, 2, 32)
    pipeline_parallel.run(["-shell", str(target), "--device", "h100", "-evaluate", "y"])
    assert "peak" in capsys.readouterr().out


def test_its_strategies_are_searched_and_ranked_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--model", "qwen3-0.6b", "--device", "h100-80g", "--world_size", "8", "--gbs", "32"]
    parallel_tool.run([*words, "--profile_num", "2"])
    assert "nd_candidate_config.csv" in capsys.readouterr().out
    fixed = ["--fix", "pp=2,tp=1,vpp=1,mbs=1"]
    pipeline_tool.run([*words, *fixed, "--workers", "1", "--report", "off"])
    [table] = (tmp_path / "pipeline_output").glob("test_result_*.csv")
    assert set(pd.read_csv(table)["status"]) == {"optimal"}


@pytest.mark.parametrize("tool", [pipeline_parallel, parallel_tool, pipeline_tool])
def test_the_ranks_are_the_one_thing_that_must_be_said(
    tool: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="--world_size: is needed with"):
        tool.run(["--model", "llama3-8b"])  # type: ignore[attr-defined]
