"""Plans under one recompute choice for all chunks: the nearest to a free plan, and a first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, HeuristicsParams
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution
from taylor.pipeline_solver.model.uniform_rule import distinct_choices

if TYPE_CHECKING:  # the choice of a plan needs no solver
    from taylor.pipeline_solver.model.stopping import Stopper


def judged(problem: PipelineProblem, plan: PipelinePlan, solver: str) -> Solution:
    """A plan with its step time."""
    from taylor.pipeline_solver.timing.evaluate import step_time

    return Solution(FEASIBLE, plan=plan, objective=step_time(problem, plan), solver=solver)


def better_of_two(one: Solution | None, other: Solution) -> Solution | None:
    """The one with the better plan."""
    if other.objective is None:
        return one
    return other if one is None or one.objective is None or other.objective < one.objective else one


def nearest(problem: PipelineProblem, free: PipelinePlan, solver: str) -> Solution | None:
    """The best plan with the layers of a free one that follows a choice; None when none fits the memory."""
    from taylor.pipeline_solver.check.checker import check
    from taylor.pipeline_solver.timing.evaluate import evaluate, peak_memory_mib

    layers = free.total_layers([kind.name for kind in problem.free_kinds if kind.name in free.layers])
    best: Solution | None = None
    fitting: set[str] = set()
    for mode, most in distinct_choices(problem):
        if mode in fitting:
            continue  # a greater count takes longer
        plan = PipelinePlan(
            free.layers,
            {
                of: tuple(tuple(min(most, count) if of == mode else 0 for count in row) for row in layers)
                for of in (*problem.recompute_ratio, *problem.choices)
            },
        )
        peaks = zip(peak_memory_mib(problem, plan), problem.limit_mib, strict=True)
        if any(peak > limit + MEMORY_TOLERANCE_MIB for peak, limit in peaks) or check(problem, plan):
            continue
        fitting.add(mode)
        objective = evaluate(problem, plan).objective
        if objective is not None and (best is None or objective < (best.objective or 0.0)):
            best = Solution(FEASIBLE, plan=plan, objective=objective, solver=solver)
    return best


def first_plan(
    problem: PipelineProblem, seed: int, stopper: Stopper, params: HeuristicsParams = DEFAULT_PARAMS.heuristics
) -> Solution | None:
    """A plan that follows a choice and fits, within a moment; None where none is found.

    Even chunks with the first choice that fits; where none does, short local searches under the most frugal ones.
    """
    from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
    from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk
    from taylor.pipeline_solver.timing.durations import graph_of

    graph = graph_of(problem)
    walk = PlanWalk(problem.replace(uniform_recompute=()), graph, params)
    even = [walk.even(by_work) for by_work in (True, False)]
    found = [nearest(problem, walk.plan_of(state), "") for state in even if state is not None]
    if not any(found):
        for choice in dict(distinct_choices(problem)).items():  # the greatest count of each mode
            first = FirstPlans(problem.replace(uniform_recompute=(choice,)), graph, seed, stopper, params)
            first.begin(None)
            if first.plan is not None:
                found.append(nearest(problem, first.plan, ""))
    return min((one for one in found if one is not None), key=lambda one: one.objective or 0.0, default=None)
