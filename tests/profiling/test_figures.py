"""What is made of profiles and runs is what was made of them; `figures.py` says what that is worth."""

from __future__ import annotations

import json

import pytest

from tests.cost_model.test_figures import differences
from tests.profiling.figures import KEPT, PARTS


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_made_of_a_profile_that_was_not(part: str) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert kept.keys() == PARTS.keys()
    moved = list(differences(part, kept[part], json.loads(json.dumps(PARTS[part]())), noise=1e-12))
    assert not moved, f"{len(moved)} (python -m tests.profiling.figures writes them anew): {moved[:20]}"
