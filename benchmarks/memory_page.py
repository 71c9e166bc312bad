"""Writes docs/memory_accuracy.md: predicted beside measured peaks of every set, and the verdicts at the default risk.

    python -m benchmarks.memory_page [FOLDER] [--record]

With ``--record`` every job below FOLDER (``../shared/data``) is priced, the intervals are fitted to sets left out
(`benchmarks.peak_fit`), and three files are written: ``benchmarks/memory_accuracy.json`` (ratio, class, interval and
verdict of each row), ``cost_model/errors/peak_errors.json`` (the errors that the product plans with) and the page.
Without it the page is compared with the two files, and the exit code is 1 where they differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.accuracy_page import LARGE_SET, table
from benchmarks.accuracy_rows import SHARED
from benchmarks.memory_rows import RAN, SEEN, MemoryRow, every_row
from benchmarks.peak_fit import fit, without_each
from taylor.base.files import write_atomic
from taylor.cost_model.errors.known_error import DEFAULT_RISK
from taylor.cost_model.errors.peak_interval import RECORD, PeakErrors
from taylor.workflows.showing.fit import Fit

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "memory_accuracy.md"
ROWS = ROOT / "benchmarks" / "memory_accuracy.json"

LEAST, MOST = 85.0, 95.0
"""Aim of the coverage of a set of `LARGE_SET` rows or more, %."""


@dataclass(frozen=True)
class MemoryAccuracy:
    """All that the page states.

    Parameters
    ----------
    rows : sequence of MemoryRow
    without : mapping of str to str
        Reason for each job that takes no part.
    shrink : float
        Number of sets that the class around a class counts for.
    errors : PeakErrors
        Errors by class.
    """

    rows: Sequence[MemoryRow]
    without: Mapping[str, str]
    shrink: float
    errors: PeakErrors

    def as_data(self) -> dict[str, Any]:
        """Rows and setting as plain data."""
        return {
            "shrink": self.shrink,
            "rows": [row.as_data() for row in self.rows],
            "without": dict(self.without),
        }

    @classmethod
    def recorded(cls, rows: Path = ROWS, errors: Path = RECORD) -> MemoryAccuracy:
        """The accuracy in two recorded files."""
        data, found = (json.loads(file.read_text(encoding="utf-8")) for file in (rows, errors))
        return cls(
            [MemoryRow.of_data(row) for row in data["rows"]], data["without"], data["shrink"], PeakErrors.of_data(found)
        )


def measured(shared: Path) -> MemoryAccuracy:
    """Price every job below a folder, and fit the intervals to sets left out."""
    rows, without = every_row(shared)
    # Intervals are those of the rounded rows, so that the record alone gives them again.
    return fitted([MemoryRow.of_data(row.as_data()) for row in rows], without)


def fitted(rows: Sequence[MemoryRow], without: Mapping[str, str]) -> MemoryAccuracy:
    """The rows with intervals and verdicts by fits without their sets, and the errors of every class."""
    known = [row.residual for row in rows if row.ratio is not None and row.group not in SEEN]
    errors, shrink = fit(known)
    others = without_each(known, shrink)
    judged = [row.judged(others.get(row.group, errors)) for row in rows]
    return MemoryAccuracy(judged, without, shrink, errors)


def page(found: MemoryAccuracy) -> str:
    """The page's text."""
    return "\n".join([*_head(found), *_sets(found), *_verdicts(found), *_classes(found), *_excluded(found)]) + "\n"


def _head(found: MemoryAccuracy) -> Iterator[str]:
    rows = [row for row in found.rows if row.ratio is not None]
    covered = 100 * sum(row.covered for row in rows) / len(rows)
    seen = " and ".join(SEEN)
    yield "# Accuracy of predicted memory"
    yield ""
    yield "<!-- Written by python -m benchmarks.memory_page --record -->"
    yield ""
    judged = len(_verdict_rows(found))
    yield (
        f"Predicted beside measured peaks of {len(rows)} published runs, and the verdict on {judged} "
        "jobs that ran or ran out of memory. Each row is judged by a fit without its set. The model of reserved memory "
        f"was made with the rows «{seen}», which take no part in a fit. The 90 % intervals contain "
        f"{covered:.1f} % of the measured peaks. A figure stands beside one of its kind: torch's "
        "`max_memory_allocated` beside the tensors, `max_memory_reserved` beside what the allocator takes."
    )
    yield ""
    yield (
        "`python -m benchmarks.memory_page --record` prices every row again and writes this page, the recorded rows "
        "(`benchmarks/memory_accuracy.json`) and the product's intervals (`cost_model/errors/peak_errors.json`). "
        "Errors are predicted over measured, less one; the bias is their median with its sign."
    )
    yield ""


def _sets(found: MemoryAccuracy) -> Iterator[str]:
    yield "## Sets"
    yield ""
    rows = [row for row in found.rows if row.ratio is not None]
    groups = list(dict.fromkeys(row.group for row in rows))
    lines = [_line(name, [row for row in rows if row.group == name]) for name in groups]
    yield from table(
        ("", "rows", "with both ends", "median error %", "bias %", "largest %", "in the interval %", "interval %"),
        [*lines, _line("**all**", rows)],
    )
    yield ""
    large = [name for name in groups if sum(row.group == name for row in rows) >= LARGE_SET]
    outside = [
        f"{name} ({share:.0f} %)"
        for name in large
        if not LEAST <= (share := _covered([row for row in rows if row.group == name])) <= MOST
    ]
    yield (
        "A flag that no figure has may lower or raise a peak; it leaves that end of the interval open, and the peak on "
        f"that side inside. Of the {len(large)} sets of {LARGE_SET} rows or more, {len(large) - len(outside)} lie in "
        "their intervals in "
        f"{LEAST:.0f} to {MOST:.0f} % of their rows" + (f"; the others are {', '.join(outside)}." if outside else ".")
    )
    yield ""


