"""Runs tasks in a pool of processes; a task that fails or kills its process costs no other task its result."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from taylor.base.console import log
from taylor.base.errors import TaylorError
from taylor.base.orphans import end_with_parent

DIED = "its solver process died: was it killed, or is the memory full?"

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Failed:
    """A task that failed, and why."""

    reason: str


def run_in_processes(
    tasks: Mapping[int, Callable[[], Outcome]],
    workers: int,
    on_done: Callable[[int, Outcome | Failed], None],
    executor: Executor | None = None,
) -> None:
    """Run every task in a process of a pool, in the order given.

    A process that dies ends its whole pool: what was lost with it is run again, one task at a time, so that only the
    task that kills its process fails.

    Parameters
    ----------
    tasks : mapping
        By number; each can be sent to another process.
    workers : int
        Processes at most.
    on_done : callable
        Given a task's number and what it gave, as soon as it is done.
    executor : concurrent.futures.Executor, optional
        Where the tasks run instead; a task that is lost there is not run again.

    Raises
    ------
    KeyboardInterrupt
        After every process was ended.
    """

    def run(numbers: Sequence[int], at_once: int) -> list[int]:
        """Run tasks in one pool; returns those that were lost with a process."""
        lost = []
        with _pool(executor, min(at_once, len(numbers))) as pool:
            futures: dict[Future[Outcome], int] = {}
            for number in numbers:
                try:
                    futures[pool.submit(tasks[number])] = number
                except BrokenExecutor:
                    lost.append(number)
            for future in as_completed(futures):
                try:
                    outcome = _outcome(future)
                except BrokenExecutor:
                    lost.append(futures[future])
                else:
                    on_done(futures[future], outcome)
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
def _pool(executor: Executor | None, workers: int) -> Iterator[Executor]:
    """The given executor, or processes of our own that end with the block and, at once, with Ctrl-C."""
    if executor is not None:
        yield executor
        return
    pool = ProcessPoolExecutor(workers, initializer=_become_worker, initargs=(os.getpid(),))
    try:
        yield pool
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _become_worker(parent: int) -> None:
    # The parent handles Ctrl-C: it keeps what is finished and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
