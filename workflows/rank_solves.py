"""Solves the candidates of a ranking: a look at each, then the proof of those that may be among the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from taylor.base.console import progress
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.solution import CUT_OFF, Solution, Termination
from taylor.pipeline_solver.solve import solve
from taylor.workflows.kept_solves import SolveStore
from taylor.workflows.process_pool import Failed, SharedNumbers, run_in_processes

ROOM = 1e-6
"""How much later than the step time to beat, as a share, a solve is cut off: so a plan that equals it is found."""


def nothing_to_beat() -> float:
    """The step time to beat of a solve that is only to look: any bound is enough."""
    return 0.0


@dataclass
class RankSolves:
    """The solves of a ranking.

    Every candidate is looked at first: a good plan and a first bound take a fraction of a second, where a proof may
    take minutes. Then they are solved, the best plan first. One of which it is proven that it is not among the best
    `prove` ends there, with its plan and its bound: a step time falls as others are found, and running solves hear
    of it.

    Parameters
    ----------
    problems : mapping of int to PipelineProblem
        The candidates to solve, by number.
    rivals : mapping of int to hashable
        Which of them compete: those of one job. A problem without a real time has no rival.
    prove : int or None
        How many of each job's best are solved to their end; None: all candidates.
    on_found : callable
        Given a candidate's number and its solution, or why it failed: after the look, and again with the last word.
    """

    problems: Mapping[int, PipelineProblem]
    rivals: Mapping[int, Hashable]
    prove: int | None
    how: SolveOptions
    store: SolveStore
    on_found: Callable[[int, Solution | Failed], None]
    reached: dict[int, Solution] = field(default_factory=dict)
    steps_ms: dict[int, float] = field(default_factory=dict)

    def run(self, workers: int, executor: Executor | None) -> None:
        """Solve them all, a process each.

        Raises
        ------
        KeyboardInterrupt
            After every process was ended; what was found by then was told.
        """
        waiting = [number for number in self.problems if not self._found_again(number)]
        numbers = SharedNumbers(1 + max(self.problems, default=0))
        if self.prove is not None and len(self.problems) > self.prove:
            unseen = [number for number in waiting if number not in self.reached]
            with progress("looking", len(unseen)) as advance:
                looks = {number: partial(self._look_task, number) for number in unseen}
                run_in_processes(looks, workers, partial(self._looked, advance), executor)
            waiting = [number for number in waiting if number in self.reached]
            waiting.sort(key=lambda number: (self.steps_ms.get(number, math.inf), number))
        else:
            # All are proven: the hardest (most stages) first, so that no long solve is left alone at the end.
            waiting.sort(key=lambda number: -self.problems[number].stages * self.problems[number].micro_batches)
        with progress("solving", len(waiting)) as advance:
            solves = {number: partial(self._solve_task, numbers, advance, number) for number in waiting}
            run_in_processes(solves, workers, partial(self._solved, numbers, advance), executor, numbers)

    def note_step(self, number: int, objective: float | None) -> None:
        """Take a step time that a candidate is known to reach, in body-layer forwards."""
        unit = self.problems[number].unit_ms
        if objective is not None and unit is not None:
            self.steps_ms[number] = min(objective * unit, self.steps_ms.get(number, math.inf))

    def _to_beat(self, number: int) -> float:
        """The step time, in body-layer forwards, with which a candidate is just among the best of its job."""
        unit = self.problems[number].unit_ms
        rivals = [step for other, step in self.steps_ms.items() if self.rivals[other] == self.rivals[number]]
        if self.prove is None or unit is None or len(rivals) < self.prove:
            return math.inf
        return sorted(rivals)[self.prove - 1] / unit * (1.0 + ROOM)

    def _found_again(self, number: int) -> bool:
        """Whether an earlier run has solved a candidate to its end; what it has else is as good as a look."""
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

    def _look_task(self, number: int) -> Callable[[], Solution]:
        return partial(solve_one, self.problems[number], self.how.replace(cutoff=nothing_to_beat), None)

    def _looked(self, advance: Callable[[int, str], None], number: int, found: Solution | Failed) -> None:
        advance(1, "")
        if isinstance(found, Failed):
            self.on_found(number, found)
            return
        self.store.keep(self.problems[number], self.how, found)
        self._note(number, found)

    def _note(self, number: int, found: Solution) -> None:
        """Take what a look has found; unless it is the last word, it stands as a solve that was broken off."""
        self.reached[number] = found
        self.note_step(number, found.objective)
        self.on_found(number, found.ended_by(Termination.INTERRUPTED) if found.status is CUT_OFF else found)

    def _solve_task(
        self, numbers: SharedNumbers, advance: Callable[[int, str], None], number: int
    ) -> Callable[[], Solution] | None:
        """The solve of a candidate, unless what is known of it is enough by now."""
        looked = self.reached.get(number)
        to_beat = self._to_beat(number)
        if looked is not None and (looked.status is not CUT_OFF or (looked.bound or 0.0) >= to_beat):
            self.on_found(number, looked)
            advance(1, str(looked.status))
            return None
        numbers[number] = to_beat
        how = self.how if self.prove is None else self.how.replace(cutoff=numbers.reader(number))
        return partial(solve_one, self.problems[number], how, None if looked is None else looked.plan)

    def _solved(
        self, numbers: SharedNumbers, advance: Callable[[int, str], None], number: int, found: Solution | Failed
    ) -> None:
        if isinstance(found, Failed):
            self.on_found(number, found)
            advance(1, "failed")
            return
        self.note_step(number, found.objective)
        for other in self.problems:
            numbers[other] = self._to_beat(other)
        self.store.keep(self.problems[number], self.how, found)
        self.on_found(number, found)
        advance(1, str(found.status))


def solve_one(problem: PipelineProblem, how: SolveOptions, start: PipelinePlan | None) -> Solution:
    """Solve one problem, here or in another process."""
    return solve(problem, how, warm_start=start)
