"""The HTML report, opened and clicked in a headless Chromium."""

from __future__ import annotations

import io
import json
import math
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from taylor.report.facts import GOOD, Answer, PageFacts, PageTable, Share
from taylor.report.html import write_html_report
from taylor.report.memory_parts import MemoryParts, from_problem
from taylor.report.page_data import page_data
from taylor.report.planned import planned_timeline
from taylor.report.ranking import tied_with_first
from taylor.report.timeline import DIRECTION_NAMES
from tests.browser import axe_script, browser, missing
from tests.report_cases import deepseek, even_plan, ranking

needs_browser = pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")

TITLE = PageFacts("a page")

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
        f"candidate_{i}": planned_timeline(problem, even_plan(problem, kept), f"plan {i}")
        for i, kept in ((0, 1), (7, 3))
    }
    pruned = pd.DataFrame({"rule": ["tp over a node", "memory"], "count": [120, 3000], "example": ["TP16", "DP1"]})
    path = tmp_path_factory.mktemp("page") / "report.html"
    facts = PageFacts("A thousand", verdict="All of them.", assumed=["from a test"])
    write_html_report(path, facts, table, plans=plans, pruned=pruned)
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
def test_a_thousand_candidates_are_drawn_without_error_or_request(chromium, thousand):
    chromium.log()
    chromium.requested()
    chromium.open(thousand[0])
    assert chromium.log() == []
    assert [url for url in chromium.requested() if not url.startswith(("file:", "data:", "blob:"))] == []
    assert chromium.run("return document.querySelectorAll('#ranking-table tbody tr').length") == 1000
    drawn = chromium.run(
        "return ['trade-off', 'gaps', 'parts-a', 'pipeline-a', 'memory-a']"
        ".map((id) => document.querySelectorAll(`#${id} .plot-container svg path`).length)"
    )
    assert all(count > 0 for count in drawn), drawn


@needs_browser
def test_the_figures_on_the_page_are_those_of_the_csv(chromium, thousand):
    path, table = thousand
    chromium.open(path)
    text = pd.read_csv(io.StringIO(table.to_csv(index=False)), dtype=str, keep_default_na=False)
    for column, title in (
        ("dp", "dp"),
        ("cost", "step ms"),
        ("gap", "gap"),
        ("offset", "offset"),
        ("recompute", "recompute"),
        ("status", "status"),
        ("file", "file"),
    ):
        assert cells(chromium, title) == text[column].tolist(), column
    shown = chromium.run(
        "return [...document.querySelectorAll('#ranking-table tbody tr:first-child td')]"
        ".map((cell) => cell.textContent)"
    )
    assert f"{table['cost'][0]:,.1f}" in shown


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
    assert chromium.run("return document.querySelector('#chosen-name').textContent").startswith("Selected: #8 ")
    facts = chromium.run("return [...document.querySelectorAll('#chosen-facts dd')].map((node) => node.textContent)")
    assert table["peak_memory"][7] in facts and repr(float(table["cost"][7])) in facts
    assert chromium.run("return document.querySelector('#plan-a').value") == "candidate_7"
    assert chromium.run("return document.querySelector('#name-a').textContent").startswith("plan 7: ")
    marked = "return [...document.querySelectorAll('#ranking-table tr.selected')].map((row) => row.dataset.index)"
    assert chromium.run(marked) == ["7"]
    chromium.click("#ranking-table tbody tr:nth-child(3) td:nth-child(2)")
    assert "not drawn" in chromium.run("return document.querySelector('#chosen-plan').textContent")


@needs_browser
def test_two_plans_lie_side_by_side_on_one_scale(chromium, thousand):
    chromium.open(thousand[0])
    assert chromium.run("return document.querySelector('#drawing-b').hidden")
    chromium.page.select_option("#plan-b", "candidate_7")
    assert not chromium.run("return document.querySelector('#drawing-b').hidden")
    ranges = chromium.run(
        "return ['pipeline-a', 'pipeline-b'].map((id) => document.getElementById(id).layout.xaxis.range)"
    )
    assert ranges[0] == ranges[1]


