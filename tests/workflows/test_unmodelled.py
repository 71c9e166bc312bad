"""A flag that no figure takes into account is told by every command that reads a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.pipeline_solver.result import read_result
from tests.conftest import ROOT

SENTENCES = (
    "--swap-optimizer is not modelled; it means less memory and more time: optimizer states lie in the host's memory",
    "--odd 3 is not known: what it changes is not in the figures",
)
QUIET = "--log-interval 1 --seed 7"


@pytest.fixture()
def script(tmp_path: Path) -> Path:
    """The example script with a flag that costs, an unknown one and two that cost nothing."""
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text()
    path = tmp_path / "files" / "pretrain_llama3_70b.sh"
    path.parent.mkdir()
    path.write_text(text.rstrip() + f" --swap-optimizer --odd 3 {QUIET}\n")
    return path


def test_an_evaluated_script_names_them_in_the_log_and_in_the_result(run_tool, script, tmp_path):
    words = ("-evaluate", "y", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words)
    assert done.returncode == 0, done.stderr
    for sentence in SENTENCES:
        assert sentence in " ".join((done.stdout + done.stderr).split())
    assert "log-interval" not in done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["unmodelled"] == list(SENTENCES)
    assert read_result(tmp_path / "r.json").unmodelled == SENTENCES


def test_a_search_names_them(run_tool, script):
    done = run_tool("parallel_tool.py", "--shell_path", script, "--dryrun_backend", "estimate")
    assert done.returncode == 0, done.stderr
    for sentence in SENTENCES:
        assert sentence in " ".join((done.stdout + done.stderr).split())


def test_a_ranking_names_each_once_for_all_its_candidates(run_tool, script):
    (script.parent / "second.sh").write_text(script.read_text())
    done = run_tool("pipeline_tool.py", "--yaml_path", script.parent, "--time_limit", "2", "--workers", "1")
    assert done.returncode == 0, done.stderr
    for sentence in SENTENCES:
        assert " ".join((done.stdout + done.stderr).split()).count(sentence) == 1


def test_a_file_of_nothing_but_odd_flags_is_told_in_few_lines(run_tool, script, tmp_path):
    odd = " ".join(f"--odd{number}" for number in range(5000))
    script.write_text(script.read_text().rstrip() + f" {odd}\n")
    words = ("-evaluate", "y", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words)
    assert done.returncode == 0, done.stderr
    told = " ".join((done.stdout + done.stderr).split())
    assert told.count("is not known") < 100 and "further flags are in no figure" in told
    assert len(json.loads((tmp_path / "r.json").read_text())["unmodelled"]) == 5002
