"""The notebook of the documentation runs from its first cell to its last."""

from __future__ import annotations

import json

import matplotlib
import pytest

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
