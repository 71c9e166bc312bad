"""Saves the plan that a run had found when Ctrl-C or a failed check ended it, apart from the user's configuration."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.documents import RESULT
from taylor.base.errors import DocumentError, InputError, InterruptedSolve, OutsideProgramError, TaylorError, WriteError
from taylor.base.interrupts import delay_interrupts
from taylor.parsers.write_back import write_plan
from taylor.pipeline_solver.milp.model_files import write_sol
from taylor.schemas.writing import write_document
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.verdict import step_text
from taylor.workflows.solving.memory_check import CheckStopped
from taylor.workflows.statement.options import Outputs

FOLDER = "interrupted"
"""Folder of the plans of interrupted solves, below the folder of the results."""


def keep_plan_so_far(planned: PlannedFile, outputs: Outputs) -> InterruptedSolve:
    """Write the plan of an interrupted solve beside the results; returns the error with its path."""
    files, solution = _keep(planned, outputs), planned.solution
    step = step_text(planned.problem, solution.objective)
    bound = "no bound yet"
    if solution.gap is not None:
        bound = f"none takes less than {step_text(planned.problem, solution.bound)}, gap {100 * solution.gap:.2f} %"
    return InterruptedSolve(
        f"interrupted: the best plan so far takes {step} ({bound}) and is in {files}; {planned.config.path} is as "
        "it was"
    )


def keep_unchecked_plan(planned: PlannedFile, outputs: Outputs, stop: CheckStopped) -> TaylorError:
    """Write a plan whose check by dry-runs ended early beside the results; the error is that of the check."""
    if not isinstance(stop.__cause__, OutsideProgramError):
        error = keep_plan_so_far(planned, outputs)
        checked = "it passed its dry-run" if stop.passed else "no dry-run has checked it to the end"
        return InterruptedSolve(f"{error}; {checked}")
    state = "which passed its dry-run" if stop.passed else "which no dry-run has checked"
    files = _keep(planned, outputs)
    return OutsideProgramError(
        f"{stop.__cause__}; the best plan so far, {state}, is in {files}; {planned.config.path} is as it was"
    )


def _keep(planned: PlannedFile, outputs: Outputs) -> str:
    """Write a plan beside the results; returns the files in words.

    The result as JSON and the ``.sol`` contain the plan with its proven bound. Where the configuration would have been
    written, a copy of it gets the plan. Neither the configuration itself nor any file that the user named for the
    results of a finished solve changes.
    """
    config = planned.config
    folder = outputs.folder / FOLDER if outputs.work is None else Path(tempfile.mkdtemp(prefix="taylor-"))
    kept = folder / f"{planned.name}.json"
    with delay_interrupts():
        try:
            write_document(kept, RESULT, replace(planned, origin=outputs.origin).result().to_dict())
            write_sol(planned.problem, planned.solution, kept.with_suffix(".sol"))
        except (WriteError, DocumentError) as error:
            return f"no file: {error}"
        files = f"{kept} and .sol"
        if outputs.write:
            # A name of its own, for a user may continue from a copy in this very folder.
            copy = folder / f"{planned.name}-so-far{config.path.suffix}"
            try:
                write_plan(config.replace(schedule=planned.problem.schedule), planned.plan, output=copy)
                files = f"{copy} ({files})"
            except InputError as error:
                log.warning("%s", error)
    return files
