"""Compute, exposed communication and idle time of every device, as a terminal table and as rows of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from taylor.report.facts import PageTable, Share
from taylor.report.shares import LISTED_GAPS, WHOLE, StepShare, gaps, over_steps, step_shares
from taylor.report.timeline import Timeline

MOST_LINES = 32
"""Most lines of the terminal's table; of more, each device has one for all its steps, then the first ones are
shown.
"""

COLUMNS = ("device", "step", "ms", "compute", "exposed communication", "of it receiving", "hidden", "idle")


@dataclass(frozen=True)
class DeviceShare:
    """Time split with the names that a reader knows it by; its times are ms (units where no real time is known)."""

    device: str
    share: StepShare

    @property
    def cells(self) -> tuple[str, ...]:
        """Columns `COLUMNS`: times as fractions of the step."""
        one = self.share
        parts = (one.compute, one.exposed, one.receiving, one.hidden, one.idle)
        shares = (f"{part / one.span:.1%}".replace("%", " %") if one.span else "-" for part in parts)
        return (self.device, one.step, f"{one.span:,.3f}", *shares)


def device_shares(timeline: Timeline) -> list[DeviceShare]:
    """Every device in every step of a timeline."""
    shown = timeline.in_ms()
    return [DeviceShare(shown.row_names[share.row], share) for share in step_shares(shown)]


def shares_table(sources: Sequence[Sequence[DeviceShare]]) -> Table:
    """Time splits of several timelines under each other; sums over the steps where there are too many lines."""
    lines = [one for source in sources for one in source]
    if len(lines) > MOST_LINES:
        lines = [one for source in sources for one in _over_steps(source)]
    table = Table(header_style="bold", pad_edge=False, box=None)
    several = any(one.share.step != WHOLE for one in lines)
    headings = ("device", "step", "ms", "compute", "exposed\ncomm.", "of it\nreceiving", "hidden\ncomm.", "idle")
    for heading in headings:
        if heading != "step" or several:
            words = heading in ("device", "step")
            width = 6 if words else max(7, *map(len, heading.split("\n")))
            table.add_column(heading, justify="left" if words else "right", no_wrap=True, min_width=width)
    for one in lines[:MOST_LINES]:
        table.add_row(*(Text(cell) for name, cell in zip(COLUMNS, one.cells, strict=True) if name != "step" or several))
    caption = "shares of the step; exposed: communication while the device computes nothing"
    if len(lines) > MOST_LINES:
        caption += f"; {MOST_LINES} of {len(lines)} devices, --html lists all"
    table.caption, table.caption_justify = caption, "left"
    return table


def shares_page_table(shares: Sequence[DeviceShare]) -> PageTable:
    """Time splits as a table of a page, each line with its bar."""
    rows: list[list[str | Share]] = []
    for one in shares:
        parts = (("compute", one.share.compute), ("exposed communication", one.share.exposed), ("idle", one.share.idle))
        bar = Share(tuple((name, part / one.share.span if one.share.span else 0.0) for name, part in parts))
        rows.append([*one.cells[:3], bar, *one.cells[3:]])
    note = "Exposed: communication while the device computes nothing; receiving includes the wait for another stage."
    columns = (*COLUMNS[:3], "compute | exposed | idle", *COLUMNS[3:])
    return PageTable("Time by step and device", columns, rows, note)


def gaps_page_table(timeline: Timeline) -> PageTable | None:
    """Longest gaps inside the steps of a timeline as a table of a page; None where there are none."""
    shown = timeline.in_ms()
    found = gaps(shown)
    if not found:
        return None
    rows = [
        [shown.row_names[gap.row], gap.step, f"{gap.begin:,.3f}", f"{gap.length:,.3f}", gap.before, gap.after]
        for gap in found[:LISTED_GAPS]
    ]
    unit = "ms" if shown.unit_ms is not None else "units"
    columns = ("device", "step", f"from, {unit}", f"length, {unit}", "after", "before")
    note = f"The longest {len(rows)} of {len(found)} stretches in which a device does nothing between two of its jobs."
    return PageTable("Gaps inside the steps", columns, rows, note)


def _over_steps(source: Sequence[DeviceShare]) -> list[DeviceShare]:
    names = {one.share.row: one.device for one in source}
    return [DeviceShare(names[share.row], share) for share in over_steps([one.share for one in source])]