def page_of_names(path: Path, name: str) -> Path:
    """A page on which every text that a user states is a name."""
    table = ranking(3)
    table["file"] = [name + f"{i}.yaml" for i in range(3)]
    table["reason"], table["status"] = name, name
    problem = deepseek(4, micro_batches=8)
    timeline = planned_timeline(problem, even_plan(problem), name)
    facts = PageFacts(
        name,
        model=name,
        verdict=name,
        answers=[Answer(name, name, name)],
        assumed=[name],
        unmodelled=[name],
        what_if=[name],
        notes=[name],
    )
    return write_html_report(
        path,
        facts,
        table,
        plans={name + "0.yaml": timeline, name: timeline},
        parts={name: MemoryParts(name, {name: [1.0] * 4})},
        tables=[PageTable(name, [name], [[name], [Share(((name, 0.5),))]], name)],
        pruned=pd.DataFrame({name: [name]}),
    )


class Elements(HTMLParser):
    """The elements of a page with their attributes' names, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, ...]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, *(name for name, _ in attrs)))


@pytest.mark.parametrize(
    "name", [HOSTILE, "</script><b>", "<!--", "]]>", "' onload='x", '" onload="x', "\u2028</style>"]
)
def test_a_page_has_the_same_elements_whatever_names_are_on_it(tmp_path, name):
    plain, hostile = (
        Elements(page_of_names(tmp_path / f"{number}.html", each).read_text(encoding="utf-8")).found
        for number, each in enumerate(("a name", name))
    )
    assert plain == hostile and ("script",) in plain


@needs_browser
def test_hostile_names_stay_text(chromium, tmp_path):
    path = page_of_names(tmp_path / "hostile.html", HOSTILE)
    chromium.log()
    chromium.open(path)
    assert chromium.run("return window.attacked === undefined && document.images.length === 0")
    assert chromium.log() == []
    assert cells(chromium, "reason") == [HOSTILE] * 3
    assert chromium.run("return document.querySelector('h1').textContent") == HOSTILE
    assert chromium.run("return document.querySelector('#pruned-table td').textContent") == HOSTILE


@needs_browser
def test_a_click_on_a_point_of_the_trade_off_selects_its_candidate(chromium, tmp_path):
    table = ranking(3).assign(status="optimal", peak_memory=["[20000]", "[30000]", "[40000]"])
    chromium.open(write_html_report(tmp_path / "three.html", TITLE, table))
    x, y = chromium.run(
        "const host = document.getElementById('trade-off');"
        "host.scrollIntoView();"
        "const box = host.querySelectorAll('.scatterlayer .trace .point')[2].getBoundingClientRect();"
        "return [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];"
    )
    chromium.click_at(x, y)
    assert chromium.run("return document.querySelector('#chosen-name').textContent").startswith("Selected: #3 ")
    assert chromium.run("return document.querySelector('#ranking-table tr.selected').dataset.index") == "2"


@needs_browser
def test_a_job_of_many_tasks_is_drawn_in_three_windows(chromium, tmp_path):
    problem = deepseek(16, 2, 256, "interleaved")
    path = tmp_path / "big.html"
    write_html_report(path, TITLE, plans={"big": planned_timeline(problem, even_plan(problem))})
    chromium.log()
    chromium.open(path)
    assert chromium.log() == []
    titles = chromium.run("return document.getElementById('pipeline-a').layout.annotations.map((note) => note.text)")
    assert titles == ["warm-up", "steady state", "drain"]


@needs_browser
def test_the_page_names_tasks_as_the_trace_does(chromium, tmp_path):
    """Planned names are made in the page; they must be those that Python gives."""
    for number, problem in enumerate((deepseek(4, 2, 8, "interleaved"), deepseek(4, 1, 6, "seqpipe", 3))):
        timeline = planned_timeline(problem, even_plan(problem))
        chromium.open(write_html_report(tmp_path / f"{number}.html", TITLE, plans={"plan": timeline}))
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
        TITLE,
        progress={"plan": course},
        plans={"plan": planned_timeline(problem, even_plan(problem))},
    )
    chromium.open(path)
    chromium.click("#course summary")
    time.sleep(0.3)
    drawn = chromium.run("return document.getElementById('progress-chart').data.map((trace) => [trace.x, trace.y])")
    assert drawn == [[[0.5, 2.0], [120.0, 100.0]], [[0.1, 0.5, 2.0], [90.0, 95.0, 100.0]]]


@needs_browser
def test_pages_with_nothing_to_rank_or_only_failures_open_without_error(chromium, tmp_path):
    row = {"dp": 1, "tp": 1, "pp": 4, "status": "failed", "reason": "no memory", "file": "a.yaml"}
    failed = pd.DataFrame([row] * 2)
    chromium.log()
    for name, table in (("empty", pd.DataFrame()), ("failed", failed)):
        chromium.open(write_html_report(tmp_path / f"{name}.html", TITLE, table))
        assert chromium.log() == []
    assert cells(chromium, "reason") == ["no memory"] * 2


def test_an_empty_ranking_and_a_failed_row_still_give_a_page(tmp_path):
    failed = pd.DataFrame([{"dp": 1, "tp": 1, "pp": 4, "status": "failed", "reason": "no memory", "file": "a.yaml"}])
    for name, table in (("empty", pd.DataFrame()), ("failed", failed)):
        page = Path(write_html_report(tmp_path / f"{name}.html", TITLE, table)).read_text(encoding="utf-8")
        assert page.startswith("<!DOCTYPE html>") and 'src="http' not in page


def test_a_ranking_in_a_read_only_folder_is_an_input_error_and_leaves_nothing(tmp_path):
    from taylor.base.errors import InputError

    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(InputError, match="cannot be written"):
        write_html_report(blocker / "report.html", TITLE, ranking(1))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


JOB = PageFacts(
    "deepseek on 1,024 cards",
    model="deepseek, 671 B parameters",
    device="card (64 GiB)",
    ranks="1,024",
    batch="1,024",
    sequence="4,096 tokens",
    file="deepseek.yaml",
    verdict="A step takes 28,898.5 ms, 9.1 % faster than the plan in the file; it fits, 152 MiB free.",
    answers=[
        Answer("Which plan?", "DP16 TP4 PP16 EP8, 1f1b", "layers by stage 5, 3, 5×4", ""),
        Answer("How much faster than the plan in the file?", "9.1 % faster", "28,898.5 ms a step", GOOD),
        Answer("Does it fit?", "yes, 152 MiB free", "stage 12 is the fullest", GOOD),
    ],
    assumed=["no device named: the default", "time ratios estimated", "memory estimated by the analytical model"],
    what_if=["With 2 GiB more a card: step time − 0.9 %."],
)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """A page of one plan of two interleaves beside the file's own, with its problem and timeline."""
    problem = deepseek(16, 2, 32, "interleaved", unit_ms=9.1)
    timelines = {
        name: planned_timeline(problem, even_plan(problem, kept), name) for name, kept in (("plan", 1), ("own", 2))
    }
    peaks = [steps.peak_mib for steps in timelines["plan"].memory]
    path = tmp_path_factory.mktemp("page") / "single.html"
    write_html_report(
        path,
        JOB,
        plans=timelines,
        parts={"plan": from_problem(problem, timelines["plan"].plan, peaks)},
        tables=[PageTable("Plans compared", ["plan", "step"], [["plan", "1 ms"], ["own", "2 ms"]], marked=0)],
    )
    return path, problem, timelines["plan"]


