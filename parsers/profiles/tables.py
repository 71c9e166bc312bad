"""CSV tables of profilers, read row by row, with columns found by header."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import no_such_file

MAX_CELL = 2**20


def stream_rows(
    path: str | Path,
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    ragged: list[int] | None = None,
) -> Iterator[tuple[int, list[str | None]]]:
    """Yield (line number, cells) with the named columns only; an optional column that is absent gives None.

    Carriage returns, quotes around cells, tabs after numbers and empty lines are taken as they come; a
    row with another number of cells than the header is an error, or, where `ragged` is given, is left out
    and its line number put there. A file must end with a line end, since a table that was cut looks whole otherwise;
    where `ragged` is given, a last row without one is left out too, unless it is whole but for a cell that nobody asks.

    Raises
    ------
    InputError
        When the file is missing, cut short, has a column twice or lacks a required one, or a row has
        another number of cells than the header.
    """
    file = Path(path)
    try:
        with open(file, "rb") as raw:
            raw.seek(0, 2)
            size = raw.tell()
            raw.seek(max(0, size - 1))
            closed = raw.read(1) in (b"\n", b"\r")
        if size == 0:
            raise InputError("is empty", file=file, cure="write the profile again")
        if not closed and ragged is None:
            raise InputError("is cut short: the last row has no end", file=file, cure="take the whole file")
        with open(file, encoding="utf-8-sig", errors="strict", newline="") as stream, large_cells():
            reader = csv.reader(stream)
            header = [name.strip() for name in next(reader, [])]
            places: list[int | None] = [_place(header, name, file, needed=True) for name in required]
            places += [_place(header, name, file, needed=False) for name in optional]
            width = len(header)
            # The last cell of a file without a last line end may be a part of one.
            cut = not closed and width - 1 in places
            for line, cells, last in _with_last(reader):
                if not cells:
                    continue
                if len(cells) != width or (last and cut):
                    if ragged is not None:
                        ragged.append(line)
                        continue
                    raise InputError(
                        f"has {len(cells)} cells and the header {width}",
                        file=file,
                        field=f"row {line}",
                        cure="is the file cut short?",
                    )
                yield line, [None if place is None else cells[place] for place in places]
    except FileNotFoundError:
        raise no_such_file(file) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=file) from error
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8 text: {error.reason}", file=file) from None
    except csv.Error as error:
        raise InputError(f"is not a CSV file: {error}", file=file) from None


@contextmanager
def large_cells() -> Iterator[None]:
    """Let the csv module read cells up to `MAX_CELL`, as profiles hold them; its own limit comes back after."""
    before = csv.field_size_limit(MAX_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _with_last(reader: Any) -> Iterator[tuple[int, list[str], bool]]:
    """Rows of a CSV reader, each with its line number and whether it is the last one."""
    before: tuple[int, list[str]] | None = None
    for cells in reader:
        if before is not None:
            yield *before, False
        before = reader.line_num, cells
    if before is not None:
        yield *before, True


def _place(header: list[str], name: str, file: Path, *, needed: bool) -> int | None:
    count = header.count(name)
    if count > 1:
        raise InputError("has this column twice", file=file, field=name)
    if count == 0:
        if needed:
            raise InputError("has no such column", file=file, field=name, value=",".join(header))
        return None
    return header.index(name)
