"""The plan in the file is reported like a solved one, and the file stays as it is."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline.schedule import AUTO
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.workflows.solving.evaluate_file import evaluate_file, evaluate_own
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile
from tests.parsers.megatron.test_scripts import BASE as SHELL_FLAGS
from tests.parsers.megatron.test_scripts import script_of

MEMORY = {
    "device_limit": 4000,
    "static": {"first": 300, "middle": 100, "last": 250},
    "layer": {"dense": 40},
    "activation": {"dense": {"none": 30, "select": 20, "full": 2}},
}


@pytest.fixture
def job(tmp_path):
    (tmp_path / "memory.json").write_text(json.dumps(MEMORY))
    return FileJob(script_of(tmp_path, SHELL_FLAGS), memory_file=tmp_path / "memory.json", check=False)


def test_it_reports_the_files_own_plan_with_the_keys_of_a_solved_one(job, tmp_path):
    text = job.path.read_text()
    own = evaluate_file(job, Outputs(folder=tmp_path / "own", result_json=tmp_path / "own.json"))
    assert own.plan.total_layers() == read_config(job.path).plan.total_layers()
    assert own.files == {"result": str(tmp_path / "own.json")} and not (tmp_path / "own").exists()
    assert job.path.read_text() == text
    solved = solve_file(job, outputs=Outputs(folder=tmp_path / "out", result_json=tmp_path / "solved.json"))
    told = [json.loads((tmp_path / name).read_text()) for name in ("own.json", "solved.json")]
    assert [key for key in told[0] if key in told[1]] == list(told[0])
    assert told[0]["objective"] >= told[1]["bound"] and set(solved.files) == {"mps", "sol", "config", "result"}


def test_what_is_left_to_the_tool_is_the_files_own(job):
    own, left = evaluate_file(job), evaluate_file(FileJob(**{**vars(job), "vpp": AUTO, "schedule": AUTO}))
    assert left.problem == own.problem and left.solution.objective == own.solution.objective


def test_another_number_of_interleaves_than_the_plans_is_refused(job):
    with pytest.raises(InputError, match="another number of virtual stages"):
        evaluate_file(FileJob(**{**vars(job), "vpp": 2}))


LLAMA = """use_parallel: True
runner_config: {batch_size: 1}
parallel: {enable_parallel_optimizer: True}
parallel_config: {data_parallel: 2, model_parallel: 4, pipeline_stage: 4, micro_batch_num: 16, use_seq_parallel: True}
recompute_config: {recompute: False, select_recompute: True}
context: {max_device_memory: "58GB"}
model:
  model_config: {type: LlamaConfig, num_layers: 32, hidden_size: 8192, num_heads: 64, n_kv_heads: 8,
    intermediate_size: 28672, vocab_size: 32000, seq_length: 8192, use_flash_attention: True,
    param_init_type: "float32", compute_dtype: "bfloat16", offset: 0}
"""


@pytest.mark.parametrize("search", [False, True])
def test_a_plan_is_charged_for_selective_recompute_whether_or_not_it_is_searched(tmp_path, search):
    (tmp_path / "select.yaml").write_text(LLAMA)
    (tmp_path / "none.yaml").write_text(LLAMA.replace("select_recompute: True", "select_recompute: False"))
    costs = {}
    for name in ("select", "none"):
        file = StatedFile.read(FileJob(tmp_path / f"{name}.yaml", search_select=search))
        problem = file.problem(file.memory_like(estimate_memory(file.running, file.device)))
        assert problem.searched_modes == ((FULL, SELECT) if search else (FULL,))
        own = evaluate_own(file.config, problem)
        assert own.plan.uses(SELECT) == (name == "select")
        breakdown = stage_breakdown(
            file.config.model, file.config.strategy, file.config.rules, file.config.plan, file.running.schedule
        )
        assert own.peak_memory_mib == pytest.approx([stage.total for stage in breakdown], rel=1e-6)
        costs[name] = (own.objective, *own.peak_memory_mib)
    assert costs["select"][0] > costs["none"][0]
    assert all(less < more for less, more in zip(costs["select"][1:], costs["none"][1:], strict=True))


def test_the_files_selective_plan_stands_beside_a_solved_one_that_may_not_use_it(tmp_path):
    (tmp_path / "select.yaml").write_text(LLAMA)
    job = FileJob(tmp_path / "select.yaml", dryrun=False, check=False, search_select=False)
    solved = solve_file(job, outputs=Outputs(folder=tmp_path / "out", write=False))
    assert not solved.plan.uses(SELECT)
    assert solved.own_plan()["as in the file"].uses(SELECT)
    with pytest.raises(ValueError, match="recomputes by select"):
        evaluate(solved.problem.replace(recompute_ratio={FULL: 1.0}, unsearched=()), solved.config.plan)
    assert any("mode select" in fault for fault in check(solved.problem, solved.own_plan()["as in the file"]))


def test_a_file_that_recomputes_selectively_is_solved_with_that_choice_and_never_worse(tmp_path):
    (tmp_path / "select.yaml").write_text(LLAMA)
    job = FileJob(tmp_path / "select.yaml", dryrun=False, check=False)
    solved = solve_file(job, outputs=Outputs(folder=tmp_path / "out", write=False))
    assert SELECT in solved.problem.searched_modes
    assert solved.solution.objective <= solved.own.objective * (1 + 1e-9)
