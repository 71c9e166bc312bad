"""Record of what campaigns measured: the rows of each part with their commit, and whether their code has changed since.

The record is a file of the repository, `docs/reliability.json`: a checkout knows what holds and what to measure again.
A part has up to three entries: its last full measurement, its last one for the table of one commit, and its last
nightly one. The latter two are samples of the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.reliability.campaign import ROOT, Figure
from taylor.base.files import read_text, write_atomic

RECORD = ROOT / "docs" / "reliability.json"
FULL, TABLE, NIGHTLY = "full", "table", "nightly"
FORMS = (FULL, TABLE, NIGHTLY)
"""Forms of a measurement, the largest first."""


@dataclass(frozen=True)
class Measured:
    """One measurement of a part.

    Parameters
    ----------
    form : str
        One of `FORMS`.
    code : str
        State of the files that the figures rest on.
    commit : str
        Commit at which the last portion was measured; that code is the same in all of them.
    at : str
        Time of the end, UTC.
    seconds : float
        Time that it took.
    share : float
        Fraction of the full size.
    """

    part: str
    form: str
    code: str
    commit: str
    at: str
    seconds: float
    share: float
    figures: tuple[Figure, ...]


Record = Mapping[tuple[str, str], Measured]
"""Measurements by part and form."""


def read_record(path: Path = RECORD) -> dict[tuple[str, str], Measured]:
    """Read the record; empty where there is none."""
    if not path.exists():
        return {}
    entries = json.loads(read_text(path))
    found = [Measured(**{**each, "figures": tuple(Figure(**row) for row in each["figures"])}) for each in entries]
    return {(each.part, each.form): each for each in found}


def write_record(record: Record, path: Path = RECORD) -> None:
    """Write the record, in the order of its parts' names."""
    write_atomic(path, json.dumps([asdict(record[key]) for key in sorted(record)], indent=1, ensure_ascii=False) + "\n")


def now() -> str:
    """Time of a measurement, as text that sorts."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def newest(record: Record, part: str) -> Measured | None:
    """The last measurement of a part, of any form."""
    there = [record[part, form] for form in FORMS if (part, form) in record]
    return max(there, key=lambda each: each.at, default=None)


def larger(record: Record, part: str) -> list[Measured]:
    """The measurements of a part that are older than its last one and larger, the largest first."""
    last = newest(record, part)
    there = [record[part, form] for form in FORMS if (part, form) in record]
    return [each for each in there if last is not None and each.share > last.share]


def nightly_order(record: Record, codes: Mapping[str, str]) -> list[str]:
    """Parts for a night: those whose code has changed since they were last measured, the longest ago first.

    Parameters
    ----------
    codes : mapping
        State of the code of each part that has a nightly form.
    """
    last = {part: newest(record, part) for part in codes}
    changed = [part for part, entry in last.items() if entry is None or entry.code != codes[part]]
    return sorted(changed, key=lambda part: "" if (entry := last[part]) is None else entry.at)


def table(record: Record, codes: Mapping[str, str], notes: Sequence[str] = ()) -> str:
    """Rows of the last measurement of each part as a Markdown table, and below it the larger ones that are older.

    Parameters
    ----------
    codes : mapping
        State of the code of every part, in the table's order.
    notes : sequence of str
        Sentences below the table.
    """
    last = {part: newest(record, part) for part in codes}
    lines = _table([entry for entry in last.values() if entry is not None], codes)
    missing = [part for part, entry in last.items() if entry is None]
    if missing:
        notes = [*notes, f"Never measured: {', '.join(missing)}."]
    before = [entry for part in codes for entry in larger(record, part)]
    lines += [line for note in notes for line in ("", note)]
    if before:
        lines += ["", "Larger measurements, made earlier:", "", *_table(before, codes)]
    return "\n".join(lines)


def _table(entries: Sequence[Measured], codes: Mapping[str, str]) -> list[str]:
    rows = [_row(entry, figure, entry.code == codes[entry.part]) for entry in entries for figure in entry.figures]
    return [
        "| figure | asked | measured | satisfied | commit | size | how | command |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
    ]


def _row(entry: Measured, figure: Figure, same: bool) -> str:
    command = f"`python -m benchmarks.reliability --parts {entry.part}{f' --{entry.form}' * (entry.form != FULL)}`"
    size = "full" if entry.form == FULL else f"{100 * entry.share:g} %"
    commit = entry.commit if same else rf"{entry.commit} \*"
    cells = (figure.name, figure.asked, figure.measured, "yes" if figure.passed else "**no**", commit, size)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, figure.how, command)) + " |"
