"""Results of stages: run once, tried again, kept by content, and forgotten where their work failed and ended."""

from __future__ import annotations

import itertools
import json
import signal
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from taylor.base.kept import read_kept
from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun import kept_runs
from taylor.dryrun.interface import OUT_OF_MEMORY, StagePeak
from taylor.dryrun.kept_runs import KeptRuns, StageJob
from taylor.dryrun.launch import SIMULATION, Starter, find_program, read_environment
from taylor.dryrun.mindspore_backend import NO_PEAK, MindsporeBackend
from taylor.dryrun.processes import MAX_LOG_BYTES, Outcome, ProgramRun, run_program, run_programs
from taylor.dryrun.torch_backend import TorchBackend
from taylor.parsers.launcher import Tools

CRASH = Outcome("crashed", 1.0, worth_retry=True)
WRONG = Outcome("could not be started", 1.0)
GOOD = Outcome("", 2.0)
SHORT = Outcome("short", 1.0, worth_retry=True)


class AtOnce:
    """An executor whose work is done when it is handed in, by a script of outcomes for each folder's name."""

    def __init__(self, script):
        self.script, self.started = {name: list(outcomes) for name, outcomes in script.items()}, []

    def submit(self, function, program, shared):
        assert function is run_program and shared is None
        self.started.append(program.folder.name)
        future = Future()
        future.set_result(self.script[program.folder.name].pop(0))
        return future


def judge(stage, outcome):
    failure = OUT_OF_MEMORY if outcome is SHORT else outcome.failure
    return StagePeak(
        stage.stage, None if failure else 10.0 * stage.stage, "x", failure=failure, seconds=outcome.seconds
    )


def job(folder, name, stage, key="k"):
    place = folder / name
    return StageJob(stage, key, ProgramRun(("x",), {}, place, place / "log", 1.0))


def kept(folder, script, retries=1, **more):
    executor = AtOnce(script)
    return KeptRuns(folder, "x", judge, 2, retries, executor, **more), executor.started


@pytest.mark.parametrize("retries", [0, 1, 2])
def test_what_may_pass_is_tried_so_many_times_more(tmp_path, retries):
    for crashes, end in itertools.product(range(4), (GOOD, WRONG, SHORT)):
        folder = tmp_path / f"{crashes}{end.failure}"
        runs, started = kept(folder, {"a": [CRASH] * crashes + [end]}, retries)
        found = runs.peaks({"a": job(folder, "a", 3)})
        tries = min(crashes, retries) + 1
        assert len(started) == tries
        last = end if crashes <= retries else CRASH
        assert found["a"].failure == ("" if last is GOOD else OUT_OF_MEMORY if last is SHORT else last.failure)
        told = read_kept(folder / "a" / "result.json")
        assert told["attempts"] == tries and told["stage"] == 3 and told["seconds"] == last.seconds


def test_twins_share_a_run_and_keep_their_own_stages(tmp_path):
    runs, started = kept(tmp_path, {"a": [GOOD], "b": [GOOD]})
    found = runs.peaks({1: job(tmp_path, "a", 1), 2: job(tmp_path, "a", 2), 5: job(tmp_path, "b", 5)})
    assert sorted(started) == ["a", "b"]
    assert {place: (peak.stage, peak.peak_mib) for place, peak in found.items()} == {
        1: (1, 10.0),
        2: (2, 10.0),
        5: (5, 50.0),
    }
    assert not any(peak.cached for peak in found.values())


