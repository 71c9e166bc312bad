"""The command-line surface: frozen, every flag of the user contract exercised for what it does, readable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks.reliability.sandbox import Outcome, preload, run_forked
from benchmarks.reliability.specimens import DEVICE, Specimen, make_specimens
from taylor.command_lines import parallel_tool, pipeline_parallel, pipeline_tool, timeline_tool
from tests.conftest import ROOT

TOOLS = {
    "parallel_tool": parallel_tool,
    "pipeline_tool": pipeline_tool,
    "pipeline_parallel": pipeline_parallel,
    "timeline_tool": timeline_tool,
}

EVERYWHERE = "--config --verbose --quiet --version --json --help -h"
ENVIRONMENT = "--dryrun_backend --env_json --parallel_num --small_dataset --register_path --device"
CONTRACT = {
    "parallel_tool": "--yaml_path --shell_path --toml_path --mindformers_dir --dryrun_data_dir --profile_data_dir "
    "--rank_num --solver_name --dataset --max_expert_parallel --output_path --gbs --world_size --search --recompute "
    "--profile_num --full " + ENVIRONMENT,
    "pipeline_tool": "--yaml_path --mindformers_dir --parser_result --profile_data_dir --solver_name --gbs --nd_path "
    "--workers --time_limit --topn --report " + ENVIRONMENT,
    "pipeline_parallel": "-yaml -shell -toml -mindformers -solver_name -layer_ratio -b_ratio -head_loss -ra_ratio "
    "-sr_ratio -select -t -dryrun -check -evaluate -extract -solution -memory -vpp -schedule -low_mem -o -write "
    "--result_json --trace --html --png " + ENVIRONMENT,
    "timeline_tool": "--log_dir --devices --multi_machine",
}
"""The flags of the user contract, which must stay."""

STOPS = "--allow_illegal -gap --gap --margin --risk --train_tokens --samples --recompute_modules --offload"
SEEN = "--measured_peak --measured_peaks --out_of_memory --peak_of --stage_limit --stage_limits "
MODEL = "--with --software --override --stack "
FURTHER = {
    "parallel_tool": "--fix --max_data_parallel --max_tensor_parallel --max_pipeline_parallel --max_context_parallel "
    "--hf_path --model --framework --seq --disable_rule --list_rules --explain --workers --time_limit "
    "--dryrun_timeout --dryrun_retries --prove --topn --cluster --store --layerwise --env --model_as --images "
    "--encoder --solver --audio_seconds " + SEEN + MODEL + STOPS,
    "pipeline_tool": "--model --framework --world_size --seq --fix --dryrun_timeout --dryrun_retries --prove "
    "--output_path --output --ratios --solver --shard --cluster --store --env --model_as --images --encoder "
    "--audio_seconds " + SEEN + MODEL + STOPS,
    "pipeline_parallel": "-hf --model --framework --world_size --seq --gbs --fix -ratios -workers -mps_form --export "
    "--what_if --what_next -dryrun_data_dir --dryrun_timeout --dryrun_retries --stage_devices --stage_order "
    "--offload_optimizer --lend --images --audio_seconds --encoder --tensors "
    "--cluster --store --env --model_as --output_path --solver --time_limit " + SEEN + MODEL + STOPS,
    "timeline_tool": "--profile_dir --solution --unit_ms --step --steps --window --trace --html --png",
}
"""Flags beyond it: one more or less is a decision, and shows here."""


@pytest.mark.parametrize("name", TOOLS)
def test_the_flags_are_those_that_were_decided_upon(name):
    decided = {*CONTRACT[name].split(), *FURTHER[name].split(), *EVERYWHERE.split()}
    assert set(TOOLS[name].build_parser()._option_string_actions) == decided


@pytest.mark.parametrize("name", TOOLS)
def test_every_flag_is_explained_in_a_group_and_help_fits_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parser = TOOLS[name].build_parser()
    text = parser.format_help()
    assert max(map(len, text.splitlines())) <= 80
    assert "example:" in text
    for action in parser._actions:
        assert action.help or action.option_strings == ["-yaml"], action.option_strings
    grouped = {action for group in parser._action_groups[2:] for action in group._group_actions}
    assert {flag for action in grouped for flag in action.option_strings} >= set(CONTRACT[name].split())


# ---- every flag does what it says ---------------------------------------------------------------


@dataclass(frozen=True)
class Exercise:
    """A command in a specimen's folder, and what shows that its flags had their effect."""

    tool: str
    specimen: str
    words: str
    effect: Callable[[Outcome, Path], bool]


def _csv(folder: Path, name: str = "output/nd_output/nd_candidate_config.csv") -> pd.DataFrame:
    return pd.read_csv(folder / name)


def _ranking(folder: Path) -> pd.DataFrame:
    [path] = (folder / "pipeline_output").glob("test_result_*.csv")
    table = pd.read_csv(path)
    return table[table["own"] == 0].reset_index(drop=True)


