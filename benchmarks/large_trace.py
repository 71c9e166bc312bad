"""Time and memory that a profile of hundreds of megabytes takes to read, beside Python's own readers of its format.

    python -m benchmarks.large_trace [--megabytes 500]

The files are synthetic ones whose kernels are written again and again, later each time. Every reader runs in a process
of its own.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.profile_extraction import random_run
from benchmarks.synthetic.profiles import write_synthetic_profiles
from taylor.parsers.profiles.ascend import read_kernel_details
from taylor.parsers.profiles.kineto import read_kineto

MEBI = 2**20


def small_profile(folder: Path, form: str, pattern: str) -> Path:
    """A synthetic profile of one rank."""
    run = random_run(np.random.default_rng(3), most_stages=2)
    write_synthetic_profiles(run.config, run.times, folder, form=form, steps=2, seed=0)
    return sorted(folder.rglob(pattern))[0]


def grow_kineto(small: Path, large: Path, size: int) -> None:
    """Repeat a trace's kernels, each round after the one before, up to a size in bytes."""
    trace = json.loads(small.read_text())
    events = trace.pop("traceEvents")
    timed = [event for event in events if event.get("ph") == "X"]
    begin = min(float(event["ts"]) for event in timed)
    length = max(float(event["ts"]) + float(event["dur"]) for event in timed) - begin + 1.0
    head = json.dumps(trace)[:-1]

    def rounds() -> Iterator[str]:
        yield from (json.dumps(event) for event in events if event.get("ph") != "X")
        for turn in itertools.count():
            yield from (json.dumps({**event, "ts": float(event["ts"]) + turn * length}) for event in timed)

    with large.open("w") as stream:
        stream.write(f'{head}{", " if len(head) > 1 else ""}"traceEvents": [\n')
        for number, line in enumerate(rounds()):
            stream.write(f",\n{line}" if number else line)
            if stream.tell() >= size:
                break
        stream.write("\n]}\n")


def grow_kernel_details(small: Path, large: Path, size: int) -> None:
    """Repeat a table's kernels, each round after the one before, up to a size in bytes."""
    with small.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    start = next(name for name in rows[0] if name.startswith("Start Time"))
    duration = next(name for name in rows[0] if name.startswith("Duration"))
    begin = min(float(row[start]) for row in rows)
    length = max(float(row[start]) + float(row[duration]) for row in rows) - begin + 1.0
    with large.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        for turn in itertools.count():
            for row in rows:
                writer.writerow({**row, start: f"{float(row[start]) + turn * length:.3f}"})
            if stream.tell() >= size:
                break


def _with_json(path: Path) -> int:
    with path.open() as stream:
        return len(json.load(stream)["traceEvents"])


def _with_csv(path: Path) -> int:
    with path.open(newline="") as stream:
        return sum(1 for _ in csv.DictReader(stream))


def _kineto(path: Path) -> int:
    return len(read_kineto(path))


def _kernel_details(path: Path) -> int:
    return len(read_kernel_details(path))


def _measure(read: Callable[[Path], int], path: Path) -> tuple[int, float, float]:
    """Kernels, seconds, and most memory of the process, MiB."""
    began = time.monotonic()
    kernels = read(path)
    return kernels, time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    size = parser.parse_args().megabytes * MEBI
    cases = (
        ("Kineto", "kineto", "*.json", grow_kineto, _kineto, _with_json),
        ("Ascend kernel_details", "ascend", "kernel_details.csv", grow_kernel_details, _kernel_details, _with_csv),
    )
    table = Table("file", "MiB", "reader", "rows", "seconds", "memory MiB", "times as long")
    with tempfile.TemporaryDirectory() as scratch:
        for name, form, pattern, grow, own, plain in cases:
            large = Path(scratch) / f"{form}{pattern[pattern.rindex('.') :]}"
            grow(small_profile(Path(scratch) / form, form, pattern), large, size)
            first = 0.0
            for reader, read in (("Taylor", own), ("Python's", plain)):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    rows, seconds, memory = pool.apply(_measure, (read, large))
                first = first or seconds
                table.add_row(
                    name,
                    f"{large.stat().st_size / MEBI:.0f}",
                    reader,
                    f"{rows:,}",
                    f"{seconds:.1f}",
                    f"{memory:.0f}",
                    f"{seconds / first:.2f}",
                )
            large.unlink()
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
