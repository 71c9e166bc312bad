"""The exact solver: by the busiest stage without virtual stages; what remains open, by branch and cut."""

from __future__ import annotations

import time

from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline_solver.columns.stage_runs import stage_runs
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress, going_on
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, Solution, Termination, better_of
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.solving.kernel_wait import kernels_by
from taylor.pipeline_solver.timing.durations import graph_of
from taylor.pipeline_solver.tree.busiest_stage import BusiestStage

SOLVER_NAME = "busiest stage"


def solve_exact(
    problem: PipelineProblem,
    options: SolveOptions = DEFAULT_OPTIONS,
    *,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Find the plan of least step time, and prove it.

    Parameters
    ----------
    problem : PipelineProblem
    options : SolveOptions
    warm_start : PipelinePlan, optional
        A plan that keeps the problem's rules, to start from.
    on_progress : callable, optional

    Returns
    -------
    Solution
        As `branch_and_cut` gives it. A keyboard interrupt ends the search as a time limit does.
    """
    began = time.monotonic()
    by_stage = problem.interleaves == 1 and options.params.tree.busiest_stage
    first = _by_busiest_stage(problem, options, warm_start, on_progress) if by_stage else None
    if first is not None and first.termination is not Termination.STALLED:
        return first
    if first is not None and not kernels_by(None if options.time_limit is None else began + options.time_limit):
        from taylor.pipeline_solver.solving.plain_plans import solve_plainly

        return better_of(first, solve_plainly(problem, first.plan, 0.0), options.gap)
    from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut  # here: its compiled kernels take a while

    if first is None:
        return branch_and_cut(problem, options, warm_start=warm_start, on_progress=on_progress)
    left = None if options.time_limit is None else max(0.0, options.time_limit - first.seconds)
    rest = branch_and_cut(
        problem,
        options.replace(time_limit=left),
        warm_start=first.plan,
        on_progress=going_on(on_progress, first.seconds, first.objective, first.bound),
        cuts=first.cuts,
    )
    return better_of(first, rest, options.gap).replace(solver=rest.solver, seconds=time.monotonic() - began)


def _by_busiest_stage(
    problem: PipelineProblem, options: SolveOptions, warm_start: PipelinePlan | None, on_progress: OnProgress | None
) -> Solution | None:
    """Solve a problem without virtual stages by its busiest stage; `STALLED` where a gap remains.

    None where the runs of layers are too many to list.
    """
    began = time.monotonic()
    deadline = None if options.time_limit is None else began + options.time_limit
    stopper = Stopper(deadline, options.cutoff)
    try:
        runs = stage_runs(problem, stopper)
    except OutOfTime:
        from taylor.pipeline_solver.solving.plain_plans import solve_plainly

        found = solve_plainly(problem, warm_start, 0.0)
        return found if found.status is INFEASIBLE else found.ended_by(Termination.TIME_LIMIT)
    if runs is None:
        return None
    search = BusiestStage(runs, graph_of(problem), stopper, options.params.tree)
    stopped, plans = Termination.STALLED, True
    try:
        with stopper.catching_interrupts():
            if warm_start is not None:
                search.offer(_of_all_modes(problem, warm_start))
            plans = search.search()
            if on_progress is not None and search.plan is not None:
                seconds = time.monotonic() - began
                on_progress(Progress(seconds, search.time, search.bound or None, "the busiest stage"))
    except (KeyboardInterrupt, OutOfTime) as stop:
        stopped = Termination.INTERRUPTED if isinstance(stop, KeyboardInterrupt) else Termination.TIME_LIMIT
    found = Solution(
        FEASIBLE,
        bound=search.bound or None,
        solver=SOLVER_NAME,
        seconds=time.monotonic() - began,
        statistics={"parts": search.parts},
    )
    if not plans:
        return found.replace(status=INFEASIBLE, termination=Termination.INFEASIBLE, bound=None)
    if search.bound >= stopper.cutoff() and stopped is not Termination.INTERRUPTED:
        stopped = Termination.CUT_OFF
    if search.plan is None:
        return found.ended_by(stopped)
    found = found.replace(plan=search.plan, objective=search.time, cuts=search.cuts())
    if stopped is not Termination.CUT_OFF and search.time - search.bound <= options.gap * abs(search.time):
        return found.closed(interrupted=stopped is Termination.INTERRUPTED)
    return found.ended_by(stopped)


def _of_all_modes(problem: PipelineProblem, plan: PipelinePlan) -> PipelinePlan:
    """The plan with a row of zeros for each searched mode that it does not name, as found plans have."""
    nothing = as_grid([[0] * problem.stages])
    unnamed = {mode: nothing for mode in problem.searched_modes if mode not in plan.recompute}
    return PipelinePlan(plan.layers, {**plan.recompute, **unnamed})
