"""Problems solved in the order of their lower bounds, until none of the others can be better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from taylor.base.budget import TimeBudget
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, Solution
from taylor.pipeline_solver.solving.solve import solve

SECONDS = 30.0
"""Longest solve of one problem."""
Key = TypeVar("Key")


@dataclass(frozen=True)
class Bounded(Generic[Key]):
    """A problem, what it is of, and a lower bound of its step."""

    least_ms: float
    key: Key
    problem: PipelineProblem


@dataclass(frozen=True)
class Chosen(Generic[Key]):
    """The problem with the shortest step, and its plan."""

    step_ms: float
    key: Key
    problem: PipelineProblem
    solution: Solution
    plan: PipelinePlan


def best_bounded(
    stated: Iterable[Bounded[Key]], how: SolveOptions, budget: TimeBudget, known_ms: float | None = None
) -> tuple[Chosen[Key] | None, list[float], int]:
    """Solve problems by their lower bounds.

    Parameters
    ----------
    known_ms : float, optional
        Step of a plan that these must beat.

    Returns
    -------
    tuple
        The best, None where none has a plan that beats the known one; a proven lower bound of each, ms; and how many
        were solved.
    """
    best: Chosen[Key] | None = None
    limit_ms, bounds, solved = known_ms, [], 0
    for one in sorted(stated, key=lambda each: each.least_ms):
        left, unit = budget.left, one.problem.unit_ms or 1.0
        if (limit_ms is not None and one.least_ms >= limit_ms) or (left is not None and left <= 0):
            bounds.append(one.least_ms)
            continue
        within = how.replace(time_limit=SECONDS if left is None else min(SECONDS, left))
        if limit_ms is not None:
            within = within.replace(cutoff=partial(float, limit_ms / unit))
        solution, solved = solve(one.problem, within), solved + 1
        if solution.bound is not None:
            bounds.append(max(one.least_ms, solution.bound * unit))
        elif solution.status != INFEASIBLE:
            bounds.append(one.least_ms)
        if solution.plan is None or solution.objective is None:
            continue
        step = solution.objective * unit
        if limit_ms is None or step < limit_ms:
            best, limit_ms = Chosen(step, one.key, one.problem, solution, solution.plan), step
    return best, bounds, solved
