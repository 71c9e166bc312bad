"""Single rules of dry-runs and of the fit to them, against what is known without the code."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from taylor.base.errors import InfeasibleError
from taylor.dryrun.fitting.design import column_scale
from taylor.dryrun.fitting.near_plans import StageRecord, near_plans
from taylor.dryrun.mindspore_backend import MindsporeBackend
from taylor.dryrun.processes import ProgramRun, run_program
from taylor.dryrun.torch_backend import TorchBackend
from taylor.pipeline_solver.model.problem import PipelineProblem
from tests.solver_cases import small_problem


def test_a_program_that_a_signal_ends_is_told_by_the_signal(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    outcome = run_program(ProgramRun(command, dict(os.environ), tmp_path, tmp_path / "log", 60.0))
    assert (outcome.failure, outcome.signal, outcome.worth_retry) == ("killed by signal 9", signal.SIGKILL, True)
    command = (sys.executable, "-c", "raise SystemExit(3)")
    outcome = run_program(ProgramRun(command, dict(os.environ), tmp_path, tmp_path / "log", 60.0))
    assert (outcome.failure, outcome.signal) == ("crashed with exit code 3", 0)


def test_only_the_framework_itself_lets_every_flag_have_its_effect() -> None:
    """MindSpore compiles the job as it is; the torch stage is a stand-in that knows some of the flags."""
    assert MindsporeBackend.every_flag is True
    assert TorchBackend.every_flag is False


def test_a_coefficient_of_nothing_counts_as_a_thousandth_of_the_largest() -> None:
    assert column_scale(np.array([1.5, 0.0, 0.3])).tolist() == pytest.approx([1.5, 1.5e-3, 0.3])
    assert column_scale(np.array([2000.0, 1.0])).tolist() == pytest.approx([2000.0, 2.0])


def test_nearby_plans_are_first_sought_at_the_limits_and_half_a_deviation_above() -> None:
    """Where peaks scatter by 2 %, a stage of 100 MiB may turn out to hold a plan that is fitted to 101 MiB."""
    asked: list[tuple[float, ...]] = []

    def none(problem: PipelineProblem):  # type: ignore[no-untyped-def]
        asked.append(problem.limit_mib)
        raise InfeasibleError("no plan")

    limits = np.array([100.0, 200.0])
    found = near_plans(
        small_problem(), StageRecord(None), lambda plan: limits, limits, 0.02, none, tried=(), to_beat=100.0, number=3  # type: ignore[arg-type]
    )  # fmt: skip
    assert found == []
    assert [tuple(round(one, 6) for one in each) for each in asked] == [(100.0, 200.0), (101.0, 202.0)]
