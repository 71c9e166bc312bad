"""A page's table for the terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from taylor.report.facts import PageTable


def terminal_table(table: PageTable) -> Table:
    """Rows of a page's table with its title and note, without bars."""
    shown = Table(title=Text(table.title), title_justify="left", header_style="bold", pad_edge=False, box=None)
    shown.caption, shown.caption_justify = Text(table.note) if table.note else None, "left"
    for at, name in enumerate(table.columns):
        shown.add_column(Text(name), overflow="fold", no_wrap=at == 0)
    for row in table.rows:
        shown.add_row(*(Text(cell) if isinstance(cell, str) else Text("") for cell in row))
    return shown
