"""A small database, in a SQLite file or on a PostgreSQL server, through the SQL that both understand."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, WriteError

POSTGRESQL = ("postgresql://", "postgres://")
SQLITE = "sqlite:///"
SUFFIXES = (".sqlite", ".sqlite3", ".db")

WAIT_SECONDS = 30.0
"""Time to wait while another process writes."""

OWNER_ALONE = 0o600
"""Rights of a new store: its rows contain whole configurations."""


class BusyError(WriteError):
    """Another process has locked the database for longer than this one waits (exit code 2)."""


def is_database(text: str) -> bool:
    """Return whether a text is the URL of a database, or a file that is named as one."""
    return text.startswith((*POSTGRESQL, SQLITE)) or text.endswith(SUFFIXES)


def shown(url: str) -> str:
    """A URL without its password, for messages."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)


@dataclass(frozen=True)
class Database:
    """An open database.

    Parameters
    ----------
    connection : object
        Of Python's database interface.
    mark : str
        Mark of a value in a statement.
    """

    connection: Any
    mark: str

    def do(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement whose values stand as ``?``; returns its rows, if it has any."""
        cursor = self.connection.cursor()
        cursor.execute(statement.replace("?", self.mark), tuple(values))
        return list(cursor.fetchall()) if cursor.description else []

    def do_each(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once a row of values."""
        self.connection.cursor().executemany(statement.replace("?", self.mark), [tuple(row) for row in rows])


@contextmanager
def open_database(url: str, *, write: bool, field: str = "--store", wait_s: float = WAIT_SECONDS) -> Iterator[Database]:
    """Open a database for one transaction: all of it is there after the block, or nothing.

    Parameters
    ----------
    url : str
        ``sqlite:///FILE``, a SQLite file's path, or ``postgresql://USER@HOST/NAME``.
    write : bool
        Make a SQLite file where there is none.
    field : str
        The flag that names it.
    wait_s : float
        Time to wait while another process writes, or for a server's answer.

    Raises
    ------
    InputError
        When it cannot be opened, or is no database.
    WriteError
        When it cannot be written; `BusyError` where another process has locked it.
    """
    if url.startswith(POSTGRESQL):
        try:
            import psycopg
        except ImportError:
            cure = "pip install 'taylor-parallel[postgres]'"
            raise InputError("needs psycopg", field=field, value=shown(url), cure=cure) from None
        error: type[Exception] = psycopg.Error
        try:
            opened = Database(psycopg.connect(url, connect_timeout=max(2, round(wait_s))), "%s")
        except (psycopg.Error, UnicodeError) as problem:
            raise _refused(url, field, problem) from None
    else:
        error = sqlite3.Error
        path = Path(url.removeprefix(SQLITE))
        try:
            if write:
                path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, OWNER_ALONE))
            elif not path.is_file():
                raise InputError("no such file", field=field, value=str(path), cure="check the path")
            opened = Database(sqlite3.connect(path, timeout=wait_s), "?")
            # One cell in another encoding must not hide all rows.
            opened.connection.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
        except (OSError, ValueError, sqlite3.Error) as problem:
            raise _refused(url, field, problem) from None
    try:
        yield opened
        opened.connection.commit()
    except error as problem:
        opened.connection.rollback()
        if isinstance(problem, sqlite3.OperationalError) and "locked" in str(problem):
            cure = "try again when the other process has ended"
            raise BusyError("another process has locked it", field=field, value=shown(url), cure=cure) from None
        kind = WriteError if write else InputError
        raise kind(f"{_words(problem)}", field=field, value=shown(url), cure="is it a store of taylor?") from None
    finally:
        opened.connection.close()


def _refused(url: str, field: str, problem: Exception) -> InputError:
    return InputError(f"cannot be opened: {_words(problem)}", field=field, value=shown(url), cure="check the address")


def _words(problem: Exception) -> str:
    """A driver's message, in one line and without the address, which may hold a password."""
    return " ".join(str(problem).split())[:300] or type(problem).__name__
