"""Problems with one recompute choice for all chunks, as the flags of some launchers require.

The choice is a small number, so the problem is solved for one value after the other (`recompute_cases`). Where there is
only recompute to choose, the problem without the rule is solved first: its plan may obey the rule by itself, its bound
is valid for every choice, and its step time shows the cost of the rule.
"""

from __future__ import annotations

import time
from dataclasses import replace

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.heuristics.uniform_plans import better_of_two, judged, nearest
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import (
    CUT_OFF,
    INFEASIBLE,
    MILP_ROUNDS,
    NO_SOLUTION,
    OPTIMAL,
    PROVEN_GAP,
    RANGED_ROUNDS,
    Solution,
    Termination,
    proven_within,
)
from taylor.pipeline_solver.model.solver import Solver
from taylor.pipeline_solver.model.uniform_rule import counts_tell, distinct_choices, kept_choice, uniform_choice
from taylor.pipeline_solver.solving.recompute_cases import Choices
from taylor.pipeline_solver.solving.turns import foreseen
from taylor.pipeline_solver.tree.tree_memory import StoppedTree, TreeMemory

UNRESTRICTED_OBJECTIVE, UNRESTRICTED_BOUND = "unrestricted_objective", "unrestricted_bound"
"""Names of the statistics of the step time and the bound without the rule."""


