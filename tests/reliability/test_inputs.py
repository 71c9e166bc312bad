"""Hostile input, in short: damaged files of every kind, and what an earlier campaign found."""

from __future__ import annotations

import os
from collections import deque
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reliability.campaign import SCRIPTS
from benchmarks.reliability.flags import flags
from benchmarks.reliability.inputs import outcome_faults, try_mutant
from benchmarks.reliability.mutations import MUTATIONS, Trap
from benchmarks.reliability.sandbox import Outcome, preload, run_forked, tree_of
from benchmarks.reliability.specimens import SHELL, WORKER_LINE, Specimen, forms, make_specimens
from taylor.base.errors import InputError
from taylor.parsers.profiles.kernels import parse_us
from taylor.parsers.read import read_config


@pytest.fixture(scope="module")
def specimens(tmp_path_factory) -> list[Specimen]:
    """Sound input of every kind, and all that the commands need already imported."""
    preload()
    return make_specimens(tmp_path_factory.mktemp("specimens"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_damaged_file_of_every_form_ends_as_the_contract_says(kind, specimens):
    for form in forms(specimens):
        rng = np.random.default_rng([len(kind), len(form)])
        group = [one for one in specimens if one.form == form]
        specimen = group[int(rng.integers(len(group)))]
        outcome, wrong = try_mutant(specimen, kind, rng)
        assert wrong == [], f"{specimen.name}: {outcome.errors}"


@pytest.mark.slow
@pytest.mark.parametrize("tool", SCRIPTS)
def test_odd_flags_end_as_the_contract_says(tool):
    result = flags(tool, 0.01)
    assert result["faults"] == [] and result["tried"]


@pytest.mark.slow
def test_every_undamaged_specimen_is_read(specimens, tmp_path):
    quick = {"train.sol", "result.json", "log/workerlog.1"}
    for specimen in specimens:
        if specimen.target in quick:
            assert run_forked(specimen.command.tool, specimen.command.words, specimen.folder).code == 0, specimen.name


@pytest.mark.slow
def test_the_sandbox_sees_a_stray_write_a_started_program_and_a_canary(tmp_path):
    """The campaign's own eyes: what it looks for is found when it is there."""
    preload()
    work = tmp_path / "a" / "b" / "work"
    work.mkdir(parents=True)
    before = tree_of(tmp_path)

    def misbehave() -> None:
        (tmp_path / "stray").write_text("x")
        os.system("touch " + str(tmp_path / "canary"))
        (work / "left.csv").write_text("half")

    outcome = run_forked("timeline_tool", ["--log_dir", "nowhere"], work, before=misbehave)
    assert outcome.code == 2
    assert any("stray" in event for event in outcome.strayed) and any("os.system" in e for e in outcome.strayed)
    found = " ".join(outcome_faults(outcome, before, tree_of(tmp_path), _any_specimen(work)))
    faults = ("code from the input was executed", "outside the working folder: stray", "files were left", "watched")
    for words in faults:
        assert words in found


def test_the_sandbox_tells_a_traceback_a_slow_command_and_a_large_one(tmp_path):
    specimen, tree = _any_specimen(tmp_path), tree_of(tmp_path)
    bad = Outcome(70, "", "Traceback (most recent call last)", 1.0, 1.0, False, 2000.0, ())
    found = " ".join(outcome_faults(bad, tree, tree, specimen))
    assert "exit code 70" in found and "a traceback" in found and "2000 MiB" in found
    slow = run_forked("timeline_tool", [], tmp_path, seconds=0.2, before=lambda: __import__("time").sleep(60))
    assert slow.timed_out and outcome_faults(slow, tree, tree, specimen) == ["not done after 10 CPU s"]
    busy = run_forked("timeline_tool", [], tmp_path, seconds=0.2, before=lambda: deque(count(), maxlen=0))
    assert busy.timed_out and busy.cpu_seconds > 0.2


def _any_specimen(folder: Path) -> Specimen:
    from benchmarks.reliability.specimens import Command

    return Specimen("log", "any", folder, "log", Command("timeline_tool", ()))


@pytest.mark.parametrize("kind", ["truncated", "bits_flipped", "emptied", "line_grown", "path_escaping", "binary"])
def test_a_mutation_changes_the_text_and_depends_on_its_seed_alone(kind, tmp_path):
    trap = Trap(tmp_path / "canary", tmp_path / "outside")
    twice = [MUTATIONS[kind](SHELL.encode(), np.random.default_rng(3), "sh", trap) for _ in range(2)]
    assert twice[0] == twice[1] != SHELL.encode()


# ---- what the campaign found --------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e999", "1e308", "9" * 40, "9" * 5000, "1e16", "inf", "nan"])
def test_a_time_that_no_clock_shows_is_not_a_time(text):
    with pytest.raises(ValueError):
        parse_us(text)


def test_a_kineto_time_beyond_all_clocks_is_refused_with_its_event(tmp_path):
    from taylor.parsers.profiles.kineto import read_kineto

    path = tmp_path / "rank-0.pt.trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1e308, "dur": 1, "args": {}}]}')
    with pytest.raises(InputError, match="ts of k"):
        read_kineto(path)


def test_a_worker_log_with_numbers_of_thousands_of_digits_is_read_around_them(tmp_path):
    log = tmp_path / "log"
    log.mkdir()
    sound = WORKER_LINE.format(job=0, kind="forward", m=0, a=1000.0, b=1008.0)
    huge = WORKER_LINE.format(job=0, kind="forward", m="9" * 5000, a=1010.0, b=1018.0)
    (log / "workerlog.0").write_text(sound + huge)
    outcome = run_forked("timeline_tool", ["--log_dir", "log"], tmp_path)
    assert outcome.code == 0, outcome.errors


def test_a_script_of_megabytes_is_refused_at_once(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SHELL + "#\n" * 500_000)
    with pytest.raises(InputError, match="larger"):
        read_config(path)


def test_a_search_whose_files_cannot_be_written_leaves_nothing(tmp_path):
    """The number of layers a chunk comes from an expression, which cannot be changed for every candidate."""
    text = SHELL.replace("virtual-pipeline-stage 4", "virtual-pipeline-stage $((32 / PP / 2))")
    (tmp_path / "train.sh").write_text(text)
    preload()
    words = ["--shell_path", "train.sh", "--profile_num", "1", "--fix", "pp=2"]
    outcome = run_forked("parallel_tool", words, tmp_path)
    assert outcome.code == 2, outcome.errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.sh"]


def test_a_registration_nested_thousands_deep_is_refused_at_once(tmp_path):
    from taylor.register.registry import Registry

    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "deep.yaml").write_text("name: deep\nmemory_mib: " + "[" * 50_000 + "]" * 50_000 + "\n")
    with pytest.raises(InputError, match="nested"):
        Registry.load(tmp_path).device("deep")


def test_layer_tuples_listed_in_blocks_are_the_same_ones(monkeypatch):
    """All pairs at once took 600 MB for eight interleaves on one stage."""
    from benchmarks.brute_force import random_problem
    from taylor.pipeline_solver.columns import stage_tuples

    rng = np.random.default_rng(12)
    several = 0
    for _ in range(40):
        problem = random_problem(rng)
        listed = []
        for block in (1, 3, 10**6):
            monkeypatch.setattr(stage_tuples, "BLOCK", block)
            parts = stage_tuples.stage_tuples(problem, 500_000)
            listed.append(
                [(p.members.tolist(), p.totals.tolist(), p.forward.tolist(), p.free_mib.tolist()) for p in parts]
            )
        several += max(len(members) for members, *_ in listed[0]) > 3
        assert listed[0] == listed[1] == listed[2]
    assert several > 5
