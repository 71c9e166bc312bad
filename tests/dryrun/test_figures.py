"""The stage model's peaks are what they were; `figures.py` says what that is worth."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from tests.cost_model.test_figures import differences  # noqa: E402
from tests.dryrun.figures import GROUPS, KEPT, figures  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_peak_of_the_stage_model_has_moved(group: int) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(figures(group)))
    assert len(found) >= len(kept) // GROUPS
    moved = list(differences("peaks", {name: kept.get(name) for name in found}, found))
    assert not moved, f"{len(moved)} (python -m tests.dryrun.figures writes them anew): {moved[:20]}"
