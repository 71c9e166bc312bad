"""Rows of layer costs are what they were; `figures.py` says what that is worth."""

from __future__ import annotations

import json

from tests.cost_model.measured.figures import KEPT, all_figures
from tests.cost_model.test_figures import differences
from tests.layerwise_cases import needs_data


@needs_data
def test_no_row_of_a_provider_of_costs_has_moved() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    moved = list(differences("rows", kept, json.loads(json.dumps(all_figures()))))
    assert not moved, f"{len(moved)} (python -m tests.cost_model.measured.figures writes them anew): {moved[:20]}"