def _json(folder: Path) -> dict:
    return json.loads((folder / "r.json").read_text())


def _emitted(folder: Path, which: str) -> list[dict]:
    return [yaml.safe_load(path.read_text()) for path in sorted((folder / f"output/{which}_yaml").glob("*.yaml"))]


def _dataset(data: dict) -> str:
    return data["train_dataset"]["data_loader"]["dataset_dir"]


def _ranks(data: dict) -> int:
    degrees = data["parallel_config"]
    return degrees["data_parallel"] * degrees["model_parallel"] * degrees["pipeline_stage"]


SEARCH = "--yaml_path train.yaml --profile_num 2"
SOLVE = "-yaml train.yaml -memory memory.json -dryrun n -check n --result_json r.json"
RANK = "--yaml_path files --report off --time_limit 5 --workers 1"
DRYRUN = "--dryrun_backend mindspore --env_json env.json --parallel_num 2 --small_dataset own.mindrecord"

EXERCISES = [
    Exercise("parallel_tool", "search", f"{SEARCH} --gbs 512 --world_size 16 --max_expert_parallel 2 --rank_num 4",
             lambda o, f: set(_csv(f).eval("dp * tp * pp")) == {16} and _csv(f)["ep"].max() <= 2
             and max(map(_ranks, _emitted(f, "profile"))) <= 4),
    Exercise("parallel_tool", "search", f"{SEARCH} --dataset far.mindrecord --small_dataset near.mindrecord",
             lambda o, f: {_dataset(d) for d in _emitted(f, "profile")} == {"far.mindrecord"}
             and {_dataset(d) for d in _emitted(f, "dryrun")} == {"near.mindrecord"}),
    Exercise("parallel_tool", "search", f"{SEARCH} --search dp,tp,pp,mbs --recompute none --output_path here/nd",
             lambda o, f: _csv(f, "here/nd/nd_candidate_config.csv")["mbs"].nunique() > 1
             and (f / "here/dryrun_yaml").is_dir() and (f / "here/profile_yaml").is_dir()),
    Exercise("parallel_tool", "device", f"{SEARCH} --register_path own --device test-card --dryrun_backend estimate",
             lambda o, f: len(_csv(f)) > 1),
    Exercise("parallel_tool", "search", f"{SEARCH} --full --solver_name CBC",
             lambda o, f: set(_ranking(f)["solver"].dropna()) == {"CBC"} and "ranking" in o.output),
    Exercise("parallel_tool", "shell-searched", "--shell_path train.sh --profile_num 2",
             lambda o, f: len(list((f / "output/dryrun_yaml").glob("*.sh"))) >= 1),
    Exercise("parallel_tool", "toml-searched", "--toml_path train.toml --profile_num 2",
             lambda o, f: len(list((f / "output/dryrun_yaml").glob("*.toml"))) >= 1),
    Exercise("parallel_tool", "dryrun", f"{SEARCH} --dryrun_data_dir logs",
             lambda o, f: "replay" in set(_csv(f)["source"])),
    Exercise("parallel_tool", "search", f"{SEARCH} --profile_data_dir others",
             lambda o, f: "no candidate has a profile" in o.errors and len(_ranking(f)) == 2),
    Exercise("parallel_tool", "environment", f"{SEARCH} --mindformers_dir . {DRYRUN} --fix tp=2,pp=4",
             lambda o, f: "1 of 1 dry-runs" in o.errors and "own.mindrecord" in o.errors),
    Exercise("pipeline_tool", "ratios", f"{RANK} --parser_result ratios.csv --solver_name HIGHS-MILP --topn 1",
             lambda o, f: list(_ranking(f)["ratio_source"]) == ["parsed"] and _ranking(f)["solver"][0] == "HIGHS-MILP"),
    Exercise("pipeline_tool", "ratios",
             f"{RANK} --gbs 96 --device a100-80g --register_path own --dryrun_backend estimate",
             lambda o, f: "a100-80g" in o.errors and _ranking(f).eval("dp * mbs * micro_batches")[0] == 96),
    Exercise("pipeline_tool", "peaks", f"{RANK} --nd_path nd.csv", lambda o, f: _ranking(f)["peakMem"][0] == 52810),
    Exercise("pipeline_tool", "pipeline_tool-kernel_details.csv", f"{RANK} --profile_data_dir profiles",
             lambda o, f: list(_ranking(f)["ratio_source"]) == ["parsed"]),
    Exercise("pipeline_tool", "environment", f"--yaml_path . --report page.html --mindformers_dir . {DRYRUN}",
             lambda o, f: (f / "page.html").is_file() and "dry-run" in str(_ranking(f)["memory_source"][0])),
    Exercise("pipeline_parallel", "memory", f"{SOLVE} -layer_ratio 0.5 -b_ratio 3 -head_loss 2 -ra_ratio 0.5",
             lambda o, f: (_json(f)["problem"]["backward_ratio"], _json(f)["problem"]["head_forward"],
                           _json(f)["problem"]["recompute_ratio"]["full"]) == (3.0, 2.0, 0.5)),
    Exercise("pipeline_parallel", "memory", f"{SOLVE} -select y -sr_ratio 0.25 -solver_name CBC -t 20 -write n",
             lambda o, f: _json(f)["problem"]["recompute_ratio"]["select"] == 0.25 and _json(f)["solver"] == "CBC"
             and not (f / "train.yaml.orig").exists()),
    Exercise("pipeline_parallel", "memory", f"{SOLVE} -vpp 2 -schedule interleaved -low_mem n -o solved.yaml",
             lambda o, f: _json(f)["interleaves"] == 2 and _json(f)["problem"]["schedule"]["low_memory"] is False
             and (f / "solved.yaml").is_file() and not (f / "train.yaml.orig").exists()),
    Exercise("pipeline_parallel", "memory", f"{SOLVE} -evaluate y --trace t.json --html p.html --png p.png",
             lambda o, f: all((f / name).stat().st_size > 1000 for name in ("t.json", "p.html", "p.png"))
             and not (f / "pipeline_output").exists()),
    Exercise("pipeline_parallel", "result-printed", "-extract y -solution result.json",
             lambda o, f: "objective: 33.0" in o.output),
    Exercise("pipeline_parallel", "shell-solved", "-shell train.sh -dryrun n -check n",
             lambda o, f: "train.sh" in o.output and (f / "train.sh.orig").is_file()),
    Exercise("pipeline_parallel", "toml-solved", "-toml train.toml -dryrun n -check n",
             lambda o, f: (f / "pipeline_output/model_mps/train.mps").is_file()),
    Exercise("pipeline_parallel", "device", "-yaml train.yaml -evaluate y --register_path own --device test-card",
             lambda o, f: "peak" in o.output),
    Exercise("pipeline_parallel", "environment", f"-yaml train.yaml -mindformers . {DRYRUN} -check n -dryrun y",
             lambda o, f: list((f / "pipeline_output").rglob("*.log")) != []),
    Exercise("timeline_tool", "worker", "--log_dir log --devices 1 --trace t.json",
             lambda o, f: b"GPU0" not in (f / "t.json").read_bytes() and b"GPU1" in (f / "t.json").read_bytes()),
    Exercise("timeline_tool", "worker", "--log_dir machines --multi_machine --trace t.json",
             lambda o, f: b"machine:1" in (f / "t.json").read_bytes()),
]  # fmt: skip


