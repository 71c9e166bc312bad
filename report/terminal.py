"""Terminal output: a plan by stage, names with texts, the pipeline in characters, a live line during a solve."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taylor.base.console import error_console, live_display
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.report.compress import gap_text, strategy_text
from taylor.report.plan_text import pair_lines, plan_table
from taylor.report.planned import planned_timeline
from taylor.report.ranking import note_lines, plan_lines, ranking_table, verdict_lines
from taylor.report.slices import slice_marks
from taylor.report.timeline import Timeline, drawing_windows, window_shares

if TYPE_CHECKING:
    import pandas as pd

STYLES = {
    "F": "black on #8ecdf2",
    "B": "black on #e08214",
    "r": "black on #fdd49e",
    "W": "white on #007a5a",
    "O": "white on #9e4a87",
    "C": "black on #f0e442",
    "x": "black on #bbbbbb",
    ".": "dim",
}

MOST_ROWS = 16
"""Most rows of a drawing; of more, evenly spaced ones are drawn."""


def pipeline_text(timeline: Timeline, width: int = 80) -> Text:
    """Pipeline in characters: a line for each stage, with the kind of job that fills most of each time slice.

    F forward, r recompute, B backward, W weight gradient, O optimizer, C communication, ``.`` idle. A
    big job shows warm-up, steady window and cool-down side by side.

    Parameters
    ----------
    width : int
        Characters available to a line.
    """
    views = drawing_windows(timeline, per_row=14)
    rows = np.unique(np.linspace(0, timeline.rows - 1, min(timeline.rows, MOST_ROWS)).round().astype(int))
    label = max(len(timeline.row_names[row]) for row in rows) + 1
    columns = max(len(views) * 4, width - label - 2 * (len(views) - 1))
    cells = np.maximum(4, np.floor(columns * np.array(window_shares(views))).astype(int))
    text = Text()
    if len(views) > 1:
        heads = "  ".join(view.name[:n].ljust(n) for view, n in zip(views, cells.tolist(), strict=True))
        text.append(" " * label + heads + "\n", style="bold")
    drawn = [
        slice_marks(timeline, rows.tolist(), view.begin, view.end, n)
        for view, n in zip(views, cells.tolist(), strict=True)
    ]
    used: set[str] = set()
    for at, row in enumerate(rows.tolist()):
        text.append(timeline.row_names[row].rjust(label - 1) + " ")
        for number, part in enumerate(drawn):
            text.append("  " if number else "")
            for mark in part[at]:
                text.append(mark, style=STYLES[mark])
                used.add(mark)
        text.append("\n")
    names = {
        "F": "forward",
        "r": "recompute",
        "B": "backward",
        "W": "weight gradient",
        "O": "optimizer",
        "C": "communication",
        "x": "other",
        ".": "idle",
    }
    text.append(" " * label + ", ".join(f"{mark} {name}" for mark, name in names.items() if mark in used), style="dim")
    if len(rows) < timeline.rows:
        text.append(f"; {len(rows)} of {timeline.rows} rows", style="dim")
    return text


WHOLE_WIDTH = 10_000
"""Characters of a line that is not to be wrapped."""

PIPE_WIDTH = 120
"""Columns of a table in a pipe or a file, where no window sets them."""


def print_ranking(
    table: pd.DataFrame | Sequence[Mapping[str, Any]],
    *,
    limit: int | None = None,
    details: bool = False,
    console: Console | None = None,
) -> None:
    """Print the ranking, best first as given, on standard output, then the best plan.

    Parameters
    ----------
    limit : int, optional
        Most candidates shown.
    details : bool
        Print the plan of every candidate shown, not of the best alone.
    """
    out = console or _standard_output()
    out.print(ranking_table(table, limit=limit, width=out.width))
    for line in note_lines(table):
        out.print(Text(line, style="dim"), soft_wrap=True)
    records: list[Any] = list(table) if isinstance(table, Sequence) else table.to_dict("records")
    for row in records[: limit if details else 1]:
        if pairs := plan_lines(row):
            out.print(Text(strategy_text(row), style="bold"), soft_wrap=True)
            for line in pair_lines(pairs, out.width if out.is_terminal else None):
                out.print(Text(line), soft_wrap=True)


def print_ranking_verdict(table: pd.DataFrame | Sequence[Mapping[str, Any]]) -> None:
    """Print the last three lines of a ranking; see `report.ranking.verdict_lines`."""
    print_verdict(verdict_lines(table))


def print_table(table: Table, *, whole: bool = False) -> None:
    """Print any table on standard output; colours only on a terminal.

    Parameters
    ----------
    whole : bool
        Whether each row keeps its line where standard output is no terminal, however long it is.
    """
    out = _standard_output()
    if whole and not out.is_terminal and "COLUMNS" not in os.environ:
        out = Console(highlight=False, width=WHOLE_WIDTH)
    out.print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print names with their texts on standard output, a line each; on a terminal long ones go on below themselves."""
    out = _standard_output()
    for line in pair_lines(pairs, out.width if out.is_terminal else None):
        out.print(Text(line), soft_wrap=True)


