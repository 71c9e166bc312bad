"""The same inputs give the same bytes, whatever the number of workers and the process's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reliability.campaign import ROOT, TOOLS, Figure, Part, Portion, Result, Sized, chosen, faults_of, total
from benchmarks.reliability.jobs import Job, job, jobs
from benchmarks.reliability.outputs import comparable, differences

WORKERS = (1, 2, 3, 1)
"""Numbers of workers of the runs of a job; the first is what the others are compared with."""

SECONDS = 600.0


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a job; a small share leaves out the larger ones."""
    names = [one.name for one in jobs()]
    if share < 1:
        names = names[: max(1, round(len(names) * share))]
    return [Portion(f"same-{name}", same_bytes, {"name": name}) for name in names]


def same_bytes(name: str, workers: Sequence[int] = WORKERS) -> Result:
    """Run a job several times and compare all that it wrote."""
    one = job(name)
    first: dict[str, bytes] = {}
    found: list[str] = []
    for number, count in enumerate(workers):
        written, error = run_job(one, count, hash_seed=number)
        if error:
            found.append(f"{name}, {count} workers: {error}")
        elif not first:
            first = written
        else:
            found += [f"{name}, {workers[0]} and {count} workers: {text}" for text in differences(first, written)]
    return {"runs": len(workers), "files": len(first), "faults": found}


def run_job(one: Job, workers: int, hash_seed: int) -> tuple[dict[str, bytes], str]:
    """Run a job in a folder and a process of its own; what it left, times aside, and what went wrong."""
    with tempfile.TemporaryDirectory(prefix="same-") as folder:
        one.prepare(Path(folder))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)}
        done = subprocess.run(
            [sys.executable, str(ROOT / f"{one.tool}.py"), *one.arguments(workers)],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        error = f"exit code {done.returncode}: {done.stderr[-600:]}" if done.returncode else ""
        return comparable(Path(folder)), error


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    part = chosen(results, "same")
    wrong = len(faults_of(part))
    return [
        Figure(
            "determinism: same bytes", "CSV, YAML, MPS, JSON byte-identical, times aside, whatever the worker number",
            f"{total(part, 'runs')} runs of {len(part)} jobs, {total(part, 'files')} files each compared, "
            f"{wrong} differences",
            not wrong,
            f"each job with {', '.join(map(str, WORKERS))} workers and another hash seed each time",
        )
    ]  # fmt: skip


PART = Part(
    "determinism",
    portions,
    figures,
    at_once=1,
    sources=(*TOOLS, "benchmarks/reliability/determinism.py"),
    nightly=0.2,
    table=Sized(1.0, minutes=3),
)
