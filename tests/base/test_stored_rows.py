"""Rows that others may have written: a reader per column, bad rows named and left out."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.base.stored_rows import MOST_CELL, MOST_NAMED, count_cell, number_cell, sound_row, sound_rows, text_cell

COLUMNS = {"name": text_cell(), "count": count_cell, "ms": number_cell}


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (text_cell(), ["", "x" * MOST_CELL], [None, 1, b"x", "x" * (MOST_CELL + 1)]),
        (text_cell(2), ["ab"], ["abc"]),
        (count_cell, [0, 2**53 - 1], [-1, 2**53, 1.0, "1", None]),
        (number_cell, [None, -1, 0.5], [float("nan"), float("inf"), "1", b"1"]),
    ],
)
def test_a_cell_is_what_its_column_takes_or_is_refused(read, good, bad):
    assert [read(cell) for cell in good] == good
    for cell in bad:
        with pytest.raises(ValueError, match="^is "):
            read(cell)


def test_the_first_damaged_cell_of_a_row_is_named_with_its_row_and_value():
    assert sound_row("row 1", COLUMNS, ["a", 1, None]) == {"name": "a", "count": 1, "ms": None}
    with pytest.raises(InputError, match=r"row 7, column count: is no count \(found -1\); delete that row") as refused:
        sound_row("row 7", COLUMNS, ["a", -1, "soon"])
    assert refused.value.field == "row 7, column count"
    with pytest.raises(ValueError, match="shorter"):
        sound_row("row 7", COLUMNS, ["a", 1])
    with pytest.raises(InputError) as refused:
        sound_row("row 7", COLUMNS, ["x" * 10**6, 1, 1])
    assert len(str(refused.value)) < 200


def test_bad_rows_are_left_out_each_by_its_number_from_1(caplog):
    found = sound_rows("row", COLUMNS, [("a", 1, 1.0), ("b", "many", 1.0), ("c", 3, 1.0), (None, 4, 1.0)])
    assert [row["name"] for row in found] == ["a", "c"]
    assert [record.getMessage().split(":")[1] for record in caplog.records] == [
        " row 2, column count",
        " row 4, column name",
    ]


@pytest.mark.parametrize(("bad", "lines"), [(0, 0), (MOST_NAMED, MOST_NAMED), (MOST_NAMED + 3, MOST_NAMED + 1)])
def test_of_many_bad_rows_the_first_are_named_and_the_others_counted(caplog, bad, lines):
    assert sound_rows("row", COLUMNS, [("a", 1, 1.0), *[("a", -1, 1.0)] * bad]) == [
        {"name": "a", "count": 1, "ms": 1.0}
    ]
    assert len(caplog.records) == lines
    assert ("3 more rows" in caplog.text) == (lines > MOST_NAMED)
