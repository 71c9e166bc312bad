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
from taylor.pipeline_solver.model.uniform_rule import counts_suffice, distinct_choices, kept_choice, uniform_choice
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
    search = _UniformSearch(problem, options, run, one_by_one, warm_start, on_progress)
    known = search.solve_without_rule()
    free = search.free
    proven = free.status == OPTIMAL and free.plan is not None and uniform_choice(problem, free.plan) is not None
    if free.status == INFEASIBLE or proven:
        return free.replace(statistics={**free.statistics, **known})
    if not one_by_one and free.termination is not Termination.INTERRUPTED:
        found = run(problem, search.to_the_end(), warm_start=warm_start, on_progress=on_progress)
        bound = None if found.bound is None else max(found.bound, search.floor)
        return found.replace(bound=bound, statistics={**found.statistics, **known})
    if free.status == CUT_OFF:
        # A bound of all plans is a bound of these.
        found = search.first_plan() or Solution(CUT_OFF, solver=free.solver)
        seconds = time.monotonic() - search.began
        return found.replace(bound=search.floor, seconds=seconds, statistics=known).ended_by(Termination.CUT_OFF)
    return search.solution(search.solve_choices(), known)


class _UniformSearch:
    """The problem without the rule, then its choices.

    Parameters
    ----------
    free : Solution
        Of the problem without the rule.
    """

    def __init__(
        self,
        problem: PipelineProblem,
        options: SolveOptions,
        run: Solver,
        one_by_one: bool,
        warm_start: PipelinePlan | None,
        on_progress: OnProgress | None,
    ) -> None:
        self.began = time.monotonic()
        self.deadline = None if options.time_limit is None else self.began + options.time_limit
        self.problem, self.options, self.run, self.one_by_one = problem, options, run, one_by_one
        self.warm_start, self.on_progress = warm_start, on_progress
        self.memory = options.memory if isinstance(options.memory, TreeMemory) else TreeMemory()
        self.standing = self.memory.cases if isinstance(self.memory.cases, Choices) else None
        self.free = Solution(NO_SOLUTION)

    @property
    def floor(self) -> float:
        """Lower bound without the rule."""
        return self.free.bound or 0.0

    def within(self, share: float) -> SolveOptions:
        """The options with a fraction of the remaining time as `turns` counts it."""
        if self.options.time_limit is None:
            return self.options
        gone = time.monotonic() - self.began
        return self.options.replace(time_limit=max(0.01, share * (foreseen(self.options.time_limit, gone) - gone)))

    def to_the_end(self) -> SolveOptions:
        """The options with all the remaining time."""
        if self.deadline is None:
            return self.options
        return self.options.replace(time_limit=max(0.01, self.deadline - time.monotonic()))

    def solve_without_rule(self) -> dict[str, float]:
        """Solve the problem without the rule, unless an earlier solve has; return the statistics of its results."""
        problem, standing = self.problem, self.standing
        if problem.choices:
            # By layer the choices are far more than one after the other, and bound these loosely.
            return {}
        if standing is not None and standing.floor > least_step_time(problem) * (1.0 + PROVEN_GAP):
            self.free = standing.free
            known = {UNRESTRICTED_BOUND: standing.floor}
        else:
            self._solve_free()
            known = {UNRESTRICTED_BOUND: self.floor}
        if self.free.objective is not None:
            known[UNRESTRICTED_OBJECTIVE] = self.free.objective
        return known

    def _solve_free(self) -> None:
        """Solve the problem without the rule, again as long as its tree closes well."""
        problem, warm_start, on_progress = self.problem, self.warm_start, self.on_progress
        start = None if warm_start is None or on_progress is None else nearest(problem, warm_start, "")
        report = _bounds_alone(on_progress, None if start is None else start.objective, self.began)
        unruled = problem.replace(uniform_recompute=())
        counted = self.one_by_one and counts_suffice(problem.replace(uniform_recompute=problem.uniform_recompute[:1]))
        params = self.options.params.solving
        first = self.within(params.counted_share if counted else params.first_share).replace(memory=self.memory)
        self.free = self.run(unruled, first, warm_start=warm_start, on_progress=report)
        closed = 0.0
        while (
            self.free.termination is Termination.TIME_LIMIT
            and not counted
            and _proves_soon(problem, self.free, self.memory.tree, closed)
        ):
            closed = self.floor
            again = self.within(params.first_share).replace(memory=self.memory)
            self.free = self.run(unruled, again, warm_start=self.free.plan, on_progress=report)

    def first_plan(self) -> Solution | None:
        """The better one of the plan without the rule, changed to keep it, and of the known plan that does."""
        problem, free = self.problem, self.free
        best = None if free.plan is None else nearest(problem, free.plan, free.solver)
        if self.warm_start is not None and uniform_choice(problem, self.warm_start) is not None:
            best = better_of_two(best, judged(problem, self.warm_start, free.solver))
        return best

    def solve_choices(self) -> Choices:
        """Solve one choice after the other."""
        timed = self.deadline is not None
        choices = self.standing or Choices(self.problem, self.run, self.memory, self.options, timed=timed)
        self.memory.cases = choices
        choices.begin(self.options, self.began, self.deadline, self.on_progress, self.free, self.first_plan())
        if self.free.termination is Termination.INTERRUPTED:
            choices.stopped = Termination.INTERRUPTED
        choices.solve()
        return choices

    def solution(self, choices: Choices, known: dict[str, float]) -> Solution:
        """The best plan of all choices, with a bound that is valid for each."""
        best, stopped, bound = choices.best, choices.stopped, choices.bound()
        seconds, options = time.monotonic() - self.began, self.options
        if best is None or best.objective is None:
            none = Solution(INFEASIBLE, Termination.INFEASIBLE, solver=self.free.solver, seconds=seconds)
            none = none.replace(statistics=known)
            if stopped is None and bound == float("inf"):
                return none
            # Choices that cannot beat the cutoff may have plans all the same.
            return none.replace(bound=self.floor if stopped else bound).ended_by(stopped or Termination.CUT_OFF)
        if known:  # Both problems have the same plans.
            known[UNRESTRICTED_OBJECTIVE] = min(known.get(UNRESTRICTED_OBJECTIVE, float("inf")), best.objective)
        bound = min(bound, best.objective)
        statistics = {_of_one_choice(name, self.problem): value for name, value in best.statistics.items()}
        whole = best.replace(bound=bound, seconds=seconds, statistics={**statistics, **known})
        if proven_within(best.objective, bound, options.gap):
            return whole.closed(interrupted=stopped is Termination.INTERRUPTED)
        if stopped is None and options.cutoff is not None and bound >= options.cutoff():
            stopped = Termination.CUT_OFF
        return whole.ended_by(stopped or Termination.STALLED)


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


def _bounds_alone(on_progress: OnProgress | None, known: float | None, began: float) -> OnProgress | None:
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
