"""Short texts of lists, cells, gaps, strategies, rates and times."""

from __future__ import annotations

import pytest

from taylor.report.compress import (
    compress,
    compress_grid,
    file_stem,
    gap_text,
    hours_text,
    in_gib,
    number,
    parse_json,
    rate_text,
    strategy_text,
)


def test_runs_are_counted_and_rows_kept_apart():
    assert compress([]) == "" and compress(["a", "a", "b"]) == "2×a,b" and compress([[3], (4, 4)]) == "3 | 2×4"


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ([[1, 2]], "1,2"), ((0, 0), "2×0"), (7, ""), ("7", ""), (None, ""), ({}, ""),
        ({"full": [[0]], "select": [[0]]}, "0"), ({"select": [[0]], "full": [[0]]}, "select 0"),
        ({"full": [[0, 0], [0, 1]], "select": [[0, 0]]}, "2×0 | 0,1"), ({"select": [[0, 1]]}, "select 0,1"),
        ({"full": [0, 2], "offload": 0}, "0,2"),
    ],
)  # fmt: skip
def test_a_grid_names_its_modes_where_full_recompute_is_not_the_only_one(grid, text):
    assert compress_grid(grid) == text


def test_cells_are_read_as_data_and_as_finite_numbers():
    assert [parse_json(cell) for cell in ("[1]", "[", "", float("nan"), 1.5, [2], None)] == [
        [1], None, None, None, 1.5, [2], None,
    ]  # fmt: skip
    assert [number(cell) for cell in ("2.5", "x", None, "", "nan", float("inf"), True)] == [
        2.5, None, None, None, None, None, 1.0,
    ]  # fmt: skip
    assert in_gib("[1024, 1536.0]") == ["1.0", "1.5"] and in_gib((512,)) == ["0.5"] and in_gib(None) == []


@pytest.mark.parametrize(
    ("gap", "text"),
    [(None, "-"), (0.0, "0 %"), (1e-6, "0 %"), (1.1e-6, "<0.01 %"), (0.99e-4, "<0.01 %"), (1e-4, "0.01 %"),
     (1.5, "150.00 %")],
)  # fmt: skip
def test_a_gap_is_zero_only_where_it_is_closed(gap, text):
    assert gap_text(gap) == text


def test_a_strategy_names_the_degrees_above_one_or_its_file():
    row = {"dp": 1, "tp": 1.0, "pp": "1", "ep": 1, "cp": 2, "ulysses": 4, "vpp": 1, "mbs": 2, "micro_batches": 64}
    assert strategy_text(row) == "DP1 TP1 PP1 CP2 ULYSSES4 MBS2 m64"
    assert strategy_text({"dp": 2, "micro_batches": float("nan")}) == "DP2"
    assert strategy_text({"file": "a/b.c.yaml"}) == "b.c" and strategy_text({}) == file_stem(float("nan")) == ""


def test_rates_and_times_keep_three_digits_and_their_unit():
    assert [rate_text(rate) for rate in (0.04123, 12.54, 99.94, 100.0, 1023.6)] == [
        "0.0412",
        "12.5",
        "99.9",
        "100",
        "1,024",
    ]
    assert [hours_text(hours) for hours in (0.5, 0.99, 1.0, 1234.56)] == ["30.0 minutes", "59.4 minutes", "1.0 hours",
                                                                        "1,234.6 hours"]  # fmt: skip
