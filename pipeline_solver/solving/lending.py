"""Activations that stages keep on the devices of others: what each lender reserves, by branch and bound.

A stage lends away at most what its lender reserves, and the lender has that much less for itself. With the reserved
amounts given, the problem falls apart into stages again, the form that every solver takes. Here they are bounded by a
box. A subproblem lets each stage lend up to the upper end and takes only the lower end off its lender, so it bounds all
plans of the box. Where its plan fits both stages it is a plan of the problem. Elsewhere some lender holds too much, and
the box is split between what that plan lends and what its lender has free: neither half allows this plan again. There
are finitely many plans, so the search ends. The plan without any lending comes first: the result is no worse.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.heuristics.lent_plans import lent_plans
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    NO_SOLUTION,
    UNLENT_BOUND,
    UNLENT_OBJECTIVE,
    Solution,
    Termination,
    proven_within,
)
from taylor.pipeline_solver.model.solver import Solver
from taylor.pipeline_solver.timing.evaluate import lent_memory_mib, peak_memory_mib, step_time
from taylor.pipeline_solver.tree.tree_memory import TreeMemory

ALONE = 1 / 3
"""Fraction of the time limit for the problem without lending."""
SLICE = 0.5
"""Fraction of the remaining time for one box."""
LEAST_SECONDS = 0.05
UNFINISHED = (Termination.TIME_LIMIT, Termination.NOT_COMPILED)
"""Ends of a subproblem after which more time helps."""


@dataclass
class _Box:
    """Bounds on what is reserved for each stage, MiB [S], and the lower bound of its plans' step times."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    bound: float = 0.0
    memory: TreeMemory = field(default_factory=TreeMemory)


@dataclass(frozen=True)
class _Split:
    """A stage whose lender holds too much, and an amount between what it lends and what its lender has free, MiB."""

    stage: int
    at: float


