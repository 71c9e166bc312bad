"""A flag that no figure takes into account is told by every command that reads a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.breakdown import memory_profile
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.flag_table import MemoryBound, UnmodelledFlag
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.register import frameworks
from taylor.register.registry import Registry
from taylor.workflows.showing.memory_interval import peak_intervals
from taylor.workflows.statement.memory_source import obtain_memory
from taylor.workflows.statement.problem import build_problem
from tests.conftest import ROOT
from tests.dryrun_cases import LLAMA, LLAMA_TRUTH, InProcess

SENTENCES = (
    "--distribute-saved-activations is not modelled; it means less memory and more time: what full recompute "
    "keeps is split over TP",
    "--odd 3 is not known: what it changes is not in the figures",
)
QUIET = "--log-interval 1 --seed 7"


@pytest.fixture()
def script(tmp_path: Path) -> Path:
    """The example script with a flag that costs, an unknown one and two that cost nothing."""
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text()
    path = tmp_path / "files" / "pretrain_llama3_70b.sh"
    path.parent.mkdir()
    path.write_text(text.rstrip() + f" --distribute-saved-activations --odd 3 {QUIET}\n")
    return path


def test_an_evaluated_script_names_them_in_the_log_and_in_the_result(run_tool, script, tmp_path):
    words = ("-evaluate", "y", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words)
    assert done.returncode == 0, done.stderr
    for sentence in SENTENCES:
        assert sentence in " ".join((done.stdout + done.stderr).split())
    assert "log-interval" not in done.stdout + done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["unmodelled"] == list(SENTENCES)
    assert read_result(tmp_path / "r.json").unmodelled == SENTENCES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "low", "high", "says"),
    [
        ("--distribute-saved-activations", 0.1, True, ""),  # its states alone
        ("--layerwise-disaggregated-training", None, False, "MiB (more where no bound is known, with"),
        ("--tp-comm-overlap", 0.5, False, "MiB (more where no bound is known, with --tp-comm-overlap): "),
        ("--fp32-residual-connection", 0.5, True, "MiB, with --fp32-residual-connection): "),
    ],
)
def test_a_flag_that_is_not_modelled_widens_the_interval_of_the_peak(
    run_tool: Any, script: Path, tmp_path: Path, more: str, low: float | None, high: bool, says: str
) -> None:
    script.write_text(script.read_text().replace(f"--distribute-saved-activations --odd 3 {QUIET}", more))
    words = ("-evaluate", "y", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words)
    data = json.loads((tmp_path / "r.json").read_text())
    for peak, (least, most) in zip(data["peak_memory"], data["peak_memory_interval"], strict=True):
        assert least is None if low is None else low * peak < least < peak
        assert most is not None and most >= peak if high else most is None
    text = " ".join((done.stdout + done.stderr).split())
    assert says in text
    assert read_result(tmp_path / "r.json").to_dict()["peak_memory_interval"] == data["peak_memory_interval"]


def _added(bound: MemoryBound, mode: str) -> list[float]:
    """MiB that a bound adds to each of four stages of eight layers, 4 to 1 micro-batches of 1024 tokens alive."""
    rules = TrainingRules(framework=frameworks.MEGATRON, seq_length=1024, param_bytes=2)
    model, strategy = Registry.load().model("llama2-7b"), Strategy(1, 1, 4, micro_batches=8, sp=False)
    flag = UnmodelledFlag("--odd", None, "more", None, None, "it does so", most=bound)
    config = TrainingConfig(Path("job"), "megatron", model, strategy, rules, ScheduleSpec(), None, unmodelled=(flag,))
    memory = replace(memory_profile(model, strategy, rules, 80000), source="file")
    problem = build_problem(config, memory, TimeRatios())
    solution = evaluate(problem, config.even_plan(strategy, mode))
    intervals = peak_intervals(config, problem, solution, memory)
    assert intervals is not None
    assert peak_intervals(config, problem, solution, replace(memory, every_flag=True)) is None
    return [(most or 0.0) - peak for (_, most), peak in zip(intervals, solution.peak_memory_mib, strict=True)]


STREAM, INNER, MASK = 1024 * 4096, 1024 * 11008, 1024 * 1024


@pytest.mark.parametrize(
    ("bound", "mode", "pass_bytes", "once_bytes"),
    [
        (MemoryBound(hidden_bytes=8), "none", 8 * 8 * STREAM, 0),
        (MemoryBound(hidden_bytes=8), "full", 8 * 8 * STREAM, 0),
        (MemoryBound(kept={"hidden": 4, "inner": 2}), "none", 8 * (4 * STREAM + 2 * INNER), 4 * STREAM + 2 * INNER),
        (MemoryBound(kept={"hidden": 4}), "full", 0, 4 * STREAM),
        (MemoryBound(passing={"scores": 2}), "none", 0, 2 * 32 * MASK),
        (MemoryBound(mask_bytes=1), "full", MASK, 0),
    ],
)
def test_a_bound_counts_what_every_pass_keeps_and_what_one_layer_holds(
    bound: MemoryBound, mode: str, pass_bytes: int, once_bytes: int
) -> None:
    assert _added(bound, mode) == pytest.approx([(alive * pass_bytes + once_bytes) / 2**20 for alive in (4, 3, 2, 1)])


def test_a_layer_s_room_is_what_its_backward_holds() -> None:
    # Gate and up, their product, the norms' inputs and what attention keeps, beside the gradients of gate and up.
    room = _added(MemoryBound(layers=1), "full")
    assert room == pytest.approx([room[0]] * 4)
    assert room[0] > (3 * 2 * INNER + 2 * 2 * INNER) / 2**20


@pytest.mark.parametrize("every_flag", [True, False])
def test_figures_of_the_framework_s_own_runs_hold_all_flags_and_are_kept_so(every_flag: bool, tmp_path: Path) -> None:
    config, backend = read_config(LLAMA), InProcess(tmp_path, LLAMA_TRUTH)
    backend.every_flag = every_flag
    device = Registry.load().device("ascend-910b")
    for dryrun in (True, False):
        memory = obtain_memory(
            config, device, memory_file=None, dryrun=dryrun, backend=backend, output=tmp_path / "output"
        )
        assert memory.source == ("dry-run" if dryrun else "saved")
        assert memory.every_flag == every_flag


@pytest.mark.slow
def test_an_explained_strategy_tells_which_flags_may_raise_its_memory(run_tool: Any, script: Path) -> None:
    done = run_tool("parallel_tool.py", "--shell_path", script, "--explain", "DP4_TP8_PP4_EP1")
    assert "memory: the peak may be higher, with --odd" in " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
def test_a_search_names_them(run_tool, script):
    done = run_tool("parallel_tool.py", "--shell_path", script, "--dryrun_backend", "estimate")
    assert done.returncode == 0, done.stderr
    for sentence in SENTENCES:
        assert sentence in " ".join((done.stdout + done.stderr).split())


@pytest.mark.slow
def test_a_ranking_names_each_once_for_all_its_candidates(run_tool, script):
    (script.parent / "second.sh").write_text(script.read_text())
    done = run_tool("pipeline_tool.py", "--yaml_path", script.parent, "--time_limit", "2", "--workers", "1")
    assert done.returncode == 0, done.stderr
    for sentence in SENTENCES:
        assert " ".join((done.stdout + done.stderr).split()).count(sentence) == 1


@pytest.mark.slow
def test_a_file_of_nothing_but_odd_flags_is_told_in_few_lines(run_tool, script, tmp_path):
    odd = " ".join(f"--odd{number}" for number in range(5000))
    script.write_text(script.read_text().rstrip() + f" {odd}\n")
    words = ("-evaluate", "y", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words)
    assert done.returncode == 0, done.stderr
    told = " ".join((done.stdout + done.stderr).split())
    assert told.count("is not known") < 100 and "and 4942 more" in told
    assert len(json.loads((tmp_path / "r.json").read_text())["unmodelled"]) == 5002
