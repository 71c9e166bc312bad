"""Files that set one recompute choice for all chunks: what is reported is what is written."""

from __future__ import annotations

import json
import shutil

import highspy
import pytest

from taylor.cost_model.profile import TimeRatios
from taylor.parsers.read import read_config
from taylor.parsers.tables.memory_profile import read_memory_profile
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.rank import RankOptions, rank
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from tests.conftest import ROOT
from tests.parsers.megatron.test_scripts import BASE as SHELL_FLAGS
from tests.parsers.megatron.test_scripts import script_of
from tests.parsers.torchtitan.test_files import toml_file

MEMORY = {
    "device_limit": 1000,
    "static": {"first": 300, "middle": 100, "last": 250},
    "layer": {"dense": 40},
    "activation": {"dense": {"none": 60, "select": 35, "full": 5}},
}


@pytest.fixture(params=["shell", "toml"])
def file(request, tmp_path):
    if request.param == "shell":
        return script_of(tmp_path, SHELL_FLAGS)
    return toml_file(tmp_path)


def solved(file, tmp_path, limit, **changes):
    """The file solved in place; the memory holds two layers of four to six without recompute."""
    memory = tmp_path / "memory.json"
    memory.write_text(json.dumps({**MEMORY, "device_limit": limit}))
    job = FileJob(file, memory_file=memory, check=False, **changes)
    return solve_file(job, outputs=Outputs(folder=tmp_path / "out", result_json=tmp_path / "result.json"))


@pytest.mark.parametrize("select", [False, True])
def test_the_reported_plan_is_the_one_in_the_file_with_its_own_step_and_a_true_bound(file, tmp_path, select):
    solve = solved(file, tmp_path, 1000, search_select=select)
    problem, solution = solve.problem, solve.solution
    told = json.loads((tmp_path / "result.json").read_text())
    written = plan_in_terms_of(problem, read_config(file).plan)
    assert told["layers"] == {kind: [list(row) for row in grid] for kind, grid in written.layers.items()}
    zero = [[0] * problem.stages for _ in range(problem.interleaves)]
    for mode, rows in told["recompute"].items():
        assert rows == [list(row) for row in written.recompute.get(mode, zero)]
    assert evaluate(problem, written).objective == pytest.approx(told["objective"], rel=1e-9)
    assert check(problem, written, told["objective"]) == []
    free = told["unrestricted"]
    assert free["bound"] <= free["objective"] < told["bound"] <= told["objective"]
    assert solution.status == "optimal"


def test_the_model_file_has_the_reported_optimum(file, tmp_path):
    solve = solved(file, tmp_path, 1000)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(solve.files["mps"])
    highs.run()
    assert highs.getInfo().objective_function_value == pytest.approx(solve.solution.objective, rel=2e-6)


def test_where_memory_is_ample_the_file_holds_the_best_plan_of_all(file, tmp_path, caplog):
    solve = solved(file, tmp_path, 100_000)
    told = json.loads((tmp_path / "result.json").read_text())
    assert told["unrestricted"]["objective"] == told["objective"]
    assert not any(map(any, solve.solution.plan.recompute[FULL]))


def test_a_mixed_folder_is_ranked_by_what_each_file_can_hold(tmp_path):
    files = [script_of(tmp_path, SHELL_FLAGS), toml_file(tmp_path)]
    files.append(shutil.copy(ROOT / "config" / "pretrain_llama2_7b.yaml", tmp_path / "llama.yaml"))
    memory_file = tmp_path / "memory.json"
    memory_file.write_text(json.dumps({**MEMORY, "device_limit": 1100}))
    memory = read_memory_profile(memory_file)
    ratios = TimeRatios(unit_ms=2.0)
    candidates = [CandidateFile(read_config(path), memory, ratios) for path in files]
    ranking = rank(candidates, RankOptions(output=tmp_path / "out", workers=1, report=False))
    assert list(ranking.table["own"]) == [0, 0, 0, 1, 1, 1] and set(ranking.table["status"][3:]) == {"over_limit"}
    for _, row in ranking.table.head(3).iterrows():
        assert row["status"] == "optimal", row["reason"]
        config = read_config(row["file"])
        problem = build_problem(config, memory, ratios)
        plan = plan_in_terms_of(problem, config.plan)
        layers = {kind: as_grid(rows) for kind, rows in json.loads(row["layers"]).items()}
        again = {mode: as_grid(rows) for mode, rows in json.loads(row["recompute"]).items()}
        assert plan.layers == layers
        assert evaluate(problem, plan).objective == evaluate(problem, PipelinePlan(layers, again)).objective
        assert 2.0 * evaluate(problem, plan).objective == pytest.approx(row["cost"], rel=1e-9)


def test_a_plan_beyond_the_file_is_refused_by_the_checker(file, tmp_path):
    config = read_config(file)
    memory_file = tmp_path / "memory.json"
    memory_file.write_text(json.dumps(MEMORY))
    problem = build_problem(config, read_memory_profile(memory_file), TimeRatios())
    held = config.plan.total_layers()
    uneven = as_grid([[2 if s == 0 else 1 for s in range(len(held[0]))]])
    faults = check(
        problem.replace(limit_mib=(1e6,) * problem.stages),
        plan_in_terms_of(problem, PipelinePlan(config.plan.layers, {FULL: uneven})),
    )
    assert [fault for fault in faults if "alike" in fault]
