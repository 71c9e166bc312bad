"""Keeps the plan that a solve had found when Ctrl-C ended it, apart from the user's configuration."""

from __future__ import annotations

from taylor.base.console import hold_interrupts, log
from taylor.base.errors import InputError, InterruptedSolve
from taylor.base.files import write_atomic
from taylor.parsers.write_back import write_plan
from taylor.pipeline_solver.model_files import write_sol
from taylor.workflows.options import Outputs
from taylor.workflows.planned_file import PlannedFile

FOLDER = "interrupted"
"""Folder of the plans of interrupted solves, below the folder of the results."""


def keep_plan_so_far(planned: PlannedFile, outputs: Outputs) -> InterruptedSolve:
    """Write the plan of an interrupted solve beside the results; returns the error that says where it is.

    The result as JSON and the ``.sol`` hold the plan with its proven bound. Where the configuration would have been
    written, a copy of it takes the plan; neither the configuration itself nor any file that the user named for the
    results of a finished solve is touched.
    """
    config, solution = planned.config, planned.solution
    folder = outputs.folder / FOLDER
    kept = folder / f"{planned.name}.json"
    with hold_interrupts():
        write_atomic(kept, planned.result().to_json())
        write_sol(planned.problem, solution, kept.with_suffix(".sol"))
        files = f"{kept} and .sol"
        if outputs.write:
            # A name of its own, for a user may go on from a copy that lies in this very folder.
            copy = folder / f"{planned.name}-so-far{config.path.suffix}"
            try:
                write_plan(config.replace(schedule=planned.problem.schedule), planned.plan, output=copy)
                files = f"{copy} ({files})"
            except InputError as error:
                log.warning("%s", error)
    step, bound, gap = solution.objective or 0.0, solution.bound or 0.0, 100.0 * (solution.gap or 0.0)
    return InterruptedSolve(
        f"interrupted: the best plan so far takes {step:.6f} (proven bound {bound:.6f}, gap {gap:.2f} %) and is in "
        f"{files}; {config.path} is as it was"
    )
