"""Text of a peak's reasons: memory by category and stage, kept activations, levers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

MOST_STAGES = 5
"""Most stages beside each other in a table; of more, the fullest."""


def parts_table(parts: Sequence[Mapping[str, float]], limits_mib: Sequence[float], fullest: int) -> Table:
    """Table of memory at the peak, MiB: a row for each category, a column for each stage, the fullest in bold.

    Parameters
    ----------
    parts : sequence of mapping of str to float [pp]
        Memory of each stage by category.
    """
    totals = [sum(one.values()) for one in parts]
    by_free = sorted(range(len(parts)), key=lambda s: limits_mib[s] - totals[s])
    shown = sorted({fullest, *by_free[: MOST_STAGES - (fullest not in by_free[:MOST_STAGES])]})
    table = Table(header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    table.title = "memory at the peak, MiB" + ("" if len(shown) == len(parts) else f": the {len(shown)} fullest stages")
    table.add_column("")
    for stage in shown:
        table.add_column(f"stage {stage}", justify="right", style="bold" if stage == fullest else None)
    for name in dict.fromkeys(name for stage in shown for name in parts[stage]):
        figures = [parts[stage].get(name, 0.0) for stage in shown]
        if any(round(figure) for figure in figures):
            table.add_row(name, *(f"{figure:,.0f}" for figure in figures))
    table.add_section()
    table.add_row("peak", *(f"{totals[stage]:,.0f}" for stage in shown))
    table.add_row("limit", *(f"{limits_mib[stage]:,.0f}" for stage in shown))
    return table
