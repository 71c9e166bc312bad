"""Effect of other limits or another batch: the problem solved again, each in a short time."""

from __future__ import annotations

from dataclasses import replace

from taylor.base.budget import NO_LIMIT, TimeBudget
from taylor.base.console import log
from taylor.pipeline.generators import build_schedule
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.showing.planned_file import PlannedFile

MIB_MORE = 2048.0
"""Memory that is added to every card, or taken from it."""

QUICK_SECONDS = 1.0
"""Solve time up to which a problem is solved again without a request."""

EACH_SECONDS = 3.0
"""Time limit of each further solve without a request; a requested one may take ten times as long."""

SAME_SHARE = 5e-5
"""Relative change of the step that is reported as none."""


def what_if_of(planned: PlannedFile, *, asked: bool, budget: TimeBudget = NO_LIMIT) -> list[str]:
    """Sentences of a planned file, each logged where they were requested; none of an evaluated plan."""
    if planned.own is planned.solution:
        return []
    sentences = what_if_sentences(planned.problem, planned.solution, asked=asked, budget=budget)
    if asked:
        for sentence in sentences:
            log.info("%s", sentence)
    return sentences


def what_if_sentences(
    problem: PipelineProblem, solution: Solution, *, asked: bool, budget: TimeBudget = NO_LIMIT
) -> list[str]:
    """Sentence for each other limit or batch; none where the solve took long and nobody requested them.

    Each figure is that of a plan that was solved for; where the time limit ended its proof, the sentence states by how
    much the best plan could be better.
    """
    if solution.objective is None or budget.over or not (asked or solution.seconds < QUICK_SECONDS):
        return []
    limit = EACH_SECONDS * (10.0 if asked else 1.0)
    sentences = []
    for sign, words in ((1, "more"), (-1, "less")):
        limits = tuple(max(1.0, one + sign * MIB_MORE) for one in problem.limit_mib)
        found = _solve(problem.replace(limit_mib=limits), budget.at_most(limit))
        change = _change(found, solution.objective, "step time")
        sentences.append(f"With {MIB_MORE / 1024:g} GiB {words} a card: {change}.")
    more = more_micro_batches(problem)
    if more is not None:
        added = more.micro_batches - problem.micro_batches
        found = _solve(more, budget.at_most(limit))
        change = _change(found, solution.objective * more.micro_batches / problem.micro_batches, "time a sample")
        counted = "one micro-batch" if added == 1 else f"{added} micro-batches"
        sentences.append(f"With {counted} more a step ({more.micro_batches}): {change}.")
    return sentences


def more_micro_batches(problem: PipelineProblem) -> PipelineProblem | None:
    """Problem with the next number of micro-batches that its schedule exists for."""
    for added in (1, problem.stages):
        more = problem.replace(micro_batches=problem.micro_batches + added)
        try:
            build_schedule(more.schedule, more.stages, more.interleaves, more.micro_batches)
        except ValueError:
            continue
        return more
    return None


def _solve(problem: PipelineProblem, limit: float | None) -> Solution:
    return solve(problem, replace(DEFAULT_OPTIONS, time_limit=limit, workers=1))


def _change(found: Solution, before: float, what: str) -> str:
    if found.objective is None:
        return "no plan fits" if found.status is INFEASIBLE else "no plan was found in the time given"
    change = found.objective / before - 1.0
    if found.bound is None or (found.gap or 0.0) <= 1e-6:
        return f"{what} {_signed(change)}"
    least = found.bound / before - 1.0
    return f"{what} {_signed(change)} (the search ended early: the best plan may reach {_signed(least)})"


def _signed(share: float) -> str:
    if abs(share) < SAME_SHARE:
        return "unchanged"
    return f"{'+' if share > 0 else '−'} {100 * abs(share):.{1 if abs(share) >= 0.001 else 2}f} %"
