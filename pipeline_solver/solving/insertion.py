"""The best insertion of an encoder's micro-batches into the bubbles of one plan."""

from __future__ import annotations

from math import inf

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.heuristics.insertion import quick_insertion
from taylor.pipeline_solver.milp.insertion_milp import columns_of, solve_insertion
from taylor.pipeline_solver.model.insertion import EncoderWork, InsertionResult
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import PROVEN_GAP, proven_within
from taylor.pipeline_solver.timing.idle_windows import idle_windows

MOST_COLUMNS = 6_000
"""Most columns of a MILP that is solved: HiGHS proves one of these (8 stages, VPP 2, 32 micro-batches) in 7 s."""


def best_insertion(
    problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork, time_limit: float | None = None
) -> InsertionResult:
    """The best insertion into a plan: built at once, then by the MILP where that is small and not yet proven.

    Raises
    ------
    ValueError
        When the schedule's first stage does not take micro-batches in rising order.
    """
    idle = idle_windows(problem, plan, work)
    if not any(idle.alive):
        return InsertionResult(None, inf, proven=True)
    quick, bound = quick_insertion(idle, work), idle.least_step(work)
    if quick is not None and proven_within(quick.step, bound, PROVEN_GAP):
        return InsertionResult(quick, min(bound, quick.step), proven=True)
    if columns_of(idle) > MOST_COLUMNS or (time_limit is not None and time_limit <= 0):
        return InsertionResult(quick, bound, proven=False)
    return solve_insertion(idle, work, time_limit, quick)