@pytest.fixture
def of_size(chromium):
    """Sets size and colours of the window; the module's other tests get their own back."""
    yield chromium.emulate
    chromium.emulate(1400, 1200)


@needs_browser
@pytest.mark.parametrize("width, height", [(1440, 900), (390, 844)])
def test_the_first_screen_answers_which_plan_how_much_faster_whether_it_fits_and_what_was_assumed(
    chromium, of_size, single, width, height
):
    of_size(width, height)
    chromium.open(single[0])
    bottoms = chromium.run(
        "return [...document.querySelectorAll('.card')].map((card) => [card.firstChild.textContent,"
        " card.getBoundingClientRect().bottom])"
    )
    assert [name for name, _ in bottoms] == [*(one.question for one in JOB.answers), "What was assumed?"]
    assert all(bottom <= height for _, bottom in bottoms), bottoms


@needs_browser
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_their_window_without_an_error_in_light_and_in_dark(
    chromium, of_size, single, thousand, width, scheme
):
    of_size(width, 900, scheme)
    for path in (single[0], thousand[0]):
        chromium.log()
        chromium.open(path)
        assert chromium.log() == []
        assert chromium.run("return document.documentElement.scrollWidth <= window.innerWidth")
        dark = chromium.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
        assert dark == (scheme == "dark")
        colour = chromium.run("return document.getElementById('pipeline-a').layout.font.color")
        assert colour == {"light": "#1a1a1a", "dark": "#e8eaed"}[scheme]


