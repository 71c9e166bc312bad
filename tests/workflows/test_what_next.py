"""Changes that would gain most: each is what the changed job itself takes when it is solved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import taylor
from taylor.base.budget import TimeBudget
from taylor.workflows.showing import planned_outputs, what_next
from taylor.workflows.showing.next_change import NextChange
from taylor.workflows.showing.planned_outputs import store_result
from taylor.workflows.showing.what_next import next_changes
from taylor.workflows.statement.options import Outputs
from tests.conftest import ROOT

SCRIPT = ROOT / "config" / "pretrain_llama3_70b.sh"


@pytest.fixture(scope="module")
def planned():
    return taylor.solve(SCRIPT, device="h100-80g").planned


@pytest.fixture(scope="module")
def changes(planned):
    return next_changes(planned, TimeBudget.of(120))


def solved_anew(tmp_path: Path, old: str, new: str):
    """Step of the script with some flags in place of others, ms."""
    text = SCRIPT.read_text(encoding="utf-8")
    assert old in text
    script = tmp_path / "changed.sh"
    script.write_text(text.replace(old, new, 1), encoding="utf-8")
    return taylor.solve(script, device="h100-80g").step_ms


def test_the_best_changes_come_first_and_more_devices_last(changes):
    assert 2 <= len(changes) <= 3
    same = [one for one in changes if one.gain == one.gain_per_device]
    assert [one.gain for one in same] == sorted((one.gain for one in same), reverse=True)
    assert changes[-1].name.startswith("twice the devices") and changes[-1].gain > 0.5 > changes[-1].gain_per_device


def test_a_change_takes_what_its_own_file_takes(changes, planned, tmp_path):
    eighth = next(one for one in changes if "fp8" in one.name)
    alone = solved_anew(tmp_path, "--bf16", "--bf16 --fp8-format hybrid --fp8-recipe tensorwise")
    assert eighth.step_ms == pytest.approx(alone, rel=1e-3)
    assert eighth.gain == pytest.approx(planned.speed.step_ms / eighth.step_ms - 1)


def test_nothing_follows_without_time_nor_from_an_evaluated_plan(planned):
    assert next_changes(planned, TimeBudget.of(0.0)) == ()
    assert next_changes(taylor.evaluate(SCRIPT, device="h100-80g").planned, TimeBudget.of(60)) == ()


def test_sentences_say_gain_step_and_what_a_device_keeps():
    one = NextChange("twice the devices", 4510.5, 0.834, -0.083, proven=False)
    assert one.sentence == (
        "twice the devices: +83.4 % tokens/s, 4,510 ms a step, each device keeps 92 % of its speed, "
        "at least: the search ended early"
    )
    assert NextChange("fp8", None, 0.2, 0.2, proven=True).sentence == "fp8: +20.0 % tokens/s"


def test_a_result_is_written_again_only_where_there_is_more_to_say(planned, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(planned_outputs, "store_json", lambda *args: written.append(args) or args[0])
    monkeypatch.setattr(what_next, "next_changes", lambda *_: ())
    for seconds in (0.0, 60.0):
        store_result(planned, {}, Outputs(folder=tmp_path, result_json=tmp_path / "r.json", next_seconds=seconds))
    assert len(written) == 2 * 2  # before all that takes time, and at the end


def test_the_result_has_the_changes_where_they_are_asked_for(planned, changes, tmp_path):
    outputs = Outputs(folder=tmp_path, result_json=tmp_path / "r.json", next_seconds=60.0)
    done = store_result(planned, {}, outputs)
    assert [one.name for one in done.following] == [one.name for one in changes]
    assert [one["change"] for one in done.job_dict()["what_next"]] == [one.name for one in changes]
    assert "what_next" not in store_result(planned, {}, replace(outputs, next_seconds=0.0)).job_dict()
