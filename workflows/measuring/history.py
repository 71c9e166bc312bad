"""Store of results: every run with its inputs, its plans and figures, and later measurements of them."""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import taylor
from taylor.base.console import log
from taylor.base.database import BusyError, Database, open_database
from taylor.base.errors import InputError, TaylorError, shortened
from taylor.base.files import form_of, printable, read_text, write_atomic
from taylor.base.stored_rows import (
    MOST_CELL,
    Check,
    count_cell,
    damaged,
    number_cell,
    sound_row,
    sound_rows,
    text_cell,
)
from taylor.parsers.write_back import write_plan
from taylor.pipeline_solver.solving.result import Result

if TYPE_CHECKING:  # an evaluation loads no tables
    from taylor.workflows.ranking.rank import Ranking
    from taylor.workflows.showing.planned_file import PlannedFile

FILE = "history.sqlite"
"""Store of a folder of results where no other is named."""

NO_STORE = "none"

MOST_TEXT = 4 * 2**20
"""Longest configuration that is stored, characters."""

WITH_CONFIGURATION = 20
"""Plans of a ranking, the best, that are stored with their configurations."""

MOST_MS = 1e12

MOST_RESULT = 64 * 2**20
"""Longest stored result that is read, characters."""

WAIT_SECONDS = 2.0
"""Time to wait while another process writes: no answer is worth less than its place in the store."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS taylor_runs (id TEXT PRIMARY KEY, at TEXT NOT NULL, command TEXT NOT NULL, "
    "file TEXT NOT NULL, model TEXT NOT NULL, device TEXT NOT NULL, ranks INTEGER NOT NULL, version TEXT NOT NULL, "
    "inputs TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS taylor_plans (run TEXT NOT NULL, number INTEGER NOT NULL, strategy TEXT NOT NULL, "
    "status TEXT NOT NULL, step_ms DOUBLE PRECISION, gap DOUBLE PRECISION, mfu DOUBLE PRECISION, "
    "peak_mib DOUBLE PRECISION, name TEXT NOT NULL, config TEXT, result TEXT NOT NULL, PRIMARY KEY (run, number))",
    "CREATE TABLE IF NOT EXISTS taylor_measured (run TEXT NOT NULL, number INTEGER NOT NULL, at TEXT NOT NULL, "
    "step_ms DOUBLE PRECISION, peak_mib DOUBLE PRECISION, source TEXT NOT NULL)",
)


@dataclass(frozen=True)
class Plan:
    """Plan of a run, with its last measurement.

    Parameters
    ----------
    number : int
        Its place in the run, from 1.
    strategy : str
        Degrees.
    step_ms, measured_ms : float or None
        Predicted, and measured.
    name : str
        Of its configuration.
    """

    number: int
    strategy: str
    status: str
    step_ms: float | None
    gap: float | None
    mfu: float | None
    peak_mib: float | None
    name: str
    measured_ms: float | None = None
    measured_mib: float | None = None


@dataclass(frozen=True)
class Run:
    """Run of a command, its plans the best first.

    Parameters
    ----------
    at : str
        End of the run, UTC.
    count : int
        Number of plans; `plans` may have fewer.
    """

    id: str
    at: str
    command: str
    file: str
    model: str
    device: str
    ranks: int
    version: str
    count: int
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Store:
    """Store of results.

    Parameters
    ----------
    url : str
        As `open_database` takes it.
    field : str
        Flag that names it.
    """

    url: str
    field: str = "--store"

    def ensure(self) -> None:
        """Make the tables where they are missing: an unwritable store is refused before there is work to lose.

        Raises
        ------
        InputError
            When the store cannot be opened or written.
        """
        try:
            with self._open(write=True) as database:
                for table in _TABLES:
                    database.do(table)
        except BusyError as error:
            log.warning("%s", error)

    def add(self, run: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> str:
        """Store a run; returns its name.

        Parameters
        ----------
        run, plans : mapping, sequence of mappings
            Columns of the tables but `id`, `at`, `version`, `run` and `number`.
        """
        name = secrets.token_hex(4)
        row = {"id": name, "at": _now(), "version": taylor.__version__, **run}
        with self._open(write=True) as database:
            for table in _TABLES:
                database.do(table)
            database.do(_insert("taylor_runs", row), _cells(row))
            rows = [{"run": name, "number": number, **plan} for number, plan in enumerate(plans, 1)]
            if rows:
                database.do_each(_insert("taylor_plans", rows[0]), [_cells(each) for each in rows])
        return name

    def runs(self, *, model: str = "", device: str = "", most: int = 20, plans: int = 1) -> list[Run]:
        """The latest runs first.

        Parameters
        ----------
        model, device : str
            Only runs whose model or device has this in its name.
        plans : int
            Number of each run's plans to read, the best.
        """
        wanted = [f"%{text.lower()}%" for text in (model, device)]
        with self._open(write=False) as database:
            rows = database.do(
                "SELECT id FROM taylor_runs WHERE lower(model) LIKE ? AND lower(device) LIKE ? "
                "ORDER BY at DESC, id LIMIT ?",
                (*wanted, most),
            )
            return [run for row in rows if (run := _run_or_none(database, row[0], plans)) is not None]

    def run(self, name: str, plans: int = 1000) -> Run:
        """One run, by its name or the beginning of it.

        Raises
        ------
        InputError
            When there is none, or more than one.
        """
        with self._open(write=False) as database:
            return _run(database, self._named(database, name), plans)

    def result(self, name: str, number: int = 1) -> Result:
        """Plan as the result of its solve.

        Raises
        ------
        InputError
            When there is none, or it is a row of a ranking, which has no problem.
        """
        text, _ = self._cells(name, number, "result", MOST_RESULT)
        try:
            stored = json.loads(text)
        except (ValueError, RecursionError):
            stored = None
        if not isinstance(stored, dict):
            raise damaged(f"{name}, plan {number}", "result", text)
        if "problem" not in stored:
            cure = f"solve its configuration: taylor history {name} --plan {number} -o FILE writes it"
            raise InputError("is of a ranking, which keeps no problems", field="ID", value=name, cure=cure)
        return Result.from_dict(stored, Path(f"{name}"))

    def configuration(self, name: str, number: int = 1) -> tuple[str, str]:
        """Name and text of a plan's configuration.

        Raises
        ------
        InputError
            When there is none.
        """
        text, file = self._cells(name, number, "config", MOST_TEXT)
        if not text:
            raise InputError("is stored without its configuration", field="history", value=f"{name}, plan {number}")
        return Path(file).name, text

    def measure(
        self, name: str, number: int, *, step_ms: float | None, peak_mib: float | None = None, source: str = ""
    ) -> None:
        """Store a measurement of a plan.

        Raises
        ------
        InputError
            When there is no such plan, or a value is none.
        """
        for field, value in (("--measured", step_ms), ("--peak", peak_mib)):
            if value is not None and not (0 < value < MOST_MS and math.isfinite(value)):
                raise InputError("must be a number > 0", field=field, value=value)
        self._cells(name, number, "status")
        with self._open(write=True) as database:
            row = {"run": self._named(database, name), "number": number, "at": _now(), "step_ms": step_ms,
                   "peak_mib": peak_mib, "source": source}  # fmt: skip
            database.do(_insert("taylor_measured", row), list(row.values()))

    def write_measured(self, folder: Path, *, device: str | None = None) -> int:
        """Write the measurements as a table of runs with its configurations (``measured.csv``), as calibration reads.

        Parameters
        ----------
        device : str, optional
            Only runs on this one, by its name.

        Returns
        -------
        int
            Rows.
        """
        with self._open(write=False) as database:
            rows = database.do(
                "SELECT m.run, m.number, m.step_ms, m.peak_mib, r.device, p.name, p.config FROM taylor_measured m "
                "JOIN taylor_plans p ON p.run = m.run AND p.number = m.number JOIN taylor_runs r ON r.id = m.run "
                "WHERE p.config IS NOT NULL ORDER BY m.at"
            )
        table = io.StringIO()
        lines = csv.writer(table, lineterminator="\n")
        lines.writerow(("file", "step_ms", "peak_mib", "device"))
        written = 0
        for number, row in enumerate(sound_rows("measurement", _MEASURED_PLAN, rows)):
            if device is not None and row["device"] != device:
                continue
            # The name comes from a store that others may write: only its ending is used.
            suffix = form_of(Path(row["name"]))
            file = f"{number}-{row['run']}-{row['number']}{suffix if suffix in SUFFIXES else '.yaml'}"
            write_atomic(folder / file, row["config"])
            figures = ["" if row[name] is None else row[name] for name in ("step_ms", "peak_mib")]
            lines.writerow((file, *figures, row["device"]))
            written += 1
        write_atomic(folder / "measured.csv", table.getvalue())
        return written

    def _open(self, *, write: bool) -> Any:
        return open_database(self.url, write=write, field=self.field, wait_s=WAIT_SECONDS)

    def _named(self, database: Database, name: str) -> str:
        plain = name.replace("%", "").replace("_", "")
        found = database.do("SELECT id FROM taylor_runs WHERE id LIKE ? LIMIT 2", (f"{plain}%",)) if plain else []
        if len(found) != 1:
            problem = "names several runs of the store" if found else "is no run of the store"
            cure = "name more letters" if found else "taylor history lists them"
            raise InputError(problem, field="ID", value=name, cure=cure)
        return str(found[0][0])

    def _cells(self, name: str, number: int, column: str, most: int = MOST_CELL) -> tuple[str, str]:
        """A text of a plan, at most `most` characters long, and the plan's name."""
        with self._open(write=False) as database:
            run = self._named(database, name)
            rows = database.do(f"SELECT {column}, name FROM taylor_plans WHERE run = ? AND number = ?", (run, number))
        if not rows:
            raise InputError("has no such plan", field="--plan", value=number, cure=f"taylor history {name} lists them")
        try:
            return text_cell(most)(rows[0][0] or ""), text_cell()(rows[0][1])
        except ValueError as wrong:
            raise damaged(f"{name}, plan {number}", column, rows[0][0], str(wrong)) from None