@pytest.mark.parametrize(
    ("ended", "again"), [(None, True), (ValueError, True), (KeyboardInterrupt, False), (SystemExit, False)]
)
def test_a_failure_is_known_until_the_work_ends_in_order(tmp_path, ended, again):
    runs, _ = kept(tmp_path, {"a": [WRONG], "b": [GOOD]})
    jobs = {"a": job(tmp_path, "a", 1), "b": job(tmp_path, "b", 2)}
    runs.peaks(jobs)
    same, started = kept(tmp_path, {"a": [WRONG, GOOD], "b": [GOOD]})
    assert same.peaks(jobs)["a"].cached and started == []
    runs.leave(ended, None, None)
    later, started = kept(tmp_path, {"a": [GOOD], "b": [GOOD]})
    found = later.peaks(jobs)
    assert started == (["a"] if again else [])
    assert found["b"].cached and found["a"].failure == ("" if again else "could not be started")
    assert found["b"].seconds == 2.0 and found["b"].peak_mib == 20.0 and found["b"].log == tmp_path / "b" / "log"
    other, started = kept(tmp_path, {"a": [GOOD], "b": [GOOD]})
    other.peaks({"b": job(tmp_path, "b", 2, key="other")})
    assert started == ["b"]


def test_a_kept_peak_is_completed_or_run_again(tmp_path):
    first, _ = kept(tmp_path, {"a": [GOOD], "b": [WRONG]})
    jobs = {"a": job(tmp_path, "a", 1), "b": job(tmp_path, "b", 2)}
    first.peaks(jobs)
    for restored in (True, False):
        asked = []

        def restore(peak, folder, restored=restored, asked=asked):
            asked.append(folder.name)
            return peak if restored else None

        again, started = kept(tmp_path, {"a": [GOOD], "b": [WRONG]}, restore=restore)
        again.peaks(jobs)
        assert asked == ["a"] and started == ([] if restored else ["a"])


def test_a_long_series_is_reported_each_half_minute_with_what_is_left(tmp_path, monkeypatch, caplog):
    clock = iter([0.0, 10.0, 31.0, 32.0, 62.0, 90.0, 100.0])
    monkeypatch.setattr(kept_runs.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(
        kept_runs, "run_programs", lambda programs, parallel, on_done, executor: [on_done(at, [GOOD, WRONG][at % 2])
                                                                                  for at in range(len(programs))]
    )  # fmt: skip
    runs, _ = kept(tmp_path, {})
    with caplog.at_level("INFO"):
        runs.peaks({at: job(tmp_path, str(at), at) for at in range(5)})
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "dry-runs: 2 of 5 done, 1 failed, about 46 s remain", "dry-runs: 4 of 5 done, 2 failed, about 16 s remain",
        "dry-runs: 5 done in 100 s, 2 of them failed",
    ]  # fmt: skip


def test_programs_run_again_as_often_as_they_are_asked_to():
    programs = [ProgramRun(("x",), {}, Path(name), Path("log"), 1.0) for name in "abc"]
    left = {0: 2, 1: 0, 2: 1}
    executor, told = AtOnce({"a": [CRASH, CRASH, GOOD], "b": [WRONG], "c": [CRASH, GOOD]}), []

    def on_done(index, outcome):
        told.append((index, outcome.failure))
        left[index] -= 1
        return left[index] >= 0

    run_programs(programs, 2, on_done, executor)
    assert sorted(told) == [
        (0, ""),
        (0, "crashed"),
        (0, "crashed"),
        (1, "could not be started"),
        (2, ""),
        (2, "crashed"),
    ]
    assert sorted(executor.started) == list("aaabcc")


@pytest.mark.parametrize(
    ("command", "failure", "retry", "killed"),
    [
        ("exit 0", "", False, 0),
        ("exit 1", "crashed with exit code 1", True, 0),
        ("exit 128", "crashed with exit code 128", True, 0),
        ("exit 129", "killed by signal 1", True, 1),
        ("kill -9 $$", "killed by signal 9", True, signal.SIGKILL),
        ("exit 127", "could not be started", False, 0),
    ],
)
def test_how_a_program_ends_is_told(tmp_path, command, failure, retry, killed):
    program = ProgramRun(("sh", "-c", f"echo $A; {command}"), {"A": "told", "PATH": "/bin:/usr/bin"}, tmp_path / "in",
                         tmp_path / "deep" / "log", 60.0)  # fmt: skip
    outcome = run_program(program)
    assert (outcome.failure, outcome.worth_retry, outcome.timed_out, outcome.signal) == (failure, retry, False, killed)
    assert program.log.read_text() == "told\n" and 0 < outcome.seconds < 60 and (tmp_path / "in").is_dir()


