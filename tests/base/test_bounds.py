"""Bounds of waiting, reading and printing, and what a process does at them."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import pytest

from taylor.base import budget, console, database, interrupts, orphans, plugins, stored_rows
from taylor.base.budget import TimeBudget
from taylor.base.database import open_database
from taylor.base.errors import InputError
from taylor.base.interrupts import imported, note_press, presses
from taylor.base.stored_rows import count_cell, damaged, number_cell, sound_rows, text_cell


def test_bounds_are_those_that_the_pages_state() -> None:
    assert (database.WAIT_SECONDS, database.OWNER_ALONE) == (30.0, 0o600)
    assert (plugins.MAX_ENTRY_POINTS_BYTES, stored_rows.MOST_CELL, stored_rows.MOST_NAMED) == (1_048_576, 4096, 5)
    assert (orphans.POLL_SECONDS, interrupts.HEARD_AGAIN, budget.FINISH_SECONDS) == (0.5, 1e-3, 3.0)
    # Linux: include/uapi/linux/prctl.h
    assert orphans._PR_SET_PDEATHSIG == 1


def test_a_new_store_is_its_owner_s_alone_and_a_block_that_fails_leaves_it_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "a.db"
    with open_database(str(file), write=True) as opened:
        opened.do("create table t (a, b)")
        opened.do_each("insert into t values (?, ?)", [(1, "x"), (2, "y")])
    assert file.stat().st_mode & 0o7777 == 0o600
    with pytest.raises(InputError, match="is it a store"), open_database(str(file), write=True) as opened:
        opened.do("insert into t values (?, ?)", [3, "z"])
        opened.do("insert into none values (1)")
    with open_database(f"sqlite:///{file}", write=False) as opened:
        assert opened.do("select a, b from t where a > ?", [0]) == [(1, "x"), (2, "y")]
        assert opened.do("create temp table u (a)") == []
    with pytest.raises(InputError, match="no such file"), open_database(str(tmp_path / "b.db"), write=False):
        pass
    assert not (tmp_path / "b.db").exists()


def test_a_text_in_another_encoding_hides_no_row(tmp_path: Path) -> None:
    file = str(tmp_path / "a.db")
    with open_database(file, write=True) as opened:
        opened.do("create table t (a text)")
        opened.do("insert into t values (cast(x'41ff' as text))")
    with open_database(file, write=False) as opened:
        assert opened.do("select a from t") == [("A\\xff",)]


def test_cells_are_read_up_to_their_bounds() -> None:
    assert text_cell(3)("abc") == "abc" and count_cell(0) == 0 and count_cell(2**53 - 1) == 2**53 - 1
    assert number_cell(None) is None and number_cell(-1.5) == -1.5 and number_cell(2) == 2
    for read, cell in [
        (text_cell(3), "abcd"), (text_cell(), 1), (count_cell, -1), (count_cell, 2**53), (count_cell, 1.0),
        (number_cell, float("nan")), (number_cell, "1"),
    ]:  # fmt: skip
        with pytest.raises(ValueError):
            read(cell)  # type: ignore[operator]
    assert damaged("row 1", "a", "x" * 199).value == "x" * 199
    assert damaged("row 1", "a", "x" * 200).value == "x" * 60
    assert damaged("row 1", "a", [1]).value == "[1]"


def test_bad_rows_are_named_up_to_a_number_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    columns = {"a": count_cell}
    with caplog.at_level(logging.WARNING):
        assert sound_rows("row", columns, [[1], *[["x"]] * 5, [2]]) == [{"a": 1}, {"a": 2}]
        assert len(caplog.messages) == 5 and "row 2, column a: is no count (found 'x')" in caplog.messages[0]
        caplog.clear()
        sound_rows("row", columns, [["x"]] * 7)
        assert caplog.messages[5] == "left out: 2 more rows like these (row)" and len(caplog.messages) == 6


def test_a_module_s_import_leaves_ctrl_c_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "takes_ctrl_c.py").write_text("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    assert imported("takes_ctrl_c").signal is signal
    assert signal.getsignal(signal.SIGINT) is before


def test_presses_are_counted_one_by_one() -> None:
    before = presses()
    note_press()
    note_press()
    assert presses() == before + 2


def test_a_block_puts_back_the_handler_that_was_there() -> None:
    def own(number: int, frame: object) -> None:
        """Take Ctrl-C."""

    before = signal.signal(signal.SIGINT, own)
    try:
        with interrupts.delay_interrupts():
            assert signal.getsignal(signal.SIGINT) is not own
        assert signal.getsignal(signal.SIGINT) is own
        with interrupts.counted_interrupts():
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_entry_points_name_a_group_within_their_bound(tmp_path: Path) -> None:
    file = tmp_path / "entry_points.txt"
    assert plugins._names_a_group(file) is False
    file.write_text("[console_scripts]\na = b:c\n")
    assert plugins._names_a_group(file) is False
    for group in ("launchers", "devices", "models", "rules", "schedules"):
        file.write_text(f"[x]\n[taylor.{group}]\n")
        assert plugins._names_a_group(file) is True
    file.write_text("#" * plugins.MAX_ENTRY_POINTS_BYTES + "\n[taylor.rules]\n")
    assert plugins._names_a_group(file) is False


def test_texts_are_broken_at_blanks_never_between_a_number_and_its_unit() -> None:
    assert console.wrapped("one two three", 24, 4) == ["one two three"]
    assert console.wrapped("a" * 30 + " b", 24, 4) == ["a" * 30, "    b"]
    assert console.wrapped("x" * 20 + " 12 MiB", 25, 4) == ["x" * 20, "    12 MiB"]
    assert console.wrapped("aaaa-bbbb " * 3, 26, 2) == ["aaaa-bbbb aaaa-bbbb", "  aaaa-bbbb"]
    assert console.wrapped("a\tb", 24, 4) == ["a       b"]
    assert console.wrapped("", 24, 4) == [""]
    assert console.wrapped("one two three four five six", 1, 6) == ["one two three four five", "      six"]


def test_log_lines_start_at_the_level_that_was_asked_for() -> None:
    handlers, level, propagate = console.log.handlers[:], console.log.level, console.log.propagate
    try:
        for asked, wanted in [
            ({"verbose": True}, logging.DEBUG),
            ({"quiet": True}, logging.WARNING),
            ({}, logging.INFO),
        ]:
            console.start_logging(**asked)
            assert console.log.level == wanted and len(console.log.handlers) == 1 and not console.log.propagate
    finally:
        console.log.handlers[:], console.log.level, console.log.propagate = handlers, level, propagate


def test_a_bar_is_silent_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with console.progress("work", 3) as advance:
        assert advance(1, "note") is None


def test_a_budget_is_what_is_left_and_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.time, "monotonic", lambda: 100.0)
    some, none = TimeBudget.of(8.0), TimeBudget.of(None)
    assert (some.left, some.over, some.part(4), some.part(0), some.at_most(3.0), some.at_most(9.0)) == (
        8,
        False,
        2,
        8,
        3,
        8,
    )
    assert (none.left, none.over, none.part(4), none.at_most(3.0), none.at_most(None)) == (None, False, None, 3.0, None)
    assert some.at_most(None) == 8.0 and some.later(2.0).left == 10.0 and none.later(2.0) is none
    assert TimeBudget(99.0).over and TimeBudget(99.0).left == 0.0


def test_a_worker_whose_parent_is_gone_ends_at_once() -> None:
    child = os.fork()
    if not child:
        orphans.end_with_parent(os.getppid() + 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    child = os.fork()
    if not child:
        orphans.end_with_parent(os.getppid())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