@needs_browser
@pytest.mark.skipif(axe_script() is None, reason="needs axe-core (pip install axe-playwright-python, or AXE_CORE)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_amiss(chromium, of_size, single, tmp_path, scheme):
    problem = deepseek(4, 1, 6, unit_ms=2.0)
    few = tmp_path / "few.html"
    table = ranking(8)
    plans = {"candidate_0": planned_timeline(problem, even_plan(problem))}
    write_html_report(few, JOB, table, plans=plans, pruned=pd.DataFrame({"rule": ["tp"], "count": [3]}))
    for width in (1440, 390):
        of_size(width, 900, scheme)
        for path in (single[0], few):
            chromium.open(path)
            assert chromium.violations(axe_script()) == []


@needs_browser
def test_interleaves_have_colours_of_their_own(chromium, single):
    chromium.open(single[0])
    fills = chromium.run(
        "return Object.fromEntries(document.getElementById('pipeline-a').data.filter((trace) => trace.fillcolor)"
        ".map((trace) => [trace.name, trace.fillcolor]))"
    )
    assert len({fills[name] for name in ("forward 0", "forward 1", "backward 0", "backward 1")}) == 4


@needs_browser
def test_the_memory_of_every_stage_is_stacked_up_to_its_peak_under_its_limit(chromium, single):
    path, problem, timeline = single
    chromium.open(path)
    traces = chromium.run(
        "return document.getElementById('parts-a').data.map((trace) => [trace.type, trace.name, trace.y])"
    )
    bars = [heights for kind, _, heights in traces if kind == "bar"]
    assert len(bars) >= 4 and [kind for kind, _, _ in traces].count("scatter") == 1
    peaks = [steps.peak_mib / 1024 for steps in timeline.memory]
    np.testing.assert_allclose(np.sum(bars, axis=0), peaks, atol=0.003)
    (limit,) = [heights for kind, _, heights in traces if kind == "scatter"]
    assert set(limit) == {problem.limit_mib[0] / 1024}


@needs_browser
def test_the_strips_hatch_as_many_layers_as_are_recomputed(chromium, single):
    path, _, timeline = single
    chromium.open(path)
    drawn = chromium.run(
        "return [...document.querySelectorAll('#layers-a .strip')].map((strip) => [...strip.children].map((chunk) =>"
        " [chunk.children.length, chunk.querySelectorAll('.mode-0').length]))"
    )
    plan = timeline.plan
    sizes = plan.total_layers(list(plan.layers))
    expected = [[[sizes[v][s], plan.recompute["full"][v][s]] for v in range(2)] for s in range(16)]
    assert drawn == expected


@needs_browser
def test_a_press_on_a_stage_draws_its_memory_larger(chromium, single):
    chromium.open(single[0])
    names = "return document.getElementById('memory-a').data.map((trace) => trace.name)"
    before = chromium.run(names)
    assert chromium.run("return document.querySelectorAll('#sparks-a .spark').length") == 16
    other = next(s for s in range(16) if f"stage {s}" not in before)
    chromium.click(f"#sparks-a .spark:nth-child({other + 1})")
    assert chromium.run(names) == [*before, f"stage {other}"]


@needs_browser
def test_the_pipeline_zooms_from_the_whole_step_to_one_micro_batch(chromium, tmp_path):
    problem = deepseek(16, 1, 128)
    timeline = planned_timeline(problem, even_plan(problem))
    chromium.open(write_html_report(tmp_path / "big.html", TITLE, plans={"big": timeline}))
    views = chromium.run("return [...document.querySelectorAll('#views-a button')].map((one) => one.textContent)")
    assert views == ["three parts", "whole step", "warm-up", "steady state", "drain", "one micro-batch (0)"]
    axis = "return document.getElementById('pipeline-a').layout.xaxis.range"
    chromium.click("#views-a button:nth-child(2)")
    assert chromium.run(axis) == pytest.approx([timeline.begin, timeline.finish], rel=1e-6)
    chromium.click("#views-a button:nth-child(6)")
    begin, end = chromium.run(axis)
    mine = timeline.micro_batch == 0
    assert begin < 0 and timeline.end[mine].max() < end < 0.5 * timeline.finish
    outlined = chromium.run(
        "return document.getElementById('pipeline-a').data.find((trace) => trace.name === 'micro-batch 0').x.length / 6"
    )
    assert outlined == mine.sum()


@needs_browser
def test_charts_that_say_nothing_are_left_out(chromium, tmp_path):
    shown = "return ['overview', 'trade-off-part', 'gaps-part'].map((id) => !document.getElementById(id).hidden)"
    proven = ranking(3).assign(gap=0.0)
    for name, table, expected in (
        ("one", ranking(1), [False, False, False]),
        ("proven", proven, [True, True, False]),
        ("open", ranking(3), [True, True, True]),
    ):
        chromium.open(write_html_report(tmp_path / f"{name}.html", TITLE, table))
        assert chromium.run(shown) == expected


@pytest.mark.slow
def test_a_ranking_with_twenty_big_pipelines_is_a_page_of_two_megabytes_at_most(tmp_path):
    table = ranking(20)
    plans = {}
    for i in range(20):
        problem = deepseek(32, 1, 192 + i, unit_ms=9.1 + 0.01 * i)
        plans[f"candidate_{i}"] = planned_timeline(problem, even_plan(problem, i % 2), f"plan {i}")
    path = write_html_report(tmp_path / "twenty.html", TITLE, table, plans=plans)
    assert path.stat().st_size <= 2_000_000


def statistics(session, suffix="a"):
    """Shares of the time by kind below a pipeline, per cent."""
    rows = session.run(
        "return [...document.querySelectorAll(`#range-${arguments[0]} tbody tr`)]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))",
        suffix,
    )
    return {name: float(share.removesuffix(" %")) for name, _, share, _ in rows}


def shares(timeline, begin, end):
    """The same of a timeline, from its tasks one by one."""
    found = {}
    works = timeline.start + timeline.recompute
    for start, stop, names in (
        (timeline.start, works, ["recompute (in the backward)"] * len(works)),
        (works, timeline.end, [DIRECTION_NAMES[kind] for kind in timeline.direction]),
    ):
        for name, length in zip(names, np.minimum(stop, end) - np.maximum(start, begin), strict=True):
            found[name] = found.get(name, 0.0) + max(0.0, length) * 100 / (end - begin) / timeline.rows
    return {name: share for name, share in found.items() if share} | {"idle": 100 - sum(found.values())}


@needs_browser
def test_the_time_by_kind_of_a_dragged_range_is_that_of_its_tasks(chromium, tmp_path):
    problem = deepseek(4, 2, 8, "interleaved", unit_ms=2.0)
    timeline = planned_timeline(problem, even_plan(problem)).in_ms()
    chromium.open(write_html_report(tmp_path / "page.html", TITLE, plans={"plan": timeline}))
    assert statistics(chromium) == pytest.approx(shares(timeline, timeline.begin, timeline.finish), abs=0.06)
    box = chromium.run(
        "const host = document.getElementById('pipeline-a'); host.scrollIntoView({ block: 'center' });"
        "const box = host.querySelector('.nsewdrag').getBoundingClientRect();"
        "return [box.x, box.y, box.width, box.height];"
    )
    chromium.page.mouse.move(box[0] + 0.25 * box[2], box[1] + box[3] / 2)
    chromium.page.mouse.down()
    chromium.page.mouse.move(box[0] + 0.5 * box[2], box[1] + box[3] / 2, steps=5)
    chromium.page.mouse.up()
    chromium.page.wait_for_timeout(500)
    begin, end = chromium.run("return document.getElementById('pipeline-a').layout.xaxis.range")
    assert timeline.begin < begin < end < timeline.finish
    assert statistics(chromium) == pytest.approx(shares(timeline, begin, end), abs=0.06)


@needs_browser
def test_tasks_are_found_by_name_and_reached_one_after_the_other(chromium, tmp_path):
    problem = deepseek(4, 1, 32)
    timeline = planned_timeline(problem, even_plan(problem))
    chromium.open(write_html_report(tmp_path / "page.html", TITLE, plans={"plan": timeline}))
    chromium.type("#find-a", "backward 3")
    said = "return document.getElementById('found-a').textContent"
    assert chromium.run(said) == "4 of the tasks drawn; Enter goes to the first"
    outlined = "return document.getElementById('pipeline-a').data.find((trace) => trace.name === 'found').x.length / 6"
    assert chromium.run(outlined) == 4
    tasks = np.flatnonzero([name == "backward 3" for name in timeline.task_names()])
    for number, task in enumerate(tasks, 1):
        chromium.page.press("#find-a", "Enter")
        assert chromium.run(said) == f"{number} of 4: backward 3, stage {timeline.stage[task]}"
        begin, end = chromium.run("return document.getElementById('pipeline-a').layout.xaxis.range")
        assert begin < timeline.start[task] < timeline.end[task] < end
    chromium.page.fill("#find-a", "[(")
    assert chromium.run(said) == "none of the tasks drawn"
    chromium.page.fill("#find-a", "")
    assert chromium.run(said) == "" and chromium.log() == []


@needs_browser
def test_arrows_follow_the_micro_batch_of_a_pressed_task_from_stage_to_stage(chromium, tmp_path):
    problem = deepseek(4, 2, 8, "interleaved")
    timeline = planned_timeline(problem, even_plan(problem))
    chromium.open(write_html_report(tmp_path / "page.html", TITLE, plans={"plan": timeline}))
    arrows = (
        "return document.getElementById('pipeline-a').layout.annotations.filter((note) => note.showarrow)"
        ".map((note) => [note.ax, note.x])"
    )
    assert chromium.run(arrows) == []
    x, y, micro = chromium.run(
        "const host = document.getElementById('pipeline-a'); host.scrollIntoView({ block: 'center' });"
        "const trace = host.data.findIndex((one) => one.customdata), box = host.getBoundingClientRect(), at = 5;"
        "const { xaxis, yaxis } = host._fullLayout, { x, y } = host.data[trace];"
        "return [box.x + xaxis._offset + xaxis.l2p(x[at]), box.y + yaxis._offset + yaxis.l2p(y[at]),"
        " REPORT.plans.plan.windows[0].tasks.micro_batch[at]];"
    )
    chromium.click_at(x, y)
    mine = timeline.micro_batch == micro
    expected = [(timeline.end[a], timeline.start[b]) for a, b in timeline.flows if mine[a] and mine[b]]
    assert len(expected) == 2 * (4 * 2 - 1)
    np.testing.assert_allclose(sorted(chromium.run(arrows)), sorted(expected), rtol=1e-4)
    chromium.click_at(x, y)
    assert chromium.run(arrows) == []


@needs_browser
def test_strategies_are_lines_over_their_degrees_and_a_click_on_one_selects_it(chromium, tmp_path):
    table = ranking(12).assign(status="optimal", cost=[1000.0 + 20 * i for i in range(12)])
    chromium.open(write_html_report(tmp_path / "page.html", TITLE, table))
    tones = chromium.run(
        "return [...document.querySelectorAll('#parallel .strategy')].map((one) => one.className.baseVal)"
    )
    assert [tone.split() for tone in tones[::-1]] == [
        ["strategy", "best"],
        *[["strategy", "tie"]] * (tied_with_first(table) - 1),
        *[["strategy"]] * (12 - tied_with_first(table)),
    ]
    names = chromium.run("return [...document.querySelectorAll('#parallel .axis')].map((one) => one.textContent)")
    assert names[-2:] == ["step, ms", "peak, GiB"] and "PP" in names
    chromium.run(
        "document.querySelector('#parallel .strategy').dispatchEvent(new MouseEvent('click', { bubbles: true }))"
    )
    assert chromium.run("return document.querySelector('#chosen-name').textContent").startswith("Selected: #12 ")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_times_of_a_page_have_six_digits_of_their_window(scale):
    problem = deepseek(4, 1, 6)
    timeline = planned_timeline(problem, even_plan(problem))
    third = replace(timeline, **{name: getattr(timeline, name) * scale / 3 for name in ("start", "end", "recompute")})
    [window] = page_data(ranking(1), {"plan": third}, {}, None, {})["plans"]["plan"]["windows"]
    unit = 10 ** (math.floor(math.log10(window["end"] - window["begin"])) - 5)
    times = np.array([*window["tasks"]["start"], *window["tasks"]["end"]]) / unit
    assert times == pytest.approx(times.round(), abs=1e-6) and (third.end / unit) % 1 != pytest.approx(0, abs=1e-3)
