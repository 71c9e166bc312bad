"""Ascend profiler's memory_record.csv and operator_memory.csv of one rank, and msprof-analyze's
cluster_step_trace_time.csv of all."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from taylor.base.errors import InputError
from taylor.parsers.profiles.kernels import parse_us
from taylor.parsers.profiles.tables import stream_rows

MEMORY_RECORD, OPERATOR_MEMORY = "memory_record.csv", "operator_memory.csv"
_PARTS = ("Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble")


@dataclass(frozen=True)
class MemoryRecord:
    """Memory of one rank over the profiled time, MiB.

    Parameters
    ----------
    peak_reserved_mib : float
        Most memory of any component (or the whole process).
    peak_allocated_mib, least_allocated_mib : float or None
        Most and least that tensors took (framework's own pool); the least, between two steps, is what
        stays: weights, gradients, optimizer states.
    last_ns : int
        Time of the last record.
    """

    peak_reserved_mib: float
    peak_allocated_mib: float | None
    least_allocated_mib: float | None
    last_ns: int


def read_memory_record(path: str | Path) -> MemoryRecord:
    """Read ``memory_record.csv``: memory over time by component.

    Raises
    ------
    InputError
        When the table is damaged or empty.
    """
    file = Path(path)
    reserved: list[float] = []
    # Components count different things; the framework's own pool is the one that comes to hold most.
    allocated: dict[str, list[float]] = {}
    last = 0
    columns = ("Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)")
    for line, (time, used, reserved_text, component) in stream_rows(file, (*columns, "Component")):
        last = max(last, _time(time, file, line))
        total_mib, used_mib = _figure(reserved_text, file, line, columns[2]), _figure(used, file, line, columns[1])
        if total_mib is not None:
            reserved.append(total_mib)
        if used_mib is not None:
            allocated.setdefault(component or "", []).append(used_mib)
    if not reserved:
        raise InputError("contains no record", file=file)
    pool = max(allocated.values(), key=max, default=[])
    return MemoryRecord(max(reserved), max(pool, default=None), min(pool, default=None), last)


def read_operator_memory(path: str | Path) -> float:
    """Most memory allocated at once that ``operator_memory.csv`` shows, MiB.

    Raises
    ------
    InputError
        When the table is damaged or empty.
    """
    file = Path(path)
    column = "Allocation Total Allocated(MB)"
    found = [_figure(cells[0], file, line, column) for line, cells in stream_rows(file, (column,))]
    totals = [value for value in found if value is not None]
    if not totals:
        raise InputError("contains no allocation", file=file)
    return max(totals)


def read_cluster_steps(path: str | Path) -> dict[str, dict[int, float]]:
    """Read msprof-analyze's ``cluster_step_trace_time.csv``: by step, its time on every rank, ms.

    Rows of stages, which have the largest figure of a group of ranks in every column, are left out.

    Raises
    ------
    InputError
        When the table is damaged, contains no rank, or has a rank twice in a step.
    """
    file = Path(path)
    steps: dict[str, dict[int, float]] = {}
    for line, (step, kind, index, *cells) in stream_rows(file, ("Step", "Type", "Index", *_PARTS)):
        if (kind or "").strip().lower() != "rank":
            continue
        rank = (index or "").strip()
        if not re.fullmatch(r"\d{1,9}", rank):
            raise InputError("must be the number of a rank", file=file, field=f"row {line}, Index", value=rank)
        name = (step or "").strip()
        ranks = steps.setdefault(name, {})
        if int(rank) in ranks:
            raise InputError("has a rank twice in a step", file=file, field=f"row {line}, Index", value=rank)
        ranks[int(rank)] = _total_ms(cells, file, line)
    if not steps:
        raise InputError("contains no rank", file=file, cure="let msprof-analyze cluster run over all ranks' profiles")
    return steps


def cluster_step_ms(path: str | Path) -> float:
    """The step time that ``cluster_step_trace_time.csv`` shows: the longest rank's, the median of all steps."""
    return median(max(ranks.values()) for ranks in read_cluster_steps(path).values())


def _total_ms(cells: Sequence[str | None], file: Path, line: int) -> float:
    """The whole step of a row, ms."""
    figures = [_figure(cell, file, line, name) for cell, name in zip(cells, _PARTS, strict=True)]
    known = [value / 1e3 for value in figures if value is not None]
    if len(known) < len(_PARTS):
        raise InputError("lacks a figure", file=file, field=f"row {line}")
    computing, exposed, _, _, free, stage, bubble = known
    if abs(computing + exposed + free - bubble - stage) > 0.01 * stage + 1e-3:
        raise InputError(
            "does not add up: Stage = Computing + Communication(Not Overlapped) + Free - Bubble",
            file=file,
            field=f"row {line}",
            value=stage * 1e3,
            cure="are two columns swapped?",
        )
    return stage + bubble


def _time(text: str | None, file: Path, line: int) -> int:
    try:
        return parse_us(text or "")
    except ValueError:
        raise InputError("must be a time in us", file=file, field=f"row {line}, Timestamp(us)", value=text) from None


def _figure(text: str | None, file: Path, line: int, name: str) -> float | None:
    if text is None or text.strip() in ("", "N/A"):
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise InputError("must be a number of at least 0", file=file, field=f"row {line}, column {name}", value=text)
    return value
