"""A result tells the job, the time, the file's own plan, and what was assumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import taylor
from taylor.pipeline_solver.result import read_result
from taylor.workflows.evaluate_file import evaluate_file
from taylor.workflows.options import FileJob, Outputs, RatioChoice
from taylor.workflows.solve_file import solve_file
from tests.conftest import ROOT

FILE = ROOT / "config" / "pretrain_llama2_7b.yaml"
JOB_KEYS = [
    "model", "device", "strategy", "batch", "assumed", "step_ms", "tokens_per_second", "tokens_per_second_per_device",
    "mfu", "own_plan",
]  # fmt: skip


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """The sample solved on estimates: its result as data, and the file that holds it."""
    folder = tmp_path_factory.mktemp("solved")
    outputs = Outputs(folder=folder, write=False, result_json=folder / "r.json")
    solve_file(FileJob(FILE, dryrun=False, check=False), outputs=outputs)
    return json.loads((folder / "r.json").read_text()), folder / "r.json"


def test_the_result_has_the_keys_of_the_contract_and_they_agree(solved: tuple[dict, Path]) -> None:
    told, _ = solved
    assert list(told)[: len(JOB_KEYS)] == JOB_KEYS
    assert {"unmodelled", "status", "termination", "objective", "bound", "unit_ms", "files"} <= set(told)
    assert told["termination"] == "proven"
    assert told["model"] == {
        "name": "llama2_7b", "parameters": 6738415616, "active_parameters": 6738415616, "layers": {"dense": 32},
    }  # fmt: skip
    assert told["device"] == {"name": "ascend-910b", "memory_mib": 65536}
    strategy, batch = told["strategy"], told["batch"]
    assert batch["global"] == strategy["dp"] * batch["micro"] * batch["micro_batches"]
    assert told["step_ms"] == pytest.approx(told["objective"] * told["unit_ms"])
    tokens = batch["global"] * batch["sequence"]
    assert told["tokens_per_second"] == pytest.approx(tokens / told["step_ms"] * 1000)
    ranks = strategy["dp"] * strategy["tp"] * strategy["pp"] * strategy["cp"]
    assert told["tokens_per_second_per_device"] == pytest.approx(told["tokens_per_second"] / ranks)
    assert 0.05 < told["mfu"] < 0.8
    assert all(isinstance(sentence, str) for sentence in told["assumed"])
    text = "\n".join(told["assumed"])
    assert "no device named" in text and "time ratios estimated" in text and "memory estimated" in text


def test_the_file_s_own_plan_stands_beside_the_solved_one_as_it_is_evaluated(solved: tuple[dict, Path]) -> None:
    own = evaluate_file(FileJob(FILE, dryrun=False, check=False))
    assert own.speed is not None and own.speed_line().endswith(" %")
    told = solved[0]["own_plan"]
    assert told["step_ms"] == pytest.approx(own.speed.step_ms) and told["step_ms"] >= solved[0]["step_ms"]
    assert told["peak_memory"] == pytest.approx(own.solution.peak_memory_mib, abs=0.01)
    assert told["fits"] == (own.solution.status.value == "feasible")
    assert own.job_dict()["own_plan"]["step_ms"] == own.speed.step_ms


def test_a_saved_result_is_read_back_with_what_it_says_of_the_job_and_without(solved: tuple[dict, Path]) -> None:
    told, path = solved
    assert read_result(path).to_dict() == told
    older = {key: value for key, value in told.items() if key not in (*JOB_KEYS, "termination")}
    path.with_name("older.json").write_text(json.dumps(older))
    again = read_result(path.with_name("older.json"))
    assert again.plan == read_result(path).plan and again.solution.termination is None and again.job == {}


def test_a_gain_over_a_plan_that_does_not_fit_names_the_worst_stage_instead() -> None:
    whole = taylor.solve(FILE)
    assert whole.planned is not None
    peaks = whole.planned.own.peak_memory_mib
    profile = whole.planned.memory
    limited = taylor.MemoryProfile(**{**vars(profile), "source": "file", "device_limit_mib": max(peaks) - 500})
    tight = taylor.solve(FILE, memory=limited)
    assert tight.planned is not None and not tight.planned.job_dict()["own_plan"]["fits"]
    stage = peaks.index(max(peaks))
    assert tight.planned.verdict().startswith(
        f"the file's own plan does not fit: stage {stage} needs {max(peaks):,.0f}"
    )


def test_an_evaluated_plan_is_not_compared_with_itself() -> None:
    own = taylor.evaluate(FILE)
    assert own.planned is not None and own.planned.verdict().endswith("the fullest")
    limit = max(own.solution.peak_memory_mib) - 500
    tight = taylor.MemoryProfile(**{**vars(own.planned.memory), "device_limit_mib": limit})
    over = taylor.evaluate(FILE, memory=tight)
    assert over.planned is not None and over.solution.status.value == "over_limit"
    assert over.planned.verdict() == "it does not fit: stage 0 is 500 MiB over its limit"


def test_a_file_without_a_plan_is_solved_without_a_comparison() -> None:
    planned = taylor.solve(taylor.read(FILE).replace(plan=None)).planned
    assert planned is not None and planned.own is None and planned.job_dict()["own_plan"] is None
    assert planned.verdict().startswith("the file has no plan of its own")


def test_fixed_ratios_give_the_same_units_on_any_device_and_the_estimated_unit_gives_the_time() -> None:
    job = FileJob(FILE, dryrun=False, check=False, ratios=RatioChoice(fixed=True))
    told = [evaluate_file(FileJob(**{**vars(job), "device": device})) for device in ("ascend-910b", "a100-80g")]
    assert told[0].solution.objective == told[1].solution.objective
    assert told[0].speed is not None and told[1].speed is not None and told[0].speed.step_ms != told[1].speed.step_ms
