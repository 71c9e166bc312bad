"""MindInsight's step tables: when each step, its forward and backward, and its transfers began and ended."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.profiles.tables import large_cells, stream_rows

TICKS_PER_MS = 1e5
"""The step trace counts in 10 ns."""

_OPERATOR = re.compile(r"stream_\d+_\d+_(?P<kind>[A-Za-z]+)-op\d+")


@dataclass(frozen=True)
class Transfer:
    """One communication operator in a step; `kind` is ``Receive``, ``Send``, ``AllReduce``, …; times in ms."""

    name: str
    kind: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class InsightStep:
    """One step of one rank, ms from the profiler's own zero."""

    step: int
    start_ms: float
    end_ms: float
    forward_backward_ms: float
    tail_ms: float
    transfers: tuple[Transfer, ...]

    @property
    def total_ms(self) -> float:
        """Length of the step."""
        return self.end_ms - self.start_ms

    def of_kind(self, kind: str) -> tuple[Transfer, ...]:
        """Transfers of one kind, as ``Receive``, by start."""
        return tuple(sorted((t for t in self.transfers if t.kind == kind), key=lambda t: t.start_ms))


@dataclass(frozen=True)
class InsightSummary:
    """One row of the cluster analysis, ms: a step of a rank, or (the last) the average."""

    computation_ms: float
    communication_alone_ms: float
    stage_ms: float
    receive_alone_ms: float
    collective_alone_ms: float


def read_insight_steps(path: str | Path) -> list[InsightStep]:
    """Read ``step_trace_raw_N_detail_time.csv``; the row of averages (step ``-``) is left out.

    Raises
    ------
    InputError
        When the table is damaged or has no step.
    """
    file = Path(path)
    base = ("step_num", "start_point", "end_point", "total", "fp_and_bp", "tail")
    names = _operators(file)
    columns = (*base, *(f"{name}{end}" for name in names for end in ("_start_point", "_end_point")))
    steps = []
    for line, cells in stream_rows(file, columns):
        if cells[0] is None or not cells[0].strip().isdigit():
            continue
        start, end, total, both, tail, *points = (
            _ms(cell, file, line, column) for cell, column in zip(cells[1:], columns[1:], strict=True)
        )
        if abs(end - start - total) > 1e-3 * max(total, 1e-3):
            raise InputError(
                "does not add up: total = end_point - start_point",
                file=file,
                field=f"row {line}",
                value=total,
                cure="are two columns swapped?",
            )
        transfers = tuple(Transfer(name, _kind(name), points[2 * i], points[2 * i + 1]) for i, name in enumerate(names))
        steps.append(InsightStep(int(cells[0]), start, end, both, tail, transfers))
    if not steps:
        raise InputError("holds no step", file=file)
    return steps


def read_insight_summary(path: str | Path) -> list[InsightSummary]:
    """Read ``ascend_cluster_analyse_pipeline-parallel_*.csv``, times in ms.

    Raises
    ------
    InputError
        When the table is damaged or empty.
    """
    file = Path(path)
    columns = (
        "computation_time",
        "communication_alone_time",
        "stage_time",
        "receive_alone_time",
        "collective_communication_alone_time",
    )
    rows = [
        InsightSummary(*(_number(cell, file, line, name) for cell, name in zip(cells, columns, strict=True)))
        for line, cells in stream_rows(file, columns)
    ]
    if not rows:
        raise InputError("holds no step", file=file)
    return rows


def _operators(file: Path) -> list[str]:
    """Names of the communication operators, from the header."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as stream, large_cells():
            header = next(csv.reader(stream), [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read: {error}", file=file) from None
    return [name for name in header if _OPERATOR.fullmatch(name)]


def _kind(name: str) -> str:
    found = _OPERATOR.fullmatch(name)
    assert found is not None
    return found["kind"]


def _ms(text: str | None, file: Path, line: int, name: str) -> float:
    return _number(text, file, line, name) / TICKS_PER_MS


def _number(text: str | None, file: Path, line: int, name: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e18:
        raise InputError("must be a number of at least 0", file=file, field=f"row {line}, column {name}", value=text)
    return value
