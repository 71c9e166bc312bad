"""The smallest change of candidates that do not fit, in the table and on the page of a ranking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from taylor.cost_model.memory.breakdown import lightest_plan, stage_breakdown
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.problem import LayerChoice
from taylor.report.page_data import page_data
from taylor.workflows.ranking import rank_levers
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.own_plans import problem_of
from taylor.workflows.ranking.rank import RankOptions, rank
from taylor.workflows.showing.memory_levers import Lever
from tests.conftest import ROOT

SCRIPT = ROOT / "config" / "pretrain_llama3_70b.sh"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    for name in ("a.sh", "b.sh"):
        (tmp_path / name).write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    return [tmp_path / "a.sh", tmp_path / "b.sh"]


def test_a_candidate_that_does_not_fit_has_the_change_with_which_it_would(files, tmp_path):
    candidates = load_candidates(files[:1], "a100-40g")
    ranking = rank(candidates, RankOptions(workers=1, output=tmp_path / "out", report=False), own=False)
    cells = list(ranking.table["smallest_change"])
    assert all(cell.startswith("Adam's moments in 16 bits") for cell in cells) and len(cells) == 1
    # The file with the flags that the change names, read again.
    flags = cells[0].split("omits ")[1].split(")")[0]
    files[1].write_text(
        SCRIPT.read_text(encoding="utf-8").replace("--sequence-parallel", f"--sequence-parallel {flags}")
    )
    config = read_config(files[1])
    rules = config.rules
    plan = lightest_plan(config.model, config.strategy, rules, FULL, config.schedule)
    most = max(one.total for one in stage_breakdown(config.model, config.strategy, rules, plan, config.schedule))
    assert f"{most:,.0f} MiB on the fullest stage" in cells[0]
    shown = page_data(ranking.table, {}, {}, None, {})
    assert "smallest_change" in shown["columns"] and shown["rows"][0]["smallest_change"] == cells[0]
    assert "smallest_change" in ranking.csv.read_text(encoding="utf-8").splitlines()[0]


@pytest.mark.parametrize("most, cured", [(1, [False, True, False]), (2, [False, True, True])])
def test_only_the_first_misfits_are_searched_and_nothing_that_fits(files, monkeypatch, most, cured):
    monkeypatch.setattr(rank_levers, "CURED_CANDIDATES", most)
    candidates = load_candidates(files, "a100-40g")
    problems = {number: problem_of(one) for number, one in enumerate(candidates)}
    table = pd.DataFrame(
        {"status": ["optimal", "infeasible", "over_limit"], "file": list(map(str, [*files, files[0]]))}
    )
    found = rank_levers.with_smallest_changes(table, candidates, problems)["smallest_change"]
    assert [bool(cell) for cell in found] == cured


def test_no_change_is_named_for_a_plan_with_choices_by_module(files, monkeypatch):
    """The analytical model of a changed job has no such choices; a solve of the same file names none either."""
    candidates = load_candidates(files[:1], "a100-40g")
    problem = problem_of(candidates[0])
    kinds = tuple(replace(kind, choices={"mlp": LayerChoice()}, activation_mib={**kind.activation_mib, "mlp": 1.0})
                  for kind in problem.kinds)  # fmt: skip
    even = candidates[0].config.even_plan(candidates[0].config.strategy, "mlp")
    monkeypatch.setattr(rank_levers, "plan_of_row", lambda row: even)
    monkeypatch.setattr(rank_levers, "smallest_change_of", lambda *_: Lever("a change", 1.0, 1.0, fits=True))
    table = pd.DataFrame({"status": ["over_limit"], "file": [str(files[0])]})
    named = [
        list(rank_levers.with_smallest_changes(table, candidates, {0: one})["smallest_change"])
        for one in (problem, problem.replace(kinds=kinds, choices=("mlp",)))
    ]
    assert named == [["a change: 1 MiB on the fullest stage"], [""]]


def test_a_ranking_interrupted_while_changes_are_searched_has_its_table(files, tmp_path, monkeypatch):
    def interrupted(*_: object) -> pd.DataFrame:
        raise KeyboardInterrupt

    monkeypatch.setattr("taylor.workflows.ranking.rank.with_smallest_changes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rank(load_candidates(files[:1], "a100-40g"), RankOptions(workers=1, output=tmp_path, report=False), own=False)
    (csv,) = tmp_path.glob("test_result_*.csv")
    table = pd.read_csv(csv)
    assert list(table["status"]) == ["infeasible"] and table["smallest_change"].isna().all()
