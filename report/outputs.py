"""Views of one solved configuration: trace, page, picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Mapping, Sequence

from taylor.base.errors import InputError
from taylor.dryrun.stage_memory import StageMemory
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.report.chrome_trace import write_chrome_trace
from taylor.report.facts import PageFacts, PageTable
from taylor.report.html import write_html_report
from taylor.report.memory_parts import MemoryParts, from_problem
from taylor.report.page_data import Course
from taylor.report.picture import write_picture
from taylor.report.planned import planned_timeline, with_dryrun
from taylor.report.tables import summary_lines
from taylor.report.timeline import Timeline, side_by_side


def write_views(
    problem: PipelineProblem,
    solution: Solution,
    *,
    title: str,
    trace: Path | None = None,
    html: Path | None = None,
    picture: Path | None = None,
    others: Mapping[str, PipelinePlan | Timeline] | None = None,
    dryrun: Sequence[StageMemory] = (),
    progress: Course = (),
    facts: PageFacts | None = None,
    parts: MemoryParts | None = None,
    tables: Sequence[PageTable] = (),
) -> dict[str, str]:
    """Write the requested views.

    Parameters
    ----------
    title : str
        Name of the configuration.
    others : mapping of name to PipelinePlan or Timeline, optional
        Plans beside the solution: the baseline, an even split, a measurement.
    dryrun : sequence of StageMemory
        Memory that a dry-run of the plan saw, stage by stage, to show beside the planned memory.
    progress : sequence of (seconds, objective, bound)
        Progress of the solve, for the page.
    facts : PageFacts, optional
        Facts of the job for the page; its title alone when not given.
    parts : MemoryParts, optional
        Parts of the solution's memory; as the solver knows them when not given.
    tables : sequence of PageTable
        Tables of the page.

    Returns
    -------
    dict
        Path of every file written, by role: ``trace``, ``html``, ``png`` (or the picture's suffix).

    Raises
    ------
    InputError
        When there is no plan to show, another plan does not have its shape, or a file cannot be written.
    """
    if solution.plan is None:
        raise InputError("has no plan to draw", field=title, cure="solve it first")
    main = with_dryrun(planned_timeline(problem, solution.plan, title), dryrun)
    timelines = {title: main} | {name: _timeline(problem, name, plan) for name, plan in (others or {}).items()}
    together = _laid_together(timelines, title)
    files: dict[str, str] = {}
    if trace is not None:
        files["trace"] = str(write_chrome_trace(together, trace))
    if html is not None:
        filled = {
            name: from_problem(problem, one.plan, [steps.peak_mib for steps in one.memory])
            for name, one in timelines.items()
            if one.plan is not None and one.memory
        }
        if parts is not None:
            filled[title] = parts
        head = PageFacts(title) if facts is None else facts
        files["html"] = str(
            write_html_report(
                html,
                replace(head, notes=[*head.notes, *summary_lines(problem, solution)]),
                plans=timelines,
                parts=filled,
                tables=tables,
                progress={title: progress},
            )
        )
    if picture is not None:
        files[picture.suffix.lower().lstrip(".") or "picture"] = str(write_picture(together, picture))
    return files


def _timeline(problem: PipelineProblem, name: str, plan: PipelinePlan | Timeline) -> Timeline:
    if isinstance(plan, Timeline):
        return plan
    try:
        return planned_timeline(problem, plan, name)
    except ValueError as error:
        raise InputError(str(error), field=name) from error


def _laid_together(timelines: Mapping[str, Timeline], title: str) -> Timeline:
    if len(timelines) == 1:
        return next(iter(timelines.values()))
    try:
        return side_by_side(timelines, title)
    except ValueError as error:
        raise InputError(str(error), field=title, cure="give a unit time, or leave the measurement away") from error
