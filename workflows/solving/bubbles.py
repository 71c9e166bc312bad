"""The best plan with an encoder in the bubbles of the language model's pipeline."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf

from taylor.base.budget import TimeBudget
from taylor.pipeline_solver.check.insertion import check_insertion
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import INFEASIBLE
from taylor.pipeline_solver.solving.insertion import best_insertion
from taylor.pipeline_solver.solving.solve import SolverDisagreement, solve
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.statement.bubbles import BubbleJob, BubblePlan, bubble_jobs

SECONDS, INSERTION_SECONDS = 30.0, 10.0
"""Longest solve of the language model, and of an insertion into its plan."""


def best_in_bubbles(planned: PlannedFile, how: SolveOptions, budget: TimeBudget) -> BubblePlan | None:
    """Plan the encoder of a job into the bubbles of its pipeline, for every way to run it and several reserves.

    Where the encoder trains, plans of the language model that use all memory leave none for what its micro-batches
    keep: memory for none, one, two, four … of them on every stage is left out of the solve.

    Parameters
    ----------
    planned : PlannedFile
        The plan with the encoder on the first stage, from estimated memory.

    Returns
    -------
    BubblePlan or None
        None where nothing fits.

    Raises
    ------
    SolverDisagreement
        When the checker refuses an insertion.
    """
    best: BubblePlan | None = None
    bounds = []
    for job in bubble_jobs(planned.config, planned.problem, planned.facts.device.spec):
        least = job.least_step
        for reserve in _reserves(job):
            left = budget.left
            if (best is not None and least >= best.insertion.step) or (left is not None and left <= 0):
                break
            found, bound = _planned(job, reserve, how, budget, best)
            if not reserve:
                # A reserve is one more restriction: micro-batches may all lie on the stages that have memory for them.
                # No forward of the language model precedes the encoder's.
                least = max(least, bound + job.work.forward_time)
            if found is not None and (best is None or found.insertion.step < best.insertion.step):
                best = found
        bounds.append(least)
    if best is None:
        return None
    faults = check_insertion(best.job.problem, best.plan, best.job.work, best.insertion)
    if faults:
        raise SolverDisagreement(f"the encoder in bubbles: {faults[0]}")
    return replace(best, bound=min([best.insertion.step, *bounds]))


def _reserves(job: BubbleJob) -> list[int]:
    """Numbers of micro-batches for which memory is left on every stage."""
    if not job.work.kept_mib:
        return [0]
    found = [0, 1]
    while found[-1] < job.problem.micro_batches:
        found.append(min(2 * found[-1], job.problem.micro_batches))
    return found


def _planned(
    job: BubbleJob, reserve: int, how: SolveOptions, budget: TimeBudget, best: BubblePlan | None
) -> tuple[BubblePlan | None, float]:
    """The best plan with a reserve, and the lower bound on the language model's step."""
    within = how.replace(time_limit=budget.at_most(SECONDS))
    if best is not None:
        cutoff = best.insertion.step - job.work.forward_time
        within = within.replace(cutoff=partial(float, cutoff))
    solution = solve(job.with_kept(reserve), within)
    bound = inf if solution.status == INFEASIBLE else solution.bound or 0.0
    if solution.plan is None or solution.objective is None:
        return None, bound
    result = best_insertion(job.problem, solution.plan, job.work, budget.at_most(INSERTION_SECONDS))
    if result.insertion is None:
        return None, bound
    peaks = tuple(mib - reserve * job.work.kept_mib for mib in solution.peak_memory_mib)
    plan = BubblePlan(job, solution.plan, result.insertion, solution.objective, bound, peaks)
    return plan, bound
