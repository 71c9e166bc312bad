"""A solve that is done is not done again: the same command answers at once, from what its first run kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.parsers.read import read_config
from taylor.pipeline.schedule import AUTO
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import CUT_OFF, INFEASIBLE, NO_SOLUTION, OPTIMAL, Solution, Termination
from taylor.workflows.running import kept_solves
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.showing.verdict import summary
from taylor.workflows.solving import solve_file as module
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT
from tests.solver_cases import reference_problem

PROBLEM = reference_problem()
PLAN = kept_solves.solve(PROBLEM)


def copied(folder: Path) -> FileJob:
    path = folder / "llama2.yaml"
    path.write_bytes((ROOT / "config" / "pretrain_llama2_7b.yaml").read_bytes())
    return FileJob(path, dryrun=False, check=False)


def never(problem: PipelineProblem, *_: object, **__: object) -> Solution:
    pytest.fail(f"solved again: {problem}")


@pytest.mark.slow
@pytest.mark.parametrize("choices", [{}, {"vpp": AUTO, "schedule": AUTO}])
def test_the_same_command_again_gives_the_same_files_and_solves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, choices: dict[str, str]
) -> None:
    job = FileJob(copied(tmp_path).path, dryrun=False, check=False, **choices)  # type: ignore[arg-type]
    original = job.path.read_bytes()
    outputs = Outputs(folder=tmp_path / "out")
    first = solve_file(job, SolveOptions(), outputs)
    written = {role: Path(name).read_bytes() for role, name in first.files.items()}
    job.path.write_bytes(original)
    monkeypatch.setattr(kept_solves, "solve", never)
    caplog.set_level("INFO", logger="taylor")
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_model", lambda *_, **__: pytest.fail("the model was built again"))
        again = solve_file(job, SolveOptions(workers=2, time_limit=1.0), outputs)
    Path(first.files["mps"]).write_text("changed by hand", encoding="utf-8")
    job.path.write_bytes(original)
    again = solve_file(job, SolveOptions(), outputs)
    assert again.solution == first.solution
    assert not first.solution.solved_on and f"by the run of {again.solution.solved_on}" in summary(again)[0][1]
    assert {role: Path(name).read_bytes() for role, name in again.files.items()} == written
    found = [line for line in caplog.messages if "found again: solved on 20" in line]
    assert len(found) == 2 * max(1, sum(one.status != "impossible" for one in first.alternatives))


def test_a_run_killed_before_its_last_write_is_told_the_file_s_own_plan_when_it_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    job = copied(tmp_path)
    outputs = Outputs(folder=tmp_path / "out", result_json=tmp_path / "result.json", trace=tmp_path / "trace.json")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, "write_plan", killed)
        solve_file(job, SolveOptions(), outputs)
    left = {path: path.read_bytes() for path in (tmp_path / "result.json", tmp_path / "trace.json")}
    solve_file(job, SolveOptions(), outputs)
    assert {path: path.read_bytes() for path in left} == left
    assert job.path.read_bytes() != (ROOT / "config" / "pretrain_llama2_7b.yaml").read_bytes()


def test_a_plan_that_a_time_limit_ended_serves_the_same_or_a_smaller_limit_alone(tmp_path: Path) -> None:
    store = SolveStore(tmp_path)
    open_plan = PLAN.replace(bound=0.9 * (PLAN.objective or 0.0)).ended_by(Termination.TIME_LIMIT)
    store.keep(PROBLEM, SolveOptions(time_limit=5.0), open_plan)
    for limit, found in ((5.0, True), (1.0, True), (6.0, False), (None, False)):
        assert (store.find(PROBLEM, SolveOptions(time_limit=limit)) is not None) == found
    store.keep(PROBLEM, SolveOptions(time_limit=9.0), PLAN)
    kept = store.find(PROBLEM, SolveOptions())
    assert kept is not None and kept.solution == PLAN


def test_a_solve_that_was_cut_off_serves_while_its_bound_reaches_the_step_to_beat(tmp_path: Path) -> None:
    store = SolveStore(tmp_path)
    store.keep(PROBLEM, SolveOptions(cutoff=lambda: 10.0), Solution(CUT_OFF, Termination.CUT_OFF, bound=11.0))
    for to_beat, found in ((10.5, True), (11.0, True), (11.5, False)):
        assert (store.find(PROBLEM, SolveOptions(cutoff=lambda to_beat=to_beat: to_beat)) is not None) == found  # type: ignore[misc]
    assert store.find(PROBLEM, SolveOptions()) is None


@pytest.mark.parametrize("status", [OPTIMAL, INFEASIBLE])
def test_what_is_proven_serves_any_limit_and_nothing_takes_its_place(tmp_path: Path, status: str) -> None:
    store = SolveStore(tmp_path)
    proven = PLAN if status == OPTIMAL else Solution(INFEASIBLE, Termination.INFEASIBLE)
    store.keep(PROBLEM, SolveOptions(time_limit=1.0), proven)
    store.keep(PROBLEM, SolveOptions(time_limit=9.0), PLAN.ended_by(Termination.TIME_LIMIT))
    kept = store.find(PROBLEM, SolveOptions(time_limit=99.0, workers=4))
    assert kept is not None and kept.solution == proven


@pytest.mark.parametrize("end", [Termination.INTERRUPTED, Termination.SOLVER_FAILURE])
def test_what_ended_by_accident_is_not_kept(tmp_path: Path, end: Termination) -> None:
    store = SolveStore(tmp_path)
    store.keep(PROBLEM, SolveOptions(), PLAN.ended_by(end))
    store.keep(PROBLEM, SolveOptions(), Solution(NO_SOLUTION).ended_by(end))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"gap": 1e-3}, {"solver": "CBC"}])
def test_another_question_is_another_solve(tmp_path: Path, change: dict[str, object]) -> None:
    store = SolveStore(tmp_path)
    store.keep(PROBLEM, SolveOptions(), PLAN)
    assert store.find(PROBLEM, SolveOptions().replace(**change)) is None
    assert store.find(PROBLEM.replace(micro_batches=PROBLEM.micro_batches + 1), SolveOptions()) is None


def test_a_kept_solve_that_a_disk_has_spoilt_is_done_again(tmp_path: Path) -> None:
    job = copied(tmp_path)
    outputs = Outputs(folder=tmp_path / "out", write=False)
    first = solve_file(job, SolveOptions(), outputs)
    kept = next(path for path in (outputs.folder / kept_solves.FOLDER).iterdir() if path.suffixes == [".json"])
    kept.write_bytes(kept.read_bytes()[:-40])
    assert solve_file(job, SolveOptions(), outputs).solution.objective == first.solution.objective
    assert read_config(job.path).plan is not None
