"""Runs tasks in a pool of processes; a task that fails or kills its process costs no other task its result."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import uuid
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from taylor.base.console import log
from taylor.base.errors import OutsideProgramError, TaylorError
from taylor.base.isolated import isolate_processes
from taylor.base.orphans import end_with_parent

DIED = "its solver process died: was it killed, or is the memory full?"

LOOK_SECONDS = 1.0
"""Interval in which an executor of varying size is asked for its number of tasks."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Failed:
    """A task that failed, with the reason."""

    reason: str


class ClusterGone(OutsideProgramError):
    """The cluster's scheduler does not answer any more (exit code 5); what was finished is kept."""


class WorkersDied(BrokenExecutor):
    """A task of a `FarExecutor` whose workers have died; the executor continues."""


class FarExecutor(Executor):
    """Executor whose processes are on other machines, and come and go.

    A task that has a `key` is the same work as any other with that key.
    """

    @property
    @abstractmethod
    def at_once(self) -> int:
        """Number of tasks that it can run at this moment."""

    @abstractmethod
    def everywhere(self, ask: Callable[[], bool]) -> bool:
        """Return whether every process says yes."""

    @abstractmethod
    def tell(self, name: str, index: int, value: float) -> None:
        """Send a number of `SharedNumbers` to every process (`hear`), as soon as possible; returns at once."""


class SharedNumbers:
    """Numbers that a pool's tasks read while they run; only this process sets them.

    A task carries `reader(index)`. In an executor of the user's that is no `FarExecutor`, the reader gives the number
    at the time of sending.

    Parameters
    ----------
    count : int
        Number of numbers; all infinite at first.
    """

    def __init__(self, count: int) -> None:
        self.name = uuid.uuid4().hex
        self.values: Any = RawArray("d", [math.inf] * count)
        self._far: FarExecutor | None = None

    def __setitem__(self, index: int, value: float) -> None:
        if value == self.values[index]:
            return
        self.values[index] = value
        if self._far is not None:
            self._far.tell(self.name, index, value)

    def reach(self, executor: Executor | None) -> None:
        """Send later changes to an executor's processes too, where it can."""
        self._far = executor if isinstance(executor, FarExecutor) else None

    def reader(self, index: int, scale: float = 1.0) -> NumberReader:
        """Reader of a number for a task, in a unit of its own: `scale` times as large."""
        return NumberReader(self.name, index, self.values[index], scale)


@dataclass(frozen=True)
class NumberReader:
    """Gives a shared number as it is now, or at its own creation if that is less."""

    name: str
    index: int
    known: float
    scale: float = 1.0

    def __call__(self) -> float:
        """The number."""
        now = _heard.get((self.name, self.index), math.inf) if _shared is None else _shared[self.index]
        return min(self.known, now) * self.scale


_shared: Any = None
"""In a pool's process: the numbers that its parent shares with it."""

_heard: dict[tuple[str, int], float] = {}
"""In a process of a `FarExecutor`: the numbers that it received."""

MOST_HEARD = 1000

MOST_SAID = 64
"""Most distinct warnings of a pool's processes; beyond, repeated ones are printed each time."""


def hear(values: Mapping[tuple[str, int], float]) -> None:
    """Receive numbers from a `FarExecutor`; old ones are forgotten."""
    _heard.update(values)
    for old in list(_heard)[: max(len(_heard) - MOST_HEARD, 0)]:
        del _heard[old]


def run_in_processes(
    tasks: Mapping[int, Callable[[], Callable[[], Outcome] | None]],
    workers: int,
    on_done: Callable[[int, Outcome | Failed], None],
    executor: Executor | None = None,
    shared: SharedNumbers | None = None,
) -> None:
    """Run every task in a process of a pool, in the order given.

    A process that dies ends its whole pool: the lost tasks run again, one at a time, so that only the task that kills
    its process fails. The same applies to tasks lost with several workers of a `FarExecutor`.

    Parameters
    ----------
    tasks : mapping
        By number, the function that makes the task when it is next, from the results so far: a task that can be sent to
        another process, or None where nothing remains to do.
    workers : int
        Most processes.
    on_done : callable
        Called with a task's number and result, as soon as it is done.
    executor : concurrent.futures.Executor, optional
        Executor that runs the tasks instead, all sent at once, to a `FarExecutor` as many as it takes; a task that is
        lost in another is not run again.
    shared : SharedNumbers, optional
        Numbers that the tasks read.

    Raises
    ------
    KeyboardInterrupt
        After every process was ended.
    """
    far = executor if isinstance(executor, FarExecutor) else None
    reasons: dict[int, str] = {}
    if shared is not None:
        shared.reach(executor)

    def run(numbers: Sequence[int], at_once: int) -> list[int]:
        """Run tasks in one pool; returns those that were lost with a process."""
        most = at_once if executor is None else len(numbers)
        with open_pool(min(at_once, len(numbers)), executor, shared) as pool:
            pooled = _PooledTasks(tasks, numbers, on_done, pool, reasons)
            if far is None:
                pooled.run(lambda: most, None)
            else:
                pooled.run(lambda: far.at_once, LOOK_SECONDS)
        return sorted(pooled.lost, key={number: index for index, number in enumerate(numbers)}.__getitem__)

    lost = run(list(tasks), workers) if tasks else []
    if lost and (executor is None or far is not None):
        log.warning("a solver process died: %d candidates are solved again, one at a time", len(lost))
        lost = [number for number in lost if run([number], 1)]
    for number in lost:
        on_done(number, Failed(reasons.get(number, DIED)))


