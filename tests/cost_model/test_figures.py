"""The closed forms' figures of eighty jobs are what they were; `figures.py` says what that is worth."""

from __future__ import annotations

import json
from typing import Any, Iterator

import pytest

from tests.cost_model.figures import KEPT, figures_of, jobs

GROUPS = 12


def differences(name: str, before: Any, after: Any, noise: float = 0.0) -> Iterator[str]:
    """Everything below two JSON values that is not the same to nine digits, or to the noise of a sum that is 0."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key in before:
            yield from differences(f"{name}, {key}", before[key], after[key], noise)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(f"{name}[{place}]", one, other, noise)
    elif before != after:
        numbers = isinstance(before, (int, float)) and isinstance(after, (int, float))
        if not numbers or abs(before - after) > noise + 1e-9 * max(abs(before), abs(after)):
            yield f"{name}: {before} -> {after}"


@pytest.mark.parametrize("group", range(GROUPS))
def test_no_figure_of_a_closed_form_has_moved(group: int) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    asked = jobs()
    assert kept.keys() == asked.keys()
    moved: list[str] = []
    for name in list(asked)[group::GROUPS]:
        after = json.loads(json.dumps(figures_of(*asked[name])))
        moved += differences(name, kept[name], after)
    assert not moved, f"{len(moved)} figures (python -m tests.cost_model.figures writes them anew): {moved[:20]}"
