"""The best plan with an encoder of images on ranks of its own, over the splits of the ranks."""

from __future__ import annotations

import math
from functools import partial

from taylor.base.budget import TimeBudget
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.solving.kernel_wait import kernels_by
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.tower import VISION
from taylor.workflows.statement.own_ranks import BesidePlan, RankSplit, beside_problem, splits_of
from taylor.workflows.statement.stated_file import StatedFile

SECONDS = 30.0
"""Longest solve of one split."""


def best_beside(file: StatedFile, how: SolveOptions, budget: TimeBudget) -> BesidePlan | None:
    """Solve the splits of a job that `refuse_beside` takes, by their lower bounds, until no other can be better.

    Returns
    -------
    BesidePlan or None
        None where no split has a plan within memory and time.
    """
    tower = file.config.tower
    assert tower is not None
    kernels_by(math.inf if budget.deadline is None else budget.deadline)  # no split waits for a compiler
    stated = [(split, beside_problem(file, tower, split)) for split in splits_of(file)]
    in_order = sorted(((_bound_ms(problem), split, problem) for split, problem in stated), key=lambda one: one[0])
    best: tuple[float, RankSplit, Solution, PipelinePlan] | None = None
    bounds, solved = [], 0
    for least, split, problem in in_order:
        left = budget.left
        if (best is not None and least >= best[0]) or (left is not None and left <= 0):
            bounds.append(least)
            continue
        limit = SECONDS if left is None else min(SECONDS, left)
        within = how.replace(time_limit=limit)
        if best is not None:
            within = within.replace(cutoff=partial(float, best[0] / _unit_ms(problem)))
        solution, solved = solve(problem, within), solved + 1
        if solution.bound is not None:
            bounds.append(solution.bound * _unit_ms(problem))
        if solution.plan is None or solution.objective is None:
            continue
        step = solution.objective * _unit_ms(problem)
        if best is None or step < best[0]:
            best = (step, split, solution, solution.plan)
    if best is None:
        return None
    step, split, solution, plan = best
    return BesidePlan(
        split,
        step,
        bound_ms=min([step, *bounds]),
        layers=plan.without(VISION).total_layers()[0][1:],
        peak_mib=solution.peak_memory_mib,
        splits=len(in_order),
        solved=solved,
        schedule=in_order[0][2].schedule.name,
    )


def _bound_ms(problem: PipelineProblem) -> float:
    """Lower bound of a split's step, of its work and of what its encoder's stage does, ms."""
    tower = next(kind for kind in problem.kinds if kind.pinned_first)
    alone = problem.micro_batches * tower.count * sum(tower.added)
    rest = problem.replace(
        stages=problem.stages - 1,
        kinds=tuple(kind for kind in problem.kinds if kind is not tower and not kind.places),
        static_mib=problem.static_mib[1:],
        limit_mib=problem.limit_mib[1:],
        lags=(),
        lag=0.0,
        tail=problem.tail[1:],
        fixed_layers={},
    )
    return max(alone, least_step_time(rest)) * _unit_ms(problem)


def _unit_ms(problem: PipelineProblem) -> float:
    return 1.0 if problem.unit_ms is None else problem.unit_ms
