"""The operator base: times of operators by type and shapes, device and software, kept in SQLite.

Figures of two devices, drivers or versions of the toolkit never mix. Of an operator's samples at most
`MOST_SAMPLES` are kept, thinned so that their quantiles stay; the count is that of all. A row that is damaged is named
and left out; the others count.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from taylor.base.database import Database, open_database
from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.base.stored_rows import Check, count_cell, sound_rows, text_cell
from taylor.blackbox.rejection import Cleaned, spread_of
from taylor.parsers.profiles.operators import Operator, Shape, parse_shapes

MOST_SAMPLES = 64
MOST_NS = 2**53
"""Longest time of a sample that is read; 104 days."""
FIELD = "operator base"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS operator (device TEXT, driver TEXT, toolkit TEXT, type TEXT, core TEXT, dtypes TEXT, "
    "inputs TEXT, outputs TEXT, count INTEGER, first TEXT, last TEXT, samples TEXT, "
    "PRIMARY KEY (device, driver, toolkit, type, core, dtypes, inputs, outputs))",
    "CREATE TABLE IF NOT EXISTS rejected (device TEXT, driver TEXT, toolkit TEXT, reason TEXT, count INTEGER, "
    "PRIMARY KEY (device, driver, toolkit, reason))",
    "CREATE TABLE IF NOT EXISTS profile (digest TEXT PRIMARY KEY)",
)


@dataclass(frozen=True, order=True)
class OperatorOrigin:
    """Origin of operator times.

    Parameters
    ----------
    device, driver, toolkit : str
        The card; its driver; the version of CANN or CUDA. Empty where unknown.
    """

    device: str
    driver: str = ""
    toolkit: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.device, self.driver, self.toolkit) if part)


@dataclass(frozen=True)
class OperatorTime:
    """Statistics of one operator in a base.

    Parameters
    ----------
    centre_ns : float
        The median of its samples.
    spread : float
        Their robust standard deviation, as a fraction of the middle.
    count : int
        Samples that were ever taken in.
    first, last : str
        Dates of the first and the last profile.
    """

    centre_ns: float
    spread: float
    count: int
    first: str
    last: str


@dataclass(frozen=True)
class Filled:
    """Additions of a profile: samples taken, those that rules rejected; none where it was in the base before."""

    taken: int
    rejected: Mapping[str, int]
    known: bool = False


class OperatorBase:
    """A base in a SQLite file, made where there is none.

    Raises
    ------
    InputError
        When the file is no base.
    WriteError
        When it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as database:
            for statement in _TABLES:
                database.do(statement)

    def _open(self) -> AbstractContextManager[Database]:
        return open_database(str(self.path), write=True, field=FIELD)

    def fill(self, origin: OperatorOrigin, cleaned: Cleaned, *, digest: str, when: str) -> Filled:
        """Take the samples of one profile in, once.

        Parameters
        ----------
        digest : str
            Of the profile's file: the same is not taken in twice.
        when : str
            Date of the profile, as text that sorts.
        """
        with self._open() as database:
            if database.do("SELECT 1 FROM profile WHERE digest = ?", (digest,)):
                return Filled(0, {}, known=True)
            database.do("INSERT INTO profile VALUES (?)", (digest,))
            for operator, durations in cleaned.durations.items():
                if durations:
                    _add(database, (*astuple(origin), *_key(operator)), durations, len(durations), when, when)
            for reason, count in cleaned.rejected.items():
                _reject(database, (*astuple(origin), reason), count)
        return Filled(cleaned.count, cleaned.rejected)

    def merge(self, other: Path) -> int:
        """Take another base in; returns how many of its profiles are new.

        Raises
        ------
        InputError
            When the other is no base, or shares some of its profiles with this one and not all.
        """
        with open_database(str(other), write=False, field=FIELD) as theirs:
            rows = _rows(theirs, "operator")
            rejected = _rows(theirs, "rejected")
            profiles = {row["digest"] for row in _rows(theirs, "profile")}
        with self._open() as mine:
            had = {row["digest"] for row in _rows(mine, "profile")}
            if profiles <= had:
                return 0
            if profiles & had:
                cure = "merge into an empty base, or fill from the profiles"
                raise InputError("contains profiles that are in the base already", file=other, cure=cure)
            mine.do_each("INSERT INTO profile VALUES (?)", [(one,) for one in sorted(profiles)])
            for row in rows:
                origin = (row[name] for name in _ORIGIN)
                key = (*origin, *_key(_operator(row)))
                _add(mine, key, row["samples"], row["count"], row["first"], row["last"])
            for row in rejected:
                _reject(mine, tuple(row[name] for name in (*_ORIGIN, "reason")), row["count"])
        return len(profiles)

    def origins(self) -> list[OperatorOrigin]:
        """Origins of all its operators."""
        with self._open() as database:
            rows = database.do("SELECT DISTINCT device, driver, toolkit FROM operator")
            return [OperatorOrigin(**row) for row in sound_rows("table operator, origin", _ORIGIN, rows)]

    def rejected(self, origin: OperatorOrigin) -> dict[str, int]:
        """Number of samples that each rule rejected."""
        with self._open() as database:
            return {row["reason"]: row["count"] for row in _rows(database, "rejected", origin)}

    def times(self, origin: OperatorOrigin) -> dict[Operator, OperatorTime]:
        """All operators of one origin, for look-ups by the operator itself."""
        with self._open() as database:
            rows = _rows(database, "operator", origin)
        return {
            _operator(row): OperatorTime(
                float(median(row["samples"])), spread_of(row["samples"]), row["count"], row["first"], row["last"]
            )
            for row in rows
        }

    def export(self, file: Path) -> Path:
        """Write everything that it knows as CSV, times in us."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("device", "driver", "toolkit", "type", "core", "dtypes", "inputs", "outputs", "us", "spread",
                        "count", "first", "last"))  # fmt: skip
        for origin in sorted(self.origins()):
            for operator, time in sorted(self.times(origin).items()):
                figures = (round(time.centre_ns / 1e3, 3), round(time.spread, 4), time.count, time.first, time.last)
                table.writerow((*astuple(origin), *_key(operator), *figures))
        return write_atomic(file, text.getvalue())


def _key(operator: Operator) -> tuple[str, ...]:
    shapes = (";".join(",".join(map(str, one)) for one in side) for side in (operator.inputs, operator.outputs))
    # Nothing is not the same as one number, whose shape is empty.
    lengths = (len(operator.inputs), len(operator.outputs))
    inputs, outputs = (f"{length}:{text}" for length, text in zip(lengths, shapes, strict=True))
    return operator.type, operator.core, ";".join(operator.dtypes), inputs, outputs


def _operator(row: Mapping[str, Any]) -> Operator:
    dtypes = tuple(row["dtypes"].split(";")) if row["dtypes"] else ()
    return Operator(row["type"], row["core"], dtypes, row["inputs"], row["outputs"])


def _shapes_cell(cell: Any) -> tuple[Shape, ...]:
    """Shapes as `_key` writes them: their number, and each with its dimensions."""
    length, _, text = _LONG_TEXT(cell).partition(":")
    shapes = parse_shapes(text) if text else ((),) * (length == "1")
    if shapes is None or str(len(shapes)) != length:
        raise ValueError("is no list of shapes")
    return shapes


def _samples_cell(cell: Any) -> list[int]:
    try:
        found = json.loads(_LONG_TEXT(cell))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not 0 < len(found) <= MOST_SAMPLES:
        raise ValueError("is no list of times")
    if not all(type(each) is int and 0 < each < MOST_NS for each in found):
        raise ValueError("is no list of positive times")
    return found


_TEXT, _LONG_TEXT = text_cell(), text_cell(2**16)
_ORIGIN: dict[str, Check] = {"device": _TEXT, "driver": _TEXT, "toolkit": _TEXT}
_KNOWN: dict[str, Check] = {"count": count_cell, "first": _TEXT, "last": _TEXT, "samples": _samples_cell}
_COLUMNS: dict[str, dict[str, Check]] = {
    "operator": {
        **_ORIGIN, "type": _TEXT, "core": _TEXT, "dtypes": _TEXT, "inputs": _shapes_cell, "outputs": _shapes_cell,
        **_KNOWN,
    },
    "rejected": {**_ORIGIN, "reason": _TEXT, "count": count_cell},
    "profile": {"digest": _TEXT},
}  # fmt: skip
"""Columns of each table with the readers of their cells: a base may come from others."""


def _rows(database: Database, table: str, origin: OperatorOrigin | None = None) -> list[dict[str, Any]]:
    """All sound rows of a table, or those of one origin."""
    statement = f"SELECT {', '.join(_COLUMNS[table])} FROM {table}"
    if origin is not None:
        statement += " WHERE " + " AND ".join(f"{name} = ?" for name in _ORIGIN)
    found = database.do(statement, () if origin is None else astuple(origin))
    return sound_rows(f"table {table}, row", _COLUMNS[table], found)


def _add(database: Database, key: tuple[str, ...], durations: Iterable[int], count: int, first: str, last: str) -> None:
    where = (
        "device = ? AND driver = ? AND toolkit = ? AND type = ? AND core = ? AND dtypes = ? AND inputs = ? "
        "AND outputs = ?"
    )
    before = database.do(f"SELECT {', '.join(_KNOWN)} FROM operator WHERE {where}", key)
    samples = sorted(durations)
    for old in sound_rows("replaced operator, row", _KNOWN, before):
        samples = sorted([*samples, *old["samples"]])
        count, first, last = count + old["count"], min(first, old["first"]), max(last, old["last"])
    if len(samples) > MOST_SAMPLES:
        samples = [samples[(2 * at + 1) * len(samples) // (2 * MOST_SAMPLES)] for at in range(MOST_SAMPLES)]
    values = (*key, count, first, last, json.dumps(samples))
    database.do(f"INSERT OR REPLACE INTO operator VALUES ({','.join('?' * len(values))})", values)


def _reject(database: Database, key: tuple[str, ...], count: int) -> None:
    where = "device = ? AND driver = ? AND toolkit = ? AND reason = ?"
    before = database.do(f"SELECT count FROM rejected WHERE {where}", key)
    old = sound_rows("replaced count, row", {"count": count_cell}, before)
    total = count + sum(row["count"] for row in old)
    database.do("INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?, ?)", (*key, total))
