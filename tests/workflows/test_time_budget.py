"""A time limit is that of the whole command: its plan and its result are there whatever else the time leaves out."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from taylor.parsers.read import read_config
from taylor.pipeline.schedule import AUTO
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.model_files import write_model
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import FEASIBLE, OPTIMAL, Termination
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.solving import exact, kernel_wait
from taylor.pipeline_solver.solving import solve as solve_module
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.solving import solve_file as module
from taylor.workflows.solving import solve_variants
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.solver_cases import reference_problem

LARGE = """torchrun --nproc_per_node 8 --nnodes 128 pretrain_gpt.py --num-layers 126 --hidden-size 16384
 --ffn-hidden-size 53248 --num-attention-heads 128 --group-query-attention --num-query-groups 8 --seq-length 8192
 --max-position-embeddings 131072 --micro-batch-size 1 --global-batch-size 512 --tensor-model-parallel-size 8
 --pipeline-model-parallel-size 16 --num-virtual-stages-per-pipeline-rank 8 --account-for-embedding-in-pipeline-split
 --account-for-loss-in-pipeline-split --sequence-parallel --swiglu --normalization RMSNorm
 --untie-embeddings-and-output-weights --disable-bias-linear --bf16 --use-distributed-optimizer --use-flash-attn
 --position-embedding-type rope --vocab-size 128256""".replace("\n", "")


@pytest.fixture
def large(tmp_path: Path) -> FileJob:
    """LLaMA-3.1 405B in 128 chunks, whose model file takes minutes to complete."""
    path = tmp_path / "l405.sh"
    path.write_text(LARGE)
    return FileJob(path, dryrun=False, check=False, device="h100-80g")


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "kernels_by", lambda deadline: deadline is None)
    monkeypatch.setattr(exact, "kernels_by", lambda deadline: deadline is None)


@pytest.mark.slow
def test_a_large_job_has_its_plan_bound_and_result_where_the_limit_leaves_no_time_for_the_model_file(
    large: FileJob, not_compiled: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = Outputs(folder=tmp_path / "out", result_json=tmp_path / "r.json", write=False)
    old = tmp_path / "out" / "model_mps" / "l405.mps"
    old.parent.mkdir(parents=True)
    old.write_text("of another plan")
    caplog.set_level("WARNING", logger="taylor")
    budget = module.TimeBudget(time.monotonic() - 60.0)
    done = solve_file(large, SolveOptions(time_limit=5.0), outputs, budget=budget)
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["status"] == "feasible" and 0 < result["bound"] < result["objective"]
    assert "mps" not in done.files and not old.exists()
    assert "no model file" in caplog.text


@pytest.mark.slow
def test_the_result_is_stored_before_the_model_file_is_begun(
    large: FileJob, not_compiled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tmp_path / "r.json"

    def late(*_: Any, **__: Any) -> bool:
        assert json.loads(result.read_text())["offset"]
        raise OutOfTime

    monkeypatch.setattr(module, "write_model", late)
    outputs = Outputs(folder=tmp_path / "out", result_json=result)
    done = solve_file(large, SolveOptions(time_limit=1.0), outputs)
    plan = read_config(large.path).plan
    assert plan is not None and plan.total_layers() == done.plan.total_layers()
    assert json.loads(result.read_text())["files"].keys() == {"config", "result"}


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
def test_every_solver_gives_a_plan_and_a_bound_before_its_kernels_are_compiled(not_compiled: None, solver: str) -> None:
    problem = reference_problem(interleaves=2, limit_mib=60000.0)
    found = solve(problem, SolveOptions(solver=solver, time_limit=1.0))
    assert found.status is FEASIBLE and found.termination is Termination.NOT_COMPILED
    assert found.plan is not None and not check(problem, found.plan, found.objective)
    assert found.bound is not None and 0 < found.bound <= (found.objective or 0.0)


def test_such_a_plan_is_not_kept_for_a_run_that_has_the_kernels(tmp_path: Path) -> None:
    problem = reference_problem()
    best = solve(problem)
    store = SolveStore(tmp_path)
    store.keep(problem, SolveOptions(time_limit=5.0), best.ended_by(Termination.NOT_COMPILED))
    assert store.find(problem, SolveOptions(time_limit=5.0)) is None


def test_kernels_that_are_kept_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taylor.base.compiled.are_kept", lambda kernels: True)
    monkeypatch.setattr(kernel_wait.multiprocessing, "get_context", lambda kind: pytest.fail("a process was started"))
    assert kernel_wait.kernels_by(time.monotonic() + 60.0)
    assert kernel_wait.kernels_by(None)


def test_kernels_that_take_longer_than_the_limit_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taylor.base.compiled.are_kept", lambda kernels: False)
    monkeypatch.setattr(kernel_wait, "_compile", lambda part: time.sleep(600.0))
    monkeypatch.setattr(kernel_wait, "_may_fork", lambda: True)
    assert not kernel_wait.kernels_by(time.monotonic() + 0.2)


def test_the_problems_that_compile_every_kernel_have_plans() -> None:
    for interleaves in (1, 2):
        assert solve(kernel_wait.small_problem(interleaves)).status is OPTIMAL


def test_a_model_that_is_not_built_in_time_leaves_its_files_as_they_were(tmp_path: Path) -> None:
    problem = reference_problem()
    mps, sol = tmp_path / "m.mps", tmp_path / "m.sol"
    with pytest.raises(OutOfTime):
        CompactModel.build(problem, Stopper(time.monotonic() - 1.0))
    with pytest.raises(OutOfTime):
        write_model(problem, solve(problem), mps, sol, deadline=time.monotonic() - 1.0)
    assert not mps.exists() and not sol.exists()
    assert write_model(problem, solve(problem), mps, sol, deadline=time.monotonic() + 600.0)


def test_choices_of_schedule_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def recorded(problem: Any, how: SolveOptions, *rest: Any, **more: Any) -> Any:
        assert how.time_limit is not None
        given.append(how.time_limit)
        return solve(problem, how)

    monkeypatch.setattr(solve_variants, "solve_or_find", recorded)
    path = tmp_path / "small.yaml"
    from tests.conftest import ROOT

    path.write_bytes((ROOT / "config" / "pretrain_llama2_7b.yaml").read_bytes())
    job = FileJob(path, dryrun=False, check=False, vpp=AUTO, schedule=AUTO)
    solve_file(job, SolveOptions(time_limit=60.0), Outputs(folder=tmp_path / "out"))
    assert len(given) > 1
    assert given[0] <= 60.0 / len(given)


def test_a_layer_wise_search_whose_bounds_are_late_has_the_best_plan_of_one_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.layerwise_brute_force import random_case
    from taylor.layerwise import search as layerwise_search
    from taylor.layerwise.checker import check_plan

    def late(*_: Any, **__: Any) -> Any:
        raise OutOfTime

    found = None
    monkeypatch.setattr(layerwise_search, "relax", late)
    for seed in range(20):
        case = random_case(seed)
        job = case.job
        space = layerwise_search.OuterSpace(
            (case.outer.global_batch,), (case.outer.micro_batches,), (case.outer.stages,)
        )
        found = layerwise_search.search(job, case.costs, space, time_limit=60.0)
        if found.plan is not None:
            assert len(set(found.plan.layers)) == 1
            assert not check_plan(job, found.plan, case.costs, claimed_s=found.step_s).faults
            break
    assert found is not None and found.plan is not None