def print_verdict(lines: Sequence[str]) -> None:
    """Print the last three lines of a command: how fast, does it fit, what it rests on."""
    print_pairs(zip(("verdict", "memory", "figures"), lines, strict=True))


def print_plan(problem: PipelineProblem, solution: Solution) -> None:
    """Print a plan by stage on standard output."""
    out = _standard_output()
    out.print(plan_table(problem, solution, out.width))


def print_pipeline(problem: PipelineProblem, solution: Solution) -> None:
    """Print the pipeline of a plan in characters on standard output."""
    if solution.plan is not None:
        out = _standard_output()
        out.print(pipeline_text(planned_timeline(problem, solution.plan), out.width), soft_wrap=True)


@contextmanager
def live_line(title: str, console: Console | None = None) -> Iterator[Callable[[Any], None] | None]:
    """Show one line on standard error during a solve: elapsed time, best plan, bound and gap; nothing in a pipe.

    Yields the function to pass as `on_progress`, or None without a terminal. The elapsed time also updates between
    reports.
    """
    out = console or error_console()
    if not out.is_terminal:
        yield None
        return
    line = _LiveLine(title)
    with live_display(line, out):
        yield line.report


def _standard_output() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=PIPE_WIDTH)


class _LiveLine:
    def __init__(self, title: str) -> None:
        self.title, self.started = title, time.monotonic()
        self.latest: Any = None

    def report(self, progress: Any) -> None:
        self.latest = progress

    def __rich__(self) -> Text:
        return progress_text(self.title, time.monotonic() - self.started, self.latest)


def progress_text(title: str, elapsed: float, latest: Any) -> Text:
    """Live line: title, elapsed seconds, best plan, bound, gap and the solver's note, as far as known.

    Times are in ms where the report knows the unit.
    """
    text = Text(no_wrap=True, overflow="ellipsis").append(title, style="bold").append(f"  {elapsed:6.1f} s")
    objective, bound = getattr(latest, "objective", None), getattr(latest, "bound", None)
    unit = getattr(latest, "unit_ms", None)

    def shown(step: float) -> str:
        return f"{step:.4f}" if unit is None else f"{step * unit:,.1f} ms"

    if objective is not None:
        text.append(f"  best {shown(objective)}", style="green")
    if bound is not None and bound > 0:
        text.append(f"  bound {shown(bound)}")
        if objective:
            text.append(f"  gap {gap_text(max(0.0, (objective - bound) / objective))}", style="yellow")
    elif objective is not None:
        text.append("  no bound yet", style="yellow")
    note = getattr(latest, "note", "")
    return text.append(f"  {note}", style="dim") if note else text
