"""The notebook of the documentation runs from its first cell to its last."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import matplotlib
import pandas as pd
import pytest

import taylor
from taylor.report.notebook import ranking_figure
from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "taylor.ipynb"


def test_every_cell_runs_in_order_and_leaves_what_it_tells(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # noqa: S102
    assert (tmp_path / "solved.yaml").is_file()
    assert set(names["ranking"].table["status"]) == {"optimal"}  # type: ignore[attr-defined]


def test_it_is_shipped_without_the_outputs_of_one_machine() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells)


def test_a_plan_and_a_ranking_are_drawn_and_a_long_pipeline_only_on_request() -> None:
    planned = taylor.evaluate(ROOT / "config" / "pretrain_llama2_7b.yaml")
    assert '<img style="max-width:100%" alt="pretrain_llama2_7b: pipeline" src="data:image/png' in planned._repr_html_()
    assert planned.plot().axes
    long = replace(planned.result, problem=planned.problem.replace(micro_batches=100_000))
    assert "<img" not in taylor.Planned(long)._repr_html_()
    steps = {"cost": [100.0, 104.0, 130.0, float("nan")], "status": ["optimal"] * 3 + ["infeasible"], "own": [0] * 4}
    degrees = {"dp": [1, 2, 4, 8], "tp": [8, 4, 2, 1], "pp": [1] * 4, "objective": [1.0, 1.04, 1.3, float("nan")]}
    [axes] = ranking_figure(pd.DataFrame(steps | degrees)).axes
    assert len(axes.patches) == 3 and "the first 2 are a tie" in axes.get_xlabel()


@pytest.mark.parametrize("installed", [True, False])
def test_progress_without_a_notebook_is_one_line_that_changes(installed, capsys, monkeypatch) -> None:
    module = ModuleType("IPython")
    module.get_ipython, module.display = lambda: None, ModuleType("IPython.display")
    module.display.display = lambda *what, **_: print(*what)
    for name, one in (("IPython", module), ("IPython.display", module.display)):
        monkeypatch.setitem(sys.modules, name, one if installed else None)
    line = taylor.ProgressLine("solving it")
    for step in (3.0, 2.0):
        line(SimpleNamespace(objective=step, bound=1.0, unit_ms=10.0, note=""))
    shown = capsys.readouterr().out
    assert "20.0 ms" in shown and shown.count("\rsolving it") == 2 and "{" not in shown
