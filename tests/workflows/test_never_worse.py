"""A file's own plan is where a solve begins: what is written is never worse, whatever the time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.parsers.read import read_config
from taylor.pipeline_solver.options import SolveOptions
from taylor.workflows.options import FileJob, Outputs
from taylor.workflows.solve_file import solve_file

CONFIG = Path("config").resolve()


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_with_no_time_at_all_the_files_own_plan_is_kept(tmp_path, solver):
    good, again = tmp_path / "good.sh", tmp_path / "again.sh"
    job = FileJob(CONFIG / "pretrain_llama3_70b.sh", vpp=2, dryrun=False, check=False)
    first = solve_file(job, SolveOptions(gap=0.01), Outputs(folder=tmp_path / "one", write_to=good))
    assert read_config(good).plan is not None
    job = FileJob(good, dryrun=False, check=False)
    no_time = SolveOptions(solver=solver, time_limit=0.0)
    second = solve_file(job, no_time, Outputs(folder=tmp_path / "two", write_to=again))
    assert second.solution.objective <= first.solution.objective * (1 + 1e-9)
    assert second.own.objective == pytest.approx(first.solution.objective)
    assert read_config(again).plan is not None
