"""What the tests of the solver share."""

from __future__ import annotations

import time

import pytest

from tests.pipeline_solver.scripted_choices import Clock
from tests.solver_params import set_parameter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    standing = Clock()
    monkeypatch.setattr(time, "monotonic", standing)
    return standing


@pytest.fixture
def without_enumeration(monkeypatch):
    """Nodes are closed by LPs and splits alone: enumeration would close the small trees of tests before they branch."""
    set_parameter(monkeypatch, "tree.most_cells", 0)
