"""An environment file that nobody named cannot choose the program that is started."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path):
    """A folder with its own environment file, whose interpreter leaves a trace of having been started."""
    program = tmp_path / "python-of-the-folder"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\nexit 3\n")
    program.chmod(0o755)
    (tmp_path / "config").mkdir()
    (tmp_path / "mindformers").mkdir()
    (tmp_path / "mindformers" / "run_mindformer.py").write_text("raise SystemExit(1)\n")
    entries = {"TAYLOR_DRYRUN_PYTHON": str(program), "LD_PRELOAD": "own.so", "GLOG_v": "2"}
    (tmp_path / "config" / "env_config.json").write_text(json.dumps(entries))
    return tmp_path


SEARCH = ("parallel_tool.py", "--yaml_path", ROOT / "config" / "pretrain_llama2_7b.yaml", "--profile_num", "1")


def test_the_working_folders_own_file_starts_nothing(run_tool, folder):
    done = run_tool(*SEARCH)
    assert done.returncode == 0, done.stderr
    assert not (folder / "started").exists()
    assert "TAYLOR_DRYRUN_PYTHON, LD_PRELOAD not taken" in done.stderr and "--env_json" in done.stderr


def test_a_file_that_was_named_does_and_what_is_started_is_said(run_tool, folder):
    (folder / "named.json").write_text(json.dumps({"TAYLOR_DRYRUN_PYTHON": str(folder / "python-of-the-folder")}))
    done = run_tool(*SEARCH, "--env_json", "named.json")
    assert done.returncode == 0, done.stderr
    assert (folder / "started").exists()
    assert f"Python is {folder / 'python-of-the-folder'}, as TAYLOR_DRYRUN_PYTHON of named.json says" in done.stderr