SUFFIXES = (".yaml", ".yml", ".sh", ".toml", ".json")
"""Endings of configurations."""


def remember_solve(store: Store, command: str, arguments: Sequence[str], planned: PlannedFile) -> str | None:
    """Store the run of a command that solved or evaluated one file; None, and a warning, where that fails."""
    result = planned.result().to_dict()
    own = _text(planned.config.path)
    run = {
        "command": command,
        "file": str(planned.config.path),
        "model": planned.config.model.name,
        "device": planned.facts.device.spec.name,
        "ranks": planned.config.strategy.world_size,
        "inputs": json.dumps({"arguments": list(map(str, arguments)), "configuration": own}),
    }
    peaks = planned.solution.peak_memory_mib
    plan = {
        "strategy": json.dumps(result["strategy"]),
        "status": str(planned.solution.status),
        "step_ms": result["step_ms"],
        "gap": planned.solution.gap,
        "mfu": result["mfu"],
        "peak_mib": max(peaks, default=None),
        "name": planned.config.path.name,
        "config": _with_plan(planned),
        "result": json.dumps(result),
    }
    return _unless_it_fails(store, run, [plan])


def remember_ranking(store: Store, command: str, arguments: Sequence[str], ranking: Ranking) -> str | None:
    """Store the run of a command that ranked candidates, the best with their configurations."""
    table = ranking.table[ranking.table["own"] == 0]
    if table.empty:
        return None
    plans = []
    for place, row in enumerate(table.to_dict("records")):
        known = {key: value for key, value in row.items() if not _missing(value)}
        peaks = json.loads(known.get("peak_memory", "[]"))
        plans.append(
            {
                "strategy": json.dumps({name: known[name] for name in DEGREES if name in known}, default=int),
                "status": str(known.get("status", "")),
                "step_ms": known.get("cost"),
                "gap": known.get("gap"),
                "mfu": known.get("mfu"),
                "peak_mib": max(map(float, peaks), default=None),
                "name": Path(str(row["file"])).name,
                "config": _text(Path(str(row["file"]))) if place < WITH_CONFIGURATION else None,
                "result": json.dumps(known, default=float),
            }
        )
    inputs = {"arguments": list(map(str, arguments)), "table": str(ranking.csv)}
    run = {
        "command": command,
        "file": str(ranking.csv),
        "model": ranking.model,
        "device": ranking.device,
        "ranks": ranking.ranks,
        "inputs": json.dumps(inputs),
    }
    return _unless_it_fails(store, run, plans)


