"""The best plan with an encoder of images on ranks of its own, over the splits of the ranks."""

from __future__ import annotations

import math

from taylor.base.budget import TimeBudget
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.kernel_wait import kernels_by
from taylor.register.tower import IN_FRONT
from taylor.workflows.solving.bounded import Bounded, best_bounded
from taylor.workflows.statement.own_ranks import BesidePlan, beside_problem, splits_of
from taylor.workflows.statement.stated_file import StatedFile


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
    ways = [Bounded(_bound_ms(problem), split, problem) for split, problem in stated]
    best, bounds, solved = best_bounded(ways, how, budget)
    if best is None:
        return None
    return BesidePlan(
        best.key,
        best.step_ms,
        bound_ms=min([best.step_ms, *bounds]),
        layers=best.plan.without(*IN_FRONT).total_layers()[0][1:],
        peak_mib=best.solution.peak_memory_mib,
        splits=len(ways),
        solved=solved,
        schedule=best.problem.schedule.name,
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
