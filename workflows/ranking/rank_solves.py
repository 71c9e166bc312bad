"""Solves the candidates of a ranking: each quickly, then to a proof those that may be among the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from taylor.base.console import progress
from taylor.base.interrupts import delay_interrupts
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import CUT_OFF, OVER_LIMIT, Solution, Termination
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.running.far_solve import FarSolve, SharedFolder
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.running.process_pool import Failed, FarExecutor, SharedNumbers, run_in_processes

CUTOFF_MARGIN = 1e-6
"""Relative excess over the step time to beat at which a solve is cut off: so a plan that equals it is found."""


def nothing_to_beat() -> float:
    """Step time to beat of a quick solve: any bound is enough."""
    return 0.0


@dataclass
class RankSolves:
    """Solves of a ranking.

    Every candidate gets a quick solve first: a good plan and a first bound take a fraction of a second, a proof may
    take minutes. Then they are solved, the best plan first. One that is proven not to be among the best `prove` ends
    there, with its plan and its bound. The step time to beat falls as others are found, and running solves receive it.

    Parameters
    ----------
    problems : mapping of int to PipelineProblem
        Candidates to solve, by number.
    rivals : mapping of int to hashable
        Groups that compete: candidates of one job. A problem without a real time has no rival.
    prove : int or None
        Number of each job's best that are solved to their end; None: all candidates.
    on_found : callable
        Called with a candidate's number and its solution or failure: after the quick solve, and again at the end.
    own : mapping of int to Solution
        Plans in the candidates' files: the written plan is never worse than one of them that fits.
    """

    problems: Mapping[int, PipelineProblem]
    rivals: Mapping[int, Hashable]
    prove: int | None
    how: SolveOptions
    store: SolveStore
    on_found: Callable[[int, Solution | Failed], None]
    own: Mapping[int, Solution]
    reached: dict[int, Solution] = field(default_factory=dict)
    steps_ms: dict[int, float] = field(default_factory=dict)
    _best: dict[Hashable, dict[int, float]] = field(default_factory=dict)
    _place: SharedFolder | None = None

    def run(self, workers: int, executor: Executor | None) -> None:
        """Solve them all, a process each.

        Raises
        ------
        KeyboardInterrupt
            After every process was ended; all results found by then were reported.
        """
        if isinstance(executor, FarExecutor):
            self._place = SharedFolder.marked(self.store.output)
        waiting = [number for number in self.problems if not self._found_again(number)]
        jobs = {job: index for index, job in enumerate(dict.fromkeys(self.rivals[number] for number in self.problems))}
        numbers = SharedNumbers(1 + len(jobs))
        if self.prove is not None and len(self.problems) > self.prove:
            unseen = [number for number in waiting if number not in self.reached]
            with progress("looking", len(unseen)) as advance:
                looks = {number: partial(self._look_task, number) for number in unseen}
                run_in_processes(looks, workers, partial(self._looked, advance), executor)
            waiting = [number for number in waiting if number in self.reached]
            waiting.sort(key=lambda number: (self.steps_ms.get(number, math.inf), number))
        else:
            # All are proven: the hardest (most stages) first, so that no long solve remains alone at the end.
            waiting.sort(key=lambda number: -self.problems[number].stages * self.problems[number].micro_batches)
        steps = _SharedSteps(numbers, jobs)
        with progress("solving", len(waiting)) as advance:
            solves = {number: partial(self._solve_task, steps, advance, number) for number in waiting}
            run_in_processes(solves, workers, partial(self._solved, steps, advance), executor, numbers)

    def note_step(self, number: int, objective: float | None) -> None:
        """Record a step time that a candidate is known to reach, in body-layer forwards."""
        unit = self.problems[number].unit_ms
        if objective is None or unit is None:
            return
        step = min(objective * unit, self.steps_ms.get(number, math.inf))
        self.steps_ms[number] = step
        if self.prove is not None:
            best = self._best.setdefault(self.rivals[number], {})
            best[number] = step
            if len(best) > self.prove:
                del best[max(best, key=best.__getitem__)]

    def _to_beat_ms(self, job: Hashable) -> float:
        """Step time, ms, with which a candidate is just among the best of its job."""
        best = self._best.get(job, {})
        return math.inf if self.prove is None or len(best) < self.prove else max(best.values()) * (1.0 + CUTOFF_MARGIN)

    def _to_beat(self, number: int) -> float:
        """The same in body-layer forwards of a candidate."""
        unit = self.problems[number].unit_ms
        # Multiplied as a running solve does (`_solve_task`), so that a bound cut off here is not below it by a digit.
        return math.inf if unit is None else self._to_beat_ms(self.rivals[number]) * (1.0 / unit)

    def _found_again(self, number: int) -> bool:
        """Return whether an earlier run has solved a candidate to its end; its other results count as a quick solve."""
        problem = self.problems[number]
        kept = self.store.find(problem, self.how)
        if kept is None and self.prove is not None:
            looked = self.store.find(problem, self.how.replace(cutoff=nothing_to_beat))
            if looked is not None:
                self._note(number, looked.solution)
            return False
        if kept is None:
            return False
        self.note_step(number, kept.solution.objective)
        self.on_found(number, kept.solution)
        return True

    def _task(self, number: int, how: SolveOptions, start: PipelinePlan | None) -> Callable[[], Solution]:
        if self._place is None:
            return partial(solve_one, self.problems[number], how, start)
        return FarSolve(self.problems[number], how, start, self._place)

    def _look_task(self, number: int) -> Callable[[], Solution]:
        return self._task(number, self.how.replace(cutoff=nothing_to_beat), self._start(number))

    def _start(self, number: int) -> PipelinePlan | None:
        """Best known plan of a candidate: the plan in its file, where that fits, or the quick solve's."""
        known = [self.reached.get(number), self.own.get(number)]
        fitting = [
            (each.objective, each.plan)
            for each in known
            if each is not None and each.plan is not None and each.objective is not None and each.status != OVER_LIMIT
        ]
        return min(fitting, key=lambda one: one[0], default=(0.0, None))[1]

    def _looked(self, advance: Callable[[int, str], None], number: int, found: Solution | Failed) -> None:
        advance(1, "")
        if isinstance(found, Failed):
            self.on_found(number, found)
            return
        with delay_interrupts():  # a table after Ctrl-C has the store's content
            self._note(number, found)
            self.store.keep(self.problems[number], self.how, found)

    def _note(self, number: int, found: Solution) -> None:
        """Record a quick solve's result; unless it is final, it counts as an interrupted solve."""
        self.reached[number] = found
        self.note_step(number, found.objective)
        self.on_found(number, found.ended_by(Termination.INTERRUPTED) if found.status is CUT_OFF else found)

    def _solve_task(
        self, steps: _SharedSteps, advance: Callable[[int, str], None], number: int
    ) -> Callable[[], Solution] | None:
        """Solve of a candidate, unless the known result suffices by now."""
        looked = self.reached.get(number)
        if looked is not None and (looked.status is not CUT_OFF or (looked.bound or 0.0) >= self._to_beat(number)):
            self.on_found(number, looked)
            advance(1, self._so_far(number))
            return None
        steps.numbers[steps.jobs[self.rivals[number]]] = self._to_beat_ms(self.rivals[number])
        how, unit = self.how, self.problems[number].unit_ms
        if self.prove is not None and unit is not None:
            how = how.replace(cutoff=steps.numbers.reader(steps.jobs[self.rivals[number]], 1.0 / unit))
        return self._task(number, how, self._start(number))

    def _solved(
        self, steps: _SharedSteps, advance: Callable[[int, str], None], number: int, found: Solution | Failed
    ) -> None:
        if isinstance(found, Failed):
            self.on_found(number, found)
            advance(1, "failed")
            return
        self.note_step(number, found.objective)
        steps.numbers[steps.jobs[self.rivals[number]]] = self._to_beat_ms(self.rivals[number])
        with delay_interrupts():  # a table after Ctrl-C has the store's content
            self.store.keep(self.problems[number], self.how, found)
            self.on_found(number, found)
        advance(1, self._so_far(number))

    def _so_far(self, number: int) -> str:
        """Best step of a candidate's job, for whoever watches."""
        best = min(self._best.get(self.rivals[number], {}).values(), default=None)
        return "" if best is None else f"best so far {best:,.1f} ms a step"


@dataclass(frozen=True)
class _SharedSteps:
    """Numbers for running solves: the step time to beat, ms, at the index of each job."""

    numbers: SharedNumbers
    jobs: Mapping[Hashable, int]


def solve_one(problem: PipelineProblem, how: SolveOptions, start: PipelinePlan | None) -> Solution:
    """Solve one problem, here or in another process."""
    return solve(problem, how, warm_start=start)
