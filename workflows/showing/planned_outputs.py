"""Files of a plan: the configuration, the result for programs, and the views of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from taylor.base.budget import NO_LIMIT, TimeBudget
from taylor.base.console import log
from taylor.base.documents import RESULT
from taylor.base.errors import TaylorError, WriteError, shortened
from taylor.base.files import refuse_unwritable
from taylor.pipeline.plan import PipelinePlan
from taylor.schemas.writing import write_document
from taylor.workflows.showing.dryrun_result import stage_memories
from taylor.workflows.showing.memory_interval import log_intervals
from taylor.workflows.showing.next_change import NextChange
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.statement.export import export_what_can_be, store_exports
from taylor.workflows.statement.options import Outputs

History = Sequence[tuple[float, float | None, float | None]]
"""Progress of a solve: seconds, best step time and proven bound in body-layer forward times."""


def refuse_outputs(outputs: Outputs) -> None:
    """Refuse, before anything is solved, a file that the user named and that cannot be written.

    Raises
    ------
    InputError
        With the file's flag.
    """
    for flag, path in outputs.named.items():
        refuse_unwritable(path, flag)
    if outputs.picture is not None:
        from taylor.report.picture import refuse_format

        refuse_format(outputs.picture)


def store_result(
    planned: PlannedFile,
    files: dict[str, str],
    outputs: Outputs,
    *,
    beside: dict[str, PipelinePlan] | None = None,
    history: History = (),
    budget: TimeBudget = NO_LIMIT,
) -> PlannedFile:
    """Write the result's JSON, then the views of the plan; returns the planned file with all its `files`.

    A file that fails is logged and listed as `unwritten`: the others are still written. The log also states the
    possible error of the peaks where flags of the file are in no figure.

    Parameters
    ----------
    files : dict
        Files written before, by role.
    beside : mapping of name to PipelinePlan, optional
        Plans to draw beside this one on the page.
    history : sequence of (seconds, objective, bound)
        Progress of the solve, for the page.
    budget : TimeBudget
        Limit on further solves for the page.
    """
    planned = replace(planned, origin=outputs.origin)
    log_intervals(planned.config, planned.solution, planned.peak_intervals, planned.memory)
    store_json(planned, files, outputs)  # first of all: what follows takes time
    if following := _following(planned, outputs, budget):
        planned = replace(planned, following=following)
        store_json(planned, files, outputs)
    failed: list[str] = []
    views = _write_views(planned, outputs, beside, history, budget, failed)
    exports = export_what_can_be(outputs.exports, planned.problem, planned.plan, planned.mtp_among_layers, failed)
    for one, text in exports:
        if one.path is not None:
            write = partial(store_exports, [(one, text)])
            views |= write_or_note(f"export {one.form}", one.path, write, failed)
    done = store_json(planned, files | views, outputs, failed)
    return replace(done, exports=exports, unwritten=(*planned.unwritten, *failed))


def _following(planned: PlannedFile, outputs: Outputs, budget: TimeBudget) -> tuple[NextChange, ...]:
    """Changes that would gain most, where they are wanted and time is left."""
    seconds = budget.at_most(outputs.next_seconds)
    if not seconds:
        return ()
    from taylor.workflows.running.kept_solves import SolveStore
    from taylor.workflows.showing.what_next import next_changes

    return next_changes(planned, TimeBudget.of(seconds), SolveStore(outputs.folder))


def store_json(
    planned: PlannedFile, files: dict[str, str], outputs: Outputs, failed: list[str] | None = None
) -> PlannedFile:
    """Planned file with the files that are written, and its JSON where requested.

    Parameters
    ----------
    failed : list of str, optional
        Takes the reason where the JSON cannot be written; without it, that is only logged.
    """
    path = outputs.result_json
    if path is None:
        return replace(planned, files=files)
    done = replace(planned, files=files | {"result": str(path)})
    data = done.result().to_dict()
    reasons = [] if failed is None else failed
    written = write_or_note("result", path, lambda: write_document(path, RESULT, data), reasons)
    return done if written else replace(done, files=files)


def _write_views(
    planned: PlannedFile,
    outputs: Outputs,
    beside: dict[str, PipelinePlan] | None,
    history: History,
    budget: TimeBudget,
    failed: list[str],
) -> dict[str, str]:
    """Write the requested trace, page and picture; returns the paths of those written, by role."""
    if outputs.trace is None and outputs.html is None and outputs.picture is None and not outputs.what_if:
        return {}
    from taylor.report.outputs import write_views
    from taylor.workflows.showing.page_facts import memory_parts, page_facts, page_tables
    from taylor.workflows.showing.what_if import what_if_of

    changes = (
        what_if_of(planned, asked=outputs.what_if, budget=budget) if outputs.html is not None or outputs.what_if else []
    )
    others: dict[str, Any] = {}
    page = {
        "others": beside,
        "progress": history,
        "facts": page_facts(planned, [*changes, *(f"{one.sentence}." for one in planned.following)]),
        "parts": memory_parts(planned),
        "tables": page_tables(planned),
    }
    if (inserted := planned.bubbles) is not None:
        from taylor.report.planned import inserted_timeline

        job = inserted.job
        others = {"encoder in bubbles": inserted_timeline(job.problem, inserted.plan, job.work, inserted.insertion, "")}
        page["others"] = {**(beside or {}), **others}
    dryrun = stage_memories(planned.dryrun)
    written: dict[str, str] = {}
    views: tuple[tuple[str, Path | None, dict[str, Any]], ...] = (
        ("trace", outputs.trace, {"others": others}),
        ("html", outputs.html, page),
        ("picture", outputs.picture, {"others": others}),
    )
    for role, path, more in views:
        if path is not None:
            shown = {role: path, **more}
            write = partial(write_views, planned.problem, planned.solution, title=planned.name, dryrun=dryrun, **shown)
            written |= write_or_note(role, path, write, failed)
    return written


def write_or_note(role: str, path: Path, write: Callable[[], object], failed: list[str]) -> dict[str, str]:
    """Path by role once it is written; nothing, a warning and one more of `failed`, where it could not be."""
    try:
        write()
    except TaylorError as error:
        log.warning("%s is left out: %s", role, error)
        failed.append(f"{role} ({shortened(str(path), 300)})")
        return {}
    return {role: str(path)}


def refuse_unwritten(unwritten: Sequence[str]) -> None:
    """Refuse a result of which requested files are missing, once all else is written and printed.

    Raises
    ------
    WriteError
        With the files.
    """
    if unwritten:
        raise WriteError(f"requested and not written: {', '.join(unwritten)}; the reasons are logged above")
