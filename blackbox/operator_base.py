"""The operator base: times of operators by type and shapes, device and software, kept in SQLite.

Figures of two devices, drivers or versions of the toolkit never mix. Of an operator's samples at most
`MOST_SAMPLES` are kept, thinned so that their quantiles stay; the count is that of all.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median

from taylor.base.database import Database, open_database
from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.blackbox.rejection import Cleaned, spread_of
from taylor.parsers.profiles.operators import Operator, parse_shapes

MOST_SAMPLES = 64
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
            rows = theirs.do("SELECT * FROM operator")
            rejected = theirs.do("SELECT * FROM rejected")
            profiles = {row[0] for row in theirs.do("SELECT digest FROM profile")}
        with self._open() as mine:
            had = {row[0] for row in mine.do("SELECT digest FROM profile")}
            if profiles <= had:
                return 0
            if profiles & had:
                cure = "merge into an empty base, or fill from the profiles"
                raise InputError("contains profiles that are in the base already", file=other, cure=cure)
            mine.do_each("INSERT INTO profile VALUES (?)", [(one,) for one in sorted(profiles)])
            for row in rows:
                _add(mine, tuple(row[:8]), _samples(row[11], other), int(row[8]), str(row[9]), str(row[10]))
            for row in rejected:
                _reject(mine, tuple(row[:4]), int(row[4]))
        return len(profiles)

    def origins(self) -> list[OperatorOrigin]:
        """Origins of all its operators."""
        with self._open() as database:
            return [
                OperatorOrigin(*row) for row in database.do("SELECT DISTINCT device, driver, toolkit FROM operator")
            ]

    def rejected(self, origin: OperatorOrigin) -> dict[str, int]:
        """Number of samples that each rule rejected."""
        statement = "SELECT reason, count FROM rejected WHERE device = ? AND driver = ? AND toolkit = ?"
        with self._open() as database:
            return {str(reason): int(count) for reason, count in database.do(statement, astuple(origin))}

    def times(self, origin: OperatorOrigin) -> dict[Operator, OperatorTime]:
        """All operators of one origin, for look-ups by the operator itself."""
        statement = "SELECT * FROM operator WHERE device = ? AND driver = ? AND toolkit = ?"
        with self._open() as database:
            rows = database.do(statement, astuple(origin))
        found: dict[Operator, OperatorTime] = {}
        for row in rows:
            samples = _samples(row[11], self.path)
            time = OperatorTime(float(median(samples)), spread_of(samples), int(row[8]), str(row[9]), str(row[10]))
            found[_operator(row[3:8], self.path)] = time
        return found

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


def _operator(cells: Sequence[object], file: Path) -> Operator:
    kind, core, dtypes, *sides = map(str, cells)
    shapes = []
    for side in sides:
        length, _, text = side.partition(":")
        parsed = parse_shapes(text) if text else ((),) * (length == "1")
        if parsed is None or str(len(parsed)) != length:
            raise InputError(
                "contains an entry that is no list of shapes",
                file=file,
                field=kind,
                value=side,
                cure="delete the base and fill it again from the profiles",
            )
        shapes.append(parsed)
    return Operator(kind, core, tuple(dtypes.split(";")) if dtypes else (), *shapes)


def _samples(text: object, file: Path) -> list[int]:
    try:
        found = [int(each) for each in json.loads(str(text))]
    except (ValueError, TypeError, RecursionError):
        found = []
    if not found or min(found) <= 0:
        raise InputError(
            "contains an entry that is no list of positive times",
            file=file,
            value=str(text)[:40],
            cure="delete the base and fill it again from the profiles",
        )
    return found


def _add(database: Database, key: tuple[str, ...], durations: Iterable[int], count: int, first: str, last: str) -> None:
    where = (
        "device = ? AND driver = ? AND toolkit = ? AND type = ? AND core = ? AND dtypes = ? AND inputs = ? "
        "AND outputs = ?"
    )
    old = database.do(f"SELECT count, first, last, samples FROM operator WHERE {where}", key)
    samples = sorted(durations)
    if old:
        samples = sorted([*samples, *json.loads(old[0][3])])
        count, first, last = count + int(old[0][0]), min(first, str(old[0][1])), max(last, str(old[0][2]))
    if len(samples) > MOST_SAMPLES:
        samples = [samples[(2 * at + 1) * len(samples) // (2 * MOST_SAMPLES)] for at in range(MOST_SAMPLES)]
    values = (*key, count, first, last, json.dumps(samples))
    database.do(f"INSERT OR REPLACE INTO operator VALUES ({','.join('?' * len(values))})", values)


def _reject(database: Database, key: tuple[str, ...], count: int) -> None:
    where = "device = ? AND driver = ? AND toolkit = ? AND reason = ?"
    old = database.do(f"SELECT count FROM rejected WHERE {where}", key)
    total = count + (int(old[0][0]) if old else 0)
    database.do("INSERT OR REPLACE INTO rejected VALUES (?, ?, ?, ?, ?)", (*key, total))
