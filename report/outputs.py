"""The views of one timeline, each to the file that was asked for."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline_solver.problem import PipelineProblem
from pipeline_solver.solution import Solution
from report.planned import planned_timeline
from report.timeline import Timeline


def write_views(
    problem: PipelineProblem,
    solution: Solution,
    *,
    title: str,
    trace: Path | None = None,
    html: Path | None = None,
    picture: Path | None = None,
) -> dict[str, str]:
    """Draw a solution; returns the files written, by role."""
    assert solution.plan is not None
    return write_timeline(
        planned_timeline(problem, solution.plan, title), title=title, trace=trace, html=html, picture=picture
    )


def write_timeline(
    timeline: Timeline,
    *,
    title: str,
    trace: Path | None = None,
    html: Path | None = None,
    picture: Path | None = None,
) -> dict[str, str]:
    """Draw a timeline, planned or measured; returns the files written, by role."""
    files: dict[str, str] = {}
    if trace is not None:
        from report.chrome_trace import write_chrome_trace

        files["trace"] = str(write_chrome_trace(timeline, trace))
    if picture is not None:
        from report.picture import write_picture

        files["picture"] = str(write_picture(timeline, picture))
    if html is not None:
        from report.html import write_html_report

        files["html"] = str(write_html_report(html, pd.DataFrame(), plans={title: timeline}, title=title))
    return files
