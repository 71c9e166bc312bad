"""Run the campaign and write its table into docs/reliability.md.

    python -m benchmarks.reliability [--parts solver,inputs] [--processes 2] [--fresh] [--share 0.01]

Every portion's result is kept under output/reliability, so that a killed campaign goes on where it was; it is measured
again when a file that it rests on has changed. The table has every part that is measured in full on this code, now or
before, with the commit at which it was, and names the others. With a share below 1 it is printed and nothing is kept.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.brute_force import random_problem
from benchmarks.reliability.campaign import ROOT, Figure, Part, kept_figures, run_part
from taylor.base.console import log, start_logging
from taylor.base.files import read_text, write_atomic
from taylor.pipeline_solver.solving.solve import solve

PARTS = (
    "solver", "schedules", "legality", "reading", "mutation", "former_faults", "determinism", "kills", "inputs",
    "flags", "files", "load", "commands", "coverage",
)  # fmt: skip
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: written by make reliability -->", "<!-- end of the table -->"


def compile_kernels() -> None:
    """Let the solver compile its kernels before anything is timed, as its first run on a machine does."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        solve(random_problem(rng))


def table(figures: Sequence[tuple[str, Figure]], missing: Sequence[str] = ()) -> str:
    """The figures, each with the part it is of, as a Markdown table; under it the parts that were not measured."""
    lines = ["| figure | asked | measured | satisfied | commit | how | command |", "|---|---|---|---|---|---|---|"]
    for part, figure in figures:
        command = f"`python -m benchmarks.reliability --parts {part}`"
        satisfied = "yes" if figure.passed else "**no**"
        cells = (figure.name, figure.asked, figure.measured, satisfied, figure.commit, figure.how, command)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if missing:
        lines += ["", f"Not measured in full on this code: {', '.join(missing)}."]
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """The page with the text between its marks replaced."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{PAGE} has lost the marks of its table")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    """Command line; exit code 1 when a figure misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--share", type=float, default=1.0, help="part of the full size, to try the campaign out")
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier campaign left")
    arguments = parser.parse_args()
    start_logging()
    # A shell starts background jobs with Ctrl-C ignored, which children inherit; the campaign presses it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names = arguments.parts.split(",")
    compile_kernels()
    found: list[tuple[str, Figure]] = []
    missing: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = ROOT / "output" / "reliability" if arguments.share == 1.0 else Path(scratch)
        for name in PARTS:
            part: Part = importlib.import_module(f"benchmarks.reliability.{name}").PART
            if name in names:
                log.info("%s", name)
                options = {"share": arguments.share, "processes": arguments.processes, "fresh": arguments.fresh}
                figures: Sequence[Figure] | None = run_part(part, folder, **options)
            else:
                figures = kept_figures(part, folder)
            if figures is None:
                missing.append(name)
            else:
                found += [(name, figure) for figure in figures]
    text = table(found, missing)
    print(text)
    if arguments.share == 1.0:
        write_atomic(PAGE, with_table(read_text(PAGE), text))
    return 0 if all(figure.passed for _, figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
