"""Ctrl-C during a solve ends with 130, leaves the user's file alone and keeps the plan so far beside the results."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager

import numpy as np
import pytest

from taylor.base.console import run_command
from taylor.base.errors import EXIT_INTERRUPTED, InterruptedSolve
from taylor.command_lines import pipeline_parallel
from taylor.parsers.read import read_config
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.solution import NO_SOLUTION, Solution, Termination
from taylor.workflows.solve_file import plan_or_raise
from tests.solver_cases import reference_problem


@pytest.fixture
def solve_pressing(monkeypatch, tmp_path, reference_yaml):
    """Solve the reference file and press Ctrl-C once, when a progress report satisfies a condition."""
    monkeypatch.chdir(tmp_path)

    def solve(moment, *words):
        pressed = []

        @contextmanager
        def live_line(title):
            def on_progress(progress):
                if not pressed and moment(progress):
                    pressed.append(progress)
                    signal.raise_signal(signal.SIGINT)

            yield on_progress

        monkeypatch.setattr("taylor.report.terminal.live_line", live_line)
        flags = ["-yaml", str(reference_yaml), "-memory", "memory.json", "-dryrun", "n", "-check", "n", *words]
        code = run_command(lambda: pipeline_parallel.run(flags))
        assert pressed, "the moment never came"
        return code

    return solve


def has_plan(progress):
    return progress.objective is not None


@pytest.mark.parametrize("words", [(), ("-vpp", "auto")])
def test_the_plan_so_far_goes_beside_the_results_and_the_file_stays(
    solve_pressing, reference_yaml, tmp_path, capsys, words
):
    before = reference_yaml.read_bytes()
    assert solve_pressing(has_plan, "-o", "solved.yaml", "--result_json", "result.json", *words) == EXIT_INTERRUPTED
    assert reference_yaml.read_bytes() == before
    assert not (tmp_path / "solved.yaml").exists() and not (tmp_path / "result.json").exists()
    assert not list(tmp_path.glob("*.orig"))

    kept = tmp_path / "pipeline_output" / "interrupted"
    result = json.loads((kept / "deepseek3.json").read_text())
    assert 0 < result["bound"] <= result["objective"]
    written = read_config(kept / "deepseek3-so-far.yaml")
    assert np.array_equal(written.plan.offset(), result["offset"])
    assert (kept / "deepseek3.sol").exists()
    told = capsys.readouterr().err
    assert "is as it was" in told and f"gap {100 * result['gap']:.2f} %" in told


def test_no_copy_is_written_where_the_configuration_was_not_to_be_written(solve_pressing, tmp_path):
    assert solve_pressing(has_plan, "-write", "n") == EXIT_INTERRUPTED
    assert sorted(path.name for path in (tmp_path / "pipeline_output" / "interrupted").iterdir()) == [
        "deepseek3.json",
        "deepseek3.sol",
    ]


def test_a_solve_interrupted_before_any_plan_ends_with_130_too(monkeypatch):
    nothing = Solution(NO_SOLUTION).ended_by(Termination.INTERRUPTED)
    monkeypatch.setattr("taylor.workflows.kept_solves.solve", lambda *_, **__: nothing)
    with pytest.raises(InterruptedSolve, match="job.yaml: the search was interrupted before a plan was found") as stop:
        plan_or_raise(reference_problem(), SolveOptions(), None, "job.yaml")
    assert stop.value.exit_code == EXIT_INTERRUPTED
