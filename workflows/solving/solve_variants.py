"""Solves the variants of a job in one loop: the best plan so far cuts off the others, and the bound covers all."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError
from taylor.base.interrupts import presses
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import CUT_OFF, FEASIBLE, INFEASIBLE, Solution, Termination, proven_within
from taylor.pipeline_solver.solving.turns import Turns
from taylor.workflows.running.kept_solves import SolveStore, solve_or_find
from taylor.workflows.showing.alternative import IMPOSSIBLE, Alternative
from taylor.workflows.solving.variants import Variant


@dataclass(frozen=True)
class Best:
    """Best plan over the variants of a job.

    Parameters
    ----------
    solution : Solution
        Its bound is that of all variants.
    alternatives : tuple of Alternative
        Outcome of each variant that was tried.
    """

    variant: Variant
    problem: PipelineProblem
    solution: Solution
    alternatives: tuple[Alternative, ...]


@dataclass
class VariantSolves:
    """Solves of a job's variants, whose step times are in one unit.

    The work that its stages can divide bounds every variant, and the one of the least bound is solved first; the best
    plan so far cuts off the others. Variants that stayed open share the remaining time.

    Parameters
    ----------
    cutoff : float
        Step time that a plan must be shorter than.
    """

    variants: Sequence[Variant]
    how: SolveOptions
    on_progress: OnProgress | None = None
    store: SolveStore | None = None
    cutoff: float = math.inf
    interrupted: bool = False
    problems: dict[int, PipelineProblem] = field(default_factory=dict)
    bounds: dict[int, float] = field(default_factory=dict)
    _tried: dict[int, Alternative] = field(default_factory=dict)
    _best: tuple[int, Solution] | None = None

    def run(self) -> None:
        """Solve until every variant is proven no better than the best plan, or the time is over, or Ctrl-C comes."""
        pressed, how = presses(), self.how
        turns: Turns[int] = Turns(None if how.time_limit is None else time.monotonic() + how.time_limit)
        try:
            for number in range(len(self.variants)):
                self._state(number)
            order = sorted(self.problems, key=lambda each: (self.bounds[each], each))
            for turn, number in enumerate(order):
                self._solve(number, turns.first(len(order) - turn, resumable=False))
                if self.interrupted or presses() > pressed:  # the exception itself may have been caught earlier
                    raise KeyboardInterrupt
            while turns.left() and (pending := self._pending()):
                self._solve(*turns.later(pending, resumable=False))
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def to_beat(self) -> float:
        """Step time that a further plan must be shorter than."""
        best = math.inf if self._best is None or self._best[1].objective is None else self._best[1].objective
        return min(self.cutoff, best)

    @property
    def bound(self) -> float:
        """Lower bound of all variants; those that Ctrl-C left untried have that of their work."""
        return min(self.bounds.values(), default=math.inf)

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """Outcome of each variant that was tried, in the order of the variants."""
        return tuple(self._tried[number] for number in sorted(self._tried))

    @property
    def best(self) -> Best | None:
        """Best plan that was found, with the bound of all; None where there is none below the cutoff."""
        if self._best is None:
            return None
        number, solution = self._best
        solution = proven_of_all(solution, self.bound, self.how.gap)
        if self.interrupted:
            solution = solution.ended_by(Termination.INTERRUPTED)
        return Best(self.variants[number], self.problems[number], solution, self.alternatives)

    def no_plan(self) -> InfeasibleError | NoSolutionError | InterruptedSolve:
        """Error of a job without a plan, with the reason of each variant."""
        tried = self.alternatives
        reasons = "; ".join(f"{one.name}: {one.note or one.status}" for one in tried)
        path = self.variants[0].file.config.path
        if self.interrupted:
            return InterruptedSolve(f"{path}: interrupted before a plan was found{reasons and f': {reasons}'}")
        proven = all(one.status in (INFEASIBLE, IMPOSSIBLE) for one in tried)
        kind = InfeasibleError if proven else NoSolutionError
        return kind(f"{path}: no variant of the job has a plan: {reasons}")

    def _state(self, number: int) -> None:
        """State a variant's problem and bound its work; one that cannot run keeps the reason."""
        variant = self.variants[number]
        try:
            problem = variant.problem()
            self.bounds[number] = least_step_time(problem)
        except ValueError as error:
            self._tried[number] = variant.outcome(IMPOSSIBLE, note=str(error))
            return
        self.problems[number] = problem

    def _solve(self, number: int, seconds: float | None) -> None:
        """Solve a variant in a time slice, and record what is known of it."""
        variant, problem, known = self.variants[number], self.problems[number], self.to_beat
        is_best = self._best is not None and self._best[0] == number

        def watch(progress: Progress) -> None:
            if self.on_progress is not None:
                self.on_progress(replace(progress, note=f"{variant.name} {progress.note}".rstrip()))

        within, start = self.how.replace(time_limit=seconds), variant.file.known_plan(problem)
        if is_best and self._best is not None:
            start = self._best[1].plan
        elif known < math.inf:
            within = within.replace(cutoff=partial(float, known))
        solution = solve_or_find(problem, within, watch, self.store, variant.name, start)
        self.interrupted = solution.termination is Termination.INTERRUPTED
        lost = solution.status == CUT_OFF
        proven = math.inf if solution.status == INFEASIBLE else known if lost else 0.0
        self.bounds[number] = max(self.bounds[number], solution.bound or 0.0, proven)
        objective = None if lost else solution.objective
        spent = solution.seconds + (self._tried[number].seconds if number in self._tried else 0.0)
        self._tried[number] = variant.outcome(
            str(solution.status), objective=objective, bound=solution.bound, seconds=spent, note=solution.message
        )
        log.debug("%s: %s", variant.name, self._tried[number].outcome)
        if objective is not None and (is_best or objective < known):
            self._best = number, solution

    def _pending(self) -> list[tuple[float, int]]:
        """Bounds and numbers of the variants that may beat the best plan; its own bound may be open as well."""
        below = self.to_beat * (1.0 - self.how.gap)
        return [(bound, number) for number, bound in self.bounds.items() if bound < below]


def best_of(
    variants: Sequence[Variant], how: SolveOptions, on_progress: OnProgress | None, store: SolveStore | None
) -> Best:
    """Best plan over all variants; the proof covers all of them.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no variant has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    solves = VariantSolves(variants, how, on_progress, store)
    solves.run()
    if (best := solves.best) is None:
        raise solves.no_plan()
    return best


def proven_of_all(solution: Solution, bound: float, gap: float) -> Solution:
    """Solution of the best variant with the bound of all."""
    if solution.bound is None or solution.objective is None or bound >= solution.bound:
        return solution
    weaker = solution.replace(bound=bound)
    if proven_within(solution.objective, bound, gap):
        return weaker
    return weaker.replace(status=FEASIBLE, termination=Termination.TIME_LIMIT)
