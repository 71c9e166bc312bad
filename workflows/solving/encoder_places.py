"""An encoder planned in the places that a job asks for, beside its plan on the first stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from taylor.base.budget import TimeBudget
from taylor.base.console import log
from taylor.base.errors import WriteError
from taylor.pipeline_solver.milp.insertion_milp import write_insertion_mps
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.beside import best_beside
from taylor.workflows.solving.bubbles import best_in_bubbles
from taylor.workflows.solving.spread import with_best_spread
from taylor.workflows.statement.options import Outputs
from taylor.workflows.statement.own_ranks import BESIDE, BEST, BUBBLES, SPREAD, why_not_spread
from taylor.workflows.statement.stated_file import StatedFile


def with_places(file: StatedFile, planned: PlannedFile, how: SolveOptions, budget: TimeBudget) -> PlannedFile:
    """The planned file with the best plans of the other places that `refuse_places` takes; a place without one is
    named in a warning."""
    asked, path = file.job.encoder, file.config.path
    if asked in (BESIDE, BEST):
        planned = replace(planned, beside=best_beside(file, how, budget))
        if planned.beside is None:
            _warn(path, "no split of the ranks has a plan with the encoder on ranks of its own", budget)
    if asked in (BUBBLES, BEST):
        planned = replace(planned, bubbles=best_in_bubbles(planned, how, budget))
        if planned.bubbles is None:
            _warn(path, "no plan has memory for the encoder on every stage", budget)
    if asked in (SPREAD, BEST) and planned.solution.objective is not None:
        if why := why_not_spread(file):
            log.info("%s: the encoder is not planned on several stages: %s", path, why)
        else:
            planned = with_best_spread(file, planned, how, budget)
    return planned


def _warn(path: Path, reason: str, budget: TimeBudget) -> None:
    """Name a place without a plan; a time limit that ended before says nothing about the place."""
    found = "the time limit ended before a plan of the encoder in another place was found; a longer -t plans one"
    log.warning("%s: %s", path, found if budget.over else reason)


def write_places(planned: PlannedFile, outputs: Outputs) -> dict[str, str]:
    """Write the model of the encoder's insertion, where there is one; returns its path by role."""
    found = planned.bubbles
    if found is None or outputs.work is not None:
        return {}
    path = outputs.folder / "model_mps" / f"{planned.name}.bubbles.mps"
    try:
        write_insertion_mps(found.job.problem, found.plan, found.job.work, found.insertion, path)
    except WriteError as error:
        log.warning("%s: no model file of the insertion: %s", planned.name, error)
        return {}
    return {"bubbles_mps": str(path)}