def _covered(rows: Sequence[MemoryRow]) -> float:
    return 100 * sum(row.covered for row in rows) / len(rows)


def _line(name: str, rows: Sequence[MemoryRow]) -> list[str]:
    errors = [100 * (1 / row.ratio - 1) for row in rows if row.ratio]
    closed = sum(not (row.open_below or row.open_above) for row in rows)
    low, high = (median(row.interval[end] for row in rows) for end in (0, 1))
    return [
        name, str(len(rows)), str(closed), f"{median(map(abs, errors)):.1f}", f"{median(errors):+.1f}",
        f"{max(errors, key=abs):+.1f}", f"{_covered(rows):.0f}", _ends(low, high),
    ]  # fmt: skip


def _ends(low: float, high: float) -> str:
    return f"{100 * (low - 1):+.0f} to {100 * (high - 1):+.0f}"


def _verdict_rows(found: MemoryAccuracy) -> list[MemoryRow]:
    return [row for row in found.rows if row.verdict]


def _verdicts(found: MemoryAccuracy) -> Iterator[str]:
    rows = _verdict_rows(found)
    ran = [row for row in rows if row.happened == RAN]
    failed = [row for row in rows if row.happened != RAN]
    yield f"## Verdicts at {100 * DEFAULT_RISK:g} % risk"
    yield ""
    yield (
        "Whether the heaviest stage fits the card, with all that the card must provide: tensors, the allocator's cache "
        "where it is modelled, context and buffers of communication. Jobs with a flag that may turn the answer have "
        "none: it is unknown."
    )
    yield ""
    words = (Fit.FITS, Fit.AT_RISK, Fit.DOES_NOT_FIT, Fit.UNKNOWN)
    yield from table(
        ("", "jobs", *(str(one) for one in words)),
        (
            [name, str(len(mine)), *(str(sum(row.verdict == one.value for row in mine)) for one in words)]
            for name, mine in (("ran", ran), ("ran out of memory", failed))
        ),
    )
    yield ""
    misfits, refused = sum(row.false_misfit for row in ran), sum(row.refused for row in ran)
    false_fits = sum(row.false_fit for row in failed)
    yield (
        f"False «fits»: {false_fits}. False «does not fit»: {misfits} of {len(ran)} "
        f"({100 * misfits / len(ran):.1f} %). Not planned at this risk though they ran: {refused} "
        f"({100 * refused / len(ran):.1f} %)."
    )
    yield ""
    wrong = [row for row in rows if row.refused or row.false_fit]
    yield from table(
        ("job", "what happened", "predicted MiB", "of MiB", "verdict"),
        ((row.name, row.happened, f"{row.peak_mib:,.0f}", f"{row.limit_mib:,.0f}", row.verdict) for row in wrong),
    )
    yield ""


def _classes(found: MemoryAccuracy) -> Iterator[str]:
    yield "## Intervals"
    yield ""
    yield (
        "A job's interval is that of its narrowest class below. The 5 % and 95 % quantiles of a class are drawn "
        f"towards those of the class around it, which counts as {found.shrink:g} sets. Software without a row has the "
        "error of all, widened (`known_error.FRAMEWORK_WIDTH`). Ends are of "
        f"the measured peak over the predicted one; a plan leaves the upper one free at {100 * DEFAULT_RISK:g} % risk."
    )
    yield ""
    yield from table(
        ("class", "interval %", "typical error %", "sets", "rows"),
        (
            (name, _ends(1 - one.below, 1 + one.above), f"{100 * one.typical:.0f}", str(one.sets), str(one.rows))
            for name, one in found.errors.classes.items()
        ),
    )
    yield ""


def _excluded(found: MemoryAccuracy) -> Iterator[str]:
    yield "## Jobs that take no part"
    yield ""
    yield from table(("job", "reason"), found.without.items())


def wrong(found: MemoryAccuracy) -> Iterable[str]:
    """Differences between the page on disk and that of the record."""
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page(found):
        yield f"{PAGE} is not that of the record: run python -m benchmarks.memory_page --record"


def main() -> int:
    """Write or compare the page; 1 where it differs."""
    parser = argparse.ArgumentParser(description="predicted beside measured memory")
    parser.add_argument("folder", type=Path, nargs="?", default=SHARED)
    parser.add_argument("--record", action="store_true", help="price every row and write record and page")
    options = parser.parse_args()
    if options.record:
        found = measured(options.folder)
        for path, data in ((ROWS, found.as_data()), (RECORD, found.errors.as_data())):
            write_atomic(path, dumped(data))
        write_atomic(PAGE, page(found))
    else:
        found = MemoryAccuracy.recorded()
    sentences = list(wrong(found))
    for sentence in sentences:
        print(sentence)
    print("\n".join(_sets(found)) + "\n".join(_verdicts(found)))
    return 1 if sentences else 0


def dumped(data: Mapping[str, Any]) -> str:
    """Record as JSON, a row a line."""
    parts = []
    for name, value in data.items():
        if isinstance(value, list):
            rows = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in value)
            parts.append(f' "{name}": [\n  {rows}\n ]')
        elif isinstance(value, dict):
            rows = ",\n  ".join(
                f"{json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}" for key, one in value.items()
            )
            parts.append(f' "{name}": {{\n  {rows}\n }}')
        else:
            parts.append(f' "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
