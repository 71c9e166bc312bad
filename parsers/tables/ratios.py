"""Time ratios of profiled strategies, as a CSV gives them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.profile import RatioSource, TimeRatios
from taylor.parsers.text.fields import MAX_DEGREE
from taylor.pipeline.plan import FULL, NONE, SELECT

DEGREES = ("dp", "tp", "pp", "ep")
RATIOS = ("dmratio", "bfratio", "re_grow_ration", "hratio")
UNIT = ("moe_bw", "moe_fw")
"""Names of the column with the real forward time of one MoE (body) layer in ms."""
TRANSFER, EMBEDDING = "transfer_ms", "embedding_ratio"
"""Further columns: time to hand an activation to the next stage, ms; embedding over the body layer, forward."""

_DEFAULT_SELECT = TimeRatios().recompute[SELECT]
MAX_RATIO = 1e6
"""Largest quotient of two times that is accepted."""
MAX_BYTES = 2**22
"""Most that a table may hold, some 50,000 strategies."""


def read_ratios(path: str | Path) -> dict[tuple[int, int, int, int], TimeRatios]:
    """Read the ratios of every profiled strategy.

    Columns: ``dp,tp,pp,ep`` the strategy; ``dmratio`` dense over MoE layer, forward; ``bfratio``
    backward over forward; ``re_grow_ration`` recompute over forward; ``hratio`` head and loss over
    the MoE layer, forward; ``moe_bw`` (or ``moe_fw``) the forward time of one MoE layer in ms.
    ``transfer_ms`` and ``embedding_ratio`` are read where they are; without the column, or in an empty
    cell, they are zero. Others are passed by. The recompute ratio given is the full one; the selective one, which the
    file lacks, is the default fraction of it.

    Returns
    -------
    dict
        (dp, tp, pp, ep) -> ratios, in the order of the file.

    Raises
    ------
    InputError
        When the file is missing or empty, a column is missing or doubled, a cell is empty or not a
        number in range, or a strategy occurs twice; with the row's number in the file.
    """
    file = Path(path)
    header, rows = _table(file)
    place = {name: _column(header, (name,), file) for name in (*DEGREES, *RATIOS)}
    place["unit"] = _column(header, UNIT, file)
    place |= {name: _column(header, (name,), file) for name in (TRANSFER, EMBEDDING) if name in header}
    ratios: dict[tuple[int, int, int, int], TimeRatios] = {}
    first_seen: dict[tuple[int, int, int, int], int] = {}
    for line, cells in rows:
        dp, tp, pp, ep = (_degree(cells[place[name]], file, line, name) for name in DEGREES)
        dense, backward, recompute, head = (_ratio(cells[place[name]], file, line, name) for name in RATIOS)
        unit_ms = _ratio(cells[place["unit"]], file, line, header[place["unit"]], above_zero=True)
        transfer_ms, embedding = (
            _ratio(cells[place[name]], file, line, name) if name in place and cells[place[name]].strip() else 0.0
            for name in (TRANSFER, EMBEDDING)
        )
        key = (dp, tp, pp, ep)
        if key in ratios:
            raise InputError(
                f"gives the strategy of row {first_seen[key]} again", file=file, field=f"row {line}", value=key
            )
        first_seen[key] = line
        ratios[key] = TimeRatios(
            dense_forward=dense,
            backward=backward,
            recompute={FULL: recompute, SELECT: _DEFAULT_SELECT * recompute, NONE: 0.0},
            head=head,
            unit_ms=unit_ms,
            embedding=embedding,
            lag=transfer_ms / unit_ms,
            source=RatioSource.PARSED,
        )
    if not ratios:
        raise InputError("contains no strategy, only the header", file=file)
    return ratios


def _table(file: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The header, and the rows below it with their line numbers."""
    rows = _rows(file)
    _, header = next(rows, (0, None))
    if header is None:
        raise InputError("is empty", file=file, cure=f"give a CSV with {', '.join((*DEGREES, *RATIOS, UNIT[0]))}")
    return [name.strip() for name in header], rows


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows as long as the first, blank ones left out, one by one: a damaged file ends at its first wrong one."""
    reader = csv.reader(io.StringIO(read_text(file, limit_bytes=MAX_BYTES).removeprefix("\ufeff"), newline=""))
    width = 0
    try:
        for cells in reader:
            if not any(map(str.strip, cells)):
                continue
            width = width or len(cells)
            if len(cells) != width:
                raise InputError(
                    f"has {len(cells)} cells and the header {width}", file=file, field=f"row {reader.line_num}"
                )
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"is not a CSV file: {error}", file=file, field=f"row {reader.line_num}") from None


def _column(header: list[str], names: tuple[str, ...], file: Path) -> int:
    found = [index for index, name in enumerate(header) if name in names]
    if not found:
        raise InputError("has no such column", file=file, field=" or ".join(names), value=",".join(header))
    if len(found) > 1:
        raise InputError("has this column twice", file=file, field=" or ".join(names), value=",".join(header))
    return found[0]


def _cell(text: str, file: Path, line: int, name: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("must be a finite number", file=file, field=f"row {line}, column {name}", value=text)
    return value


def _degree(text: str, file: Path, line: int, name: str) -> int:
    value = _cell(text, file, line, name)
    if not value.is_integer() or not 1 <= value <= MAX_DEGREE:
        raise InputError(
            f"must be a whole number from 1 to {MAX_DEGREE}", file=file, field=f"row {line}, column {name}", value=text
        )
    return int(value)


def _ratio(text: str, file: Path, line: int, name: str, above_zero: bool = False) -> float:
    value = _cell(text, file, line, name)
    if not 0 <= value <= MAX_RATIO or (above_zero and value == 0):
        low = "above 0" if above_zero else "at least 0"
        raise InputError(
            f"must be {low} and at most {MAX_RATIO:g}", file=file, field=f"row {line}, column {name}", value=text
        )
    return value
