"""The table of what a tuning searches says what the code does."""

from __future__ import annotations

from benchmarks.tune_dimensions import COMPARED, PAGE, SEARCHED, page, rows


def test_the_page_has_the_table_of_the_code():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m benchmarks.tune_dimensions"


def test_every_degree_is_searched_and_every_switch_compared():
    treated = {name: how for name, how, _, _ in rows()}
    assert sum(how == SEARCHED for how in treated.values()) == 8
    assert sum(how == COMPARED for how in treated.values()) == 4
    shown = {name: runs for name, _, runs, _ in rows()}
    assert shown["tensor parallel"] == "tp4, tp1, tp8" and shown["micro-batch"] == "mbs2"
