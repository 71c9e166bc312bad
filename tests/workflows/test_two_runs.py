"""Two runs of one command that begin at once in one folder: both end well, and no file is a mixture of both."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from taylor.base.isolated import module_command
from taylor.parsers.read import read_config
from tests.conftest import ROOT

FILE = ROOT / "config" / "pretrain_llama2_7b.yaml"


def twice(folder: Path, *words: str) -> None:
    command = module_command("taylor", *words)
    both = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for run in both:
        _, errors = run.communicate(timeout=300)
        assert run.returncode == 0, errors.decode()


@pytest.mark.slow
def test_two_solves_of_one_file_leave_its_plan_and_its_original(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "job.yaml")
    twice(tmp_path, "solve", "job.yaml", "-t", "10", "-dryrun", "n", "-check", "n", "--result_json", "result.json")
    assert (tmp_path / "job.yaml.orig").read_bytes() == FILE.read_bytes()
    assert read_config(tmp_path / "job.yaml").plan is not None
    assert not [file for file in tmp_path.rglob(".*") if file.is_file()]


@pytest.mark.slow
def test_two_searches_and_two_rankings_in_one_folder_find_the_same_strategies(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "job.yaml")
    twice(tmp_path, "search", "job.yaml", "--profile_num", "3")
    emitted = sorted(file.name for file in (tmp_path / "output" / "dryrun_yaml").glob("DP*.yaml"))
    assert emitted and all(read_config(tmp_path / "output" / "dryrun_yaml" / name) for name in emitted)
    twice(tmp_path, "rank", "--yaml_path", "output/dryrun_yaml", "--time_limit", "20", "--topn", "3")
    tables = [pd.read_csv(file) for file in (tmp_path / "pipeline_output").glob("test_result_*.csv")]
    first, second = (table[["dp", "tp", "pp", "ep", "objective", "offset"]] for table in tables)
    pd.testing.assert_frame_equal(first, second)
