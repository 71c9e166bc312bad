"""Dry-runs by the stage model: a process a stage, failures told, nothing run twice, no child left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.dryrun import torch_backend
from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_backend import TorchBackend, settle
from taylor.dryrun.torch_child import TASK, StageTask
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, PipelinePlan
from tests.conftest import ROOT
from tests.dryrun_cases import DEEPSEEK, LLAMA
from tests.torch_cases import STAND_IN, StandIn

CONFIG = read_config(LLAMA)
FAILURES = ("crash", "hang", "killed", "error", "refused", "memory")


def backend(root, **options):
    settings = {"parallel": 4, "timeout_s": 30.0, "retries": 0, "module": STAND_IN, **options}
    return TorchBackend(root, **settings)


def run_of(*stages, **degrees):
    return DryRun(CONFIG, CONFIG.strategy.replace(**degrees), None, stages or None)


@pytest.mark.slow
def test_every_stage_has_its_peak_what_it_consists_of_and_how_it_came_about(tmp_path, monkeypatch):
    StandIn(tmp_path, monkeypatch)
    run = settle(DryRun(CONFIG, CONFIG.strategy, CONFIG.plan))
    with backend(tmp_path / "runs") as runner:
        result = runner.measure([run])[0]
    truth = stage_breakdown(CONFIG.model, CONFIG.strategy, CONFIG.rules, CONFIG.plan, run.config.schedule)
    assert [peak.stage for peak in result.stages] == list(range(CONFIG.strategy.pp))
    for peak, expected in zip(result.stages, truth, strict=True):
        assert peak.peak_mib == pytest.approx(expected.total, rel=1e-12) and peak.source == "torch"
        assert peak.memory.categories == pytest.approx(expected.categories())
        assert len(peak.memory.moments) == 2 * CONFIG.strategy.micro_batches and peak.memory.stage == peak.stage


@pytest.mark.parametrize("path", [LLAMA, DEEPSEEK])
def test_the_run_that_a_child_reads_is_the_run_that_was_asked(path):
    config = read_config(path)
    task = StageTask("m", settle(DryRun(config, config.strategy, None, (1,))), 1)
    assert TASK.validate_json(TASK.dump_json(task)) == task


@pytest.mark.slow
def test_a_stage_that_fails_is_told_with_its_reason_and_the_others_go_on(tmp_path, monkeypatch):
    failing = {f"stage {stage}": kind for stage, kind in enumerate(FAILURES)}
    standin = StandIn(tmp_path, monkeypatch, fail=failing)
    with backend(tmp_path / "runs", timeout_s=6.0) as runner:
        result = runner.measure([run_of(pp=8, dp=1, vpp=1)])[0]
    reasons = [peak.failure for peak in result.stages]
    assert reasons[0] == "crashed with exit code 7"
    assert reasons[1] == "timed out after 6 s"
    assert reasons[2] == "killed by signal 9, which a machine does that runs out of memory"
    assert reasons[3] == "RuntimeError: no fake kernel for aten::magic"
    assert reasons[4] == "attention: is not modelled (found 'linear')"
    assert "8 GiB of this machine's memory" in reasons[5]
    assert reasons[6:] == ["", ""] and all(peak.peak_mib > 0 for peak in result.stages[6:])
    assert "RuntimeError" in result.stages[3].log.read_text()
    assert standin.alive() == []


@pytest.mark.slow
def test_one_reason_that_many_stages_fail_for_is_told_once(tmp_path, monkeypatch, caplog):
    run = run_of(pp=8, dp=1, vpp=1)
    StandIn(tmp_path, monkeypatch, fail={run.strategy.name: "error"})
    with caplog.at_level("WARNING", "taylor"), backend(tmp_path / "runs") as runner:
        runner.measure([run])
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        f"8 dry-runs failed, the first: {run.strategy.name} stage 0, 1, 2, 3, 4, 5, 6, 7: "
        "RuntimeError: no fake kernel for aten::magic"
    ]


def test_a_crash_is_tried_again_and_an_error_of_the_model_is_not(tmp_path, monkeypatch):
    first, second = run_of(0, dp=2), run_of(0, dp=4)
    standin = StandIn(tmp_path, monkeypatch, fail={first.strategy.name: "once", second.strategy.name: "error"})
    with backend(tmp_path / "runs", retries=1) as runner:
        results = runner.measure([first, second])
    assert results[0].peak_mib is not None and results[1].peak_mib is None
    names = [name for name, _ in standin.starts()]
    assert names.count(first.strategy.name) == 2 and names.count(second.strategy.name) == 1


def test_results_are_found_again_with_their_breakdown(tmp_path, monkeypatch):
    standin = StandIn(tmp_path, monkeypatch)
    results = []
    for _ in range(2):
        with backend(tmp_path / "runs") as runner:
            results.append(runner.measure([run_of(0, 1)])[0])
    assert len(standin.starts()) == 2
    assert [peak.memory for peak in results[0].stages] == [peak.memory for peak in results[1].stages]
    assert all(peak.cached for peak in results[1].stages)


def plan_with(counts, recompute):
    return PipelinePlan({"dense": (tuple(counts),)}, {FULL: (tuple(recompute),)})


def test_a_changed_plan_runs_only_the_stages_that_changed(tmp_path, monkeypatch):
    standin = StandIn(tmp_path, monkeypatch)
    strategy = CONFIG.strategy.replace(pp=4, vpp=1)
    plans = [plan_with((20, 20, 20, 20), (20, 10, 0, 0)), plan_with((20, 21, 20, 19), (20, 10, 0, 0))]
    with backend(tmp_path / "runs") as runner:
        for plan in plans:
            runner.measure([DryRun(CONFIG, strategy, plan)])
    assert sorted(stage for _, stage in standin.starts()) == [0, 1, 1, 2, 3, 3]


def test_stages_that_must_be_alike_are_run_once_and_named_each(tmp_path, monkeypatch):
    standin = StandIn(tmp_path, monkeypatch)
    # Two micro-batches on six stages: stages 1 to 4 keep both alive, in the same order of tasks.
    strategy = CONFIG.strategy.replace(pp=6, vpp=1, micro_batches=2)
    plan = plan_with((13, 14, 14, 14, 14, 11), (13, 14, 14, 14, 14, 11))
    with backend(tmp_path / "runs") as runner:
        result = runner.measure([DryRun(CONFIG, strategy, plan)])[0]
    assert len(standin.starts()) == 3
    assert [peak.stage for peak in result.stages] == [peak.memory.stage for peak in result.stages] == list(range(6))


@pytest.mark.parametrize("change", ["sequence", "torch", "source"])
def test_a_result_is_not_used_where_model_torch_or_the_stage_model_changed(tmp_path, monkeypatch, change):
    standin = StandIn(tmp_path, monkeypatch)
    run = run_of(0)
    with backend(tmp_path / "runs") as runner:
        runner.measure([run])
    if change == "sequence":
        run = DryRun(CONFIG.replace(rules=CONFIG.rules.replace(seq_length=16384)), run.strategy, None, (0,))
    elif change == "torch":
        monkeypatch.setattr(torch_backend, "torch_version", lambda: "99.0")
    else:
        monkeypatch.setattr(torch_backend, "_source_hash", lambda: "changed")
    with backend(tmp_path / "runs") as runner:
        runner.measure([run])
    assert len(standin.starts()) == 2


def test_a_schedule_that_cannot_run_fails_that_run_alone(tmp_path, monkeypatch):
    StandIn(tmp_path, monkeypatch)
    bad = CONFIG.replace(schedule=CONFIG.schedule.__class__("megatron-interleaved"))
    runs = [DryRun(bad, CONFIG.strategy.replace(pp=4, vpp=2, micro_batches=5), None, (0,)), run_of(0)]
    with backend(tmp_path / "runs") as runner:
        results = runner.measure(runs)
    assert "multiples of the 4 stages" in results[0].stages[0].failure
    assert results[1].peak_mib is not None


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.dryrun.test_torch_backend import *
with backend(Path({folder!r}) / "runs", parallel=3) as runner:
    results = runner.measure([run_of(0, dp=2 ** (i % 4), tp=2 ** (i // 4)) for i in range(12)])
print([(r.run.strategy.name, r.stages[0].peak_mib, r.stages[0].failure) for r in results])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_it_leaves_no_child_and_the_next_call_runs_only_what_is_missing(tmp_path, number):
    standin = StandIn(tmp_path, seconds=0.3, fail={"DP2_TP1_PP8_EP1": "error"})
    environment = {**os.environ, "STANDIN_STAGE": str(standin.path)}
    command = [sys.executable, "-c", SCRIPT.format(root=str(ROOT), folder=str(tmp_path))]
    tool = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while len(standin.starts()) < 6 and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(tool.pid, number)
    tool.communicate(timeout=30)
    while standin.alive() and time.monotonic() < until:
        time.sleep(0.02)
    assert standin.alive() == [] and tool.returncode != 0
    finished = len(list((tmp_path / "runs").glob("*/result.json")))
    before = len(standin.starts())
    assert 0 < finished < 12
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert len(standin.starts()) - before == 12 - finished
    assert done.stdout.count("None") == done.stdout.count("no fake kernel")
