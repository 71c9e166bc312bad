"""Tables of every stage's memory by category: as estimated, and beside it as a dry-run measured it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.dryrun.stage_memory import StageMemory
from taylor.pipeline.plan import counts_by_kind

_HYPHENATED = {
    "gradients": "gradi- ents", "optimizer": "opti- mizer", "workspace": "work- space", "overhead": "over- head",
}  # fmt: skip
"""Line breaks of long headings."""


def breakdown_table(stages: Sequence[StageBreakdown], limit_mib: float | None = None) -> Table:
    """Table of estimated memory (MiB): a row for each stage, a column for each category, the heaviest stage in bold.

    Parameters
    ----------
    limit_mib : float, optional
        Memory limit of a device, for the caption.
    """
    heaviest = max(range(len(stages)), key=lambda s: stages[s].total)
    names = list(dict.fromkeys(name for stage in stages for name in stage.categories()))
    table = _table("memory by stage, MiB", ("stage", "total", "layers", "alive", *names), limit_mib)
    for s, stage in enumerate(stages):
        parts = stage.categories()
        layers = " + ".join(f"{count} {kind}" for kind, count in counts_by_kind(stage.layers).items() if count)
        cells = [layers, f"{stage.alive:g}", *(f"{parts.get(name, 0.0):,.0f}" for name in names)]
        # The total comes first: a narrow terminal cuts the last columns.
        table.add_row(str(stage.stage), f"{stage.total:,.0f}", *cells, style="bold" if s == heaviest else None)
    return table


def comparison_table(
    measured: Sequence[StageMemory], estimated: Sequence[StageBreakdown], limit_mib: float | None = None
) -> Table:
    """Table of measured memory above estimated memory (MiB): two rows for each stage, a column for each category.

    The column ``apart`` is the error of the estimated total against the measured one.

    Parameters
    ----------
    measured : sequence of StageMemory
        The stages that were dry-run.
    estimated : sequence of StageBreakdown
        The analytical model of the same plan, one entry for each stage of the model.
    """
    closed = {stage.stage: stage for stage in estimated}
    pairs = [(one, closed[one.stage]) for one in measured]
    names = list(dict.fromkeys(name for one, other in pairs for name in (*one.categories, *other.categories())))
    headings = ("stage", "total", "apart", *names)
    table = _table("memory by stage, MiB: dry-run over analytical model", headings, limit_mib)
    for one, other in pairs:
        parts = other.categories()
        apart = f"{(other.total - one.peak_mib) / one.peak_mib:+.1%}"
        cells = (f"{one.categories.get(name, 0.0):,.0f}" for name in names)
        # The totals come first: a narrow terminal cuts the last columns.
        table.add_row(f"{one.stage} dry-run", f"{one.peak_mib:,.0f}", "", *cells)
        cells = (f"{parts.get(name, 0.0):,.0f}" for name in names)
        table.add_row("forms", f"{other.total:,.0f}", apart, *cells, style="dim")
    return table


def _table(title: str, headings: Sequence[str], limit_mib: float | None) -> Table:
    """Empty table narrow enough for fourteen columns of figures in a log."""
    table = Table(header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), box=SIMPLE_HEAD, title=title)
    if limit_mib is not None:
        table.caption = f"the device's limit is {limit_mib:,.0f} MiB"
    for heading in headings:
        words = _HYPHENATED.get(heading, heading.replace("activations", "activ.")).split()
        table.add_column(
            "\n".join(words),
            justify="right",
            min_width=max(map(len, words)),
            overflow="fold",
            no_wrap=heading in ("stage", "total", "apart"),
        )
    return table
