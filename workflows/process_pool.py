"""Runs tasks in a pool of processes; a task that fails or kills its process costs no other task its result."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, TypeVar

from taylor.base.console import log
from taylor.base.errors import TaylorError
from taylor.base.orphans import end_with_parent

DIED = "its solver process died: was it killed, or is the memory full?"

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Failed:
    """A task that failed, and why."""

    reason: str


class SharedNumbers:
    """Numbers that a pool's tasks read while they run; this process alone sets them.

    A task takes `reader(index)` along. Where a task runs in an executor of the user's, its reader gives what the number
    was when the task was sent.

    Parameters
    ----------
    count : int
        How many; all infinite at first.
    """

    def __init__(self, count: int) -> None:
        self.values: Any = RawArray("d", [math.inf] * count)

    def __setitem__(self, index: int, value: float) -> None:
        self.values[index] = value

    def reader(self, index: int) -> NumberReader:
        """What a task asks for a number."""
        return NumberReader(index, self.values[index])


@dataclass(frozen=True)
class NumberReader:
    """Gives a shared number as it is now, or as it was when this was made if that is less."""

    index: int
    known: float

    def __call__(self) -> float:
        """The number."""
        return min(self.known, _shared[self.index]) if _shared is not None else self.known


_shared: Any = None
"""In a pool's process: the numbers that its parent shares with it."""


def run_in_processes(
    tasks: Mapping[int, Callable[[], Callable[[], Outcome] | None]],
    workers: int,
    on_done: Callable[[int, Outcome | Failed], None],
    executor: Executor | None = None,
    shared: SharedNumbers | None = None,
) -> None:
    """Run every task in a process of a pool, in the order given.

    A process that dies ends its whole pool: what was lost with it is run again, one task at a time, so that only the
    task that kills its process fails.

    Parameters
    ----------
    tasks : mapping
        By number, what makes the task when its turn comes, from what is known by then: one that can be sent to
        another process, or None where there is nothing left to do.
    workers : int
        Processes at most.
    on_done : callable
        Given a task's number and what it gave, as soon as it is done.
    executor : concurrent.futures.Executor, optional
        Where the tasks run instead, all sent at once; a task that is lost there is not run again.
    shared : SharedNumbers, optional
        Numbers that the tasks read.

    Raises
    ------
    KeyboardInterrupt
        After every process was ended.
    """

    def run(numbers: Sequence[int], at_once: int) -> list[int]:
        """Run tasks in one pool; returns those that were lost with a process."""
        lost: list[int] = []
        turns = iter(numbers)
        with _pool(executor, min(at_once, len(numbers)), shared) as pool:
            running: dict[Future[Outcome], int] = {}

            def send_next() -> bool:
                """Send the next task that there is; whether there was one."""
                for number in turns:
                    task = tasks[number]()
                    if task is None:
                        continue
                    try:
                        running[pool.submit(task)] = number
                    except BrokenExecutor:
                        lost.append(number)
                    return True
                return False

            room = len(numbers) if executor is not None else at_once
            while room > 0 and send_next():
                room -= 1
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    number = running.pop(future)
                    try:
                        outcome = _outcome(future)
                    except BrokenExecutor:
                        lost.append(number)
                    else:
                        on_done(number, outcome)
                    send_next()
            lost += turns
        return sorted(lost, key=numbers.index)

    lost = run(list(tasks), workers) if tasks else []
    if lost and executor is None:
        log.warning("a solver process died: %d candidates are solved again, one at a time", len(lost))
        lost = [number for number in lost if run([number], 1)]
    for number in lost:
        on_done(number, Failed(DIED))


def _outcome(future: Future[Outcome]) -> Outcome | Failed:
    """What a finished task gave.

    Raises
    ------
    BrokenExecutor
        When its process died.
    """
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except TaylorError as error:
        return Failed(str(error))
    except Exception as error:  # one task's fault must not lose the others' work
        log.error("a solve failed: %s: %s", type(error).__name__, error)
        return Failed(f"{type(error).__name__}: {error}")


@contextmanager
def _pool(executor: Executor | None, workers: int, shared: SharedNumbers | None) -> Iterator[Executor]:
    """The given executor, or processes of our own that end with the block and, at once, with Ctrl-C."""
    if executor is not None:
        yield executor
        return
    values = None if shared is None else shared.values
    pool = ProcessPoolExecutor(workers, initializer=_become_worker, initargs=(os.getpid(), values))
    try:
        yield pool
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _become_worker(parent: int, shared: Any) -> None:
    global _shared
    _shared = shared
    # The parent handles Ctrl-C: it keeps what is finished and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
