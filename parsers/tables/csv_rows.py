"""Rows of a small CSV that a user writes, by the names in its first line."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text


def csv_rows(
    file: Path, needed: Collection[str], cure: str, *, further: Collection[str] = (), limit_bytes: int = 2**20
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Read a table row by row; blank lines are left out.

    Parameters
    ----------
    needed, further : collection of str
        Columns that the first line must name, and those that it may.
    cure : str
        Cure of a first line with other columns.

    Yields
    ------
    (str, mapping of str to str)
        The row's place, ``row 3``, and its cells by column.

    Raises
    ------
    InputError
        With the row, when the file is too long or no CSV, or the columns are others.
    """
    rows = csv.reader(io.StringIO(read_text(file, limit_bytes=limit_bytes).removeprefix("\ufeff"), newline=""))
    header: list[str] | None = None
    try:
        for cells in rows:
            place = f"row {rows.line_num}"
            if not any(map(str.strip, cells)):
                continue
            if header is None:
                header = [name.strip() for name in cells]
                named = set(header)
                if len(named) < len(header) or not set(needed) <= named <= {*needed, *further}:
                    raise InputError("has other columns", file=file, field=place, value=",".join(header), cure=cure)
                continue
            if len(cells) != len(header):
                problem = f"has {len(cells)} cells and the header {len(header)}"
                raise InputError(problem, file=file, field=place)
            yield place, dict(zip(header, map(str.strip, cells), strict=True))
    except csv.Error as error:
        raise InputError(f"is not a CSV file: {error}", file=file, field=f"row {rows.line_num}") from None
