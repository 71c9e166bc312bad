"""A result tells the job, the time, the plan in the file, and what was assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.pipeline_solver.solving.result import read_result
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs, RatioChoice
from tests.conftest import ROOT

FILE = ROOT / "config" / "pretrain_llama2_7b.yaml"
JOB_KEYS = [
    "model", "device", "strategy", "batch", "assumed", "step_ms", "samples_per_second", "tokens_per_second",
    "tokens_per_second_per_device", "mfu", "tflops_per_device", "train_days", "epoch_hours", "run_hours",
    "mfu_precision", "step_interval_ms", "risk", "planned_risk",
    "peak_error", "verdict", "own_plan",
]  # fmt: skip


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """The sample solved on estimates: its result as data, and the file that holds it."""
    folder = tmp_path_factory.mktemp("solved")
    outputs = Outputs(folder=folder, write=False, result_json=folder / "r.json")
    solve_file(FileJob(FILE, dryrun=False, check=False), outputs=outputs)
    return json.loads((folder / "r.json").read_text()), folder / "r.json"


def test_the_result_has_the_keys_of_the_contract_and_they_agree(solved: tuple[dict, Path]) -> None:
    stated, _ = solved
    assert list(stated)[: len(JOB_KEYS) + 1] == ["schema", *JOB_KEYS]
    assert {"unmodelled", "status", "termination", "objective", "bound", "unit_ms", "files"} <= set(stated)
    assert stated["termination"] == "proven"
    assert stated["model"] == {
        "name": "llama2_7b", "parameters": 6738415616, "active_parameters": 6738415616, "layers": {"dense": 32},
    }  # fmt: skip
    assert stated["device"] == {"name": "ascend-910b", "memory_mib": 65536}
    strategy, batch = stated["strategy"], stated["batch"]
    assert batch["global"] == strategy["dp"] * batch["micro"] * batch["micro_batches"]
    assert stated["step_ms"] == pytest.approx(stated["objective"] * stated["unit_ms"])
    tokens = batch["global"] * batch["sequence"]
    assert stated["tokens_per_second"] == pytest.approx(tokens / stated["step_ms"] * 1000)
    ranks = strategy["dp"] * strategy["tp"] * strategy["pp"] * strategy["cp"]
    assert stated["tokens_per_second_per_device"] == pytest.approx(stated["tokens_per_second"] / ranks)
    assert 0.05 < stated["mfu"] < 0.8
    assert all(isinstance(sentence, str) for sentence in stated["assumed"])
    text = "\n".join(stated["assumed"])
    assert "no device named" in text and "time ratios estimated" in text and "memory estimated" in text


def test_the_file_s_own_plan_stands_beside_the_solved_one_as_it_is_evaluated(solved: tuple[dict, Path]) -> None:
    own = evaluate_file(FileJob(FILE, dryrun=False, check=False))
    assert own.speed is not None
    stated = solved[0]["own_plan"]
    assert stated["step_ms"] == pytest.approx(own.speed.step_ms) and stated["step_ms"] >= solved[0]["step_ms"]
    assert stated["peak_memory"] == pytest.approx(own.solution.peak_memory_mib, abs=0.01)
    assert stated["fits"] == (own.solution.status.value == "feasible")
    assert own.job_dict()["own_plan"]["step_ms"] == own.speed.step_ms


def test_a_saved_result_is_read_back_with_what_it_says_of_the_job_and_without(solved: tuple[dict, Path]) -> None:
    stated, path = solved
    assert read_result(path).to_dict() == stated
    older = {key: value for key, value in stated.items() if key not in ("schema", *JOB_KEYS, "termination")}
    path.with_name("older.json").write_text(json.dumps(older))
    again = read_result(path.with_name("older.json"))
    assert again.plan == read_result(path).plan and again.solution.termination is None and again.job == {}


def test_fixed_ratios_give_the_same_units_on_any_device_and_the_estimated_unit_gives_the_time() -> None:
    job = FileJob(FILE, dryrun=False, check=False, ratios=RatioChoice(fixed=True))
    stated = [evaluate_file(FileJob(**{**vars(job), "device": device})) for device in ("ascend-910b", "a100-80g")]
    assert stated[0].solution.objective == stated[1].solution.objective
    assert (
        stated[0].speed is not None
        and stated[1].speed is not None
        and stated[0].speed.step_ms != stated[1].speed.step_ms
    )
