"""Calls in threads: their results come in order, and what is raised ends them and leaves no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from taylor.pipeline_solver.threads import in_order


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
    in_order(calls(9, []), workers, taken.append)
    assert taken == list(range(9)) and threading.active_count() == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("by_call", [True, False])
def test_what_is_raised_ends_it_and_calls_to_come_are_left_out(workers: int, by_call: bool) -> None:
    begun: list[int] = []
    taken: list[int] = []

    def take(k: int) -> None:
        taken.append(k)
        if k == 3 and not by_call:
            raise ValueError(str(k))

    with pytest.raises(ValueError, match="3"):
        in_order(calls(40, begun, 3 if by_call else -1), workers, take)
    assert taken == list(range(3 if by_call else 4))
    assert max(begun) <= 3 + 2 * workers and threading.active_count() == 1


def test_as_many_run_at_a_time_as_there_are_workers() -> None:
    running, most = 0, []
    lock = threading.Lock()

    def one() -> None:
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        time.sleep(0.02)
        with lock:
            running -= 1

    in_order([one] * 8, 3, lambda _: None)
    assert max(most) == 3
