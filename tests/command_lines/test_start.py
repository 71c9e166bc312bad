"""A command starts at once: what only a solve, a table of candidates or a page needs is not loaded before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = {"numba", "scipy", "pandas", "pydantic", "plotly", "matplotlib", "highspy", "pyomo", "pulp", "torch"}

SCRIPT = """
import json, sys
from taylor.base.console import run_command
from taylor.command_lines import {module}
try:
    run_command(lambda: {module}.run(sys.argv[1:]))
except SystemExit:
    pass
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def loaded(folder, module, *words):
    """The top-level modules that a command has loaded by its end."""
    command = [sys.executable, "-c", SCRIPT.format(module=module), *words]
    done = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1])), done.stdout


@pytest.mark.parametrize("module", ["pipeline_parallel", "parallel_tool", "pipeline_tool"])
def test_help_loads_nothing_heavy(tmp_path, module):
    names, text = loaded(tmp_path, module, "--help")
    assert "usage" in text and not names & (HEAVY | {"rich"})


def test_an_evaluation_loads_no_compiler_no_solver_and_no_tables(tmp_path):
    file = str(ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml")
    names, text = loaded(tmp_path, "pipeline_parallel", "-yaml", file, "-check", "n", "-dryrun", "n", "-evaluate", "y")
    assert "tokens/s" in text and not names & HEAVY
