"""Which of MindSpore's two interleaved orders a job runs: the environment says it, the command line overrides."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.profiling.extract import ExtractedRatios
from taylor.workflows.ranking import profiles
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.statement.options import DryRunOptions, FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import ROOT

FILE, SCRIPT = ROOT / "config" / "pretrain_llama2_7b.yaml", ROOT / "config" / "pretrain_llama3_70b.sh"
VARIABLE = "ENABLE_LESS_MEM_VPP"


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_mindspore_interleaves_in_the_high_memory_order_unless_its_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not read_config(FILE).schedule.low_memory
    monkeypatch.setenv(VARIABLE, "1")
    assert read_config(FILE).schedule.low_memory
    assert not read_config(SCRIPT).schedule.low_memory
    monkeypatch.setenv(VARIABLE, "0")
    assert not read_config(FILE).schedule.low_memory


def test_a_value_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(InputError, match=VARIABLE):
        read_config(FILE)


@pytest.mark.parametrize("told", [True, False])
def test_the_environment_file_of_the_runs_goes_before_the_tools_own(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(int(not told)))
    env_json = tmp_path / "env.json"
    env_json.write_text(json.dumps({VARIABLE: int(told)}))
    stated = StatedFile.read(FileJob(FILE, vpp=2, dryruns=DryRunOptions(env_json=env_json)))
    assert (stated.running.schedule.name, stated.running.schedule.low_memory) == ("interleaved", told)
    candidate = load_candidates([FILE], env_json=env_json)[0].config
    assert candidate is not None and candidate.schedule.low_memory is told


@pytest.mark.parametrize(
    ("variable", "low_mem", "line"),
    [
        (None, None, f"interleaving in the high-memory order ({VARIABLE} is not set)"),
        ("1", None, f"interleaving in the low-memory order ({VARIABLE} is set)"),
        ("1", False, "interleaving in the high-memory order (as asked for)"),
        (None, True, "interleaving in the low-memory order (as asked for)"),
    ],
)
def test_the_order_that_holds_is_said_in_one_line(
    variable: str | None, low_mem: bool | None, line: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    with caplog.at_level("INFO"):
        stated = StatedFile.read(FileJob(FILE, vpp=2, low_memory=low_mem))
    assert stated.running.schedule.low_memory is ("low-memory" in line)
    assert [record.getMessage() for record in caplog.records if "interleaving" in record.getMessage()] == [
        f"{FILE}: {line}"
    ]


def test_nothing_is_said_where_there_is_one_order_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        StatedFile.read(FileJob(FILE))
        StatedFile.read(FileJob(SCRIPT, vpp=2))
    assert not [record for record in caplog.records if "interleaving in the" in record.getMessage()]


@pytest.mark.parametrize(
    "command",
    [
        "msrun --worker_num=16 run_mindformer.py --config configs/a.yaml --run_mode train",
        'bash scripts/msrun_launcher.sh "run_mindformer.py --config configs/a.yaml --run_mode train" 16',
        "python run_mindformer.py --config=configs/a.yaml",
    ],
)
@pytest.mark.parametrize(("value", "says"), [("1", "-low_mem y"), ("0", "-low_mem n"), (None, "")])
def test_a_script_that_starts_mindformers_names_its_configuration_and_the_order_it_sets(
    command: str, value: str | None, says: str, tmp_path: Path
) -> None:
    script = tmp_path / "run.sh"
    script.write_text("".join(["#!/bin/bash\n", f"export {VARIABLE}={value}\n" if value else "", command, "\n"]))
    with pytest.raises(InputError, match=r"starts run_mindformer\.py on configs/a\.yaml; give that file") as refused:
        read_config(script)
    assert says in str(refused.value) and (VARIABLE in str(refused.value)) == (value is not None)


def test_where_the_variable_stands_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env_json = tmp_path / "env.json"
    for value, says in ((1, f"({VARIABLE} is set in {env_json})"), (0, f"({VARIABLE} is 0 in {env_json})")):
        env_json.write_text(json.dumps({VARIABLE: value}))
        with caplog.at_level("INFO"):
            StatedFile.read(FileJob(FILE, vpp=2, dryruns=DryRunOptions(env_json=env_json)))
        assert caplog.records[-1].getMessage().endswith(says)


def test_profiles_are_read_as_those_of_the_order_that_the_environment_file_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env.json").write_text(json.dumps({VARIABLE: 1}))
    seen: list[bool] = []

    def extract(config: TrainingConfig, folder: Path) -> ExtractedRatios:
        seen.append(config.schedule.low_memory)
        raise InputError("no profile")

    folders = SimpleNamespace(unknown=(), absent=(), found={FILE: tmp_path}, profiled={FILE: FILE})
    monkeypatch.setattr(profiles, "find_profile_folders", lambda data, files: folders)
    monkeypatch.setattr(profiles, "extract_ratios", extract)
    for env_json in (None, tmp_path / "env.json"):
        profiles.parse_profiles([FILE], tmp_path, None, tmp_path, env_json=env_json)
    assert seen == [False, True]