class _PooledTasks(Generic[Outcome]):
    """Tasks that run in one pool, in the order given.

    Parameters
    ----------
    reasons : dict
        Takes the reason why a task was lost, by number, where the pool knows it.
    """

    def __init__(
        self,
        tasks: Mapping[int, Callable[[], Callable[[], Outcome] | None]],
        numbers: Sequence[int],
        on_done: Callable[[int, Outcome | Failed], None],
        pool: Executor,
        reasons: dict[int, str],
    ) -> None:
        self.tasks, self.waiting, self.on_done, self.pool, self.reasons = tasks, iter(numbers), on_done, pool, reasons
        self.running: dict[Future[Outcome], int] = {}
        self.done: SimpleQueue[Future[Outcome]] = SimpleQueue()
        self.lost: list[int] = []

    def run(self, most: Callable[[], int], look_seconds: float | None) -> None:
        """Run at most `most()` at once; the number is asked for whenever a task is done or some seconds have passed."""
        self._fill(most())
        while self.running:
            try:
                future = self.done.get(timeout=look_seconds)
            except Empty:
                pass
            else:
                self._take(future)
            self._fill(most())
        self.lost += self.waiting

    def _fill(self, most: int) -> None:
        while len(self.running) < most and self._send_next():
            pass

    def _send_next(self) -> bool:
        """Send the next task if there is one; returns whether one was sent."""
        for number in self.waiting:
            task = self.tasks[number]()
            if task is None:
                continue
            try:
                future = self.pool.submit(task)
            except BrokenExecutor:
                self.lost.append(number)
                return False
            self.running[future] = number
            future.add_done_callback(self.done.put)
            return True
        return False

    def _take(self, future: Future[Outcome]) -> None:
        """Report a finished task, or note that its process took it."""
        number = self.running.pop(future)
        try:
            outcome = _outcome(future)
        except BrokenExecutor as error:
            self.lost.append(number)
            if isinstance(error, WorkersDied):
                self.reasons[number] = str(error)
        else:
            self.on_done(number, outcome)


def _outcome(future: Future[Outcome]) -> Outcome | Failed:
    """Result of a finished task.

    Raises
    ------
    BrokenExecutor
        When its process died.
    ClusterGone
        When no other task will be run either.
    """
    try:
        return future.result()
    except (BrokenExecutor, ClusterGone):
        raise
    except TaylorError as error:
        return Failed(str(error))
    except Exception as error:  # one task's fault must not lose the others' work
        log.error("a solve failed: %s: %s", type(error).__name__, error)
        return Failed(f"{type(error).__name__}: {error}")


@contextmanager
def open_pool(
    workers: int, executor: Executor | None = None, shared: SharedNumbers | None = None
) -> Iterator[Executor]:
    """The given executor, or new processes that end with the block and, at once, with Ctrl-C."""
    if executor is not None:
        yield executor
        return
    values = None if shared is None else shared.values
    isolate_processes()
    said = multiprocessing.Array("L", MOST_SAID)
    pool = ProcessPoolExecutor(workers, initializer=_become_worker, initargs=(os.getpid(), values, said))
    try:
        yield pool
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _SaidOnce(logging.Filter):
    """Drops a warning that a process of the pool has already printed, word for word.

    A warning of all of them, such as kernels that must be compiled, becomes one line.

    Parameters
    ----------
    said : ctypes array with a lock, of unsigned integers
        Checksums of the printed warnings, then zeros; shared by the pool's processes.
    """

    def __init__(self, said: Any) -> None:
        super().__init__()
        self.said = said

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is to be printed."""
        if record.levelno < logging.WARNING:
            return True
        words = zlib.crc32(record.getMessage().encode(errors="replace")) + 1
        with self.said.get_lock():
            known = list(self.said)
            if words in known:
                return False
            if 0 in known:
                self.said[known.index(0)] = words
        return True


def _become_worker(parent: int, shared: Any, said: Any) -> None:
    global _shared
    _shared = shared
    log.addFilter(_SaidOnce(said))
    # The parent handles Ctrl-C: it keeps finished results and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