@pytest.fixture(scope="module")
def specimens(tmp_path_factory) -> dict[str, Specimen]:
    """Sound input of every kind by name, and all that the commands need already imported."""
    preload()
    made = {one.name: one for one in make_specimens(tmp_path_factory.mktemp("specimens"))}
    search = made["memory"].folder.parent / "search"
    search.mkdir()
    shutil.copy(ROOT / "config" / "pretrain_llama2_7b.yaml", search / "train.yaml")
    (search / "others" / "of_another_job").mkdir(parents=True)
    made["search"] = Specimen("yaml", "search", search, "train.yaml", made["memory"].command)
    own = made["ratios"].folder / "own" / "devices"
    own.mkdir(parents=True)
    (own / "test-card.yaml").write_text(DEVICE)
    for machine in (0, 1):
        shutil.copytree(made["worker"].folder / "log", made["worker"].folder / "machines" / f"machine{machine}")
    return made


@pytest.mark.parametrize("number", range(len(EXERCISES)))
def test_the_flags_of_a_command_have_their_effect(number, specimens, tmp_path):
    exercise = EXERCISES[number]
    folder = tmp_path / "work"
    shutil.copytree(specimens[exercise.specimen].folder, folder)
    outcome = run_forked(exercise.tool, exercise.words.split(), folder, seconds=60, memory_mib=0, may_start=True)
    assert outcome.code == 0, outcome.errors
    assert exercise.effect(outcome, folder), f"{exercise.words}\n{outcome.output}\n{outcome.errors}"


def test_no_flag_of_the_contract_is_left_without_an_exercise():
    left = {
        name: set(CONTRACT[name].split())
        - {word for one in EXERCISES if one.tool == name for word in one.words.split()}
        for name in TOOLS
    }
    assert left == {name: set() for name in TOOLS}


def test_the_general_flags_quiet_verbose_and_config(specimens, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(specimens["flags"].folder, folder)
    loud = run_forked("parallel_tool", ["--config", "flags.json", "--verbose"], folder)
    quiet = run_forked("parallel_tool", ["--config", "flags.json", "--quiet"], folder)
    assert (loud.code, quiet.code) == (0, 0), quiet.errors
    assert "INFO" in loud.errors and "INFO" not in quiet.errors
    assert (folder / "output/nd_output/nd_candidate_config.csv").is_file()
