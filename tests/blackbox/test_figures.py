"""Laws, times, bytes and plans of three hidden networks are what they were; `figures.py` says what that is worth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.blackbox import drawn_figures
from tests.blackbox.figures import KEPT, NETWORKS, PARTS, Shown, shown
from tests.cost_model.test_figures import differences


@pytest.fixture(scope="module", params=NETWORKS)
def one(request: Any) -> Shown:
    return shown(request.param)


@pytest.mark.parametrize("part", drawn_figures.PARTS)
def test_no_figure_of_drawn_tables_has_moved(part: str) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))["drawn"]
    assert tuple(kept) == tuple(drawn_figures.PARTS)
    moved = list(differences(part, kept[part], json.loads(json.dumps(drawn_figures.PARTS[part]())), 1e-7))
    assert not moved, f"{len(moved)} (python -m tests.blackbox.figures writes them again): {moved[:20]}"


def test_no_figure_of_a_network_has_moved(one: Shown) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert tuple(kept) == (*NETWORKS, "drawn") and tuple(kept[one.name]) == tuple(PARTS)
    moved: list[str] = []
    for part, function in PARTS.items():
        moved += differences(f"{one.name}, {part}", kept[one.name][part], json.loads(json.dumps(function(one))), 1e-7)
    assert not moved, f"{len(moved)} (python -m tests.blackbox.figures writes them again): {moved[:20]}"
