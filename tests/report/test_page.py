"""The HTML report, opened and clicked in a headless Chromium."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from taylor.report.html import write_html_report
from taylor.report.timeline import Timeline
from tests.report_browser import browser, missing
from tests.report_cases import deepseek, even_plan, ranking

needs_browser = pytest.mark.skipif(bool(missing()), reason=f"no {missing()} on this machine")

HOSTILE = (
    "<!--<script> </script ></script/><script>window.attacked=1</script>"
    '<img src=x onerror="window.attacked=1"> & "quoted" \u2028'
)


@pytest.fixture(scope="module")
def chromium():
    with browser() as session:
        yield session


@pytest.fixture(scope="module")
def thousand(tmp_path_factory):
    """A page of 1,000 candidates, two of them with a pipeline, and the ranking behind it."""
    table = ranking(1000)
    problem = deepseek(4, micro_batches=8, unit_ms=9.1)
    plans = {
        f"candidate_{i}": Timeline.from_plan(problem, even_plan(problem, kept), f"plan {i}")
        for i, kept in ((0, 1), (7, 3))
    }
    pruned = pd.DataFrame({"rule": ["tp over a node", "memory"], "count": [120, 3000], "example": ["TP16", "DP1"]})
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html_report(path, table, plans=plans, pruned=pruned, title="A thousand", notes=["from a test"])
    return path, table


def cells(session, column):
    """Raw values of a column of the ranking table, top to bottom."""
    return session.run(
        "const at = [...document.querySelectorAll('#ranking-table thead tr:first-child th')]"
        ".findIndex((head) => head.textContent === arguments[0]);"
        "return [...document.querySelectorAll('#ranking-table tbody tr')]"
        ".map((row) => row.children[at].dataset.value);",
        column,
    )


def head(session, title):
    """Selector of the button in a heading of the ranking table."""
    at = session.run(
        "return [...document.querySelectorAll('#ranking-table thead tr:first-child th')]"
        ".findIndex((head) => head.textContent === arguments[0]);",
        title,
    )
    return f"#ranking-table thead tr:first-child th:nth-child({at + 1}) button"


@needs_browser
def test_a_thousand_candidates_open_within_three_seconds_without_error_or_request(chromium, thousand):
    chromium.log("browser")
    chromium.requested()
    chromium.open(thousand[0])
    assert chromium.log("browser") == []
    assert [url for url in chromium.requested() if not url.startswith(("file:", "data:", "blob:"))] == []
    assert chromium.run("return document.querySelectorAll('#ranking-table tbody tr').length") == 1000
    drawn = chromium.run(
        "return ['trade-off', 'gaps', 'chosen-memory', 'chosen-layers', 'pipeline-a', 'memory-a']"
        ".map((id) => document.querySelectorAll(`#${id} .plot-container svg path`).length)"
    )
    assert all(count > 0 for count in drawn), drawn
    # The page's own time, everything drawn; the best of three, since other work may share the machine.
    times = [float(chromium.run("return document.body.dataset.ready"))]
    for _ in range(2):
        chromium.open(thousand[0])
        times.append(float(chromium.run("return document.body.dataset.ready")))
    assert min(times) < 3000, times


@needs_browser
def test_the_figures_on_the_page_are_those_of_the_csv(chromium, thousand):
    path, table = thousand
    chromium.open(path)
    text = pd.read_csv(io.StringIO(table.to_csv(index=False)), dtype=str, keep_default_na=False)
    for column, title in (
        ("dp", "dp"),
        ("cost", "step ms"),
        ("objective", "objective"),
        ("gap", "gap"),
        ("offset", "offset"),
        ("recompute", "recompute"),
        ("status", "status"),
        ("file", "file"),
    ):
        assert cells(chromium, title) == text[column].tolist(), column
    shown = chromium.run("return document.querySelector('#ranking-table tbody tr td:nth-child(10)').textContent")
    assert shown == f"{table['cost'][0]:,.1f}"


@needs_browser
def test_a_click_on_a_heading_sorts_and_another_turns_the_order(chromium, thousand):
    path, table = thousand
    chromium.open(path)
    button = head(chromium, "heaviest GiB")
    peaks = table["peak_memory"].map(lambda text: max(json.loads(text)) / 1024).to_numpy()
    chromium.click(button)
    np.testing.assert_allclose([float(cell) for cell in cells(chromium, "heaviest GiB")], np.sort(peaks))
    chromium.click(button)
    np.testing.assert_allclose([float(cell) for cell in cells(chromium, "heaviest GiB")], np.sort(peaks)[::-1])
    chromium.click(head(chromium, "step ms"))
    assert [float(cell) for cell in cells(chromium, "step ms")] == sorted(table["cost"])


@needs_browser
def test_filters_leave_the_rows_that_match_them(chromium, thousand):
    path, table = thousand
    chromium.open(path)
    chromium.type('input[aria-label="filter column pp"]', ">=16")
    assert len(cells(chromium, "pp")) == (table["pp"] >= 16).sum()
    chromium.type('input[aria-label="filter column tp"]', "2,8")
    kept = table[(table["pp"] >= 16) & table["tp"].isin([2, 8])]
    assert cells(chromium, "file") == kept["file"].tolist()
    chromium.type('input[aria-label="filter ranking"]', "feasible")
    assert cells(chromium, "file") == kept[kept["status"] == "feasible"]["file"].tolist()


@needs_browser
def test_a_click_on_a_row_selects_the_candidate_and_draws_its_pipeline(chromium, thousand):
    path, table = thousand
    chromium.open(path)
    chromium.click("#ranking-table tbody tr:nth-child(8) td:nth-child(2)")
    assert chromium.run("return document.querySelector('#chosen-name').textContent").startswith("#8 ")
    facts = chromium.run("return [...document.querySelectorAll('#chosen-facts dd')].map((node) => node.textContent)")
    assert table["peak_memory"][7] in facts and repr(float(table["cost"][7])) in facts
    assert chromium.run("return document.querySelector('#plan-a').value") == "candidate_7"
    assert chromium.run("return document.querySelector('#name-a').textContent").startswith("plan 7 ")
    marked = "return [...document.querySelectorAll('#ranking-table tr.selected')].map((row) => row.dataset.index)"
    assert chromium.run(marked) == ["7"]
    chromium.click("#ranking-table tbody tr:nth-child(3) td:nth-child(2)")
    assert "not drawn" in chromium.run("return document.querySelector('#chosen-plan').textContent")


@needs_browser
def test_two_plans_lie_side_by_side_on_one_scale(chromium, thousand):
    chromium.open(thousand[0])
    assert chromium.run("return document.querySelector('#drawing-b').hidden")
    chromium.click("#plan-b option[value=candidate_7]")
    assert not chromium.run("return document.querySelector('#drawing-b').hidden")
    ranges = chromium.run(
        "return ['pipeline-a', 'pipeline-b'].map((id) => document.getElementById(id).layout.xaxis.range)"
    )
    assert ranges[0] == ranges[1]


@needs_browser
def test_hostile_names_stay_text(chromium, tmp_path):
    table = ranking(3)
    table["file"] = [HOSTILE + f"{i}.yaml" for i in range(3)]
    table["reason"], table["status"] = HOSTILE, HOSTILE
    problem = deepseek(4, micro_batches=8)
    timeline = Timeline.from_plan(problem, even_plan(problem), HOSTILE)
    path = tmp_path / "hostile.html"
    write_html_report(
        path,
        table,
        plans={HOSTILE + "0.yaml": timeline, HOSTILE: timeline},
        title=HOSTILE,
        pruned=pd.DataFrame({HOSTILE: [HOSTILE]}),
        notes=[HOSTILE],
    )
    chromium.log("browser")
    chromium.open(path)
    assert chromium.run("return window.attacked === undefined && document.images.length === 0")
    assert chromium.log("browser") == []
    assert cells(chromium, "reason") == [HOSTILE] * 3
    assert chromium.run("return document.querySelector('h1').textContent") == HOSTILE
    assert chromium.run("return document.querySelector('#pruned-table td').textContent") == HOSTILE


@needs_browser
def test_a_click_on_a_point_of_the_trade_off_selects_its_candidate(chromium, tmp_path):
    table = ranking(3).assign(status="optimal", peak_memory=["[20000]", "[30000]", "[40000]"])
    chromium.open(write_html_report(tmp_path / "three.html", table))
    x, y = chromium.run(
        "const host = document.getElementById('trade-off');"
        "host.scrollIntoView();"
        "const box = host.querySelectorAll('.scatterlayer .trace .point')[2].getBoundingClientRect();"
        "return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];"
    )
    chromium.click_at(x, y)
    assert chromium.run("return document.querySelector('#chosen-name').textContent").startswith("#3 ")
    assert chromium.run("return document.querySelector('#ranking-table tr.selected').dataset.index") == "2"


@needs_browser
def test_a_job_of_many_tasks_is_drawn_in_three_windows(chromium, tmp_path):
    problem = deepseek(16, 2, 256, "interleaved")
    path = tmp_path / "big.html"
    write_html_report(path, pd.DataFrame(), plans={"big": Timeline.from_plan(problem, even_plan(problem))})
    chromium.log("browser")
    chromium.open(path)
    assert chromium.log("browser") == []
    titles = chromium.run("return document.getElementById('pipeline-a').layout.annotations.map((note) => note.text)")
    assert titles == ["warm-up", "steady state", "drain"]


@needs_browser
def test_the_page_names_tasks_as_the_trace_does(chromium, tmp_path):
    """Planned names are made in the page; they must be those that Python gives."""
    for number, problem in enumerate((deepseek(4, 2, 8, "interleaved"), deepseek(4, 1, 6, "seqpipe", 3))):
        timeline = Timeline.from_plan(problem, even_plan(problem))
        chromium.open(write_html_report(tmp_path / f"{number}.html", pd.DataFrame(), plans={"plan": timeline}))
        named = chromium.run(
            "return document.getElementById('pipeline-a').data.filter((trace) => trace.customdata)"
            ".flatMap((trace) => trace.customdata.map((one) => one[0]))"
        )
        assert named == timeline.task_names()


@needs_browser
def test_the_course_of_a_solve_is_drawn_where_it_is_known(chromium, tmp_path):
    problem = deepseek(4, 1, 6)
    course = [(0.1, None, 90.0), (0.5, 120.0, 95.0), (2.0, 100.0, 100.0)]
    path = write_html_report(
        tmp_path / "course.html",
        pd.DataFrame(),
        progress={"plan": course},
        plans={"plan": Timeline.from_plan(problem, even_plan(problem))},
    )
    chromium.open(path)
    drawn = chromium.run("return document.getElementById('progress-a').data.map((trace) => [trace.x, trace.y])")
    assert drawn == [[[0.5, 2.0], [120.0, 100.0]], [[0.1, 0.5, 2.0], [90.0, 95.0, 100.0]]]


@needs_browser
def test_pages_with_nothing_to_rank_or_only_failures_open_without_error(chromium, tmp_path):
    row = {"dp": 1, "tp": 1, "pp": 4, "status": "failed", "reason": "no memory", "file": "a.yaml"}
    failed = pd.DataFrame([row] * 2)
    chromium.log("browser")
    for name, table in (("empty", pd.DataFrame()), ("failed", failed)):
        chromium.open(write_html_report(tmp_path / f"{name}.html", table))
        assert chromium.log("browser") == []
    assert cells(chromium, "reason") == ["no memory"] * 2


def test_an_empty_ranking_and_a_failed_row_still_give_a_page(tmp_path):
    failed = pd.DataFrame([{"dp": 1, "tp": 1, "pp": 4, "status": "failed", "reason": "no memory", "file": "a.yaml"}])
    for name, table in (("empty", pd.DataFrame()), ("failed", failed)):
        page = Path(write_html_report(tmp_path / f"{name}.html", table)).read_text(encoding="utf-8")
        assert page.startswith("<!DOCTYPE html>") and 'src="http' not in page


def test_a_ranking_in_a_read_only_folder_is_an_input_error_and_leaves_nothing(tmp_path):
    from taylor.base.errors import InputError

    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(InputError, match="cannot be written"):
        write_html_report(blocker / "report.html", ranking(1))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
