"""Calls in threads: their results come in order, and what is raised ends them and leaves no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from taylor.pipeline_solver.bounds.threads import in_order


def calls(number: int, begun: list[int], fails: int = -1) -> list[Callable[[], int]]:
    """The first ones take the longest."""

    def one(k: int) -> int:
        begun.append(k)
        time.sleep(0.002 * (number - k))
        if k == fails:
            raise ValueError(str(k))
        return k

    return [lambda k=k: one(k) for k in range(number)]  # type: ignore[misc]


@pytest.mark.parametrize("workers", [1, 2, 3, 20])
def test_results_come_in_order(workers: int) -> None:
    taken: list[int] = []
    before = set(threading.enumerate())
    in_order(calls(9, []), workers, taken.append)
    assert taken == list(range(9)) and not set(threading.enumerate()) - before


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("by_call", [True, False])
def test_what_is_raised_ends_it_and_calls_to_come_are_left_out(workers: int, by_call: bool) -> None:
    begun: list[int] = []
    taken: list[int] = []
    before = set(threading.enumerate())

    def take(k: int) -> None:
        taken.append(k)
        if k == 3 and not by_call:
            raise ValueError(str(k))

    with pytest.raises(ValueError, match="3"):
        in_order(calls(40, begun, 3 if by_call else -1), workers, take)
    assert taken == list(range(3 if by_call else 4))
    assert max(begun) <= 3 + 2 * workers and not set(threading.enumerate()) - before


def test_as_many_run_at_a_time_as_there_are_workers() -> None:
    """Three calls wait for each other, which no fewer at a time would end, and there are never more."""
    together = threading.Barrier(3)
    lock, running, most = threading.Lock(), 0, 0

    def one() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(timeout=60.0)
        with lock:
            running -= 1

    in_order([one] * 9, 3, lambda _: None)
    assert most == 3
