"""Solve a pipeline problem with any solver, and check its plan."""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from typing import Any

from taylor.base.budget import FINISH_SECONDS, TimeBudget
from taylor.base.interrupts import presses
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.heuristics.uniform_plans import first_plan
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.places import has_places, placements
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress, going_on
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    NO_SOLUTION,
    PROVEN_GAP,
    BubbleShares,
    Solution,
    Termination,
)
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.solving.entries import solve_places
from taylor.pipeline_solver.solving.kernel_wait import kernels_by
from taylor.pipeline_solver.solving.solvers import SolverEntry, solver_named


class SolverDisagreement(AssertionError):
    """The checker found fault with a solver's plan: a mistake in the program, never in the input."""


def solve(
    problem: PipelineProblem,
    options: SolveOptions = DEFAULT_OPTIONS,
    *,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Solve a pipeline problem.

    Parameters
    ----------
    options : SolveOptions
        The solver and its limits.
    warm_start : PipelinePlan, optional
        A plan to begin from; the result is no worse. A plan that breaks the problem's rules is ignored.
    on_progress : callable, optional
        Called with a `Progress` now and then.

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
    entry = solver_named(options.solver)
    run = _runner(problem, entry)
    pressed = presses()
    deadline = None if options.time_limit is None else began + options.time_limit
    ready = not _needs_kernels(problem, entry) or kernels_by(deadline)
    floor = 0.0
    if (
        problem.uniform_recompute or has_places(problem) or problem.lenders
    ):  # solved in subproblems: known results come before them
        floor = least_step_time(problem)
        if problem.uniform_recompute and not problem.lenders and warm_start is None and ready:
            warm_start = _first_plan(problem, options)
        on_progress = _reported_at_once(problem, warm_start, floor, on_progress, began)
    try:
        if not ready:
            from taylor.pipeline_solver.solving.plain_plans import solve_plainly

            # The wait took the whole limit; a command has these seconds beyond it.
            solution = solve_plainly(problem, warm_start, TimeBudget(deadline).later(FINISH_SECONDS).left)
        else:
            within = options.replace(time_limit=TimeBudget(deadline).left)
            if warm_start is None and not entry.one_recompute_choice and deadline is not None:
                warm_start = _searched_plan(problem, within)
            solution = run(problem, within, warm_start=warm_start, on_progress=on_progress)
    except KeyboardInterrupt:  # before the solver itself noticed it
        if warm_start is None:
            raise
        solution = Solution(NO_SOLUTION, solver=options.solver).ended_by(Termination.INTERRUPTED)
    if presses() > pressed:  # pressed in the last moments of a proof, which ignores it: the user asked to stop
        solution = solution.replace(termination=Termination.INTERRUPTED)
    if warm_start is not None:
        solution = _no_worse(problem, solution, warm_start)
    solution = _bounded(problem, solution, floor, limited=deadline is not None)
    params = options.params.changed()
    return complete(problem, solution).replace(seconds=time.monotonic() - began, params=params)


def _runner(problem: PipelineProblem, entry: SolverEntry) -> Any:
    """The solver, called for one subproblem after the other where the problem asks for it."""
    run: Any = entry.load()
    if problem.uniform_recompute:
        from taylor.pipeline_solver.solving.uniform_recompute import solve_uniform

        run = partial(solve_uniform, run=run, one_by_one=entry.one_recompute_choice)
    if has_places(problem):
        run = partial(solve_places, run=run)
    if problem.lenders and entry.one_recompute_choice:  # a MILP has what lenders reserve as variables
        from taylor.pipeline_solver.solving.lending import solve_lent

        run = partial(solve_lent, run=run)
    return run


def _bounded(problem: PipelineProblem, solution: Solution, floor: float, limited: bool) -> Solution:
    """Raise a lower bound to `floor`, both in forward times of a body layer; under a time limit, a missing one too."""
    if solution.status is INFEASIBLE:
        return solution
    if limited and not solution.bound:
        floor = floor or least_step_time(problem)
    if not floor or (solution.bound or 0.0) >= floor:
        return solution
    return solution.replace(bound=floor if solution.objective is None else min(floor, solution.objective))


def _first_plan(problem: PipelineProblem, options: SolveOptions) -> PipelinePlan | None:
    """A plan for a problem with one recompute choice for all chunks, from the first place that has one."""
    stopper = Stopper(None if options.time_limit is None else time.monotonic() + options.time_limit)
    try:
        places, params = placements(problem)[: options.params.solving.first_places], options.params.heuristics
        found = (first_plan(one, options.seed, stopper, params) for one in places)
        return next((one.plan for one in found if one is not None), None)
    except OutOfTime:
        return None


def _needs_kernels(problem: PipelineProblem, entry: SolverEntry) -> bool:
    """Return whether a solve begins with compiled kernels; without virtual stages the busiest stage comes before
    them."""
    return problem.interleaves > 1 or bool(problem.uniform_recompute) or not entry.one_recompute_choice


def _searched_plan(problem: PipelineProblem, options: SolveOptions) -> PipelinePlan | None:
    """A good plan for a MILP solver with a limit, which may find none by itself; None where the local search finds
    none."""
    if problem.lenders:
        return None
    if problem.uniform_recompute or has_places(problem):
        return _first_plan(problem, options) if problem.uniform_recompute else None
    from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
    from taylor.pipeline_solver.timing.durations import graph_of

    graph = graph_of(problem)
    stopper = Stopper(TimeBudget.of(options.time_limit).deadline)
    searches = FirstPlans(problem, graph, options.seed, stopper, options.params.heuristics)
    with suppress(OutOfTime):
        searches.begin(None)
    return searches.plan


def _reported_at_once(
    problem: PipelineProblem, known: PipelinePlan | None, floor: float, on_progress: OnProgress | None, began: float
) -> OnProgress | None:
    """Report the known bound or plan at the start, and pass progress on with it."""
    from taylor.pipeline_solver.timing.evaluate import step_time

    if on_progress is None:
        return None
    objective, seconds = None if known is None else step_time(problem, known), time.monotonic() - began
    on_progress(Progress(seconds, objective, floor, "first plan"))
    return going_on(on_progress, seconds, objective, floor)


def _no_worse(problem: PipelineProblem, solution: Solution, known: PipelinePlan) -> Solution:
    """The solution, with the known plan where a solver stopped before it had one as good.

    Raises
    ------
    SolverDisagreement
        When the solver has proven that no such plan exists.
    """
    from taylor.pipeline_solver.timing.evaluate import step_time

    time_known = step_time(problem, known)
    if solution.status is INFEASIBLE:
        raise SolverDisagreement(f"{solution.solver} calls the problem infeasible, yet a plan is known")
    if solution.bound is not None and solution.bound > time_known * (1 + PROVEN_GAP):
        raise SolverDisagreement(f"{solution.solver} proves {solution.bound!r}, yet a plan of {time_known!r} is known")
    if solution.termination is Termination.CUT_OFF:
        return solution
    if solution.objective is not None and solution.objective <= time_known:
        return solution
    end = solution.termination or Termination.STALLED
    return solution.replace(status=FEASIBLE, plan=known, objective=time_known).ended_by(end)


def _work_bound(problem: PipelineProblem, objective: float, bubble: BubbleShares) -> float:
    """Step time that the work without recompute needs, spread evenly over the stages: a bound for every plan."""
    if not problem.slowness and not problem.stage_times:
        return objective * (1.0 - bubble.total)
    forward = (
        problem.head_forward + problem.embedding_forward + sum(kind.count * kind.forward for kind in problem.kinds)
    )
    speed = sum(1.0 / slow for slow in problem.least_pace)
    return problem.micro_batches * (1.0 + problem.backward_ratio) * forward / speed


def complete(problem: PipelineProblem, solution: Solution) -> Solution:
    """Check a solver's plan and fill in its memory and bubble; say why there is none.

    Raises
    ------
    SolverDisagreement
        When the checker finds fault with the plan.
    """
    solution = solution.replace(memory_limit_mib=tuple(map(float, problem.limit_mib)))
    if solution.plan is None:
        if solution.status is not INFEASIBLE or solution.message:
            return solution
        from taylor.pipeline_solver.milp.least_memory import explain_infeasible

        message = explain_infeasible(problem)
        if message is None:
            raise SolverDisagreement(f"{solution.solver} calls the problem infeasible, yet it has a plan")
        return solution.replace(message=message)
    from taylor.pipeline_solver.timing.evaluate import bubble_shares, peak_memory_mib, step_time

    plan = solution.plan
    faults = check(problem, plan, solution.objective)
    if faults:
        raise SolverDisagreement(f"{solution.solver} gave a plan that fails the check: {' '.join(faults)}")
    if solution.objective is not None:
        # Equal to an evaluation of the plan to the last digit: solvers add durations up in other orders.
        step, bound = step_time(problem, plan), solution.bound
        bound = step if bound == solution.objective else bound if bound is None else min(bound, step)
        solution = solution.replace(objective=step, bound=bound)
    bubble, peaks = bubble_shares(problem, plan), peak_memory_mib(problem, plan)
    if solution.objective is not None and solution.bound is not None:
        work = _work_bound(problem, solution.objective, bubble)
        solution = solution.replace(bound=max(solution.bound, min(work, solution.objective)))
    return solution.replace(peak_memory_mib=peaks, bubble=bubble)
