"""Rows of a database that others may write: each cell is checked, and a bad row is named and left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError

MOST_CELL = 4096
"""Longest text of a cell that is read, characters, unless its column allows more."""

MOST_NAMED = 5
"""Bad rows of one query that are named; the others are counted."""

Check = Callable[[Any], Any]
"""Reader of one cell: its value, or ValueError with what is wrong."""


def text_cell(most: int = MOST_CELL) -> Check:
    """Return a reader of texts of at most `most` characters."""

    def read(cell: Any) -> str:
        if not isinstance(cell, str):
            raise ValueError("is no text")
        if len(cell) > most:
            raise ValueError(f"is longer than {most} characters")
        return cell

    return read


def count_cell(cell: Any) -> int:
    """Read a whole number from 0 on, which a float can hold.

    Raises
    ------
    ValueError
        When it is none.
    """
    if not isinstance(cell, int) or not 0 <= cell < 2**53:
        raise ValueError("is no count")
    return cell


def number_cell(cell: Any) -> float | None:
    """Read a finite number, or nothing.

    Raises
    ------
    ValueError
        When it is neither.
    """
    if cell is not None and not (isinstance(cell, (int, float)) and math.isfinite(cell)):
        raise ValueError("is no finite number")
    return cell


def damaged(where: str, column: str, cell: Any, problem: str = "is damaged") -> InputError:
    """Error about a cell, by its row and column."""
    value = cell if isinstance(cell, (str, int, float, bytes)) and len(str(cell)[:200]) < 200 else str(cell)[:60]
    return InputError(problem, field=f"{where}, column {column}", value=value, cure="delete that row of the store")


def sound_row(where: str, columns: Mapping[str, Check], cells: Sequence[Any]) -> dict[str, Any]:
    """Read a row: its values by column.

    Parameters
    ----------
    where : str
        The row, for messages.
    columns : mapping
        Reader of each cell, in the row's order.

    Raises
    ------
    InputError
        With the first column whose cell is damaged.
    """
    row = {}
    for (name, read), cell in zip(columns.items(), cells, strict=True):
        try:
            row[name] = read(cell)
        except ValueError as wrong:
            raise damaged(where, name, cell, str(wrong)) from None
    return row


def sound_rows(where: str, columns: Mapping[str, Check], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Read all rows of a query but the damaged ones, of which the first `MOST_NAMED` are named."""
    found, bad = [], 0
    for number, cells in enumerate(rows, 1):
        try:
            found.append(sound_row(f"{where} {number}", columns, cells))
        except InputError as error:
            bad += 1
            if bad <= MOST_NAMED:
                log.warning("left out: %s", error)
    if bad > MOST_NAMED:
        log.warning("left out: %d more rows like these (%s)", bad - MOST_NAMED, where)
    return found
