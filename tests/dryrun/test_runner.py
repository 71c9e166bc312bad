"""Dry-runs by an outside program: what fails is told, nothing runs twice, and no child outlives the tool."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.base.kept import read_kept
from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun
from taylor.dryrun.launch import Starter, read_environment
from taylor.dryrun.mindspore_backend import NO_PEAK, MindsporeBackend
from taylor.parsers.launcher import Tools
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of, launchers_for
from tests.conftest import ROOT
from tests.dryrun_cases import LLAMA, LLAMA_TRUTH, StandIn

CONFIG = read_config(LLAMA)
FAILURES = ("crash", "hang", "memory", "silent", "killed", "children")


def strategies(number):
    """Strategies with names of their own."""
    own = CONFIG.strategy
    return [
        own.replace(dp=2 ** (i % 5), tp=2 ** (i // 5 % 4), pp=2 ** (1 + i // 20), op=1, vpp=1) for i in range(number)
    ]


def backend(standin, root, **options):
    starter = Starter.find(launcher_of(CONFIG), standin.program, standin.env_json, None)
    return MindsporeBackend(starter, root, **{"parallel": 6, "timeout_s": 20.0, "retries": 0, **options})


def run_of(strategy: Strategy, *stages: int) -> DryRun:
    return DryRun(CONFIG, strategy, None, stages or (0,))


def test_a_run_gives_the_peak_of_every_stage_with_its_log(tmp_path):
    standin = StandIn(tmp_path, LLAMA_TRUTH)
    run = DryRun(CONFIG, CONFIG.strategy, CONFIG.plan)
    with backend(standin, tmp_path / "runs") as runner:
        result = runner.measure([run])[0]
    static, layer, kept = LLAMA_TRUTH["static"], LLAMA_TRUTH["layer"]["dense"], LLAMA_TRUTH["activation"]["dense"]
    plan, pp = CONFIG.plan, CONFIG.strategy.pp
    for peak in result.stages:
        held, again = plan.layers["dense"][0][peak.stage], plan.recompute["full"][0][peak.stage]
        place = "first" if peak.stage == 0 else "last" if peak.stage == pp - 1 else "middle"
        one = again * kept["full"] + (held - again) * kept["none"]
        assert peak.peak_mib == static[place] + held * layer + (pp - peak.stage) * one
        assert peak.log.is_file() and peak.source == "mindspore"


@pytest.mark.slow
def test_of_60_dry_runs_10_fail_in_every_way_and_are_told_while_50_are_used(tmp_path):
    runs = [run_of(strategy) for strategy in strategies(60)]
    kinds = [FAILURES[i % len(FAILURES)] for i in range(10)]
    failing = {runs[6 * i].strategy.name: kind for i, kind in enumerate(kinds)}
    assert len({run.strategy.name for run in runs}) == 60 and len(failing) == 10
    standin = StandIn(tmp_path, LLAMA_TRUTH, fail=failing)
    with backend(standin, tmp_path / "runs", timeout_s=4.0) as runner:
        results = runner.measure(runs)
    reasons = {
        "crash": "crashed with exit code 1",
        "hang": "timed out after 4 s",
        "children": "timed out after 4 s",
        "memory": OUT_OF_MEMORY,
        "silent": NO_PEAK,
        "killed": "killed by signal 9",
    }
    for result in results:
        kind = failing.get(result.run.strategy.name)
        assert (result.peak_mib is None) == (kind is not None)
        if kind:
            assert result.failures[0].failure == reasons[kind]
            assert result.run.strategy.name in result.describe_failure()
    told = {failing.get(r.run.strategy.name): r.failures[0].lines for r in results if r.failures}
    assert "ValueError: layer parallel strategy is invalid" in told["crash"][-1]
    assert sum(result.peak_mib is not None for result in results) == 50
    assert standin.alive() == []


def test_what_may_pass_is_tried_again_and_what_will_not_is_not(tmp_path):
    first, second = strategies(2)
    standin = StandIn(tmp_path, LLAMA_TRUTH, fail={first.name: "once", second.name: "memory"})
    with backend(standin, tmp_path / "runs", retries=1) as runner:
        results = runner.measure([run_of(first), run_of(second)])
    assert results[0].peak_mib is not None and results[1].failures[0].failure == OUT_OF_MEMORY
    assert [name for name, _, _ in standin.starts()].count(first.name) == 2
    assert [name for name, _, _ in standin.starts()].count(second.name) == 1


def test_logs_in_another_encoding_are_read(tmp_path):
    standin = StandIn(tmp_path, LLAMA_TRUTH, fail={"*": "utf16"})
    with backend(standin, tmp_path / "runs") as runner:
        assert runner.measure([run_of(CONFIG.strategy)])[0].peak_mib == 4321


def test_results_are_found_again_and_failures_get_another_chance_in_the_next_call(tmp_path):
    good, bad = strategies(2)
    standin = StandIn(tmp_path, LLAMA_TRUTH, fail={bad.name: "crash"})
    for expected in (2, 3):
        with backend(standin, tmp_path / "runs") as runner:
            results = runner.measure([run_of(good), run_of(bad)])
            assert runner.measure([run_of(bad)])[0].failures  # within one call the failure stands
        assert len(standin.starts()) == expected
    assert results[0].stages[0].cached


def test_a_result_that_a_disk_or_a_hand_has_changed_is_measured_again(tmp_path):
    standin = StandIn(tmp_path, LLAMA_TRUTH)
    peaks = []
    for starts in (1, 2, 2):
        with backend(standin, tmp_path / "runs") as runner:
            peaks.append(runner.measure([run_of(CONFIG.strategy)])[0].peak_mib)
        assert len(standin.starts()) == starts
        if starts == 1:
            [kept] = (tmp_path / "runs").glob("*/stage_*/result.json")
            kept.write_text(kept.read_text().replace('"peak_mib": ', '"peak_mib": 1'))
    assert peaks[0] == peaks[1] == peaks[2]


@pytest.mark.parametrize("change", ["environment", "program", "plan"])
def test_a_result_is_not_used_where_file_environment_or_program_changed(tmp_path, change):
    standin = StandIn(tmp_path, LLAMA_TRUTH)
    for _ in range(2):
        with backend(standin, tmp_path / "runs") as runner:
            runner.measure([run_of(CONFIG.strategy)])
    assert len(standin.starts()) == 1
    run = run_of(CONFIG.strategy)
    if change == "environment":
        standin.env_json.write_text(json.dumps({"STANDIN_TRUTH": str(standin.truth), "GLOG_v": "1"}))
    elif change == "program":
        standin.program.write_text(standin.program.read_text() + "\n# changed\n")
    else:
        run = DryRun(CONFIG, CONFIG.strategy, CONFIG.plan, (0,))
    with backend(standin, tmp_path / "runs") as runner:
        runner.measure([run])
    assert len(standin.starts()) == 2


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.dryrun.test_runner import *
from taylor.dryrun.launch import Starter
folder = Path({folder!r})
starter = Starter.find(launcher_of(CONFIG), folder / "mindformers", folder / "env.json", None)
with MindsporeBackend(starter, folder / "runs", parallel=4, timeout_s=60.0, retries=0) as runner:
    results = runner.measure([run_of(strategy) for strategy in strategies(14)])
print([(r.run.strategy.name, r.stages[0].peak_mib, r.stages[0].failure) for r in results])
"""


