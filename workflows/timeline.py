"""Worker logs to a timeline and its views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from base.console import log
from report.chrome_trace import write_chrome_trace
from report.html import write_html_report
from report.picture import write_picture
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
    files: dict[str, str] = {}
    if trace is not None:
        write_chrome_trace(timeline, trace)
        files["trace"] = str(trace)
    if html is not None:
        write_html_report(html, pd.DataFrame(), plans={timeline.title: timeline}, title=timeline.title)
        files["html"] = str(html)
    if picture is not None:
        write_picture(timeline, picture)
        files["picture"] = str(picture)
    return files
