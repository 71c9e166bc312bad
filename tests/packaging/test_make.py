"""What `make` does on a machine with Python, pip and make alone, as it says it before it does it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def steps(target: str, venv: Path) -> list[str]:
    """The commands that make would run where nothing is installed yet."""
    command = ["make", "--dry-run", "--no-print-directory", "-C", str(ROOT), target, f"VENV={venv}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_demo_says_first_how_long_it_takes_and_installs_what_it_needs_alone(tmp_path):
    first, *further = steps("demo", tmp_path / "venv")
    assert first.startswith("echo") and "minutes" in first
    [install] = [line for line in further if " install " in line]
    assert install.endswith("install -e .")
    assert "source" in "".join(further[-3:])


def test_the_demo_searches_solves_ranks_and_draws_files_that_the_repository_holds(tmp_path):
    lines = steps("demo", tmp_path / "venv")
    run = [line for line in lines if re.search(r"bin/python (\w+\.py|-m benchmarks)", line)]
    assert [re.search(r"(\w+_\w+)(\.py)? ", line)[1] for line in run] == [
        "parallel_tool", "synthetic_profiles", "pipeline_tool", "timeline_tool",
    ]  # fmt: skip
    assert "--full" in run[0] and "pretrain_deepseek3_671b_1024p.yaml" in run[0]
    assert len(list((ROOT / "log").glob("workerlog.*"))) == 4


def test_the_tests_install_the_rest(tmp_path):
    assert any("install -e '.[test]'" in line for line in steps("install", tmp_path / "venv"))
