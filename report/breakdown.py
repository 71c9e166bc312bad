"""The memory of every stage by category, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from cost_model.memory import StageBreakdown


def breakdown_table(stages: Sequence[StageBreakdown], limit_mib: float | None = None) -> Table:
    """A column a category (MiB), a row a stage; the heaviest stage is marked.

    Parameters
    ----------
    limit_mib : float, optional
        What a device may hold, for the caption.
    """
    heaviest = max(range(len(stages)), key=lambda s: stages[s].total)
    names = list(dict.fromkeys(name for stage in stages for name in stage.categories()))
    table = Table(header_style="bold", pad_edge=False, title="memory by stage, MiB")
    if limit_mib is not None:
        table.caption = f"the device may hold {limit_mib:,.0f} MiB"
    for heading in ("stage", "layers", "alive", *names, "total"):
        table.add_column(heading, justify="right")
    for s, stage in enumerate(stages):
        parts = stage.categories()
        layers = " + ".join(f"{count} {kind}" for kind, count in stage.layers.items() if count)
        cells = [str(stage.stage), layers, f"{stage.alive:g}", *(f"{parts.get(name, 0.0):,.0f}" for name in names)]
        table.add_row(*cells, f"{stage.total:,.0f}", style="bold" if s == heaviest else None)
    return table
