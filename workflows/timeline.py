"""Worker logs to a timeline and its views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from base.console import log
from report.outputs import write_timeline
from report.sources import device_lines, load_worker_logs


def draw_worker_logs(
    folder: Path,
    *,
    devices: Sequence[int] | None,
    multi_machine: bool,
    trace: Path | None,
    html: Path | None,
    picture: Path | None,
) -> dict[str, str]:
    """Read the worker logs of a run and draw them, a row for each device.

    Returns
    -------
    dict of str to str
        Files written, by role.
    """
    timeline = load_worker_logs(folder, devices=devices, multi_machine=multi_machine)
    for line in (*timeline.notes, *device_lines(timeline)):
        log.info("%s", line)
    return write_timeline(timeline, title=str(folder), trace=trace, html=html, picture=picture)
