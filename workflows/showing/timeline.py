"""Draws measured and planned steps under each other, one row for each device or stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import printable
from taylor.pipeline.schedule import FORWARD
from taylor.pipeline_solver.solving.result import read_result
from taylor.report.chrome_trace import write_chrome_trace
from taylor.report.facts import PageFacts, PageTable
from taylor.report.picture import write_picture
from taylor.report.planned import planned_timeline
from taylor.report.profile_source import load_profiles
from taylor.report.share_tables import DeviceShare, device_shares, gaps_page_table, shares_page_table
from taylor.report.shares import critical_row, gap_lines
from taylor.report.sources import load_worker_logs
from taylor.report.timeline import Timeline, side_by_side
from taylor.workflows.showing.planned_outputs import write_or_note

PLANNED, LOGS, PROFILES = "planned", "worker logs", "profiles"
"""Names of the sources for a reader."""


@dataclass(frozen=True)
class TimelineOptions:
    """Sources (at least one), the parts of them to draw, and the files to write.

    Parameters
    ----------
    unit_ms : float or None
        Time of one body layer's forward in the plan, ms; None takes the result's value.
    steps : (int, int) or None
        Only these steps of a measurement, by their places, the last one included: 0 is the first.
    window_ms : (float, float) or None
        Only jobs that run at some time in it, ms from the first job on.
    trace_named : bool
        Whether the user named the trace; the default one may fail.
    """

    log_dir: Path | None = None
    profile_dir: Path | None = None
    solution: Path | None = None
    unit_ms: float | None = None
    devices: Sequence[int] | None = None
    multi_machine: bool = False
    steps: tuple[int, int] | None = None
    window_ms: tuple[float, float] | None = None
    trace: Path | None = None
    html: Path | None = None
    picture: Path | None = None
    trace_named: bool = True


@dataclass(frozen=True)
class Drawn:
    """Files written, and the figures of the sources.

    Parameters
    ----------
    files : mapping of str to str
        The files by role.
    shares : sequence of sequence of DeviceShare
        Every device in every step, source by source.
    unwritten : sequence of str
        Requested files that could not be written; the reasons are logged.
    """

    files: Mapping[str, str]
    shares: Sequence[Sequence[DeviceShare]]
    unwritten: Sequence[str] = ()


def draw_timeline(options: TimelineOptions) -> Drawn:
    """Read every source, lay them under each other, and write the views.

    Raises
    ------
    InputError
        No source, a source that cannot be read, a step or a window without jobs, or a plan without real time beside a
        measurement.
    """
    shown = _sources(options)
    _require_one_job(shown)
    notes: list[str] = []
    for name, timeline in shown.items():
        if name != PLANNED:
            notes += timeline.notes
            critical = critical_row(timeline)
            notes.append(f"critical device: {timeline.row_names[critical]}, which computes longest")
            notes += gap_lines(timeline)
    notes += _against_plan(shown)
    for line in notes:
        log.info("%s", line)
    shares = [
        [replace(one, device=f"{name}: {one.device}") if len(shown) > 1 else one for one in device_shares(timeline)]
        for name, timeline in shown.items()
    ]
    try:
        together = next(iter(shown.values())) if len(shown) == 1 else side_by_side(shown, "planned and measured")
    except ValueError as error:
        raise InputError(
            str(error),
            file=options.solution,
            field="unit_ms",
            cure="--unit_ms says how many ms one body layer's forward takes",
        ) from None
    if options.window_ms is not None:
        together = together.window(*options.window_ms)
        if not len(together):
            raise InputError("no job runs in this window", field="--window", value=options.window_ms)
    measured = [gaps_page_table(one) for name, one in shown.items() if name != PLANNED]
    tables = [shares_page_table([one for source in shares for one in source]), *filter(None, measured)]
    page = PageFacts(together.title or "timeline", verdict=_verdict(shares), notes=notes)
    files, unwritten = _write(options, together, page, tables)
    return Drawn(files, shares, unwritten)


def _sources(options: TimelineOptions) -> dict[str, Timeline]:
    """Requested timelines, by the name of their source, the plan first."""
    shown: dict[str, Timeline] = {}
    if options.solution is not None:
        saved = read_result(options.solution)
        problem = saved.problem if options.unit_ms is None else saved.problem.replace(unit_ms=options.unit_ms)
        shown[PLANNED] = planned_timeline(problem, saved.plan, printable(options.solution.stem))
    elif options.unit_ms is not None:
        raise InputError(
            "is the unit of a plan, and there is none", field="--unit_ms", value=options.unit_ms, cure="add --solution"
        )
    if options.log_dir is not None:
        shown[LOGS] = load_worker_logs(options.log_dir, options.devices, options.multi_machine)
    if options.profile_dir is not None:
        shown[PROFILES] = load_profiles(options.profile_dir, options.devices)
    if not shown:
        raise InputError(
            "no source is given", field="--log_dir, --profile_dir, --solution", cure="name at least one of them"
        )
    if options.steps is not None:
        shown = {name: one if name == PLANNED else _some_steps(one, name, options.steps) for name, one in shown.items()}
    return shown


def _some_steps(timeline: Timeline, name: str, steps: tuple[int, int]) -> Timeline:
    try:
        return timeline.steps(*steps)
    except ValueError as error:
        raise InputError(
            f"{name}: {error}", field="--step, --steps", value=steps, cure="count the steps from 0, or leave it out"
        ) from None


def _require_one_job(shown: Mapping[str, Timeline]) -> None:
    """Refuse a measurement that cannot be of the planned job.

    Every device of the job runs as many forwards in a step as each stage of the plan, and all stages have the same
    number of devices; where not all devices were measured there may be fewer than stages.

    Raises
    ------
    InputError
    """
    plan = shown.get(PLANNED)
    if plan is None:
        return
    stages, planned = len(plan.row_names), _forwards(plan, 1)
    for name, timeline in shown.items():
        if name == PLANNED:
            continue
        devices, steps = len(timeline.row_names), len({one.share.step for one in device_shares(timeline)})
        measured = _forwards(timeline, max(1, steps))
        same_work = not measured or abs(measured - planned) < 0.5
        if same_work and (devices <= stages or devices % stages == 0):
            continue
        raise InputError(
            f"{name} are of another job than the plan: {devices} devices with {measured:g} forwards a step each, "
            f"where the plan has {stages} stages with {planned:g}",
            field="--solution",
            cure="name the solution of the job that was measured, or draw each alone",
        )


def _forwards(timeline: Timeline, steps: int) -> float:
    """Forwards of a row in a step, on average."""
    return float((timeline.direction == FORWARD).sum()) / len(timeline.row_names) / steps


def _against_plan(shown: Mapping[str, Timeline]) -> list[str]:
    """Time of a measured step beside the planned one, a line for each measurement."""
    plan = shown.get(PLANNED)
    if plan is None or not plan.span_ms:
        return []
    lines = []
    for name, timeline in shown.items():
        if name == PLANNED:
            continue
        shares = [one.share for one in device_shares(timeline)]
        steps = {share.step: share.span for share in shares}
        mean = sum(steps.values()) / len(steps)
        counted = f"mean of {len(steps)} steps" if len(steps) > 1 else "one step"
        lines.append(
            f"planned {plan.span_ms:,.3f} ms a step, {name} {mean:,.3f} ms ({counted}): "
            f"{abs(mean / plan.span_ms - 1):.1%} {'longer' if mean >= plan.span_ms else 'shorter'} than planned"
        )
    return lines


def _write(
    options: TimelineOptions, together: Timeline, page: PageFacts, tables: Sequence[PageTable]
) -> tuple[dict[str, str], list[str]]:
    """Write the views; returns the files written, and the requested ones that could not be."""

    def write_page(path: Path) -> object:
        from taylor.report.html import write_html_report

        return write_html_report(path, page, plans={page.title: together}, tables=tables, tables_below=True)

    writers: dict[str, tuple[Path | None, Callable[[Path], object]]] = {
        "trace": (options.trace, partial(write_chrome_trace, together)),
        "html": (options.html, write_page),
        "picture": (options.picture, partial(write_picture, together)),
    }
    files: dict[str, str] = {}
    failed: list[str] = []
    for role, (path, write) in writers.items():
        if path is not None:
            unasked = role == "trace" and not options.trace_named
            files |= write_or_note(role, path, partial(write, path), [] if unasked else failed)
    return files, failed


def _verdict(shares: Sequence[Sequence[DeviceShare]]) -> str:
    """Time use of an average device of each source, in a sentence each."""
    sentences = []
    for source in shares:
        span = sum(one.share.span for one in source) or 1.0
        parts = (
            (name, sum(getattr(one.share, field) for one in source) / span)
            for name, field in (("computes", "compute"), ("only communicates", "exposed"), ("idles", "idle"))
        )
        name = source[0].device.partition(": ")[0] + ": " if len(shares) > 1 else ""
        listed = ", ".join(f"{what} {share:.1%}".replace("%", " %") for what, share in parts)
        sentences.append(f"{name}an average device {listed} of the time.")
    return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