def solve_uniform(
    problem: PipelineProblem,
    options: SolveOptions,
    *,
    run: Solver,
    one_by_one: bool,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Solve a problem with `uniform_recompute`.

    Parameters
    ----------
    run : Solver
        Solves the problem without the rule, and then with it.
    one_by_one : bool
        The solver takes one choice at a time; otherwise its model says all of them.

    Returns
    -------
    Solution
        `bound` is valid for every choice; the statistics include the step time and bound without the rule.
    """
    began = time.monotonic()
    deadline = None if options.time_limit is None else began + options.time_limit

    def within(share: float) -> SolveOptions:
        """The options with a fraction of the remaining time as `turns` counts it."""
        if options.time_limit is None:
            return options
        gone = time.monotonic() - began
        return options.replace(time_limit=max(0.01, share * (foreseen(options.time_limit, gone) - gone)))

    def to_the_end() -> SolveOptions:
        """The options with all the remaining time."""
        return options if deadline is None else options.replace(time_limit=max(0.01, deadline - time.monotonic()))

    memory = options.memory if isinstance(options.memory, TreeMemory) else TreeMemory()
    standing = memory.cases if isinstance(memory.cases, Choices) else None
    if problem.choices:
        # By layer the choices are far more than one after the other, and bound these loosely.
        free, known = Solution(NO_SOLUTION), dict[str, float]()
    elif standing is not None and standing.floor > least_step_time(problem) * (1.0 + PROVEN_GAP):
        free = standing.free
        known = {UNRESTRICTED_BOUND: standing.floor}
    else:
        start = None if warm_start is None or on_progress is None else nearest(problem, warm_start, "")
        tell = _told_of_bound(on_progress, None if start is None else start.objective, began)
        unruled = problem.replace(uniform_recompute=())
        told_by_counts = one_by_one and counts_tell(problem.replace(uniform_recompute=problem.uniform_recompute[:1]))
        own = options.params.solving
        share = own.counted_share if told_by_counts else own.first_share
        free = run(unruled, within(share).replace(memory=memory), warm_start=warm_start, on_progress=tell)
        closed = 0.0
        while (
            free.termination is Termination.TIME_LIMIT
            and not told_by_counts
            and _proves_soon(problem, free, memory.tree, closed)
        ):
            closed = free.bound or 0.0
            again = within(own.first_share).replace(memory=memory)
            free = run(unruled, again, warm_start=free.plan, on_progress=tell)
        known = {UNRESTRICTED_BOUND: free.bound or 0.0}
    floor = free.bound or 0.0
    if free.objective is not None:
        known[UNRESTRICTED_OBJECTIVE] = free.objective
    proven = free.status == OPTIMAL and free.plan is not None and uniform_choice(problem, free.plan) is not None
    if free.status == INFEASIBLE or proven:
        return free.replace(statistics={**free.statistics, **known})
    interrupted = free.termination is Termination.INTERRUPTED
    if not one_by_one and not interrupted:
        found = run(problem, to_the_end(), warm_start=warm_start, on_progress=on_progress)
        bound = None if found.bound is None else max(found.bound, floor)
        return found.replace(bound=bound, statistics={**found.statistics, **known})

    best = None if free.plan is None else nearest(problem, free.plan, free.solver)
    if warm_start is not None and uniform_choice(problem, warm_start) is not None:
        best = better_of_two(best, judged(problem, warm_start, free.solver))
    if free.status == CUT_OFF:
        # A bound of all plans is a bound of these.
        found = best or Solution(CUT_OFF, solver=free.solver)
        return found.replace(bound=floor, seconds=time.monotonic() - began, statistics=known).ended_by(
            Termination.CUT_OFF
        )
    choices = memory.cases = standing or Choices(problem, run, memory, options, timed=deadline is not None)
    choices.begin(options, began, deadline, on_progress, free, best)
    if interrupted:
        choices.stopped = Termination.INTERRUPTED
    choices.solve()
    best, stopped, bound = choices.best, choices.stopped, choices.bound()
    seconds = time.monotonic() - began
    if best is None or best.objective is None:
        none = Solution(INFEASIBLE, Termination.INFEASIBLE, solver=free.solver, seconds=seconds, statistics=known)
        if stopped is None and bound == float("inf"):
            return none
        # Choices that cannot beat the cutoff may have plans all the same.
        return none.replace(bound=floor if stopped else bound).ended_by(stopped or Termination.CUT_OFF)
    if known:  # Both problems have the same plans.
        known[UNRESTRICTED_OBJECTIVE] = min(known.get(UNRESTRICTED_OBJECTIVE, float("inf")), best.objective)
    bound = min(bound, best.objective)
    told = {_of_one_choice(name, problem): value for name, value in best.statistics.items()}
    whole = best.replace(bound=bound, seconds=seconds, statistics={**told, **known})
    optimal = proven_within(best.objective, bound, options.gap)
    if not optimal and stopped is None and options.cutoff is not None and bound >= options.cutoff():
        stopped = Termination.CUT_OFF
    interrupted = stopped is Termination.INTERRUPTED
    return whole.closed(interrupted=interrupted) if optimal else whole.ended_by(stopped or Termination.STALLED)


def _proves_soon(problem: PipelineProblem, free: Solution, tree: StoppedTree | None, before: float) -> bool:
    """Return whether the problem without the rule is worth more time.

    It is where its plan obeys the rule, and its stopped tree, whose end proves all, has closed so much since `before`
    that it would not be abandoned as slow. Under that plan's choice much the same tree would start from nothing.
    """
    if tree is None or free.plan is None or not tree.closing_well(before):
        return False
    return kept_choice(problem, free.plan) is not None


def _of_one_choice(statistic: str, problem: PipelineProblem) -> str:
    """The name of a statistic of the best choice: its cuts are not valid for the others."""
    return RANGED_ROUNDS if statistic == MILP_ROUNDS and len(distinct_choices(problem)) > 1 else statistic


def _told_of_bound(on_progress: OnProgress | None, known: float | None, began: float) -> OnProgress | None:
    """Pass on bounds proven without the rule, which are valid with it; a plan found there may break the rule.

    Parameters
    ----------
    known : float or None
        Step time of a plan that keeps the rule.
    began : float
        `time.monotonic()` at the beginning of the whole.
    """
    if on_progress is None:
        return None
    return lambda progress: on_progress(replace(progress, objective=known, seconds=time.monotonic() - began))
