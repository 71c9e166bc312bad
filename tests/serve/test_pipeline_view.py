"""The drawing of a plan's pipeline on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.report.palette import RECOMPUTE
from taylor.serve.pipeline_view import MOST_PASSES, MOST_ROWS, even_pipeline, pipeline_view
from taylor.serve.question import Models, Question
from tests.report_cases import deepseek, even_plan

ASK = {"model": "llama3-70b", "device": "h100-80g", "ranks": 64, "tp": 8, "pp": 4}


def test_each_stage_is_drawn_with_the_step_and_the_peak_of_the_evaluation() -> None:
    problem = deepseek(4, 2, 8, "interleaved", unit_ms=2.0)
    plan = even_plan(problem)
    view, solution = pipeline_view(problem, plan), evaluate(problem, plan)
    assert view is not None and solution.objective is not None
    [window] = view["windows"]
    assert window["end"] == pytest.approx(2.0 * solution.objective) and (window["left"], window["right"]) == (0.0, 1.0)
    assert [row["stage"] for row in view["rows"]] == [0, 1, 2, 3]
    for row, peak in zip(view["rows"], solution.peak_memory_mib, strict=True):
        assert max(mib for _, mib in row["mib"][0]) == pytest.approx(peak, abs=0.1) == row["peak"]
        tasks = [span for span in row["spans"] if span[2] != RECOMPUTE]
        assert sorted(span[3] for span in tasks) == sorted([*range(8)] * 4)
        ends = [span[1] for span in sorted(row["spans"])]
        assert all(begin >= end for (begin, *_), end in zip(sorted(row["spans"])[1:], ends, strict=False))


def test_long_steps_are_drawn_in_three_windows_and_many_stages_by_some_with_the_fullest() -> None:
    problem = deepseek(40, 1, 64)
    view = pipeline_view(problem, even_plan(problem))
    assert view is not None and len(view["rows"]) == MOST_ROWS and view["stages"] == 40
    assert [window["name"] for window in view["windows"]] == ["warm-up", "steady state", "drain"]
    peaks = evaluate(problem, even_plan(problem)).peak_memory_mib
    drawn = {row["stage"] for row in view["rows"]}
    assert {0, 39, peaks.index(max(peaks))} <= drawn
    for row in view["rows"]:
        for begin, end, _, _ in row["spans"]:
            assert any(one["left"] - 1e-5 <= begin < end <= one["right"] + 1e-5 for one in view["windows"])


def test_a_step_with_too_many_passes_is_not_drawn(tmp_path: Path) -> None:
    few, many = (Question.model_validate({**ASK, "gbs": 2 * passes}) for passes in (256, MOST_PASSES // 4 + 1))
    models = Models(tmp_path)
    assert even_pipeline(models, few)["pipeline"]["rows"] and even_pipeline(models, many)["pipeline"] is None
