"""What `--cluster` must show, measured: ``python -m benchmarks.cluster [PART ...]``.

``table``: 8 workers and one process give the same table. ``kills``: workers killed at random moments lose nothing.
``overhead``: two workers beside the local pool. ``scaling``: jobs of one second on one worker and on eight.
``thousand``: a scheduler with a thousand workers and 100,000 jobs that sleep as solves take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reliability.load import write_candidates
from taylor.base.console import start_logging
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.solution import Solution
from taylor.register.registry import Registry
from taylor.workflows import rank_solves
from taylor.workflows.candidate_file import CandidateFile
from taylor.workflows.candidates import load_candidates
from taylor.workflows.cluster import open_cluster
from taylor.workflows.far_solve import FarSolve
from taylor.workflows.kept_solves import SolveStore
from taylor.workflows.process_pool import run_in_processes
from taylor.workflows.rank import RankOptions, rank

CANDIDATES, KILL_CANDIDATES, KILL_RUNS = 200, 24, 20
FINISHED = "finished.log"
SECONDS_EACH = 20.0


class CountedSolve(FarSolve):
    """A far solve that notes in a file of the folder of results when it has solved (not found) its problem."""

    def __call__(self) -> Solution:
        """Solve, or find."""
        known = SolveStore(self.place.output).find(self.problem, self.how) is not None
        found = super().__call__()
        if not known:
            with open(self.place.output / FINISHED, "a", encoding="utf-8") as log:
                log.write(f"{self.key}\n")
        return found


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


def candidates(folder: Path, count: int) -> list[CandidateFile]:
    """So many candidates, read."""
    write_candidates(folder, count)
    files = sorted((folder / "files").glob("*.yaml"))[:count]
    return load_candidates(files, Registry.load(None).device("ascend-910b"))


def table_of(
    loaded: list[CandidateFile], output: Path, executor: Executor | None, workers: int = 1, prove: int | None = None
) -> tuple[str, float]:
    """A ranking's table without its times and its folder, and the seconds it took."""
    began = time.monotonic()
    options = RankOptions(SolveOptions(), workers=workers, report=False, output=output, prove=prove)
    told = rank(loaded, options, executor).table
    told["file"] = [Path(name).name for name in told["file"]]
    return told.drop(columns=["time"]).to_csv(), time.monotonic() - began


def table(folder: Path) -> dict[str, Any]:
    """Eight workers and one process."""
    loaded = candidates(folder, CANDIDATES)
    alone, seconds = table_of(loaded, folder / "alone", None)
    with open_cluster("local:8") as executor:
        far, far_seconds = table_of(loaded, folder / "far", executor)
    return {"candidates": len(loaded), "same": far == alone, "seconds_one": seconds, "seconds_eight": far_seconds}


def kills(folder: Path) -> dict[str, Any]:
    """Workers killed at random moments."""
    loaded = candidates(folder, KILL_CANDIDATES)
    alone, seconds = table_of(loaded, folder / "alone", None)
    vars(rank_solves)["FarSolve"] = CountedSolve
    drawn, killed, same, twice, finished = random.Random(0), 0, 0, 0, []
    with open_cluster("local:8") as executor:
        assert executor is not None
        for run in range(KILL_RUNS):
            over = threading.Event()
            count = [0]

            def kill(over: threading.Event = over, count: list[int] = count) -> None:
                while not over.wait(drawn.uniform(0.2, max(seconds / 6, 0.5))):
                    workers = [one for one in psutil.Process().children(recursive=True) if _is_worker(one)]
                    if workers:
                        drawn.choice(workers).send_signal(signal.SIGKILL)
                        count[0] += 1

            killer = threading.Thread(target=kill)
            killer.start()
            far, _ = table_of(loaded, folder / f"kills-{run}", executor)
            over.set()
            killer.join()
            done = Counter((folder / f"kills-{run}" / FINISHED).read_text().split())
            killed, same = killed + count[0], same + (far == alone)
            twice += sum(number - 1 for number in done.values())
            finished.append(len(done))
            print(f"run {run}: {count[0]} killed, same table {far == alone}, finished {sum(done.values())}", flush=True)
    return {"runs": KILL_RUNS, "killed": killed, "same": same, "solved_twice": twice, "finished": finished}


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def overhead(folder: Path) -> dict[str, Any]:
    """Two workers beside two processes of the local pool, each twice, in turn."""
    loaded = candidates(folder, 3 * KILL_CANDIDATES)
    pool, far, with_start = [], [], []
    for turn in range(2):
        pool.append(table_of(loaded, folder / f"pool-{turn}", None, workers=2)[1])
        began = time.monotonic()
        with open_cluster("local:2") as executor:
            far.append(table_of(loaded, folder / f"far-{turn}", executor)[1])
        with_start.append(time.monotonic() - began)
    share = min(far) / min(pool) - 1.0
    return {"pool_s": pool, "cluster_s": far, "with_start_s": with_start, "above": share}


