"""What is read of changed files is what was read; `readings.py` says what that is worth."""

from __future__ import annotations

import json

import pytest

from tests.conftest import SHARED
from tests.parsers.readings import FAMILIES, KEPT, readings

GROUPS = 4
KEPT_READINGS = json.loads(KEPT.read_text(encoding="utf-8"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="some of the files lie outside the repository")
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_read_otherwise_than_it_was(family: str, group: int) -> None:
    kept, found = KEPT_READINGS[family], json.loads(json.dumps(readings(family, GROUPS, group)))
    assert found.keys() <= kept.keys() and len(found) * GROUPS > len(kept) - GROUPS
    moved = [
        f"{name}, {change}: {kept[name].get(change)} -> {told}"
        for name, changes in found.items()
        for change, told in changes.items()
        if kept[name].get(change) != told
    ]
    assert not moved, f"{len(moved)} readings (python -m tests.parsers.readings writes them anew): {moved[:10]}"
