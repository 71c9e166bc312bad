"""One recompute choice for all chunks: a plan's choice, the nearest plan that keeps to one, a first one; and whether
counts of layers are all there is to choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.solution import FEASIBLE, Solution

if TYPE_CHECKING:  # what a plan keeps to is asked without a solver
    from taylor.pipeline_solver.stopping import Stopper


def counts_tell(problem: PipelineProblem) -> bool:
    """Whether the LP over counts can stand for a problem: layers of one kind, and nothing to choose but counts."""
    settled = not problem.searched_modes or len(problem.uniform_recompute) == 1
    linear = problem.pairing is None and not problem.choices
    return len(problem.placed_kinds) == 1 and linear and settled


def uniform_choice(problem: PipelineProblem, plan: PipelinePlan) -> int | None:
    """Index of the choice that a plan follows in every chunk; None when it follows none."""
    held = plan.total_layers([kind.name for kind in problem.free_kinds if kind.name in plan.layers])
    cells = [(v, s) for v in range(plan.interleaves) for s in range(plan.stages)]
    for index, (mode, most) in enumerate(problem.uniform_recompute):
        modes = {mode, *plan.recompute}
        if all(
            (plan.recompute[of][v][s] if of in plan.recompute else 0) == (min(most, held[v][s]) if of == mode else 0)
            for v, s in cells
            for of in modes
        ):
            return index
    return None


def kept_choice(problem: PipelineProblem, plan: PipelinePlan) -> tuple[str, int] | None:
    """The choice, of those that differ, that a plan keeps to."""
    ones = ((choice, problem.replace(uniform_recompute=(choice,))) for choice in distinct_choices(problem))
    return next((choice for choice, one in ones if uniform_choice(one, plan) is not None), None)


def judged(problem: PipelineProblem, plan: PipelinePlan, solver: str) -> Solution:
    """A plan with its step time."""
    from taylor.pipeline_solver.evaluate import step_time

    return Solution(FEASIBLE, plan=plan, objective=step_time(problem, plan), solver=solver)


def better_of_two(one: Solution | None, other: Solution) -> Solution | None:
    """The one with the better plan."""
    if other.objective is None:
        return one
    return other if one is None or one.objective is None or other.objective < one.objective else one


def nearest(problem: PipelineProblem, free: PipelinePlan, solver: str) -> Solution | None:
    """The best plan with the layers of a free one that follows a choice; None when none fits the memory."""
    from taylor.pipeline_solver.checker import check
    from taylor.pipeline_solver.evaluate import evaluate, peak_memory_mib

    held = free.total_layers([kind.name for kind in problem.free_kinds if kind.name in free.layers])
    best: Solution | None = None
    fitting: set[str] = set()
    for mode, most in distinct_choices(problem):
        if mode in fitting:
            continue  # a greater count takes longer
        plan = PipelinePlan(
            free.layers,
            {
                of: tuple(tuple(min(most, count) if of == mode else 0 for count in row) for row in held)
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


def first_plan(problem: PipelineProblem, seed: int, stopper: Stopper) -> Solution | None:
    """A plan that keeps to a choice and fits, within a moment; None where none is met.

    Even chunks with the first choice that fits, and where none does, short walks under the most frugal ones.
    """
    from taylor.pipeline_solver.durations import graph_of
    from taylor.pipeline_solver.first_plans import FirstPlans
    from taylor.pipeline_solver.plan_walk import PlanWalk

    graph = graph_of(problem)
    walk = PlanWalk(problem.replace(uniform_recompute=()), graph)
    even = [walk.even(by_work) for by_work in (True, False)]
    found = [nearest(problem, walk.plan_of(state), "") for state in even if state is not None]
    if not any(found):
        for choice in dict(distinct_choices(problem)).items():  # of each mode the greatest count
            first = FirstPlans(problem.replace(uniform_recompute=(choice,)), graph, seed, stopper)
            first.begin(None)
            if first.plan is not None:
                found.append(nearest(problem, first.plan, ""))
    return min((one for one in found if one is not None), key=lambda one: one.objective or 0.0, default=None)


def distinct_choices(problem: PipelineProblem) -> list[tuple[str, int]]:
    """The choices that differ, those beside recompute first, counts rising: no chunk has more layers than the others
    leave, and nothing is nothing."""
    least = problem.least_layers
    most = max(1, problem.layers - sum(least) + max(least))
    first_mode = problem.uniform_recompute[0][0]
    choices = {(mode if count else first_mode, min(count, most)) for mode, count in problem.uniform_recompute}
    named = {mode: place for place, mode in enumerate(problem.choices)}
    return sorted(choices, key=lambda choice: (named.get(choice[0], len(named)), choice[1], choice[0]))
