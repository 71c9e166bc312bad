"""One plan on a terminal: a table by stage, and names with their texts, whole numbers kept whole at any width."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from taylor.base.console import wrapped
from taylor.pipeline.plan import FULL, PipelinePlan, mode_title
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.solution import Solution

NAME_WIDTH = 12
"""Columns of a name before its text."""

Columns = Sequence[tuple[str, Callable[[int], str]]]
"""Headings, and the form of a stage's cell."""


def plan_table(problem: PipelineProblem, solution: Solution, width: int = 80) -> Table:
    """Table of one plan by stage: layers of each kind, recompute, peak memory against the limit.

    With several virtual stages a cell lists their numbers in order, ``2+1``. Where that is too wide, the table has
    their sums, and then the sums of all kinds.

    Parameters
    ----------
    width : int
        Columns available to the table.

    Raises
    ------
    ValueError
        When the solution has no plan.
    """
    if solution.plan is None:
        raise ValueError("the solution has no plan to show")
    tables = (_table(problem, solution, columns) for columns in _forms(solution.plan))
    return next((table for table in tables if _width(table) <= width), table_of_sums(problem, solution))


def table_of_sums(problem: PipelineProblem, solution: Solution) -> Table:
    """Narrowest form of `plan_table`."""
    assert solution.plan is not None
    return _table(problem, solution, list(_forms(solution.plan))[-1])


def _forms(plan: PipelinePlan) -> Iterable[Columns]:
    """Forms of the columns of layers and recompute, from the most detailed to the least."""
    kinds = plan.by_kind()
    redone = {mode: grid for mode, grid in plan.recompute.items() if mode == FULL or any(map(any, grid))}
    names = {mode: mode_title(mode).replace("select recompute", "select rec.") for mode in redone}

    def listed(grid: Sequence[Sequence[int]]) -> Callable[[int], str]:
        return lambda stage: "+".join(str(row[stage]) for row in grid)

    def summed(*grids: Sequence[Sequence[int]]) -> Callable[[int], str]:
        return lambda stage: str(sum(row[stage] for grid in grids for row in grid))

    forms = [(names[mode], listed(grid)) for mode, grid in redone.items()]
    sums = [(names[mode], summed(grid)) for mode, grid in redone.items()]
    yield [*((kind, listed(grid)) for kind, grid in kinds.items()), *forms]
    yield [*((kind, summed(grid)) for kind, grid in kinds.items()), *sums]
    yield [("layers", summed(*kinds.values())), *sums]


def _table(problem: PipelineProblem, solution: Solution, columns: Columns) -> Table:
    limits = problem.limit_mib
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    one_limit = min(limits) == max(limits)
    if problem.cards:
        columns = [("card", lambda stage: problem.cards[stage]), *columns]
    if problem.slowness:
        columns = [("time", lambda stage: f"{problem.pace[stage]:.3g} x"), *columns]
    names = ["stage", *(name for name, _ in columns), "peak MiB", *([] if one_limit else ["limit MiB"]), "free MiB"]
    for name in names:
        table.add_column(Text(name), justify="right", no_wrap=True)
    if one_limit:
        table.caption = f"limit: {limits[0]:,.0f} MiB a device"
    for stage, limit in enumerate(limits):
        peak = solution.peak_memory_mib[stage] if solution.peak_memory_mib else None
        cells: list[str | Text] = [str(stage), *(cell(stage) for _, cell in columns)]
        cells.append("-" if peak is None else f"{peak:,.0f}")
        cells += [] if one_limit else [f"{limit:,.0f}"]
        table.add_row(*cells, _free(peak, limit))
    return table


def _free(peak: float | None, limit: float) -> Text:
    if peak is None:
        return Text("-")
    over = peak > limit + MEMORY_TOLERANCE_MIB
    style = "red bold" if over else "yellow" if peak > 0.97 * limit else "green"
    return Text(f"{round(limit - peak):,}", style=style)


def _width(table: Table) -> int:
    """Columns that a table takes when nothing in it is cut."""
    endless = Console(width=10_000)
    return endless.measure(table).maximum


def pair_lines(pairs: Iterable[tuple[str, str]], width: int | None) -> list[str]:
    """Names with their texts, a line each; a text that is wider goes on below itself, broken at blanks.

    Parameters
    ----------
    width : int or None
        Columns of a line; None breaks nothing.
    """
    lines: list[str] = []
    for name, text in pairs:
        head = f"{name:>{NAME_WIDTH}}: "
        if width is None or len(head) + len(text) <= width:
            lines.append(head + text)
            continue
        lines += wrapped(head + text, width, len(head))
    return lines
