"""What a terminal shows: ranking, plan by stage, pipeline in characters, live line; plain in a pipe."""

from __future__ import annotations

import io
import json
import re
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from taylor.report.compress import compress, compress_grid
from taylor.report.shares import step_shares
from taylor.report.tables import gap_text, ranking_table
from taylor.report.terminal import live_line, pipeline_text, print_ranking, progress_text
from taylor.report.timeline import Timeline
from tests.report_cases import deepseek, even_plan, ranking


def shown(renderable, width=100, terminal=False):
    out = io.StringIO()
    Console(
        file=out,
        width=width,
        force_terminal=terminal,
        color_system="truecolor" if terminal else None,
        legacy_windows=False,
    ).print(renderable)
    return out.getvalue()


@given(st.lists(st.integers(-3, 60), max_size=80))
def test_compressed_lists_say_the_same(values):
    entries = [entry.split("×") for entry in compress(values).split(",") if entry]
    assert [int(e[-1]) for e in entries for _ in range(int(e[0]) if len(e) > 1 else 1)] == values


def test_lists_are_compressed_as_the_manual_says():
    assert compress([4] * 14 + [3]) == "14×4,3"
    assert compress_grid("[[1, 1, 0], [0, 0, 0]]") == "2×1,0 | 3×0"
    assert compress_grid('{"full": [[2, 2]], "select": [[0, 0]]}') == "2×2"
    assert compress_grid('{"full": [[2, 2]], "select": [[0, 1]]}') == "full 2×2; select 0,1"
    assert compress_grid(float("nan")) == "" and compress_grid("[broken") == ""


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_ranking_fits_the_terminal_and_shows_every_figure(width):
    table = ranking(6)
    text = shown(ranking_table(table), width)
    assert max(map(len, text.splitlines())) <= width
    squeezed = re.sub(r"[\s│]", "", text)
    for _, row in table.iterrows():
        assert f"{row['cost']:,.1f}" in text
        assert f"PP{row['pp']}" in squeezed
    # Cut at no width: every stage's peak of the first candidate is there, in GiB.
    first = re.sub(r"[\s│]", "", shown(ranking_table(table.head(1)), width))
    peaks = [f"{value / 1024:.1f}" for value in json.loads(table["peak_memory"][0])]
    plan_column = first[first.index("peak") :]
    assert all(peak in plan_column for peak in peaks)


def test_the_order_is_the_one_given_and_the_caption_counts_what_is_left_out():
    text = shown(ranking_table(ranking(9), limit=4))
    assert "4 of 9 candidates" in text and re.search(r"│ ?4 │", text) and not re.search(r"│ ?5 │", text)


def test_a_failed_candidate_keeps_its_row_with_the_reason_and_markup_in_it_stays_text():
    text = shown(ranking_table([{"dp": 1, "tp": 2, "pp": 4, "status": "failed", "reason": "[bold]no[/bold] memory"}]))
    assert "DP1 TP2 PP4" in text and "failed" in text and "[bold]no[/bold] memory" in text


def test_a_peak_over_the_limit_is_said_with_its_stage():
    row = {"peak_memory": "[100, 300, 100]", "memory_limit": "[200, 200, 200]"}
    assert "over the limit on stage 1" in shown(ranking_table([row]))


def test_step_times_without_real_time_are_in_units():
    assert "1132.662 u" in shown(ranking_table([{"objective": 1132.662249}]))


def test_a_gap_that_is_not_closed_never_reads_as_zero():
    assert [gap_text(value) for value in (0.0, 5e-7, 2e-6, 5e-5, 0.0123, None)] == [
        "0 %",
        "0 %",
        "<0.01 %",
        "<0.01 %",
        "1.23 %",
        "-",
    ]


def test_the_pipeline_in_characters_shows_who_works_when():
    problem = deepseek(4, 1, 4)
    timeline = Timeline.from_plan(problem, even_plan(problem))
    text = pipeline_text(timeline, 90).plain.splitlines()
    assert len(text) == 5 and all(len(line) <= 90 for line in text)
    rows = [line.split(" ", 2)[2] for line in text[:4]]
    assert rows[0].startswith("F") and rows[3].startswith(".")
    # The share of idle characters is that of idle time, to within a character a task.
    for row, share in zip(rows, step_shares(timeline), strict=True):
        assert row.count(".") / len(row) == pytest.approx(share.idle / share.span, abs=8 / len(row))
    assert "r recompute" in text[4]


def test_the_live_line_shows_elapsed_best_bound_and_gap():
    latest = SimpleNamespace(seconds=3.0, objective=110.0, bound=100.0, note="12 nodes")
    text = progress_text("deepseek", 3.2, latest).plain
    assert "deepseek" in text and "3.2 s" in text and "best 110.0000" in text
    assert "bound 100.0000" in text and "gap 9.09 %" in text and "12 nodes" in text
    assert progress_text("deepseek", 0.1, None).plain.split() == ["deepseek", "0.1", "s"]
    in_ms = SimpleNamespace(seconds=3.0, objective=110.0, bound=100.0, note="", unit_ms=20.0)
    assert "best 2,200.0 ms" in progress_text("deepseek", 3.2, in_ms).plain


def test_a_bound_of_nothing_is_no_bound_yet():
    latest = SimpleNamespace(seconds=3.0, objective=110.0, bound=0.0, note="")
    text = progress_text("deepseek", 3.2, latest).plain
    assert "no bound yet" in text and "gap" not in text and "bound 0" not in text


def test_the_live_line_is_silent_in_a_pipe_and_leaves_nothing_on_a_terminal():
    out = io.StringIO()
    with live_line("x", Console(file=out)) as report:
        assert report is None
    assert out.getvalue() == ""
    out = io.StringIO()
    with live_line("solving", Console(file=out, force_terminal=True, width=80)) as report:
        report(SimpleNamespace(seconds=0.0, objective=2.0, bound=1.0, note=""))
        import time

        time.sleep(0.4)
    assert "best 2.0000" in out.getvalue()


def test_a_ranking_from_records_and_from_a_frame_reads_the_same():
    table = ranking(3)
    assert shown(ranking_table(table)) == shown(ranking_table(table.to_dict("records")))
    assert isinstance(table, pd.DataFrame)


def test_a_ranking_in_a_pipe_is_plain_and_wide_enough_to_read(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_ranking(ranking(2))
    text = capsys.readouterr().out
    assert "\x1b[" not in text and 100 <= max(map(len, text.splitlines())) <= 120
