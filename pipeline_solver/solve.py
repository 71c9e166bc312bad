"""The one door to the solvers: a problem and a solver's name in, a checked solution out."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.checker import check
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.progress import OnProgress, Progress
from taylor.pipeline_solver.solution import INFEASIBLE, Solution

__all__ = ["Progress", "SolverDisagreement", "complete", "solve"]


class SolverDisagreement(AssertionError):
    """The checker found fault with a solver's plan: a mistake in the program, never in the input."""


def solve(
    problem: PipelineProblem,
    *,
    solver: str = "HIGHS",
    time_limit: float | None = None,
    gap: float = 1e-6,
    seed: int = 0,
    workers: int = 1,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Solve a pipeline problem.

    Parameters
    ----------
    solver : str
        In any case of letters: ``HIGHS`` (branch-and-cut over stage configurations, handing over to the
        compact MILP what stage splits leave open), ``HIGHS-MILP`` (the compact MILP under HiGHS),
        ``CBC`` (the same under the CBC that PuLP ships), or any solver that Pyomo finds.
    time_limit : float, optional
        Seconds.
    gap : float
        Relative gap at which a plan counts as optimal.
    seed : int
        With no time limit the result depends on nothing else.
    workers : int
        Processes that share the work; the result is the same with any number.
    warm_start : PipelinePlan, optional
        A plan to begin from; one that breaks the problem's rules is passed over.
    on_progress : callable, optional
        Given a `Progress` now and then.

    Returns
    -------
    Solution
        Passed by the checker, with memory and bubble filled in. Without a plan, `message` says why.

    Raises
    ------
    InputError
        When Pyomo has no such solver.
    SolverDisagreement
        When the checker finds fault with the plan.
    """
    began = time.monotonic()
    if warm_start is not None and check(problem, warm_start):
        warm_start = None
    options: dict[str, Any] = {
        "time_limit": time_limit,
        "gap": gap,
        "seed": seed,
        "workers": workers,
        "warm_start": warm_start,
        "on_progress": on_progress,
    }
    run = _runner(solver)
    if problem.uniform_recompute:
        from taylor.pipeline_solver.uniform_recompute import solve_uniform

        solution = solve_uniform(problem, run, solver.strip().upper() == "HIGHS", **options)
    else:
        solution = run(problem, **options)
    return complete(problem, solution).replace(seconds=time.monotonic() - began)


def _runner(solver: str) -> Callable[..., Solution]:
    """The function behind a solver's name: problem, then the options by name."""
    name = solver.strip().upper()
    if name == "HIGHS":
        from taylor.pipeline_solver.branch_and_cut import branch_and_cut

        return branch_and_cut
    from taylor.pipeline_solver.compact_milp import solve_compact

    if name == "HIGHS-MILP":
        return solve_compact
    from taylor.pipeline_solver.pyomo_solver import pyomo_solver_maker

    return partial(solve_compact, solver_name=name, make_solver=pyomo_solver_maker(solver))


def complete(problem: PipelineProblem, solution: Solution) -> Solution:
    """Check a solver's plan and fill in its memory and bubble; say why there is none.

    Raises
    ------
    SolverDisagreement
        When the checker finds fault with the plan.
    """
    solution = solution.replace(memory_limit_mib=tuple(map(float, problem.limit_mib)))
    if solution.plan is None:
        if solution.status != INFEASIBLE or solution.message:
            return solution
        from taylor.pipeline_solver.least_memory import ROOM_FOR_A_PLAN, explain_infeasible

        message = explain_infeasible(problem)
        if message == ROOM_FOR_A_PLAN:
            raise SolverDisagreement(f"{solution.solver} calls the problem infeasible, yet it has a plan")
        return solution.replace(message=message)
    from taylor.pipeline_solver.evaluate import bubble_shares, peak_memory_mib

    faults = check(problem, solution.plan, solution.objective)
    if faults:
        raise SolverDisagreement(f"{solution.solver} gave a plan that does not hold: {' '.join(faults)}")
    return solution.replace(
        peak_memory_mib=peak_memory_mib(problem, solution.plan), bubble=bubble_shares(problem, solution.plan)
    )
