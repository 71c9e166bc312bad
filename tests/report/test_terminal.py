"""What a terminal shows: plan by stage, pipeline in characters, live line; plain in a pipe."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from taylor.report.compress import compress, compress_grid, gap_text
from taylor.report.planned import planned_timeline
from taylor.report.shares import step_shares
from taylor.report.terminal import live_line, pipeline_text, progress_text
from tests.report_cases import deepseek, even_plan


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
    timeline = planned_timeline(problem, even_plan(problem))
    text = pipeline_text(timeline, 90).plain.splitlines()
    assert len(text) == 5 and all(len(line) <= 90 for line in text)
    rows = [line.split(" ", 2)[2] for line in text[:4]]
    assert rows[0].startswith("F") and rows[3].startswith(".")
    # The share of idle characters is that of idle time, to within a character a task.
    for row, share in zip(rows, step_shares(timeline), strict=True):
        assert row.count(".") / len(row) == pytest.approx(share.idle / share.span, abs=8 / len(row))
    assert "r recompute" in text[4]


def test_the_pipeline_in_characters_is_as_wide_as_a_terminal_of_80_columns():
    problem = deepseek(4, 1, 64)
    lines = pipeline_text(planned_timeline(problem, even_plan(problem))).plain.splitlines()
    # Three windows, each cut to whole characters.
    assert 77 <= max(map(len, lines[1:-1])) <= 80


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
