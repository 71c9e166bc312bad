"""Outside programs run a few at a time, each with a log and a time limit; none outlives the tool."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path

from taylor.dryrun.guard import CANNOT_START

GUARD = Path(__file__).with_name("guard.py")
GRACE_S = 2.0
"""Seconds a program has to end by itself when it is asked to."""
MAX_LOG_BYTES = 8 << 30
"""A program whose log grows beyond this is ended before it fills the disk."""
_POLL_S = 0.05


@dataclass(frozen=True)
class ProgramRun:
    """One program to run.

    Parameters
    ----------
    folder : Path
        Its own folder, created when missing.
    log : Path
        Takes standard output and error as they come.
    environment : mapping
        The whole environment.
    run_in : Path or None
        Working folder, where it is not its own.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    timeout_s: float
    run_in: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """Result of a program's run.

    Parameters
    ----------
    failure : str
        For a reader; empty when it ended with code 0.
    worth_retry : bool
        Another try may help.
    timed_out : bool
        Its time limit ended it.
    signal : int
        The signal that killed it; 0 when none did.
    """

    failure: str
    seconds: float
    worth_retry: bool = False
    timed_out: bool = False
    signal: int = 0


def run_program(program: ProgramRun, stop: threading.Event | None = None) -> Outcome:
    """Run one program to its end, its time limit, or until `stop` is set.

    It runs in its own process group under a guard, which ends it and all that it started when this process ends in any
    way.
    """
    began = time.monotonic()
    program.folder.mkdir(parents=True, exist_ok=True)
    program.log.parent.mkdir(parents=True, exist_ok=True)
    with open(program.log, "wb") as log:
        guard = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), str(GRACE_S), *program.command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=program.run_in or program.folder,
            env=dict(program.environment),
            start_new_session=True,
        )
    failure, timed_out = "", False
    try:
        while True:
            try:
                code = guard.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - began
            if stop is not None and stop.is_set():
                failure = "interrupted"
            elif seconds > program.timeout_s:
                failure, timed_out = f"timed out after {program.timeout_s:g} s", True
            elif _size(program.log) > MAX_LOG_BYTES:
                failure = "its log grew too large"
            if failure:
                code = _end(guard)
                break
    finally:
        _end(guard)
    seconds = time.monotonic() - began
    if failure:
        return Outcome(failure, seconds, worth_retry=timed_out, timed_out=timed_out)
    if code == 0:
        return Outcome("", seconds)
    if code == CANNOT_START:
        return Outcome("could not be started", seconds)
    if code > 128 or code < 0:
        number = code - 128 if code > 128 else -code
        return Outcome(f"killed by signal {number}", seconds, worth_retry=True, signal=number)
    return Outcome(f"crashed with exit code {code}", seconds, worth_retry=True)


def run_programs(
    programs: Sequence[ProgramRun],
    parallel: int,
    on_done: Callable[[int, Outcome], bool],
    executor: futures.Executor | None = None,
) -> None:
    """Run programs, `parallel` at once.

    Parameters
    ----------
    on_done : callable
        Given a program's index and how it ended, in the order of ending; True runs it again.
    executor : concurrent.futures.Executor, optional
        Executor of `run_program`; threads of this process when not given.

    Raises
    ------
    KeyboardInterrupt
        After every program was ended.
    """
    stop = threading.Event()
    pool = executor or futures.ThreadPoolExecutor(parallel, thread_name_prefix="dryrun")
    shared = None if executor is not None else stop
    try:
        waiting: dict[futures.Future[Outcome], int] = {
            pool.submit(run_program, program, shared): index for index, program in enumerate(programs)
        }
        while waiting:
            again = []
            for future in futures.as_completed(list(waiting)):
                index = waiting.pop(future)
                if on_done(index, future.result()):
                    again.append(index)
            waiting = {pool.submit(run_program, programs[index], shared): index for index in again}
    finally:
        stop.set()
        if executor is None:
            pool.shutdown(wait=True, cancel_futures=True)


def _end(guard: subprocess.Popen[bytes]) -> int:
    """Close the guard's standard input, which makes it end the program, and wait for it."""
    if guard.stdin is not None and not guard.stdin.closed:
        with contextlib.suppress(OSError):
            guard.stdin.close()
    return guard.wait()


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
