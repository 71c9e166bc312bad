"""Solves a job in several variants of its file, of which one is run; stops those that cannot win."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError
from taylor.cost_model.profile import MemoryProfile
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import CUT_OFF, FEASIBLE, INFEASIBLE, Solution, Termination, proven_within
from taylor.pipeline_solver.solving.turns import Turns
from taylor.pipeline_solver.timing.durations import graph_of
from taylor.workflows.running.kept_solves import SolveStore, solve_or_find
from taylor.workflows.showing.alternative import Alternative
from taylor.workflows.statement.stated_file import StatedFile


@dataclass(frozen=True)
class Variant:
    """One way to run a job: the file stated so, its memory, and its name in messages."""

    file: StatedFile
    memory: MemoryProfile
    name: str


def best_variant(
    variants: Sequence[Variant], how: SolveOptions, on_progress: OnProgress | None, store: SolveStore | None
) -> tuple[Variant, PipelineProblem, Solution, tuple[Alternative, ...]]:
    """Best plan over all variants, whose step times are in one unit.

    The work that its stages can divide bounds every variant, and the one of the least bound is solved first; the best
    plan so far cuts off the others. The proof covers all variants.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no variant has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    problems = [one.file.problem(one.memory) for one in variants]
    bounds = []
    for problem in problems:
        bounds.append(WorkLimits(problem, graph_of(problem)).bound())
    until = None if how.time_limit is None else time.monotonic() + how.time_limit
    best: tuple[int, Solution] | None = None
    tried: dict[int, Alternative] = {}
    interrupted = False
    turns: Turns[int] = Turns(until)

    def to_beat() -> float:
        return math.inf if best is None or best[1].objective is None else best[1].objective

    def attempt(number: int, seconds: float | None) -> None:
        nonlocal best, interrupted
        name, problem, known = variants[number].name, problems[number], to_beat()

        def watch(progress: Progress) -> None:
            if on_progress is not None:
                on_progress(replace(progress, note=f"{name} {progress.note}".rstrip()))

        within, start = how.replace(time_limit=seconds), variants[number].file.known_plan(problem)
        if best is not None and best[0] == number:
            start = best[1].plan
        elif known < math.inf:
            within = within.replace(cutoff=partial(float, known))
        solution = solve_or_find(problem, within, watch, store, name, start)
        interrupted = solution.termination is Termination.INTERRUPTED
        lost = solution.status == CUT_OFF
        bounds[number] = max(bounds[number], solution.bound or 0.0, math.inf if solution.status == INFEASIBLE else 0.0)
        if lost:
            bounds[number] = max(bounds[number], known)
        objective = None if lost else solution.objective
        before = tried.get(number)
        spent = solution.seconds + (0.0 if before is None else before.seconds)
        tried[number] = Alternative(
            problem.interleaves, problem.schedule, str(solution.status), objective, solution.bound, spent,
            solution.message, name,
        )  # fmt: skip
        log.debug("%s: %s", name, tried[number].outcome)
        if objective is not None and (objective < known or (best is not None and best[0] == number)):
            best = number, solution

    def over() -> bool:
        return interrupted or (until is not None and time.monotonic() >= until)

    order = sorted(range(len(variants)), key=lambda each: (bounds[each], each))
    for turn, number in enumerate(order):
        if not interrupted:
            attempt(number, turns.first(len(order) - turn, resumable=False))
    while until is not None and not over():
        # The best one's bound may be open as well: that of all is no better.
        pending = [(bound, number) for number, bound in enumerate(bounds) if bound < to_beat() * (1.0 - how.gap)]
        if not pending:
            break
        attempt(*turns.later(pending, resumable=False))
    if best is None:
        reasons = "; ".join(f"{one.name}: {one.note or one.status}" for one in tried.values())
        path = variants[0].file.config.path
        if interrupted:
            raise InterruptedSolve(f"{path}: interrupted before a plan was found: {reasons}")
        kind = InfeasibleError if all(one.status == INFEASIBLE for one in tried.values()) else NoSolutionError
        raise kind(f"{path}: no variant of the job has a plan: {reasons}")
    number, solution = best
    solution = _proven_of_all(solution, min(bounds), how.gap)
    if interrupted:
        solution = solution.ended_by(Termination.INTERRUPTED)
    return variants[number], problems[number], solution, tuple(tried.values())


def _proven_of_all(solution: Solution, bound: float, gap: float) -> Solution:
    """Solution of the best variant with the bound of all."""
    if solution.bound is None or solution.objective is None or bound >= solution.bound:
        return solution
    weaker = solution.replace(bound=bound)
    if proven_within(solution.objective, bound, gap):
        return weaker
    return weaker.replace(status=FEASIBLE, termination=Termination.TIME_LIMIT)