def scaling(folder: Path) -> dict[str, Any]:
    """Jobs of one second."""
    took = {}
    for workers in (1, 8):
        with open_cluster(f"local:{workers}") as executor:
            _ = run_jobs([1.0] * workers, executor)  # the workers have loaded what they need
            took[workers] = run_jobs([1.0] * 40, executor)
    return {"one_s": took[1], "eight_s": took[8], "times": took[1] / took[8]}


def run_jobs(seconds: list[float], executor: Executor | None, each: Callable[[int], None] | None = None) -> float:
    """Run jobs of these lengths; the seconds they took together. Every one must be told once."""
    began, told = time.monotonic(), [0] * len(seconds)

    def note(number: int, outcome: Any) -> None:
        assert outcome == number, outcome
        told[number] += 1
        if each is not None:
            each(number)

    tasks = {number: partial(Sleep, number, length) for number, length in enumerate(seconds)}
    run_in_processes(tasks, 1, note, executor)
    assert told == [1] * len(seconds)
    return time.monotonic() - began


def thousand(folder: Path, workers: int, jobs: int, per_process: int = 100) -> dict[str, Any]:
    """A scheduler, and processes that hold many workers each; jobs sleep as solves take: 3 s, some far longer."""
    with subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--port", "0", "--scheduler-file",
         str(folder / "scheduler.json"), "--no-show"], stderr=subprocess.DEVNULL
    ) as scheduler:  # fmt: skip
        holders: list[subprocess.Popen[bytes]] = []
        try:
            while not (folder / "scheduler.json").is_file() or not (folder / "scheduler.json").read_text():
                time.sleep(0.1)
            address = json.loads((folder / "scheduler.json").read_text())["address"]
            began = time.monotonic()
            for _ in range(0, workers, per_process):
                words = [sys.executable, "-m", "benchmarks.cluster", "--hold", address, str(per_process)]
                holders.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
            process = psutil.Process(scheduler.pid)
            empty = process.memory_info().rss
            with open_cluster(address) as executor:
                assert executor is not None
                while executor.at_once < workers:
                    time.sleep(1.0)
                joined, filled = time.monotonic() - began, process.memory_info().rss
                drawn = random.Random(0)
                lengths = [min(drawn.lognormvariate(0.6, 1.0), 30.0) for _ in range(jobs)]
                peak, told = [filled], [0]
                started = time.monotonic()

                def watch(number: int) -> None:
                    told[0] += 1
                    if told[0] % 500 == 0:
                        peak[0] = max(peak[0], process.memory_info().rss)
                    if told[0] % 5000 == 0:
                        print(f"{told[0]} jobs, {time.monotonic() - started:.0f} s", flush=True)

                took = run_jobs(lengths, executor, watch)
                cpu = sum(process.cpu_times()[:2])
        finally:
            for holder in holders:
                holder.kill()
            scheduler.kill()
    return {
        "workers": workers, "jobs": jobs, "mean_job_s": sum(lengths) / jobs, "joined_s": joined, "seconds": took,
        "ideal_s": sum(lengths) / workers, "jobs_a_second": jobs / took, "scheduler_cpu_s": cpu,
        "scheduler_mib": {"empty": empty >> 20, "with_workers": filled >> 20, "most": peak[0] >> 20},
    }  # fmt: skip


async def hold(address: str, count: int) -> None:
    """Be many workers in one process, until it is killed."""
    from distributed import Worker

    held = [
        await Worker(address, nthreads=1, name=f"{os.getpid()}-{number}", memory_limit=0, dashboard=False)
        for number in range(count)
    ]
    await asyncio.gather(*(worker.finished() for worker in held))


def main() -> None:
    """Run the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--hold", nargs=2, metavar=("ADDRESS", "COUNT"))
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=100_000)
    args = parser.parse_args()
    if args.hold:
        asyncio.run(hold(args.hold[0], int(args.hold[1])))
        return
    start_logging(quiet=True)
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "table": table,
        "kills": kills,
        "overhead": overhead,
        "scaling": scaling,
        "thousand": partial(thousand, workers=args.workers, jobs=args.jobs),
    }
    for name in args.parts or parts:
        with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
            print(name, json.dumps(parts[name](Path(folder)), default=str), flush=True)


if __name__ == "__main__":
    main()
