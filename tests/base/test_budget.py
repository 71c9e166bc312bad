"""The time of a command is one moment that is set at its start."""

from __future__ import annotations

import time

import pytest

from taylor.base.budget import NO_LIMIT, TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_is_spent_anywhere_is_missing_everywhere(clock: list[float]) -> None:
    budget = TimeBudget.of(10.0)
    clock[0] += 4.0
    assert budget.left == 6.0
    assert budget.part(3) == 2.0
    assert budget.at_most(60.0) == 6.0 and budget.at_most(1.0) == 1.0
    assert not budget.over


def test_a_spent_budget_has_nothing_left_and_never_less(clock: list[float]) -> None:
    budget = TimeBudget.of(1.0)
    clock[0] += 5.0
    assert budget.left == 0.0 and budget.over
    assert budget.later(6.0).left == 2.0


def test_without_a_limit_nothing_ends() -> None:
    assert NO_LIMIT.left is None and not NO_LIMIT.over
    assert NO_LIMIT.part(2) is None
    assert NO_LIMIT.later(3.0) is NO_LIMIT
    assert NO_LIMIT.at_most(5.0) == 5.0 and NO_LIMIT.at_most(None) is None
