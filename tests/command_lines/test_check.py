"""`taylor check` prices a strategy file."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InfeasibleError
from taylor.command_lines.check import run
from tests import galvatron_cases as cases


@pytest.fixture
def words(tmp_path):
    file = tmp_path / "galvatron_config_toy.json"
    file.write_text(json.dumps(cases.STRATEGY))
    profiles = cases.write_folder(tmp_path / "profiles")
    return [str(file), "--profiles", str(profiles), "--hidden", "1024", "--seq", "4096"]


def test_a_strategy_file_is_priced_by_stage(words, capsys):
    run([*words, "--memory", "80"])
    told = capsys.readouterr().out
    assert "samples/s" in told and "Galvatron's formula" in told
    assert "costs" in told and "--costs" in told
    run([*words, "--memory", "80", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert [stage["layers"] for stage in data["stages"]] == [2, 4]
    assert data["faults"] == [] and data["step_s"] > 0 and data["verdict"]["fit"] == "fits"


def test_a_plan_that_needs_too_much_memory_does_not_hold(words, capsys):
    with pytest.raises(InfeasibleError, match="Stage 0 needs"):
        run([*words, "--memory", "2", "--json"])
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["fit"] == "does not fit" and verdict["shortage_mib"][0] > 0
    assert verdict["tight_stages"][0]["free_mib"] == -max(verdict["shortage_mib"])
