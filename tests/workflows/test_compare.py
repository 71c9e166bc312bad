"""Two results side by side: the parts explain the difference, and unlike things are called so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import main
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.result import Result
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.workflows.showing.compare import compare_results, write_comparison_page
from tests.report_cases import deepseek, even_plan

JOB = {
    "model": {"name": "deepseek"},
    "device": {"name": "card"},
    "strategy": {"dp": 2, "tp": 1, "pp": 4, "cp": 1},
    "batch": {"global": 32, "sequence": 4096},
    "assumed": ["time ratios estimated"],
}


def saved(path: Path, problem: PipelineProblem, kept: int = 1, **job: Any) -> Path:
    """A result of an even plan, as `--result_json` writes it."""
    result = Result(problem, evaluate(problem, even_plan(problem, kept)), memory_source="estimate", job=JOB | job)
    path.write_text(result.to_json())
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    problem = deepseek(4, 1, 16, unit_ms=10.0, lag=0.1, tail=(3.0,) * 4)
    return saved(tmp_path / "before.json", problem, 0), saved(tmp_path / "after.json", problem, 8)


def test_the_parts_sum_up_to_each_step_and_recompute_is_why_the_plan_that_keeps_more_is_faster(pair) -> None:
    told = compare_results(*pair)
    for at, path in enumerate(pair):
        step = json.loads(path.read_text())["objective"] * 10.0
        assert sum((part.first, part.second)[at] for part in told.parts) == pytest.approx(step)
    parts = {part.what: part.second - part.first for part in told.parts}
    assert min(parts, key=parts.__getitem__) == "recompute"
    assert parts["forward and backward of an average stage"] == pytest.approx(0)
    tail = next(part for part in told.parts if part.what.startswith("end of the step"))
    assert (tail.first, tail.second) == pytest.approx((30.0, 30.0))
    assert told.verdict.startswith("after is ") and "faster than before" in told.verdict and "recompute" in told.verdict
    assert told.warnings == () and [one.what for one in told.differences if not one.same][0] == "recompute"


def test_a_result_beside_itself_differs_in_nothing(pair) -> None:
    told = compare_results(pair[0], pair[0])
    assert "equally fast" in told.verdict and all(one.same for one in told.differences)
    assert told.names == (f"{pair[0]} (first)", f"{pair[0]} (second)")


@pytest.mark.parametrize(
    "job, words",
    [
        ({"model": {"name": "llama"}}, "Not comparable: the models differ (deepseek and llama)"),
        ({"batch": {"global": 64, "sequence": 4096}}, "The batches differ (32 and 64 samples)"),
        ({"batch": {"global": 32, "sequence": 8192}}, "The sequences differ"),
        ({"device": {"name": "other"}}, "different devices (card and other)"),
        ({"strategy": {"dp": 4, "tp": 1, "pp": 4, "cp": 1}}, "8 and 16 devices"),
    ],
)
def test_what_is_no_like_with_like_is_said(tmp_path, job, words) -> None:
    problem = deepseek(4, 1, 16, unit_ms=10.0)
    a, b = saved(tmp_path / "a.json", problem), saved(tmp_path / "b.json", problem, **job)
    assert any(words in warning for warning in compare_results(a, b).warnings)


def test_other_batches_are_compared_by_sample(tmp_path) -> None:
    one, two = (deepseek(4, 1, count, unit_ms=10.0) for count in (16, 32))
    a = saved(tmp_path / "a.json", one)
    b = saved(tmp_path / "b.json", two, batch={"global": 64, "sequence": 4096})
    told = compare_results(a, b)
    assert told.unit == "ms a sample"
    assert told.parts[0].first == pytest.approx(told.parts[0].second)
    assert told.verdict.startswith("b is ")  # fill and drain weigh less in the longer step


def test_a_result_without_a_real_time_is_compared_in_units(tmp_path) -> None:
    a = saved(tmp_path / "a.json", deepseek(4, 1, 16, unit_ms=10.0))
    b = saved(tmp_path / "b.json", deepseek(4, 1, 16))
    told = compare_results(a, b)
    assert told.unit.startswith("body-layer forwards") and "equally fast" in told.verdict
    assert any("Only one of them has times in ms" in warning for warning in told.warnings)


def test_the_command_prints_tables_or_json_and_writes_a_page(pair, tmp_path, capsys) -> None:
    page = tmp_path / "c.html"
    main.run(["compare", str(pair[0]), str(pair[1]), "--html", str(page)])
    out = capsys.readouterr().out
    assert "What differs" in out and "Where the time goes" in out and "faster than before" in out
    text = page.read_text()
    assert "before beside after" in text and "Does after fit?" in text and '<option value="after" selected>' in text
    main.run(["compare", str(pair[0]), str(pair[1]), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["names"] == ["before", "after"] and set(told["differences"]["recompute"]) != set()


def test_a_file_that_is_no_result_or_a_page_that_cannot_be_written_is_refused(pair, tmp_path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(InputError, match="no solved plan"):
        main.run(["compare", str(pair[0]), str(other)])
    with pytest.raises(InputError, match="--html"):
        main.run(["compare", str(pair[0]), str(pair[1]), "--html", str(other / "page.html")])


@pytest.mark.parametrize(
    "job",
    [
        {"model": 3},
        {"batch": []},
        {"strategy": "x"},
        {"batch": {"global": -1, "sequence": "x"}},
        {"step_ms": "x"},
        {"device": {}},
        {"assumed": 5},
        {"strategy": {"dp": "2", "tp": None, "pp": 4, "cp": 1}},
    ],
)
def test_odd_job_facts_do_not_end_in_a_traceback(pair, tmp_path, job) -> None:
    odd = saved(tmp_path / "odd.json", deepseek(4, 1, 16, unit_ms=10.0), **job)
    assert compare_results(pair[0], odd).verdict
    write_comparison_page(tmp_path / "page.html", pair[0], odd)


@pytest.mark.parametrize(("slower", "tie"), [(1.03, True), (1.3, False)])
def test_two_estimates_closer_than_the_model_s_error_are_a_tie(tmp_path, slower: float, tie: bool) -> None:
    problem = deepseek(4, 1, 16, unit_ms=10.0)
    estimated = {"step_interval_ms": [1.0, 2.0]}
    first = saved(tmp_path / "first.json", problem, **estimated)
    second = saved(tmp_path / "second.json", problem.replace(unit_ms=10.0 * slower), **estimated)
    told = compare_results(first, second)
    assert told.exceeds_error is not tie and told.to_dict()["exceeds_error"] is not tie
    assert ("are a tie" in told.verdict) is tie and ("8 %" in told.verdict) is tie
    assert compare_results(first, saved(tmp_path / "measured.json", problem)).exceeds_error is None
