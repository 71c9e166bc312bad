"""Results show their job, its basis and the plan, as far as each is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace as Has

import numpy as np
import pandas as pd
import pytest

import taylor
from taylor import results
from taylor.results import Found, Planned

CONFIG = Has(path=Path("job.yaml"), model=Has(name="llama"), strategy=Has(name="DP2 PP2"))


def result(unit_ms=2.0, objective=50.0, plan=None):
    solution = Has(objective=objective, plan=plan, summary=lambda: "plan by stage")
    return Has(problem=Has(unit_ms=unit_ms, schedule=Has(name="1f1b"), micro_batches=8), solution=solution, plan=plan,
               unmodelled=("a flag",), to_dict=lambda: {"a": 1})  # fmt: skip


def planned(*, ratios=True, learned=None, speed=None):
    times = Has(ratios=Has(source="estimate")) if ratios else None
    facts = Has(ratios=times, device=Has(described="h100-80g"), learned=learned, length="length")
    return Has(facts=facts, memory=Has(source="estimate"), speed=speed, fit="fits", own="own", assumed=["a guess"])


@pytest.fixture(autouse=True)
def verdicts(monkeypatch):
    monkeypatch.setattr(results, "verdict", lambda one: ["it fits"])
    monkeypatch.setattr(results, "speed_text", lambda speed, length: f"{speed} {length}")


JOB = "job.yaml: llama, DP2 PP2, 1f1b, 8 micro-batches"


@pytest.mark.parametrize(
    ("one", "head"),
    [
        (Planned(result()), ["step time 100.0 ms"]),
        (Planned(result(unit_ms=None)), []), (Planned(result(objective=None)), []),
        (Planned(result(), CONFIG), [JOB, "step time 100.0 ms"]),
        (Planned(result(), CONFIG, planned()),
         [JOB, "device: h100-80g, times: estimate, memory: estimate", "it fits"]),
        (Planned(result(), None, planned(ratios=False, speed="quick", learned=Has(sentences=("seen",), seen=(1,)))),
         ["device: h100-80g, memory: estimate", "quick length", "seen", "it fits"]),
    ],
)  # fmt: skip
def test_a_plan_is_summed_up_with_what_is_known_of_it(one, head):
    assert one.summary().splitlines() == [*head, "plan by stage"] and repr(one) == one.summary()


def test_facts_of_a_plan_are_those_of_its_file_or_none():
    bare, whole = (
        Planned(result()),
        Planned(result(), CONFIG, planned(learned=Has(sentences=("s",), seen=(1, 2)), speed=7)),
    )
    assert (bare.speed, bare.fit, bare.own, bare.learned, bare.measurements, bare.assumed) == (
        None,
        None,
        None,
        [],
        (),
        [],
    )
    assert (whole.speed, whole.fit, whole.own, whole.learned) == (7, "fits", "own", ["s"])
    assert (whole.measurements, whole.assumed, whole.unmodelled) == ((1, 2), ["a guess"], ["a flag"])
    assert Planned(result(), CONFIG, planned()).learned == [] and whole.to_dict() == {"a": 1}
    assert bare.step_ms == 100.0 and Planned(result(unit_ms=None)).step_ms is None
    assert Planned(result(objective=None)).step_ms is None and Planned(result(objective=0.0)).step_ms == 0.0


def test_a_page_has_the_head_the_table_and_a_picture_of_what_has_a_plan(monkeypatch):
    monkeypatch.setattr(results, "summary_html", lambda solution: "<table>")
    monkeypatch.setattr("taylor.report.notebook.plan_image", lambda problem, plan, title: f"<img {title}>")
    monkeypatch.setattr("taylor.report.notebook.plan_figure", lambda problem, plan, title: f"figure {title}")
    assert Planned(result(unit_ms=None))._repr_html_() == "<table>"
    assert Planned(result(plan="p"))._repr_html_() == "<p>step time 100.0 ms</p><table><img plan>"
    page = Planned(result(plan="p"), Has(**vars(CONFIG) | {"path": Path("<a>.yaml")}))._repr_html_()
    assert page.startswith("<p>&lt;a&gt;.yaml: llama") and "<br>step time 100.0 ms</p><table><img <a>>" in page
    assert Planned(result(), CONFIG).plot() == "figure job" and Planned(result()).plot() == "figure plan"


def test_what_a_search_found_is_shown_in_ten_rows(monkeypatch):
    columns = ["dp", "tp", "pp", "ep", "vpp", "mbs", "micro_batches", "peakMem", "estimated_ms", "further"]
    frame = pd.DataFrame({name: range(12) for name in columns})
    monkeypatch.setattr(results, "candidate_frame", lambda result: frame)
    search = Has(counts={"built": 9, "chosen": 2}, device=Has(name="card"), chosen=np.array([3, 1]),
                 candidates=Has(row=lambda number: f"row {number}"))  # fmt: skip
    found = Found(CONFIG, search)
    assert found.images == "" and found.strategies == ["row 3", "row 1"] and found.table is frame
    head, *rows = repr(found).splitlines()
    assert head == "strategies of job.yaml for card: 9 built, 2 chosen" and len(rows) == 11
    assert rows[0].split() == columns[:-1] and rows[1].split() == ["0"] * 9
    page = found._repr_html_()
    assert page.startswith(f"<p>{head}</p><table") and page.count("<tr>") == 10 and "<td>9</td>" in page


def test_the_package_finds_its_names_once_and_no_others():
    assert taylor.__getattr__("solve") is taylor.solve and vars(taylor)["solve"] is taylor.solve
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        taylor.__getattr__("nothing")
    assert "__version__" in dir(taylor) and dir(taylor) == sorted(dir(taylor))
