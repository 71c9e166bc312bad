"""A ranking on a terminal: one line a row at any width, no figure cut, and the verdict in three lines."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from taylor.report.page_data import page_data
from taylor.report.ranking import (
    note_lines,
    plan_lines,
    ranking_table,
    tie_lines,
    tied_with_first,
    verdict_lines,
)
from taylor.report.terminal import print_ranking, print_ranking_verdict
from tests.report_cases import ranking


def shown(rows: object, width: int = 100, limit: int | None = None) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(ranking_table(rows, limit=limit, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def compared(rows: int, own: dict[str, object] | None = None) -> pd.DataFrame:
    """A ranking as the workflow gives it: the plan in the file behind the first row, speeds and gains."""
    table = ranking(rows)
    first = table.iloc[0].to_dict() | {"status": "feasible", "bound": np.nan, "gap": np.nan} | (own or {})
    first["cost"] = 1.25 * table["cost"][0]
    table = pd.concat([table.head(1), pd.DataFrame([first]), table.tail(rows - 1)], ignore_index=True)
    table["own"] = [0, 1, *[0] * (rows - 1)]
    table["tokens_per_second"] = 4096 * 1024 / table["cost"] * 1e3
    table["gain"] = 100 * (first["cost"] / table["cost"] - 1)
    table["memory_source"], table["ratio_source"] = "estimate", "estimate"
    return table


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_row_is_one_line_and_no_number_is_cut(width: int) -> None:
    table = compared(6)
    lines = shown(table, width)
    assert len(lines) == 1 + len(table) and max(map(len, lines)) <= width
    for line, (_, row) in zip(lines[1:], table.iterrows(), strict=True):
        peak = max(json.loads(row["peak_memory"]))
        figures = [
            f"{row['cost']:,.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{peak / 1024:.1f}/54.0",
            f"PP{row['pp']}",
        ]
        assert all(figure in line for figure in figures)
        assert (f"{row['gain']:+.1f} %" in line) == (not row["own"])


def test_the_widest_strategy_folds_and_no_number_does() -> None:
    row = compared(1).iloc[0].to_dict()
    row |= {"dp": 1024, "tp": 16, "pp": 64, "ep": 256, "cp": 16, "vpp": 16, "mbs": 128, "cost": 123_456_789.0}
    row |= {"tokens_per_second": 123_456_789.0, "gain": -99.9, "status": "cut_off", "bound_ms": 123_456_700.0}
    text = "\n".join(shown([row], 80))
    assert max(map(len, text.splitlines())) <= 80
    for figure in ("123,456,789.0", "123,456,789 ", "-99.9 %", "≥ 123,456,700", "DP1024", "VPP16", "MBS128"):
        assert figure in text


def test_the_own_plan_has_no_place_and_the_others_are_counted_without_it() -> None:
    lines = shown(compared(3))
    assert [line.split()[0] for line in lines[1:]] == ["1", "own", "2", "3"]
    lines = shown(compared(9), limit=4)
    assert [line.split()[0] for line in lines[1:-1]] == ["1", "own", "2", "3", "4"] and "5 of 10 rows" in lines[-1]


def test_measured_and_estimated_rows_are_marked_where_both_stand_in_one_table() -> None:
    table = compared(3)
    assert "estimate" not in "\n".join(shown(table))
    table["ratio_source"] = ["parsed", "estimate", "parsed, dmratio estimated", "estimate"]
    lines = shown(table)
    assert [line.split()[-1] for line in lines] == ["times", "meas.", "est.", "meas.", "est."]
    assert "measured for 2 of 3 candidates" in verdict_lines(table)[2]


def test_a_failed_candidate_keeps_its_row_and_its_reason_is_told_below_as_it_is() -> None:
    rows = [{"dp": 1, "tp": 2, "pp": 4, "status": "failed", "reason": "[bold]no[/bold] memory"}]
    assert "DP1 TP2 PP4" in shown(rows)[1] and "failed" in shown(rows)[1]
    assert note_lines(rows) == ["DP1 TP2 PP4: failed: [bold]no[/bold] memory"]
    assert verdict_lines(rows)[0] == "no candidate has a plan"
    many = note_lines(9 * rows)
    assert len(many) == 6 and many[-1].startswith("and 4 more")


def test_step_times_without_real_time_are_in_units() -> None:
    assert "1132.662 u" in shown([{"objective": 1132.662249}])[1]


def test_the_verdict_says_plan_gain_and_room() -> None:
    table = compared(2)
    table["peak_memory"] = [json.dumps([40_000] * pp) for pp in table["pp"]]
    best, fit, basis = verdict_lines(table)
    assert "25.0 % faster than the plan in the file" in best and f"{table['cost'][1]:,.1f} ms" in best
    assert "over its limit" not in best
    assert fit.endswith("15,296 of 55,296 MiB (27.7 %) free on stage 0, the fullest")
    assert "times estimated; memory by estimate" in basis
    assert verdict_lines(table.assign(certainty="tight: up to"))[1].endswith("the fullest; tight: up to")
    over = compared(2, {"status": "over_limit", "peak_memory": "[100, 300, 100]", "memory_limit": "[200, 200, 200]"})
    assert "which is 100 MiB over its limit on stage 1" in verdict_lines(over)[0]
    assert shown(over)[2].endswith("too large")
    assert "the file has no plan" in verdict_lines(ranking(2))[0]


def test_plans_are_short_and_shown_for_the_best_or_on_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    row = {"offset": json.dumps([[1] * 20 + [0]]), "recompute": json.dumps({"full": [[2] * 21]}), "file": "a.yaml"}
    assert plan_lines(row) == [("offset", "20×1, 0"), ("recompute", "21×2"), ("file", "a.yaml")]
    for details, count in ((False, 1), (True, 4)):
        print_ranking(compared(3), details=details)
        text = capsys.readouterr().out
        assert "\x1b[" not in text and text.count("offset: ") == count
    print_ranking_verdict(compared(3))
    assert [line.split(":")[0].strip() for line in capsys.readouterr().out.splitlines()] == [
        "verdict",
        "memory",
        "figures",
    ]


def test_a_ranking_from_records_and_from_a_frame_reads_the_same() -> None:
    table = compared(3)
    assert shown(table) == shown(table.to_dict("records"))


def test_a_tie_is_noted_once_and_none_where_the_best_is_alone():
    rows = [{"cost": cost, "status": "optimal", "own": 0, "objective": 1.0} for cost in (100.0, 107.9, 108.1)]
    assert tied_with_first(rows) == 2
    [note] = tie_lines(rows)
    assert note.startswith("the first 2 are a tie") and note in note_lines(rows)
    assert tie_lines(rows[:1]) == [] and tie_lines([]) == []


def test_a_page_shows_a_degree_only_where_it_differs_from_one() -> None:
    table = ranking(3).assign(cp=[1, 2, 1], ep=1, vpp=[1, 2, 4])
    shown = page_data(table, {}, {}, None, {})["columns"]
    assert {"cp", "vpp", "tp"} <= set(shown) and "ep" not in shown