def start_tool(tmp_path):
    script = SCRIPT.format(root=str(ROOT), folder=str(tmp_path))
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(what, seconds=60.0):
    until = time.monotonic() + seconds
    while not what() and time.monotonic() < until:
        time.sleep(0.02)
    return what()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("number, starts", [(signal.SIGKILL, 5), (signal.SIGINT, 7), (signal.SIGTERM, 9)])
def test_killed_at_some_moment_it_leaves_no_child_and_goes_on_where_it_was(tmp_path, number, starts):
    names = [strategy.name for strategy in strategies(14)]
    standin = StandIn(tmp_path, LLAMA_TRUTH, seconds=0.2, noise=0.02, fail={names[0]: "crash", names[1]: "memory"})
    tool = start_tool(tmp_path)
    assert wait_until(lambda: len(standin.starts()) >= starts)
    os.kill(tool.pid, number)
    tool.communicate(timeout=60)
    assert tool.returncode != 0
    assert wait_until(lambda: standin.alive() == []), "children outlived the tool"
    finished = {read_kept(path)["key"] for path in (tmp_path / "runs").glob("*/stage_0/result.json")}
    before = len(standin.starts())
    assert finished and len(finished) < 14
    again = start_tool(tmp_path)
    output, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    assert len(standin.starts()) - before == 14 - len(finished)
    other = tmp_path / "other"
    other.mkdir()
    whole = StandIn(other, LLAMA_TRUTH, seconds=0.0, noise=0.02, fail={names[0]: "crash", names[1]: "memory"})
    fresh = start_tool(other)
    expected, _ = fresh.communicate(timeout=60)
    assert output == expected and len(whole.starts()) == 14


def test_the_environment_of_a_stage_is_simulation_the_users_own_and_its_first_rank(tmp_path):
    path = tmp_path / "env.json"
    path.write_text('{"GLOG_v": "1", "MINE": 3}')
    strategy = CONFIG.strategy.replace(dp=2, tp=4, pp=8)
    settings = Starter.find(launcher_of(CONFIG), None, path, None).settings(strategy, 3)
    assert settings == {
        "MS_SIMULATION_LEVEL": "1",
        "MS_MEMORY_STATISTIC": "1",
        "GLOG_v": "1",
        "MINE": "3",
        "ENABLE_LAZY_INLINE_NO_PIPELINE": "1",
        "MS_ALLOC_CONF": "memory_tracker:True",
        "RANK_SIZE": "64",
        "RANK_ID": "24",
    }


@pytest.mark.parametrize(
    "text, words",
    [("[1]", "JSON object"), ("{", "not JSON"), ('{"a b": "1"}', "a b"), ('{"A": [1]}', "text or a number")],
)
def test_a_bad_environment_file_is_refused_with_the_entry_named(tmp_path, text, words):
    path = tmp_path / "env.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_environment(path)


def test_shell_and_toml_files_are_started_by_bash_and_by_torchtitan():
    tools = Tools("/usr/bin/python3")
    (script, *_), (toml,), (yaml, *_) = (launchers_for(Path(name)) for name in ("a.sh", "a.toml", "a.yaml"))
    command = script.dryrun_command(Path("made.sh"), Path("a.sh"), tools)
    assert command[0] == "bash" and command[-2:] == ("a.sh", "made.sh")
    assert toml.dryrun_command(Path("a.toml"), Path("a.toml"), tools)[:3] == (
        "/usr/bin/python3",
        "-m",
        "torchtitan.train",
    )
    with pytest.raises(InputError, match="run_mindformer.py"):
        yaml.dryrun_command(Path("a.yaml"), Path("a.yaml"), tools)
