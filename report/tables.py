"""Tables for the terminal: the ranking of strategies; and a solution in lines of details."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.solution import FEASIBLE, OPTIMAL, Solution
from taylor.report.compress import compress, compress_grid, in_gib, number, parse_json, strategy_text
from taylor.report.compress import gap_text as gap_text

if TYPE_CHECKING:
    import pandas as pd

STATUS_STYLE = {OPTIMAL.value: "green", FEASIBLE.value: "yellow"}


def ranking_table(rows: pd.DataFrame | Sequence[Mapping[str, Any]], *, limit: int | None = None) -> Table:
    """The ranking as a table that reads well from 80 columns on; rows keep their order, best first.

    Parameters
    ----------
    rows : DataFrame or sequence of mappings
        Columns of ``test_result_*.csv``: ``offset``, ``recompute``, ``peak_memory`` and
        ``memory_limit`` hold JSON text (or the data itself). Missing columns are left empty.
    limit : int, optional
        Show this many rows at most; the caption says how many there are.

    Returns
    -------
    rich.table.Table
        One row for each candidate. In its last column ``14×4,3`` means fourteen fours and a three, one entry
        for each stage, `` | `` between interleaves; memory is in GiB.
    """
    records: list[Any] = list(rows) if isinstance(rows, Sequence) else rows.to_dict("records")
    shown = records if limit is None else records[:limit]
    table = Table(show_lines=True, header_style="bold", pad_edge=False)
    if len(shown) < len(records):
        table.caption = f"{len(shown)} of {len(records)} candidates"
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("strategy", min_width=13, max_width=18)
    table.add_column("step ms", justify="right", no_wrap=True)
    table.add_column("gap", justify="right", no_wrap=True)
    table.add_column("plan by stage; memory in GiB", overflow="fold", ratio=1)
    for rank, row in enumerate(shown, start=1):
        table.add_row(str(rank), Text(strategy_text(row)), Text(step_text(row)), _proof(row), _plan_cell(row))
    return table


def step_text(row: Mapping[str, Any]) -> str:
    """Step time in ms; in units when the real time is not known."""
    cost, objective = number(row.get("cost")), number(row.get("objective"))
    if cost is not None:
        return f"{cost:,.1f}"
    return f"{objective:.3f} u" if objective is not None else "-"


def summary_lines(problem: PipelineProblem, solution: Solution) -> list[str]:
    """Lines of a summary: status, step time, bound, bubble, and the offset and recompute lists."""
    unit = (
        ""
        if problem.unit_ms is None or solution.objective is None
        else (f" = {solution.objective * problem.unit_ms:,.2f} ms")
    )
    lines = [f"status {solution.status}, {solution.solver or 'no solver'}, {solution.seconds:.2f} s"]
    if solution.objective is not None:
        lines.append(f"step {solution.objective:.6f} body-layer forwards{unit}")
    if solution.bound is not None:
        told = "no bound yet" if solution.gap is None else f"bound {solution.bound:.6f}, gap {gap_text(solution.gap)}"
        lines.append(told)
    if solution.bubble is not None:
        b = solution.bubble
        lines.append(
            f"bubble {b.total:.2%}: ideal {b.ideal:.2%}, imbalance {b.imbalance:.2%}, "
            f"recompute {b.recompute:.2%}, communication {b.communication:.2%}"
        )
    if solution.plan is not None:
        uncounted = [kind.name for kind in problem.kinds if kind.pinned_last]
        lines.append(f"offset {compress(solution.plan.offset(uncounted))}")
        lines += [
            f"{'recompute' if mode == FULL else mode + ' recompute'} {compress(grid)}"
            for mode, grid in solution.plan.recompute.items()
        ]
    if solution.message:
        lines.append(solution.message)
    return lines


def _proof(row: Mapping[str, Any]) -> Text:
    status = str(row.get("status") or "-")
    text = Text(gap_text(row.get("gap")) + "\n") if number(row.get("gap")) is not None else Text()
    return text.append(status, style=STATUS_STYLE.get(status, "red"))


def _plan_cell(row: Mapping[str, Any]) -> Text:
    text = Text()
    # Spaces behind the commas let a long list break between its entries.
    offset, recompute = (compress_grid(row.get(name)).replace(",", ", ") for name in ("offset", "recompute"))
    if offset:
        text.append("offset ", style="dim").append(offset)
    if recompute:
        text.append("\nrecompute ", style="dim").append(recompute)
    peaks, limits = parse_json(row.get("peak_memory")), parse_json(row.get("memory_limit"))
    if isinstance(peaks, (list, tuple)) and peaks:
        text.append("\npeak ", style="dim").append(compress(in_gib(peaks)).replace(",", ", "))
        if isinstance(limits, (list, tuple)) and len(limits) == len(peaks):
            over = [s for s, (peak, limit) in enumerate(zip(peaks, limits, strict=True)) if peak > limit]
            text.append(" of ", style="dim").append(compress(in_gib(limits)))
            if over:
                text.append(f"\nover the limit on stage {compress(over)}", style="red bold")
    reason = row.get("reason")
    if isinstance(reason, str) and reason:
        text.append(("\n" if text else "") + reason, style="yellow")
    return text