def solve_lent(
    problem: PipelineProblem,
    options: SolveOptions,
    *,
    run: Solver,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Solve a problem with `lenders`.

    Parameters
    ----------
    run : Solver
        Solves a problem without lenders, whose stages lend within a limit.

    Returns
    -------
    Solution
        `statistics` has the best step time without lending, and its bound.
    """
    search = _LentSearch(problem, options, run, on_progress)
    if warm_start is not None:
        search.offer(warm_start)
    search.begin()
    search.go_on()
    return search.solution()


def within(problem: PipelineProblem, low: tuple[float, ...], high: tuple[float, ...]) -> PipelineProblem:
    """The problem in which stages lend up to `high` MiB [S], and `low` is reserved for them."""
    limits = list(problem.limit_mib)
    for stage, lender in enumerate(problem.lenders):
        if lender >= 0:
            limits[lender] -= low[stage]
    return problem.replace(lenders=(), limit_mib=tuple(limits), lent_limit_mib=high)


class _LentSearch:
    """The boxes of a problem, the lower bound of each, and the best plan of all."""

    def __init__(
        self, problem: PipelineProblem, options: SolveOptions, run: Solver, on_progress: OnProgress | None
    ) -> None:
        self.began = time.monotonic()
        self.problem, self.options, self.run, self.on_progress = problem, options, run, on_progress
        self.deadline = None if options.time_limit is None else self.began + options.time_limit
        free = [limit - static for limit, static in zip(problem.limit_mib, problem.static_mib, strict=True)]
        most = problem.lent_limit_mib or (float("inf"),) * problem.stages
        high = (0.0 if at < 0 else max(0.0, min(most[s], free[at])) for s, at in enumerate(problem.lenders))
        self.nothing = (0.0,) * problem.stages
        self.open = [_Box(self.nothing, tuple(high))]
        self.closed = float("inf")
        self.best: Solution | None = None
        self.unlent: dict[str, float] = {}
        self.stopped: Termination | None = None

    @property
    def bound(self) -> float:
        """Step time that no plan beats."""
        return min([self.closed, *(box.bound for box in self.open)])

    @property
    def best_time(self) -> float | None:
        """Step time of the best plan so far."""
        return None if self.best is None else self.best.objective

    def cutoff(self) -> float:
        """The step time that a plan must beat by half of the gap, or a lower cutoff set by others."""
        best, other = self.best_time, self.options.cutoff
        least = float("inf") if best is None else best * (1.0 - self.options.gap / 2)
        return least if other is None else min(least, other())

    def offer(self, plan: PipelinePlan) -> None:
        """Take a plan of the problem where it is better."""
        self._take(Solution(FEASIBLE, plan=plan, objective=step_time(self.problem, plan), solver="known plan"))

    def begin(self) -> None:
        """Solve the problem without lending."""
        known = self.best
        found = self._solve(_Box(self.nothing, self.nothing), self._seconds(ALONE))
        alone = [found] if known is None or known.plan is None or self._lends(known.plan) else [found, known]
        times = [one.objective for one in alone if one.objective is not None]
        self.unlent = {UNLENT_OBJECTIVE: min(times)} if times else {}
        if found.bound is not None and found.status is not INFEASIBLE:
            self.unlent[UNLENT_BOUND] = found.bound
        self._take(found)
        if found.plan is not None:
            self._lend_instead(found.plan)

    def _lends(self, plan: PipelinePlan) -> bool:
        return max(lent_memory_mib(self.problem, plan)) > 0

    def _lend_instead(self, known: PipelinePlan) -> None:
        """Take a plan that lends instead of recomputing as much as a known one, where it is better."""
        for plan in lent_plans(self.problem, known):
            if self._over():
                return
            best = self.best_time
            if (best is None or step_time(self.problem, plan) < best) and not check(self.problem, plan):
                self.offer(plan)

    def go_on(self) -> None:
        """Solve and split boxes, the one of the lowest bound first, until the best plan is proven to the gap."""
        while self.open and not (self._over() or self._proven()):
            box = min(self.open, key=lambda one: one.bound)
            if box.bound >= self.cutoff():
                return
            found = self._solve(box, self._seconds(SLICE))
            if self.stopped is not None:
                return
            split = None if found.plan is None else self._split(found.plan, box.low)
            if found.plan is not None and split is None:
                self._take(found)
            if found.plan is not None and split is not None and box.bound < self.cutoff():
                self._divide(box, split)
                self._settle(found.plan)
            elif found.termination not in UNFINISHED:
                self._close(box)

    def solution(self) -> Solution:
        """The best plan, with a bound on every plan of the problem."""
        bound, seconds = self.bound, time.monotonic() - self.began
        cut_off = self.options.cutoff is not None and bound >= self.options.cutoff()
        best = self.best
        if best is None or best.objective is None:
            if bound == float("inf"):
                return Solution(INFEASIBLE, Termination.INFEASIBLE, seconds=seconds)
            end = self.stopped or (Termination.CUT_OFF if cut_off else Termination.TIME_LIMIT)
            return Solution(NO_SOLUTION, bound=bound or None, seconds=seconds).ended_by(end)
        statistics = {**best.statistics, **self.unlent}
        bound = min(bound, best.objective)
        whole = best.replace(status=FEASIBLE, bound=bound, seconds=seconds, statistics=statistics)
        if self._proven():
            return whole.closed(interrupted=self.stopped is Termination.INTERRUPTED)
        if self.stopped is not None or cut_off:
            return whole.ended_by(self.stopped or Termination.CUT_OFF)
        return whole.ended_by(Termination.TIME_LIMIT if self._over() else Termination.STALLED)

    def _solve(self, box: _Box, seconds: float | None) -> Solution:
        """Solve a box's subproblem and raise the box's bound."""
        problem = within(self.problem, box.low, box.high)
        known = None if self.best is None else self.best.plan
        if known is not None and check(problem, known):
            known = None
        options = self.options.replace(time_limit=seconds, cutoff=self.cutoff, memory=box.memory)
        report = None if self.on_progress is None else self._report
        found = self.run(problem, options, warm_start=known, on_progress=report)
        if found.termination is Termination.INTERRUPTED:
            self.stopped = Termination.INTERRUPTED
        box.bound = max(box.bound, float("inf") if found.status is INFEASIBLE else found.bound or 0.0)
        return found

    def _split(self, plan: PipelinePlan, low: tuple[float, ...]) -> _Split | None:
        """Where to split the box of a plan; None where each lender can hold what it is lent."""
        over, lent = self._over_mib(plan), lent_memory_mib(self.problem, plan)
        worst = max(over, key=lambda lender: over[lender], default=None)
        if worst is None:
            return None
        borrowers = (s for s, at in enumerate(self.problem.lenders) if at == worst)
        above, stage = max((lent[s] - low[s], s) for s in borrowers)
        return _Split(stage, lent[stage] - min(over[worst], above) / 2)

    def _over_mib(self, plan: PipelinePlan) -> dict[int, float]:
        """Memory beyond the limits of the lenders that hold too much, MiB."""
        peaks, limits = peak_memory_mib(self.problem, plan), self.problem.limit_mib
        over = {at: peaks[at] - limits[at] - MEMORY_TOLERANCE_MIB for at in self.problem.lenders if at >= 0}
        return {lender: mib for lender, mib in over.items() if mib > 0}

    def _divide(self, box: _Box, split: _Split) -> None:
        """Replace a box by its halves: the stage lends no more than the amount, or as much is reserved for it."""
        s, at = split.stage, split.at
        self.open.remove(box)
        less = max(0.0, at - MEMORY_TOLERANCE_MIB)  # which the subproblem allows again
        self.open.append(_Box(box.low, (*box.high[:s], less, *box.high[s + 1 :]), box.bound))
        self.open.append(_Box((*box.low[:s], at, *box.low[s + 1 :]), box.high, box.bound))

    def _settle(self, plan: PipelinePlan) -> None:
        """Search a plan of the problem near one whose lenders hold too much: half of that is lent no longer, the other
        half is made free."""
        over, lent = self._over_mib(plan), list(lent_memory_mib(self.problem, plan))
        for lender, mib in over.items():
            borrowers = [s for s, at in enumerate(self.problem.lenders) if at == lender]
            all_lent = sum(lent[s] for s in borrowers)
            for s in borrowers:
                lent[s] *= max(0.0, 1.0 - mib / 2 / all_lent)
        low = tuple(lent)
        high = tuple(max(0.0, mib - MEMORY_TOLERANCE_MIB) for mib in low)
        found = self._solve(_Box(low, high), self._seconds(SLICE / 2))
        if found.plan is not None and not self._over_mib(found.plan):
            self._take(found)

    def _take(self, found: Solution) -> None:
        if found.objective is not None and (self.best_time is None or found.objective < self.best_time):
            self.best = found

    def _close(self, box: _Box) -> None:
        self.open.remove(box)
        self.closed = min(self.closed, box.bound)

    def _seconds(self, fraction: float) -> float | None:
        if self.deadline is None:
            return None
        return max(LEAST_SECONDS, fraction * (self.deadline - time.monotonic()))

    def _report(self, progress: Progress) -> None:
        assert self.on_progress is not None
        self.on_progress(Progress(time.monotonic() - self.began, self.best_time, self.bound or None, progress.note))

    def _proven(self) -> bool:
        """Return whether the best plan is proven to the gap; boxes are cut off at half of that gap."""
        return self.best_time is not None and proven_within(self.best_time, self.bound, self.options.gap)

    def _over(self) -> bool:
        return self.stopped is not None or (self.deadline is not None and time.monotonic() >= self.deadline)
