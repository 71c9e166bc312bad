"""The rule of one recompute choice for all chunks: distinct choices, the choice of a plan, and problems that only
choose counts of layers."""

from __future__ import annotations

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem


def counts_suffice(problem: PipelineProblem) -> bool:
    """Return whether the LP over counts can replace a problem: layers of one kind, and only counts to choose."""
    settled = not problem.searched_modes or len(problem.uniform_recompute) == 1
    linear = problem.pairing is None and not problem.choices
    return len(problem.placed_kinds) == 1 and linear and settled


def uniform_choice(problem: PipelineProblem, plan: PipelinePlan) -> int | None:
    """Index of the choice that a plan follows in every chunk; None when it follows none."""
    layers = plan.total_layers([kind.name for kind in problem.free_kinds if kind.name in plan.layers])
    cells = [(v, s) for v in range(plan.interleaves) for s in range(plan.stages)]
    for index, (mode, most) in enumerate(problem.uniform_recompute):
        modes = {mode, *plan.recompute}.difference(problem.lending_choices)
        if all(
            (plan.recompute[of][v][s] if of in plan.recompute else 0) == (min(most, layers[v][s]) if of == mode else 0)
            for v, s in cells
            for of in modes
        ):
            return index
    return None


def kept_choice(problem: PipelineProblem, plan: PipelinePlan) -> tuple[str, int] | None:
    """The choice, of the distinct ones, that a plan follows."""
    ones = ((choice, problem.replace(uniform_recompute=(choice,))) for choice in distinct_choices(problem))
    return next((choice for choice, one in ones if uniform_choice(one, plan) is not None), None)


def distinct_choices(problem: PipelineProblem) -> list[tuple[str, int]]:
    """The distinct choices, those apart from recompute first, counts rising: counts above a chunk's most layers are
    equal, and so are counts of 0."""
    least = problem.least_layers
    most = max(1, problem.layers - sum(least) + max(least))
    first_mode = problem.uniform_recompute[0][0]
    choices = {(mode if count else first_mode, min(count, most)) for mode, count in problem.uniform_recompute}
    named = {mode: place for place, mode in enumerate(problem.choices)}
    return sorted(choices, key=lambda choice: (named.get(choice[0], len(named)), choice[1], choice[0]))
