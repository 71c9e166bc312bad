"""Check by dry-runs around the solves of a job's variants: the best plan that passes, with a bound of all variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from taylor.base.budget import TimeBudget
from taylor.base.errors import InfeasibleError, NoSolutionError, TaylorError
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import INFEASIBLE, NO_SOLUTION, Termination
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.showing.alternative import Alternative
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.solve_variants import Best, VariantSolves, proven_of_all
from taylor.workflows.solving.variants import Variant


def best_checked(
    variants: Sequence[Variant],
    how: SolveOptions,
    on_progress: OnProgress | None,
    store: SolveStore | None,
    budget: TimeBudget,
    check: Callable[[Best], PlannedFile],
) -> PlannedFile:
    """Best plan over all variants that passes its dry-run.

    The variants are solved, and the best plan is checked. The memory that its dry-runs measure may cost it time: then
    the variants that may be faster than the checked plan are solved and checked too.

    Parameters
    ----------
    check : callable
        Checks the best plan of some variants, and solves its variant again where the plan is over a limit.

    Returns
    -------
    PlannedFile
        With the end by Ctrl-C where that came after a plan had passed.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no variant has a plan that passes.
    InterruptedSolve
        When Ctrl-C came before there was a plan.
    Exception
        What `check` raises when it ends early.
    """
    passed: PlannedFile | None = None
    failed: TaylorError | None = None
    outcomes: dict[str, Alternative] = {}
    bounds: dict[str, float] = {}
    pending = list(variants)
    while pending:
        cutoff = math.inf if passed is None else _step(passed)
        solves = VariantSolves(pending, how.replace(time_limit=budget.left), on_progress, store, cutoff)
        solves.run()
        outcomes |= {one.name: one for one in solves.alternatives}
        bounds |= {pending[number].name: bound for number, bound in solves.bounds.items()}
        if solves.interrupted and passed is not None:
            return replace(passed, solution=passed.solution.ended_by(Termination.INTERRUPTED))
        best = solves.best
        if best is None:
            failed = failed or solves.no_plan()
            break
        name = best.variant.name
        pending.remove(best.variant)
        try:
            planned = check(best)
        except (InfeasibleError, NoSolutionError) as error:
            failed = error
            status = INFEASIBLE if isinstance(error, InfeasibleError) else NO_SOLUTION
            outcomes[name] = best.variant.outcome(str(status), note=str(error))
            continue
        solution = planned.solution
        outcomes[name] = replace(outcomes[name], objective=solution.objective, bound=solution.bound)
        bounds[name] = solution.bound or bounds[name]
        if passed is None or _step(planned) < _step(passed):
            passed = planned
        below = _step(passed) * (1.0 - how.gap)
        pending = [one for one in pending if bounds.get(one.name, math.inf) < below]
    if passed is None:
        assert failed is not None
        raise failed
    order = [one.name for one in variants]
    return replace(
        passed,
        solution=proven_of_all(passed.solution, min(bounds.values()), how.gap),
        alternatives=tuple(outcomes[name] for name in order if name in outcomes),
    )


def _step(planned: PlannedFile) -> float:
    step = planned.solution.objective
    assert step is not None
    return step
