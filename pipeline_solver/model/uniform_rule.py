"""The rule that one recompute choice holds for all chunks: which choices differ, which one a plan keeps to, and whether
counts of layers are all there is to choose."""

from __future__ import annotations

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem


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


def distinct_choices(problem: PipelineProblem) -> list[tuple[str, int]]:
    """The choices that differ, those beside recompute first, counts rising: no chunk has more layers than the others
    leave, and nothing is nothing."""
    least = problem.least_layers
    most = max(1, problem.layers - sum(least) + max(least))
    first_mode = problem.uniform_recompute[0][0]
    choices = {(mode if count else first_mode, min(count, most)) for mode, count in problem.uniform_recompute}
    named = {mode: place for place, mode in enumerate(problem.choices)}
    return sorted(choices, key=lambda choice: (named.get(choice[0], len(named)), choice[1], choice[0]))
