"""A solver that gives written answers under each recompute choice, and a clock that stands until it does.

Two stages with four micro-batches and four alike layers of a forward of 1 and a backward of 2: with two layers a stage
a step takes five times six, and five more for each layer of a stage that is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, NO_SOLUTION, OPTIMAL, Solution, Termination
from taylor.pipeline_solver.solving.uniform_recompute import solve_uniform
from tests.solver_cases import plan_of, small_problem

INFINITE = float("inf")
FREE, OFFLOAD = "free", "offload"
GAP = 0.1

Choice = tuple[str, int]


def even(recomputed: int = 0, mode: str = FULL) -> PipelinePlan:
    """Two layers a stage, so many of them recomputed."""
    return plan_of({"body": [[2, 2]]}, {mode: [[recomputed, recomputed]]})


def uneven(recomputed: int) -> PipelinePlan:
    """Two layers a stage, so many of the first stage's recomputed and none of the second's."""
    return plan_of({"body": [[2, 2]]}, {FULL: [[recomputed, 0]]})


@dataclass(frozen=True)
class Answer:
    """What a solver answers, after some seconds, and the step time that it tells before."""

    solution: Solution
    seconds: float = 0.0
    told: tuple[float | None, float | None] | None = None


def proven(objective: float, plan: PipelinePlan | None = None, **how: Any) -> Answer:
    return Answer(Solution(OPTIMAL, Termination.PROVEN, plan or even(), objective, objective, solver="it"), **how)


def stopped(
    objective: float | None,
    bound: float | None,
    plan: PipelinePlan | None = None,
    end: Termination = Termination.STALLED,
    **how: Any,
) -> Answer:
    known = None if objective is None else plan or even()
    status = NO_SOLUTION if objective is None else FEASIBLE
    return Answer(Solution(status, end, known, objective, bound, solver="it"), **how)


def cut_off(bound: float, **how: Any) -> Answer:
    return Answer(Solution(NO_SOLUTION, bound=bound, solver="it").ended_by(Termination.CUT_OFF), **how)


NONE_FITS = Answer(Solution(INFEASIBLE, Termination.INFEASIBLE, solver="it"))
OUT_OF_TIME = Termination.TIME_LIMIT


class Clock:
    """A clock that stands until an answer takes its seconds."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scripted:
    """A solver that gives written answers for each choice, the last one again and again, and keeps what it is asked.

    `FREE` stands for the problem without the rule, a choice with ``roomy`` for the same with all memory there is, and
    one with ``beyond`` for it and all greater counts.
    """

    def __init__(self, answers: Mapping[Any, Any], clock: Clock | None = None) -> None:
        self.answers = {key: given if isinstance(given, list) else [given] for key, given in answers.items()}
        self.clock = clock
        self.asked: list[Any] = []
        self.problems: list[PipelineProblem] = []
        self.options: list[SolveOptions] = []
        self.cutoffs: list[float] = []
        self.starts: list[PipelinePlan | None] = []

    def __call__(
        self,
        problem: PipelineProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        *,
        warm_start: PipelinePlan | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Solution:
        key: Any = problem.uniform_recompute or FREE
        if len(problem.uniform_recompute) == 1:
            key = problem.uniform_recompute[0]
        if problem.limit_mib[0] > 1e9:
            key = ("roomy", key)
        if len(set(problem.kinds[0].activation_mib.values())) == 1 and ("beyond", key) in self.answers:
            key = ("beyond", key)
        assert len(self.asked) < 60, "asked again and again"
        self.asked.append(key)
        self.problems.append(problem)
        self.options.append(options)
        self.cutoffs.append(INFINITE if options.cutoff is None else options.cutoff())
        self.starts.append(warm_start)
        given = self.answers[key]
        answer: Answer = given[min(self.asked.count(key), len(given)) - 1]
        if self.clock is not None:
            self.clock.now += answer.seconds
        if answer.told is not None and on_progress is not None:
            on_progress(Progress(0.0, answer.told[0], answer.told[1], "found"))
        return answer.solution

    @property
    def limits(self) -> list[float | None]:
        return [options.time_limit for options in self.options]


def counts(*most: int, mode: str = FULL) -> tuple[Choice, ...]:
    return tuple((mode, count) for count in most)


def solved(
    run: Scripted,
    choices: tuple[Choice, ...] = counts(0, 1, 2),
    *,
    limit: float | None = None,
    cutoff: float | None = None,
    one_by_one: bool = True,
    problem: PipelineProblem | None = None,
    **more: Any,
) -> Solution:
    options = SolveOptions(time_limit=limit, gap=GAP, cutoff=None if cutoff is None else lambda: cutoff)
    asked = (problem or small_problem()).replace(uniform_recompute=choices)
    return solve_uniform(asked, options, run=run, one_by_one=one_by_one, **more)
