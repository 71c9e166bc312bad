"""Ctrl-C during a solve ends with 130, leaves the user's file alone and keeps the plan so far beside the results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import pytest

from taylor.base.console import run_command
from taylor.base.errors import EXIT_INTERRUPTED, InterruptedSolve
from taylor.command_lines import pipeline_parallel
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import NO_SOLUTION, Solution, Termination
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.solving.solve import complete
from taylor.pipeline_solver.solving.solvers import solver_named
from taylor.workflows.solving.solve_file import plan_or_raise
from tests.conftest import ROOT
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
    monkeypatch.setattr("taylor.workflows.running.kept_solves.solve", lambda *_, **__: nothing)
    with pytest.raises(InterruptedSolve, match="job.yaml: the search was interrupted before a plan was found") as stop:
        plan_or_raise(reference_problem(), SolveOptions(), None, "job.yaml")
    assert stop.value.exit_code == EXIT_INTERRUPTED


SCRIPT = ROOT / "config" / "pretrain_llama3_70b.sh"
PATIENCE_S = 120


def press(folder, begun, *words):
    """Run the command in a process of its own and press Ctrl-C as soon as `begun` holds; its exit code and its log."""
    log = folder / "log.txt"
    command = [sys.executable, str(ROOT / "pipeline_parallel.py"), *words]
    with open(log, "w") as stream:
        process = subprocess.Popen(command, cwd=folder, stdout=stream, stderr=stream, start_new_session=True)
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < deadline and not begun(log):
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    return process.wait(timeout=PATIENCE_S), log.read_text()


def said(words):
    return lambda log: words in log.read_text()


def one_kept(log):
    return any((log.parent / "pipeline_output" / "solved").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "begun, words",
    [
        (said("strategy DP"), ("-vpp", "4")),
        (said("memory: estimated"), ("-vpp", "4")),
        (one_kept, ("-vpp", "auto", "-schedule", "auto")),
    ],
    ids=["while reading", "while solving", "between two choices"],
)
def test_a_real_ctrl_c_leaves_the_file_and_what_is_kept_can_be_read(tmp_path, begun, words):
    file = tmp_path / "job.sh"
    file.write_bytes(SCRIPT.read_bytes())
    code, text = press(tmp_path, begun, "-shell", "job.sh", "-dryrun", "n", "-check", "n", *words)
    assert code == 130 and "Traceback" not in text, text
    assert "interrupted" in text.splitlines()[-1]
    assert file.read_bytes() == SCRIPT.read_bytes() and not list(tmp_path.glob("*.orig"))
    kept = tmp_path / "pipeline_output" / "interrupted" / "job.json"
    if begun is one_kept:
        assert kept.exists(), text
    if kept.exists():
        result = read_result(kept)
        assert result.solution.bound is None or result.solution.bound <= result.solution.objective
        assert read_config(kept.with_name("job-so-far.sh")).plan.total_layers() == result.plan.total_layers()


@pytest.mark.slow
def test_a_real_ctrl_c_while_strategies_are_solved_keeps_those_that_are_done(tmp_path):
    def one_row(log):
        return any((log.parent / "pipeline_output" / "jobs").glob("*/solved/*.json"))

    words = ("--model", "llama3-70b", "--device", "h100-80g", "--world_size", "64", "-workers", "2")
    code, text = press(tmp_path, one_row, *words)
    assert code == 130 and "Traceback" not in text, text
    (table,) = (tmp_path / "pipeline_output" / "jobs").glob("*/test_result_*.csv")
    assert "optimal" in table.read_text() or "feasible" in table.read_text()


@pytest.mark.parametrize("caught_by", ["the solver", "what comes behind it"])
def test_a_press_whose_exception_is_caught_on_its_way_still_ends_the_choices(
    monkeypatch, reference_yaml, tmp_path, caught_by
):
    begun = []

    def caught():
        begun.append(caught_by)
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    def pressed_within(name):
        def run(*inputs, **named):
            caught()
            return solver_named(name).load()(*inputs, **named)

        return replace(solver_named(name), load=lambda: run)

    def pressed_behind(*inputs):
        caught()
        return complete(*inputs)

    if caught_by == "the solver":
        monkeypatch.setattr("taylor.pipeline_solver.solving.solve.solver_named", pressed_within)
    else:
        monkeypatch.setattr("taylor.pipeline_solver.solving.solve.complete", pressed_behind)
    monkeypatch.chdir(tmp_path)
    words = ("-yaml", str(reference_yaml), "-memory", "memory.json", "-dryrun", "n", "-check", "n", "-vpp", "auto")
    assert run_command(lambda: pipeline_parallel.run(words)) == EXIT_INTERRUPTED
    assert len(begun) == 1, "another choice was solved after Ctrl-C"
