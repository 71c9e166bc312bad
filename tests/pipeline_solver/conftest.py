"""What the tests of the solver share."""

from __future__ import annotations

import time

import pytest

from tests.pipeline_solver.scripted_choices import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock()
    monkeypatch.setattr(time, "monotonic", standing)
    return standing


@pytest.fixture
def without_enumeration(monkeypatch):
    """Nodes are closed by LPs and splits alone: enumeration would close the small trees of tests before they branch."""
    monkeypatch.setattr("taylor.pipeline_solver.tree.enumeration.MOST_CELLS", 0)
