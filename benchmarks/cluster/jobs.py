"""Jobs that sleep as solves take: eight workers beside one, and a scheduler with a thousand workers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reliability.campaign import Figure, Part, Portion, Result
from taylor.workflows.running.cluster import open_cluster
from taylor.workflows.running.process_pool import run_in_processes

WORKERS, JOBS, A_PROCESS = 1000, 100_000, 100
SOURCES = ("workflows/running/cluster.py", "workflows/running/cluster_jobs.py", "workflows/running/process_pool.py")

UNWATCHED = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "10s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "60s",
}
"""Self-monitoring that a worker does often: cheap where it has a core, costly where hundreds share one."""


@dataclass(frozen=True)
class Sleep:
    """A job that takes its time and gives its number."""

    number: int
    seconds: float

    @property
    def key(self) -> str:
        """Its name."""
        return f"sleep-{self.number}"

    def __call__(self) -> int:
        """Sleep."""
        time.sleep(self.seconds)
        return self.number


def run_jobs(seconds: Sequence[float], executor: Executor | None, each: Callable[[], None] = lambda: None) -> float:
    """Run jobs of these lengths; the seconds they took together. Every one must be reported once."""
    began, ended = time.monotonic(), [0] * len(seconds)

    def note(number: int, outcome: Any) -> None:
        assert outcome == number, outcome
        ended[number] += 1
        each()

    tasks = {number: partial(Sleep, number, length) for number, length in enumerate(seconds)}
    run_in_processes(tasks, 1, note, executor)
    assert ended == [1] * len(seconds)
    return time.monotonic() - began


def scaling() -> Result:
    """Jobs of one second on one worker and on eight."""
    took = {}
    for workers in (1, 8):
        with open_cluster(f"local:{workers}") as executor:
            run_jobs([1.0] * workers, executor)  # the workers have loaded what they need
            took[workers] = run_jobs([1.0] * 40, executor)
    return {"one_s": took[1], "eight_s": took[8], "times": took[1] / took[8]}


@contextmanager
def thousand_workers(folder: Path, workers: int) -> Iterator[tuple[str, psutil.Process, list[psutil.Process]]]:
    """A scheduler's address and process, and the processes that hold its workers, many each; all end with the block."""
    file = folder / "scheduler.json"
    words = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0",
             "--host", "tcp://127.0.0.1",  # the loopback alone: must stay
             "--scheduler-file", str(file), "--no-show"]  # fmt: skip
    started = [subprocess.Popen(words, stderr=subprocess.DEVNULL)]
    try:
        while not file.is_file() or not file.read_text():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        for _ in range(0, workers, A_PROCESS):
            words = [sys.executable, "-m", "benchmarks.cluster", "--hold", address, str(min(A_PROCESS, workers))]
            started.append(subprocess.Popen(words, stderr=subprocess.DEVNULL, env={**os.environ, **UNWATCHED}))
        scheduler, *holders = [psutil.Process(one.pid) for one in started]
        yield address, scheduler, holders
    finally:
        for one in started:
            one.kill()
            one.wait()


def thousand(workers: int, jobs: int) -> Result:
    """Connect while the workers join; then jobs as long as solves: three seconds on average, some ten times that."""
    drawn = random.Random(0)
    lengths = [min(drawn.lognormvariate(0.6, 1.0), 30.0) for _ in range(jobs)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cluster-") as own, thousand_workers(Path(own), workers) as started:
        address, scheduler, holders = started
        empty = scheduler.memory_info().rss
        with open_cluster(address) as executor:
            assert executor is not None
            first, connected = executor.at_once, time.monotonic() - began
            while executor.at_once < workers:
                time.sleep(1.0)
            joined, filled = time.monotonic() - began, scheduler.memory_info().rss
            print(f"{workers} workers after {joined:.0f} s, {first} of them when it connected", flush=True)
            before = [_cpu(one) for one in (scheduler, psutil.Process())], sum(map(_cpu, holders))
            peak, ended, started_at = [filled], [0], time.monotonic()

            def watch() -> None:
                ended[0] += 1
                if ended[0] % 500 == 0:
                    peak[0] = max(peak[0], scheduler.memory_info().rss)
                if ended[0] % 1000 == 0:
                    print(f"{ended[0]} jobs, {time.monotonic() - started_at:.0f} s, scheduler {peak[0] >> 20} MiB, "
                          f"{_cpu(scheduler):.0f} s of CPU", flush=True)  # fmt: skip

            took = run_jobs(lengths, executor, watch)
            spent = [_cpu(one) - was for one, was in zip((scheduler, psutil.Process()), before[0], strict=True)]
            serving = sum(map(_cpu, holders)) - before[1]
    return {
        "workers": workers, "jobs": jobs, "mean_job_s": sum(lengths) / jobs, "first": first, "connected_s": connected,
        "joined_s": joined, "seconds": took, "ideal_s": sum(lengths) / workers,
        "cpu_ms_a_job": {"scheduler": 1000 * spent[0] / jobs, "client": 1000 * spent[1] / jobs,
                         "workers": 1000 * serving / jobs},
        "scheduler_mib": {"empty": empty >> 20, "with_workers": filled >> 20, "most": peak[0] >> 20},
    }  # fmt: skip


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


async def hold(address: str, count: int) -> None:
    """Be many workers in one process, until it is killed."""
    from distributed import Worker

    started: list[Any] = []
    while len(started) < count:
        with suppress(OSError, TimeoutError, asyncio.TimeoutError):  # the scheduler is busy: it is asked again
            name = f"{os.getpid()}-{len(started)}"
            started.append(await Worker(address, nthreads=1, name=name, memory_limit=0, dashboard=False))
    await asyncio.gather(*(worker.finished() for worker in started))


def scaling_figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of eight workers."""
    [one] = results.values()
    return [
        Figure(
            "scaling", "simulated jobs of 1 s: 8 workers at least 7 times one",
            f"{one['one_s']:.1f} s and {one['eight_s']:.1f} s: {one['times']:.1f} times",
            one["times"] >= 7.0,
            "40 jobs",
        )
    ]  # fmt: skip


def thousand_figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of a thousand workers."""
    [one] = results.values()
    cpu, started = one["cpu_ms_a_job"], one["scheduler_mib"]
    return [
        Figure(
            "thousand", "1,000 workers, 100,000 jobs: scheduler memory and time stated",
            f"{one['workers']:,} workers, {one['jobs']:,} jobs of {one['mean_job_s']:.1f} s on average, each "
            f"reported once: {one['seconds']:.0f} s (the jobs alone {one['ideal_s']:.0f} s); scheduler "
            f"{started['empty']} MiB empty, {started['with_workers']} with its workers, {started['most']} at most; "
            f"CPU time a job: scheduler {cpu['scheduler']:.1f} ms, client {cpu['client']:.1f} ms, "
            f"a worker {cpu['workers']:.1f} ms",
            one["workers"] == WORKERS and one["jobs"] == JOBS,
            f"connected while {one['first']} had joined; {WORKERS // A_PROCESS} processes run the workers",
        )
    ]  # fmt: skip


SCALING = Part("scaling", lambda share: [Portion("one", scaling)], scaling_figures, at_once=1, sources=SOURCES)
THOUSAND = Part("thousand", lambda share: [Portion("one", thousand, {"workers": WORKERS, "jobs": JOBS})],
                thousand_figures, at_once=1, sources=SOURCES)  # fmt: skip
