"""A plan without compiled code: even chunks, each stage with the least recompute that fits its memory."""

from __future__ import annotations

from contextlib import suppress

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk
from taylor.pipeline_solver.heuristics.uniform_plans import better_of_two, judged, nearest
from taylor.pipeline_solver.milp.least_memory import most_frugal_plan, over_limit
from taylor.pipeline_solver.model.places import placements
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, Solution, Termination
from taylor.pipeline_solver.timing.durations import graph_of
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib

SOLVER_NAME = "even plans"


def solve_plainly(problem: PipelineProblem, known: PipelinePlan | None, seconds: float | None) -> Solution:
    """The best of a known plan and even ones, with the bound of the work; for a solve without its kernels.

    Parameters
    ----------
    seconds : float or None
        Limit of the search for the plan of least memory, which runs where no even plan fits. It may end without one.
    """
    best = None if known is None else judged(problem, known, SOLVER_NAME)
    for one in placements(problem)[:1]:
        for plan in _even_plans(one):
            if not check(problem, plan):
                best = better_of_two(best, judged(problem, plan, SOLVER_NAME))
    if best is None and not problem.uniform_recompute:
        with suppress(TimeoutError):
            frugal = most_frugal_plan(problem, seconds)
            if frugal is None or over_limit(problem, frugal):
                return Solution(INFEASIBLE, Termination.INFEASIBLE, solver=SOLVER_NAME)
            best = judged(problem, frugal, SOLVER_NAME)
    found = best or Solution(FEASIBLE, solver=SOLVER_NAME)
    return found.replace(bound=least_step_time(problem)).ended_by(Termination.NOT_COMPILED)


def _even_plans(problem: PipelineProblem) -> list[PipelinePlan]:
    graph = graph_of(problem)
    walk = PlanWalk(problem.replace(uniform_recompute=()), graph)
    free = [walk.plan_of(state) for by_work in (True, False) if (state := walk.even(by_work)) is not None]
    if problem.uniform_recompute:
        near = [nearest(problem, plan, SOLVER_NAME) for plan in free]
        return [one.plan for one in near if one is not None and one.plan is not None]
    return [least_recompute(problem, plan) for plan in free]


def least_recompute(problem: PipelineProblem, free: PipelinePlan) -> PipelinePlan:
    """The plan whose stages recompute, in the first searched mode, as many layers of every chunk as their memory needs;
    all layers where that is too few."""
    mode = next(iter(problem.searched_modes), None)
    if mode is None:
        return free
    layers = free.total_layers([kind.name for kind in problem.free_kinds if kind.name in free.layers])
    most = max(max(row) for row in layers)

    def plan_with(counts: list[int]) -> PipelinePlan:
        rows = tuple(tuple(min(most, count) for most, count in zip(row, counts, strict=True)) for row in layers)
        return PipelinePlan(free.layers, {**free.recompute, mode: rows})

    counts = [0] * problem.stages
    for _ in range(most):
        peaks = peak_memory_mib(problem, plan_with(counts))
        over = [p > limit + MEMORY_TOLERANCE_MIB for p, limit in zip(peaks, problem.limit_mib, strict=True)]
        if not any(over):
            break
        counts = [count + too_much for count, too_much in zip(counts, over, strict=True)]
    return plan_with(counts)
