"""Run the campaign and write its table into docs/reliability.md.

    python -m benchmarks.reliability [--parts solver,inputs] [--table | --nightly] [--fresh] [--share 0.01]

A part is measured when a file that it rests on has changed since its last full measurement (`closure`); the others keep
their rows. `docs/reliability.json` is the record: every row with its commit. `--table` measures every part at this
commit, in samples that are sized for 90 minutes on two cores (`Part.table`). `--nightly` measures smaller ones for 15
minutes: of the parts whose code has changed since they were last measured at all, those measured longest ago first.
What the time does not reach is named below the table. Every portion's result is kept under output/reliability, so that
a killed campaign goes on where it was. With a share below 1 the table is printed and nothing is kept.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.brute_force import random_problem
from benchmarks.reliability.campaign import ROOT, Figure, Part, code_digest, commit, run_part
from benchmarks.reliability.record import (
    FULL,
    NIGHTLY,
    TABLE,
    Measured,
    Record,
    nightly_order,
    now,
    read_record,
    table,
    write_record,
)
from taylor.base.console import log, start_logging
from taylor.base.errors import shortened
from taylor.base.files import read_text, write_atomic
from taylor.pipeline_solver.solving.solve import solve

PARTS = (
    "solver", "schedules", "legality", "reading", "mutation", "former_faults", "determinism", "kills", "inputs",
    "flags", "files", "load", "commands", "coverage",
)  # fmt: skip
PAGE = ROOT / "docs" / "reliability.md"
LEGEND = (
    "*Commit*: the one at which the row was measured; `*`: a file that the row rests on has changed since. *Size*: the "
    "whole figure, or the fraction of it that was measured."
)
MINUTES = {TABLE: 90.0, NIGHTLY: 15.0}
"""Time that the samples of each form may take together."""
LONGEST = ("mutation", "coverage")
"""Parts that a table measures last, so that they cost no other part its row."""
BEGIN, END = "<!-- table: written by make reliability -->", "<!-- end of the table -->"


def compile_kernels() -> None:
    """Let the solver compile its kernels before anything is timed, as its first run on a machine does."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        solve(random_problem(rng))


def with_table(page: str, text: str) -> str:
    """The page with the text between its marks replaced."""
    before, mark, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise ValueError(f"{PAGE} has lost the marks of its table")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


@dataclass(frozen=True)
class Run:
    """One run of the campaign, as the command line asks for it.

    Parameters
    ----------
    parts : mapping
        Every part by name, in the table's order.
    names : sequence of str
        Those that may be measured.
    folder : path
        Folder of the portions' results.
    """

    parts: Mapping[str, Part]
    names: Sequence[str]
    folder: Path
    processes: int
    fresh: bool

    @cached_property
    def codes(self) -> dict[str, str]:
        """State of the code of every part as the run begins."""
        return {name: code_digest(part.sources) for name, part in self.parts.items()}

    def measure(self, name: str, form: str, share: float) -> Measured:
        """Measure one part; a part that fails is a row with its reason, and the others go on."""
        log.info("%s (%s)", name, form)
        began = time.monotonic()
        part, code = self.parts[name], code_digest(self.parts[name].sources)
        folder = self.folder if form == FULL else self.folder / form
        try:
            found = run_part(part, folder, share=share, processes=self.processes, fresh=self.fresh)
            figures = tuple(found)
        except Exception as error:
            log.exception("%s could not be measured", name)
            reason = f"could not be measured: {type(error).__name__}: {shortened(str(error))}"
            figures = (Figure(name, "a measurement", reason, False, "", commit()),)
        seconds = round(time.monotonic() - began, 1)
        return Measured(name, form, code, figures[0].commit, now(), seconds, share, figures)

    def full(self) -> list[Measured]:
        """Measure what has changed since its last full measurement, and write record and page after each part."""
        done = []
        for name in self.names:
            record = read_record()
            last = record.get((name, FULL))
            if last is not None and last.code == self.codes[name] and not self.fresh:
                log.info("%s: as measured at %s", name, last.commit)
                continue
            record[name, FULL] = self.measure(name, FULL, 1.0)
            done.append(record[name, FULL])
            self.write(record)
        self.write(read_record())
        return done

    def nightly(self, minutes: float) -> list[Measured]:
        """Measure samples of what has changed, the longest ago first, as far as the time goes."""
        codes = {name: self.codes[name] for name in self.names if self.parts[name].nightly}
        shares = {name: self.parts[name].nightly for name in nightly_order(read_record(), codes)}
        return self._sampled(NIGHTLY, shares, minutes, {})

    def table(self, minutes: float) -> list[Measured]:
        """Measure a sample of every part at this commit, as far as the time goes."""
        ordered = sorted(self.names, key=lambda name: name in LONGEST)
        sized = {name: self.parts[name].table for name in ordered}
        shares = {name: each.share for name, each in sized.items()}
        return self._sampled(TABLE, shares, minutes, {name: 60 * each.minutes for name, each in sized.items()})

    def _sampled(
        self, form: str, shares: Mapping[str, float], minutes: float, guessed: Mapping[str, float]
    ) -> list[Measured]:
        """Measure samples in their order; a part that took longer the last time than is left of the time is skipped.

        Parameters
        ----------
        guessed : mapping
            Expected seconds of parts that were not measured in this form yet; an equal part of the time otherwise.
        """
        end = time.monotonic() + 60 * minutes
        record = read_record()
        done, missed = [], []
        for name, share in shares.items():
            last = record.get((name, form))
            expected = guessed.get(name, 60 * minutes / len(shares)) if last is None else last.seconds
            if time.monotonic() + expected > end:
                missed.append(name)
                continue
            record[name, form] = self.measure(name, form, share)
            done.append(record[name, form])
            self.write(record)
        note = f"Not reached in {minutes:g} minutes of the last `--{form}`: {', '.join(missed)}."
        self.write(record, [note] if missed else [])
        return done

    def write(self, record: Record, notes: Sequence[str] = ()) -> None:
        """Write record and page."""
        write_record(record)
        write_atomic(PAGE, with_table(read_text(PAGE), table(record, self.codes, [LEGEND, *notes])))


def main() -> int:
    """Command line; exit code 1 when a figure misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="of " + ",".join(PARTS))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--table", action="store_true", help="samples of every part, all at this commit")
    forms.add_argument("--nightly", action="store_true", help="small samples of what has changed")
    parser.add_argument("--minutes", type=float, help="of --table and --nightly (default: 90 and 15)")
    parser.add_argument("--share", type=float, default=1.0, help="part of the full size, to try the campaign out")
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier campaign left")
    arguments = parser.parse_args()
    names = arguments.parts.split(",")
    unknown = sorted(set(names) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    start_logging()
    # A shell starts background jobs with Ctrl-C ignored, which children inherit; the campaign presses it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    compile_kernels()
    parts: dict[str, Part] = {name: importlib.import_module(f"benchmarks.reliability.{name}").PART for name in PARTS}
    place = ROOT / "output" / "reliability"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if arguments.share < 1 else place
        run = Run(parts, names, folder, arguments.processes, arguments.fresh)
        if arguments.share < 1:
            done = [run.measure(name, NIGHTLY, arguments.share) for name in names]
        else:
            form = TABLE if arguments.table else NIGHTLY if arguments.nightly else FULL
            minutes = arguments.minutes or MINUTES.get(form, 0.0)
            done = run.full() if form == FULL else {TABLE: run.table, NIGHTLY: run.nightly}[form](minutes)
    print(table({(each.part, each.form): each for each in done}, {each.part: each.code for each in done}))
    return 0 if all(figure.passed for each in done for figure in each.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
