"""Many outside programs run a few at a time, each logged, timed, and ended with the tool."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from taylor.dryrun.guard import CANNOT_START

GUARD = Path(__file__).with_name("guard.py")
GRACE_S = 2.0
"""Seconds a program has to end by itself when it is asked to."""
MAX_LOG_BYTES = 8 << 30
"""A program that writes more is ended, lest it fill the disk."""
_POLL_S = 0.05


@dataclass(frozen=True)
class Job:
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
    """How a program ended: `failure` is empty when it ended with code 0; `passing` when trying again may help."""

    failure: str
    seconds: float
    passing: bool = False


def run_job(job: Job, stop: threading.Event | None = None) -> Outcome:
    """Run one program to its end, its time limit, or until `stop` is set.

    It runs in a process group of its own under a guard, which ends it (and whatever it started) when
    this process goes away, however that happens.
    """
    began = time.monotonic()
    job.folder.mkdir(parents=True, exist_ok=True)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "wb") as log:
        guard = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), str(GRACE_S), *job.command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.run_in or job.folder,
            env=dict(job.environment),
            start_new_session=True,
        )
    failure = ""
    try:
        while True:
            try:
                code = guard.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - began
            if stop is not None and stop.is_set():
                failure = "interrupted"
            elif seconds > job.timeout_s:
                failure = f"timed out after {job.timeout_s:g} s"
            elif _size(job.log) > MAX_LOG_BYTES:
                failure = "its log grew beyond all bounds"
            if failure:
                code = _end(guard)
                break
    finally:
        _end(guard)
    seconds = time.monotonic() - began
    if failure:
        return Outcome(failure, seconds, passing=failure.startswith("timed out"))
    if code == 0:
        return Outcome("", seconds)
    if code == CANNOT_START:
        return Outcome("could not be started", seconds)
    if code > 128 or code < 0:
        number = code - 128 if code > 128 else -code
        return Outcome(f"killed by signal {number}", seconds, passing=True)
    return Outcome(f"crashed with exit code {code}", seconds, passing=True)


def run_jobs(
    jobs: Sequence[Job],
    parallel: int,
    on_done: Callable[[int, Outcome], bool],
    executor: Executor | None = None,
) -> None:
    """Run programs, `parallel` at once.

    Parameters
    ----------
    on_done : callable
        Given a job's index and how it ended, in the order of ending; True runs the job again.
    executor : concurrent.futures.Executor, optional
        Where `run_job` is called; threads of this process when not given.

    Raises
    ------
    KeyboardInterrupt
        After every program was ended.
    """
    stop = threading.Event()
    pool = executor or ThreadPoolExecutor(parallel, thread_name_prefix="dryrun")
    shared = None if executor is not None else stop
    try:
        waiting: dict[Future[Outcome], int] = {
            pool.submit(run_job, job, shared): index for index, job in enumerate(jobs)
        }
        while waiting:
            again = []
            for future in as_completed(list(waiting)):
                index = waiting.pop(future)
                if on_done(index, future.result()):
                    again.append(index)
            waiting = {pool.submit(run_job, jobs[index], shared): index for index in again}
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
