"""Kinds that lie together on one of several chunks (MTP, …): one subproblem for each of their places.

Places are few. With its place fixed, such a kind is a constant of its stage, so every solver gets a problem of its
usual form. The places are solved one after the other, each against the best plan so far.
"""

from __future__ import annotations

import time

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.places import placements, settled
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    NO_SOLUTION,
    Solution,
    Termination,
    proven_within,
)
from taylor.pipeline_solver.model.solver import Solver
from taylor.pipeline_solver.solving.turns import Turns
from taylor.pipeline_solver.tree.tree_memory import TreeMemory


def solve_places(
    problem: PipelineProblem,
    options: SolveOptions,
    *,
    run: Solver,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Solve a problem that leaves the place of some kind open.

    Parameters
    ----------
    run : Solver
        Solves the problem with given places.

    Returns
    -------
    Solution
        `bound` is valid for every place.
    """
    search = _PlaceSearch(problem, options, run, warm_start, on_progress)
    search.begin()
    search.go_on()
    return search.solution()


class _PlaceSearch:
    """The places of a problem's kinds: the lower bound of each, and the best plan of all."""

    def __init__(
        self,
        problem: PipelineProblem,
        options: SolveOptions,
        run: Solver,
        warm_start: PipelinePlan | None,
        on_progress: OnProgress | None,
    ) -> None:
        self.began = time.monotonic()
        self.options, self.run, self.warm_start, self.on_progress = options, run, warm_start, on_progress
        self.deadline = None if options.time_limit is None else self.began + options.time_limit
        self.places = placements(problem)
        if warm_start is not None:  # where the known plan has them first: the others must be better
            known = settled(problem, warm_start)
            self.places.sort(key=lambda one: one.kinds != known.kinds)
        # Recompute choices are subproblems within each place; short time slices would leave them nothing.
        self.resumable = not problem.uniform_recompute
        self.turns: Turns[int] = Turns(self.deadline)
        self.memories = [TreeMemory() for _ in self.places]
        self.proven = [0.0] * len(self.places)
        self.best: Solution | None = None
        self.stopped: Termination | None = None

    @property
    def best_time(self) -> float | None:
        """Step time of the best plan so far."""
        return None if self.best is None else self.best.objective

    def cutoff(self) -> float:
        """The step time that a plan must beat by half of the gap, or a lower cutoff set by others."""
        best, other = self.best_time, self.options.cutoff
        least = float("inf") if best is None else best * (1.0 - self.options.gap / 2)
        return least if other is None else min(least, other())

    def begin(self) -> None:
        """Give every place its first time slice."""
        for at in range(len(self.places)):
            if not self._over():
                # The problem without the rule takes a fraction of a place's time slice; the last places need no more.
                remaining = len(self.places) - at
                slices = remaining if self.resumable else max(self.options.params.solving.least_untried, remaining)
                self._solve(at, self.turns.first(slices, resumable=self.resumable))

    def go_on(self) -> None:
        """Give further time slices until the best plan is proven to the gap."""
        while not (self._over() or self._proven()):
            cutoff = self.cutoff()
            pending = [(bound, at) for at, bound in enumerate(self.proven) if bound < cutoff]
            if not pending:
                return
            at, seconds = self.turns.later(pending, resumable=self.resumable)
            before = self.proven[at]
            self._solve(at, seconds)
            if self.deadline is None and self.proven[at] <= before:
                return

    def solution(self) -> Solution:
        """The best plan, with a bound that is valid for every place."""
        bound, seconds = min(self.proven), time.monotonic() - self.began
        cut_off = self.options.cutoff is not None and bound >= self.options.cutoff()
        best = self.best
        if best is None or best.objective is None:
            if bound == float("inf"):
                return Solution(INFEASIBLE, Termination.INFEASIBLE, seconds=seconds)
            end = self.stopped or (Termination.CUT_OFF if cut_off else Termination.TIME_LIMIT)
            return Solution(NO_SOLUTION, bound=bound or None, seconds=seconds).ended_by(end)
        whole = best.replace(status=FEASIBLE, bound=min(bound, best.objective), seconds=seconds)
        if self._proven():
            return whole.closed(interrupted=self.stopped is Termination.INTERRUPTED)
        if self.stopped is not None or cut_off:
            return whole.ended_by(self.stopped or Termination.CUT_OFF)
        return whole.ended_by(Termination.TIME_LIMIT if self._over() else Termination.STALLED)

    def _solve(self, at: int, seconds: float | None) -> None:
        """Solve with one of the places, for some seconds."""
        starts = None if self.best is None else self.best.plan, self.warm_start
        start = next((plan for plan in starts if _lies_as(self.places[at], plan)), None)
        within = self.options.replace(time_limit=seconds, cutoff=self.cutoff, memory=self.memories[at])
        report = None if self.on_progress is None else self._report
        found = self.run(self.places[at], within, warm_start=start, on_progress=report)
        if found.termination is Termination.INTERRUPTED:
            self.stopped = Termination.INTERRUPTED
        reached = float("inf") if found.status is INFEASIBLE else found.bound or 0.0
        self.proven[at] = max(self.proven[at], reached)
        if found.objective is not None and (self.best_time is None or found.objective < self.best_time):
            self.best = found

    def _report(self, progress: Progress) -> None:
        assert self.on_progress is not None
        objective = min((value for value in (progress.objective, self.best_time) if value is not None), default=None)
        seconds = time.monotonic() - self.began
        self.on_progress(Progress(seconds, objective, min(self.proven) or None, progress.note))

    def _proven(self) -> bool:
        """Return whether the best plan is proven to the gap; places are cut off at half of that gap."""
        return self.best_time is not None and proven_within(self.best_time, min(self.proven), self.options.gap)

    def _over(self) -> bool:
        return self.stopped is not None or (self.deadline is not None and time.monotonic() >= self.deadline)


def _lies_as(problem: PipelineProblem, plan: PipelinePlan | None) -> bool:
    """Return whether a plan has the pinned kinds where a problem with given places has them."""
    return plan is not None and settled(problem, plan).kinds == problem.kinds