def test_a_program_past_its_time_is_ended_and_may_be_tried_again(tmp_path):
    program = ProgramRun(("sh", "-c", "sleep 60"), {"PATH": "/bin:/usr/bin"}, tmp_path, tmp_path / "log", 0.2)
    outcome = run_program(program)
    assert outcome.failure == "timed out after 0.2 s" and outcome.worth_retry and outcome.timed_out
    assert MAX_LOG_BYTES == 8 * 1024**3


def test_backends_run_two_at_once_try_again_once_and_wait_an_hour(tmp_path):
    for backend in (TorchBackend(tmp_path), MindsporeBackend(SimpleNamespace(), tmp_path)):
        assert (backend.parallel, backend.retries, backend.timeout_s, backend.executor) == (2, 1, 3600.0, None)
        assert (backend._kept.parallel, backend._kept.retries) == (2, 1)
    assert (TorchBackend.exact, TorchBackend.every_flag, TorchBackend.name) == (True, False, "torch")
    assert (MindsporeBackend.exact, MindsporeBackend.every_flag) == (False, True)


def test_a_program_s_log_says_its_peak_or_why_there_is_none(tmp_path):
    backend = MindsporeBackend(SimpleNamespace(), tmp_path)
    peak = "Used peak memory usage (without fragments): 77M\nActual peak memory usage (with fragments): 80M\n"
    late = Outcome("timed out after 1 s", 1.0, worth_retry=True, timed_out=True)
    cases = [
        (peak, GOOD, (77.0, 80.0, "")), (peak, CRASH, (None, None, "crashed")), ("x\n", GOOD, (None, None, NO_PEAK)),
        ("Out of memory\n", CRASH, (None, None, OUT_OF_MEMORY)), ("Out of memory\n", late, (None, None, late.failure)),
        ("Out of memory\n" + peak, GOOD, (77.0, 80.0, "")), (None, CRASH, (None, None, "crashed")),
    ]  # fmt: skip
    for at, (text, outcome, wanted) in enumerate(cases):
        stage = job(tmp_path, str(at), at)
        if text is not None:
            stage.program.folder.mkdir()
            stage.program.log.write_text(text)
        found = backend._judge(stage, outcome)
        assert (found.peak_mib, found.actual_mib, found.failure) == wanted
        assert found.stage == at and bool(found.lines) == (wanted[2] != "" and text is not None)


def test_a_stage_s_first_rank_is_told_beside_what_makes_it_count(tmp_path):
    starter = Starter(SimpleNamespace(program=None), Tools("python"), {"GLOG_v": "0", "MINE": "1"})
    for dp, tp, pp in itertools.product((1, 2, 3), (1, 4), (1, 2, 4)):
        strategy = Strategy(dp, tp, pp, micro_batches=8)
        first = [rank for rank in range(dp * tp * pp) if rank % (dp * tp) == 0]
        for stage in range(pp):
            assert starter.settings(strategy, stage) == {
                **SIMULATION, "GLOG_v": "0", "MINE": "1", "RANK_SIZE": str(dp * tp * pp), "RANK_ID": str(first[stage]),
            }  # fmt: skip
    program = SimpleNamespace(file="run.py")
    (tmp_path / "run.py").write_text("")
    (tmp_path / "run.sh").write_text("")
    for path, found in (
        (tmp_path, "run.py"),
        (tmp_path / "run.py", "run.py"),
        (tmp_path / "run.sh", None),
        (None, None),
    ):
        assert find_program(program, path) == (found and (tmp_path / found).resolve())
    assert find_program(None, tmp_path) is None and find_program(program, tmp_path / "gone") is None


def test_an_environment_is_names_with_texts_or_numbers(tmp_path):
    path = tmp_path / "env.json"
    assert read_environment(None) == read_environment(path) == {}
    path.write_text(json.dumps({"A_1": "x", "_b": 3, "C": 1.5}))
    assert read_environment(path) == {"A_1": "x", "_b": "3", "C": "1.5"}
