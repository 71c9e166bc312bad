"""Goals of `--cluster` and of the page, measured and written into docs/cluster.md and docs/zh/cluster.md.

    python -m benchmarks.cluster [--parts table,kills] [--fresh]

Every portion's result is kept under output/cluster, so that a killed campaign goes on where it was; results of other
code are measured again. The table holds every part that is measured on this code, now or before, and names the others.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cluster.batch import BATCH
from benchmarks.cluster.jobs import SCALING, THOUSAND, hold
from benchmarks.cluster.page import PAGE
from benchmarks.cluster.rankings import KILLS, OVERHEAD, TABLE
from benchmarks.reliability.campaign import ROOT, Figure, kept_figures, run_part
from taylor.base.console import start_logging
from taylor.base.files import read_text, write_atomic

PARTS = {part.name: part for part in (TABLE, KILLS, OVERHEAD, SCALING, THOUSAND, BATCH, PAGE)}
PAGES = (ROOT / "docs" / "cluster.md", ROOT / "docs" / "zh" / "cluster.md")
BEGIN, END = "<!-- table: written by make cluster -->", "<!-- end of the table -->"


def table(figures: Sequence[Figure], missing: Sequence[str]) -> str:
    """The figures as a Markdown table; under it the parts that were not measured."""
    lines = ["| `--parts` | asked | measured | satisfied | how |", "|---|---|---|---|---|"]
    for one in figures:
        holds = "yes" if one.passed else "**no**"
        lines.append(f"| {one.name} | {one.asked} | {one.measured} | {holds} | {one.how} |")
    if missing:
        lines += ["", f"Not measured on this code: {', '.join(missing)}."]
    return "\n".join(lines)


def write(page: Path, text: str) -> None:
    """Put the table between the marks of a page."""
    before, _, rest = read_text(page).partition(BEGIN)
    write_atomic(page, f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


def main() -> int:
    """Command line; exit code 1 when a figure misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier campaign left")
    parser.add_argument("--hold", nargs=2, metavar=("ADDRESS", "COUNT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        asyncio.run(hold(arguments.hold[0], int(arguments.hold[1])))
        return 0
    start_logging()
    found: list[Figure] = []
    missing: list[str] = []
    for name, part in PARTS.items():
        folder = ROOT / "output" / "cluster"
        asked = name in arguments.parts.split(",")
        figures = run_part(part, folder, fresh=arguments.fresh) if asked else kept_figures(part, folder)
        if figures is None:
            missing.append(name)
        else:
            found += figures
    text = table(found, missing)
    print(text)
    for page in PAGES:
        write(page, text)
    return 0 if all(figure.passed for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
