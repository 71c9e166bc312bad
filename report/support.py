"""Table of what can be evaluated, solved and written, a row a launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

COLUMNS = ("launcher", "files", "evaluated", "solved", "written", "from a model", "degrees", "options")


def support_cells(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """One row's texts, in the order of `COLUMNS`, of a `LauncherSupport` as plain data."""
    options = ", ".join(f"{count} {status}" for status, count in answer["options"].items())
    return (
        answer["launcher"],
        f"{answer['title']} ({', '.join(answer['suffixes'])})",
        *(_yes(answer[name]) for name in ("evaluated", "solved", "written", "new_file")),
        " ".join(answer["degrees"]),
        options,
    )


def support_table(answers: Sequence[Mapping[str, Any]]) -> Table:
    """The answers as a table for the terminal."""
    table = Table(*COLUMNS)
    for answer in answers:
        table.add_row(*support_cells(answer))
    return table


def _yes(value: bool) -> str:
    return "yes" if value else "no"
