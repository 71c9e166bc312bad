"""Draws measured and planned steps under each other, a row for each device or stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import printable
from taylor.pipeline_solver.result import read_result
from taylor.report.chrome_trace import write_chrome_trace
from taylor.report.html import write_html_report
from taylor.report.picture import write_picture
from taylor.report.profile_source import load_profiles
from taylor.report.sources import device_lines, load_worker_logs
from taylor.report.timeline import Timeline, side_by_side


@dataclass(frozen=True)
class TimelineOptions:
    """Sources (at least one), what of them is shown, and the files to write.

    Parameters
    ----------
    window_ms : (float, float) or None
        Only jobs that run at some time in it, ms from the first job on.
    """

    log_dir: Path | None = None
    profile_dir: Path | None = None
    solution: Path | None = None
    devices: Sequence[int] | None = None
    multi_machine: bool = False
    window_ms: tuple[float, float] | None = None
    trace: Path | None = None
    html: Path | None = None
    picture: Path | None = None


def draw_timeline(options: TimelineOptions) -> dict[str, str]:
    """Read every source, lay them under each other, and write the views; returns the files by role.

    Raises
    ------
    InputError
        No source, a source that cannot be read, a window that shows nothing, or a plan without real
        time beside a measurement.
    """
    shown: dict[str, Timeline] = {}
    notes: list[str] = []
    if options.solution is not None:
        saved = read_result(options.solution)
        shown["planned"] = Timeline.from_plan(saved.problem, saved.plan, printable(options.solution.stem))
    if options.log_dir is not None:
        shown["worker logs"] = load_worker_logs(options.log_dir, options.devices, options.multi_machine)
    if options.profile_dir is not None:
        shown["profiles"] = load_profiles(options.profile_dir, options.devices)
    if not shown:
        raise InputError(
            "no source is given", field="--log_dir, --profile_dir, --solution", cure="name at least one of them"
        )
    for name, timeline in shown.items():
        if name != "planned":
            notes += [*timeline.notes, *device_lines(timeline)]
    for line in notes:
        log.info("%s", line)
    try:
        together = next(iter(shown.values())) if len(shown) == 1 else side_by_side(shown, "planned and measured")
    except ValueError as error:
        raise InputError(
            str(error), file=options.solution, cure="solve with ratios whose moe_fw (ms) is known"
        ) from None
    if options.window_ms is not None:
        together = together.window(*options.window_ms)
        if not len(together):
            raise InputError("no job runs in this window", field="--window", value=options.window_ms)
    files: dict[str, str] = {}
    if options.trace is not None:
        write_chrome_trace(together, options.trace)
        files["trace"] = str(options.trace)
    if options.html is not None:
        title = together.title or "timeline"
        write_html_report(options.html, pd.DataFrame(), plans={title: together}, title=title, notes=notes)
        files["html"] = str(options.html)
    if options.picture is not None:
        write_picture(together, options.picture)
        files["picture"] = str(options.picture)
    return files
