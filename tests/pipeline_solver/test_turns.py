"""How cases that are cut off by the best one share the time."""

from __future__ import annotations

import time

import pytest

from taylor.pipeline_solver.solving.turns import ALL_FIRST, FIRST, LONGEST, SHORT, Turns, foreseen


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until a test moves it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_without_a_deadline_a_turn_takes_as_long_as_it_takes():
    turns = Turns(None)
    assert turns.first(3, resumable=True) is None and turns.first(3, resumable=False) is None
    assert turns.later([(2.0, "b"), (1.0, "a")], resumable=True) == ("a", None)


def test_first_turns_that_are_gone_on_with_are_short_and_take_half_of_the_time_at_most(clock):
    turns = Turns(160.0)
    assert turns.first(2, resumable=True) == pytest.approx(FIRST * 60.0)
    for untried in range(40, 0, -1):
        clock[0] += turns.first(untried, resumable=True)
    assert clock[0] - 100.0 <= ALL_FIRST * 60.0 + 1e-6


def test_first_turns_that_begin_anew_share_what_is_left_evenly(clock):
    turns = Turns(160.0)
    assert turns.first(3, resumable=False) == pytest.approx(20.0)
    clock[0] = 102.0  # it was closed early
    assert turns.first(2, resumable=False) == pytest.approx(29.0)


def test_of_a_long_limit_turns_are_those_of_a_short_one_and_grow_with_the_time_that_has_gone_by(clock):
    """Until three times as long as has gone by is more than the whole limit."""
    long, short = Turns(700.0), Turns(100.0 + SHORT)
    pending = [(9.0, "near"), (1.0, "far")]
    for now in (100.0, 110.0, 120.0):
        clock[0] = now
        assert long.first(2, resumable=True) == pytest.approx(short.first(2, resumable=True))
        assert long.later(pending, resumable=True) == ("far", pytest.approx(LONGEST * (100.0 + SHORT - now)))
    clock[0] = 160.0
    assert long.reckoned() == pytest.approx(180.0) and long.ahead() == pytest.approx(120.0)
    assert long.first(4, resumable=True) == pytest.approx((ALL_FIRST * 180.0 - 60.0) / 4)
    assert long.later(pending, resumable=True) == ("far", pytest.approx(60.0))
    clock[0] = 400.0
    assert long.reckoned() == pytest.approx(600.0)
    assert long.later(pending, resumable=True) == ("far", pytest.approx(150.0))


def test_what_begins_anew_or_is_alone_has_its_share_of_the_whole_limit(clock):
    turns = Turns(700.0)
    assert turns.first(3, resumable=False) == pytest.approx(200.0)
    assert turns.later([(9.0, "near"), (1.0, "far")], resumable=False) == ("near", pytest.approx(300.0))
    assert turns.later([(1.0, "far")], resumable=True) == ("far", pytest.approx(600.0))


@pytest.mark.parametrize(("limit", "gone", "part"), [(30.0, 20.0, 30.0), (600.0, 0.0, 60.0), (600.0, 50.0, 150.0)])
def test_all_of_a_short_limit_is_reckoned_with(limit: float, gone: float, part: float) -> None:
    assert foreseen(limit, gone) == part


def test_later_the_least_bound_comes_first_where_a_case_is_gone_on_with(clock):
    turns = Turns(160.0)
    open_cases = [(9.0, "near"), (1.0, "far"), (5.0, "between")]
    assert turns.later(open_cases, resumable=True) == ("far", pytest.approx(LONGEST * 60.0))
    clock[0] = 130.0
    assert turns.later([(9.0, "near"), (6.0, "far"), (5.0, "between")], resumable=True)[0] == "between"
    assert turns.later([(6.0, "far")], resumable=True) == ("far", pytest.approx(30.0))


def test_what_begins_anew_comes_by_its_nearness_to_proof_and_the_last_has_all_the_time(clock):
    turns = Turns(160.0)
    assert turns.later([(9.0, "near"), (1.0, "far")], resumable=False) == ("near", pytest.approx(30.0))
    clock[0] = 130.0  # still open: the other one has its turn, and all that is left
    assert turns.later([(9.5, "near"), (1.0, "far")], resumable=False) == ("far", pytest.approx(30.0))