DEGREES = ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs", "micro_batches")


def _unless_it_fails(store: Store, run: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> str | None:
    try:
        return store.add(run, plans)
    except TaylorError as error:
        log.warning("the run is not remembered: %s", error)
        return None


def _degrees_cell(cell: Any) -> str:
    """A strategy as JSON, whose known degrees are counts."""
    text: str = text_cell()(cell)
    try:
        degrees = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if not isinstance(degrees, dict):
        raise ValueError("is no JSON object")
    for name in DEGREES:
        if degrees.get(name) is not None:
            count_cell(degrees[name])
    return text


_TEXT = text_cell()
_RUN: dict[str, Check] = {
    "id": _TEXT, "at": _TEXT, "command": _TEXT, "file": _TEXT, "model": _TEXT, "device": _TEXT, "ranks": count_cell,
    "version": _TEXT,
}  # fmt: skip
_PLAN: dict[str, Check] = {
    "number": count_cell, "strategy": _degrees_cell, "status": _TEXT, "step_ms": number_cell, "gap": number_cell,
    "mfu": number_cell, "peak_mib": number_cell, "name": _TEXT,
}  # fmt: skip
_MEASURED: dict[str, Check] = {"number": count_cell, "step_ms": number_cell, "peak_mib": number_cell}
_MEASURED_PLAN: dict[str, Check] = {
    "run": _TEXT, "number": count_cell, "step_ms": number_cell, "peak_mib": number_cell, "device": _TEXT,
    "name": _TEXT, "config": text_cell(MOST_TEXT),
}  # fmt: skip
"""Columns of each kind of row with the readers of their cells: the store may be written by others."""


def _run_or_none(database: Database, name: Any, plans: int) -> Run | None:
    """A run with its plans; None, and a warning, where a cell of the run itself is damaged."""
    try:
        return _run(database, name, plans)
    except InputError as error:
        log.warning("left out: %s", error)
        return None


def _run(database: Database, name: Any, plans: int) -> Run:
    where = f"run {shortened(str(name))}"
    [cells] = database.do(f"SELECT {', '.join(_RUN)} FROM taylor_runs WHERE id = ?", (name,))
    run = sound_row(where, _RUN, cells)
    [(count,)] = database.do("SELECT count(*) FROM taylor_plans WHERE run = ?", (name,))
    rows = database.do(
        f"SELECT {', '.join(_PLAN)} FROM taylor_plans WHERE run = ? ORDER BY number LIMIT ?", (name, plans)
    )
    seen = database.do("SELECT number, step_ms, peak_mib FROM taylor_measured WHERE run = ? ORDER BY at", (name,))
    measured = {
        row["number"]: {"measured_ms": row["step_ms"], "measured_mib": row["peak_mib"]}
        for row in sound_rows(f"measurement of {where}:", _MEASURED, seen)
    }
    found = sound_rows(f"plan of {where}:", _PLAN, rows)
    return Run(**run, count=count, plans=tuple(Plan(**row, **measured.get(row["number"], {})) for row in found))


def _with_plan(planned: PlannedFile) -> str | None:
    """Configuration with the plan found, whether or not it was written anywhere."""
    written = planned.files.get("config")
    if written is not None or planned.own is planned.solution:
        return _text(Path(written or planned.config.path))
    with suppress(TaylorError, OSError), tempfile.TemporaryDirectory(prefix="taylor-") as folder:
        copy = Path(folder) / planned.config.path.name
        return _text(write_plan(planned.config.replace(schedule=planned.problem.schedule), planned.plan, output=copy))
    return None


def _text(path: Path) -> str | None:
    try:
        text = read_text(path, limit_bytes=MOST_TEXT)
    except (InputError, OSError):
        return None
    return None if "\0" in text else text


def _missing(value: Any) -> bool:
    return value is None or value != value or str(value) == "<NA>"


def _cells(row: Mapping[str, Any]) -> list[Any]:
    return [printable(value) if isinstance(value, str) else value for value in row.values()]


def _insert(table: str, row: Mapping[str, Any]) -> str:
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
