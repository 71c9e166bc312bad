"""A file's own plan is where a solve begins: what is written is never worse, whatever the time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs

CONFIG = Path("config").resolve()


@pytest.mark.slow
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


def test_a_layout_by_hand_may_leave_chunks_empty_and_so_may_the_solved_one(tmp_path):
    script = tmp_path / "hand.sh"
    text = (CONFIG / "pretrain_llama3_70b.sh").read_text()
    pp = read_config(CONFIG / "pretrain_llama3_70b.sh").strategy.pp
    chunks = ["E", *["t*" + str(80 // (2 * pp - 2))] * (2 * pp - 2), "L"]
    left = 80 - (80 // (2 * pp - 2)) * (2 * pp - 2)
    chunks[1] = f"t*{80 // (2 * pp - 2) + left}"
    script.write_text(f"{text.rstrip()} --pipeline-model-parallel-layout '{'|'.join(chunks)}'\n")
    config = read_config(script)
    assert config.plan is not None and config.strategy.vpp == 2
    job = FileJob(script, dryrun=False, check=False)
    solved = solve_file(job, SolveOptions(time_limit=2.0), Outputs(folder=tmp_path / "out", write=False))
    assert solved.problem.entries_alone and solved.problem.least_layers[0] == solved.problem.least_layers[-1] == 0
    assert solved.solution.objective <= solved.own.objective * (1 + 1e-9)
