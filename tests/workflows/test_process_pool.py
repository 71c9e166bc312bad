"""Tasks in a pool of processes: each gives its outcome, and no failure costs another task its own."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest

from taylor.base.console import log, start_logging
from taylor.base.errors import InputError
from taylor.workflows.running.process_pool import (
    DIED,
    Failed,
    FarExecutor,
    SharedNumbers,
    WorkersDied,
    _SaidOnce,
    run_in_processes,
)


def square(number):
    return number * number


def refuse(number):
    raise InputError("is odd", field="number", value=number)


def stumble(number):
    raise ZeroDivisionError("of nobody's making")


def die(number):
    time.sleep(0.2)  # lets the others begin, so that the pool breaks with work under way
    os._exit(9)


def outcomes(tasks, workers=2, executor=None):
    told = []
    made = {number: lambda task=task: task for number, task in tasks.items()}
    run_in_processes(made, workers, lambda number, outcome: told.append((number, outcome)), executor)
    assert len(told) == len(tasks) and len(dict(told)) == len(tasks)
    return dict(told)


def test_every_task_is_told_once_with_what_it_gave():
    assert outcomes({n: partial(square, n) for n in range(7)}) == {n: n * n for n in range(7)}
    assert outcomes({}) == {}


def warn(words, level="warning"):
    getattr(log, level)(words)


def test_a_warning_that_several_processes_give_is_one_line_and_others_are_all_given(capfd):
    start_logging()
    same = {n: partial(warn, "kernels are compiled") for n in range(8)}
    outcomes(same | {8: partial(warn, "one more"), 9: partial(warn, "a thing is done", "info")})
    given = capfd.readouterr().err
    assert [given.count(words) for words in ("kernels are compiled", "one more", "a thing is done")] == [1, 1, 1]
    # Each pool begins anew: what a later one meets may be something else.
    outcomes({n: partial(warn, "kernels are compiled") for n in range(4)})
    assert capfd.readouterr().err.count("kernels are compiled") == 1


def test_lines_that_are_no_warnings_and_more_warnings_than_are_told_apart_are_all_given():
    said = multiprocessing.Array("L", 2)
    one, another = _SaidOnce(said), _SaidOnce(said)

    def given(by, words, level=logging.WARNING):
        return by.filter(logging.LogRecord("taylor", level, "", 0, "%s", (words,), None))

    assert [given(by, "a", logging.INFO) for by in (one, another)] == [True, True]
    assert [given(by, "a") for by in (one, another)] == [True, False]
    assert given(another, "b") and not given(one, "b")
    assert [given(by, "c") for by in (one, another)] == [True, True]  # no room is left to know it again


@pytest.mark.parametrize("fault, words", [(refuse, "is odd"), (stumble, "ZeroDivisionError: of nobody's making")])
def test_a_task_that_raises_fails_alone_and_says_why(fault, words):
    told = outcomes({1: partial(square, 1), 2: partial(fault, 2), 3: partial(square, 3)})
    assert (told[1], told[3]) == (1, 9)
    assert isinstance(told[2], Failed) and words in told[2].reason


def test_a_task_that_kills_its_process_fails_alone_and_the_lost_ones_are_run_again():
    told = outcomes({n: partial(die if n == 2 else square, n) for n in range(6)})
    assert told.pop(2) == Failed(DIED)
    assert told == {n: n * n for n in (0, 1, 3, 4, 5)}


def test_what_is_lost_in_a_given_executor_is_not_run_again():
    with ProcessPoolExecutor(1) as executor:
        told = outcomes({0: partial(die, 0), 1: partial(square, 1)}, executor=executor)
    assert told == {0: Failed(DIED), 1: Failed(DIED)}


class Preempted(FarExecutor):
    """Loses the workers of what it is told to, as often as it is told; runs a task when it is sent."""

    at_once = 4

    def __init__(self, losses):
        self.losses, self.order = losses, []

    def everywhere(self, ask):
        return True

    def tell(self, name, index, value):
        pass

    def submit(self, task, /, *words):
        number, future = task.args[0], Future()
        self.order.append(number)
        if self.losses.get(number, 0):
            self.losses[number] -= 1
            future.set_exception(WorkersDied(f"ended 3 workers of {number}"))
        else:
            future.set_result(task())
        return future


def test_what_is_lost_with_workers_far_away_is_run_again_when_the_others_are_done():
    executor = Preempted({1: 1, 2: 2})
    told = outcomes({n: partial(square, n) for n in range(5)}, executor=executor)
    assert told == {0: 0, 1: 1, 2: Failed("ended 3 workers of 2"), 3: 9, 4: 16}
    assert executor.order == [0, 1, 2, 3, 4, 1, 2]


def test_a_given_executor_stays_open_for_its_owner():
    with ThreadPoolExecutor(2) as executor:
        assert outcomes({4: partial(square, 4)}, executor=executor) == {4: 16}
        assert executor.submit(square, 5).result() == 25


def test_a_task_is_made_when_its_turn_comes_from_what_is_known_by_then():
    told = {}

    def make(number):
        return None if number == 2 or sum(told.values()) > 9 else partial(square, number)

    run_in_processes({n: partial(make, n) for n in range(7)}, 1, told.__setitem__)
    assert told == {0: 0, 1: 1, 3: 9}


def wait_for_less(reader, seconds):
    end = time.monotonic() + seconds
    while reader() > 1 and time.monotonic() < end:
        time.sleep(0.01)
    return reader()


def test_a_running_task_hears_of_a_number_that_has_changed():
    numbers, told = SharedNumbers(3), {}
    numbers[1] = 7.0
    assert numbers.reader(1)() == 7.0 and numbers.reader(2)() == float("inf")

    def note(number, outcome):
        told[number] = outcome
        numbers[1] = 0.5

    tasks = {1: lambda: partial(wait_for_less, numbers.reader(1), 20.0), 2: lambda: partial(square, 2)}
    run_in_processes(tasks, 2, note, shared=numbers)
    assert told == {1: 0.5, 2: 4}
