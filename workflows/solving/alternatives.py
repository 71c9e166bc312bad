"""Solves every choice of virtual stages and schedule that a framework can run; stops choices that cannot win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError
from taylor.base.interrupts import presses
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import AUTO, PLAIN, ScheduleSpec
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import CUT_OFF, INFEASIBLE, Solution, Termination
from taylor.workflows.showing.alternative import Alternative, choice_name

MOST_INTERLEAVES = 4
"""Most virtual stages tried: with more, warm-up memory and transfers outweigh the smaller bubble in practice."""

IMPOSSIBLE = "impossible"

SolveOne = Callable[[PipelineProblem, float, Callable[[Progress], None], str], Solution]
"""Solves a choice's problem, given the step time to beat (infinite for none), the reporter, and its name."""


def choices(
    config: TrainingConfig, interleaves: int | str, schedule: ScheduleSpec | str | None
) -> list[tuple[int, ScheduleSpec]]:
    """Virtual stages and schedules to try: given values stay, ``auto`` varies as the framework allows. With None the
    schedule is the framework's for each number of virtual stages.
    """
    most = sum(config.model.layer_counts().values()) // config.strategy.pp
    counts = range(1, min(MOST_INTERLEAVES, most) + 1) if interleaves == AUTO else [int(interleaves)]
    framework = config.rules.framework
    stages, micro_batches = config.strategy.pp, config.strategy.micro_batches
    found: list[tuple[int, ScheduleSpec]] = []
    for vpp in counts:
        if schedule != AUTO:
            asked = schedule if isinstance(schedule, ScheduleSpec) else config.schedule.renamed(PLAIN)
            found.append((vpp, asked.for_interleaves(vpp, framework)))
            continue
        for spec in map(config.schedule.renamed, framework.schedules):
            # The environment chooses the interleaved order: no file can state it.
            if spec.traits.offered_with(vpp) and micro_batches >= config.rules.least_micro_batches(spec, stages):
                found.append((vpp, spec))
    return found


def solve_alternatives(
    state: Callable[[int, ScheduleSpec], PipelineProblem],
    options: Sequence[tuple[int, ScheduleSpec]],
    solve: SolveOne,
    on_progress: Callable[[Progress], None],
) -> tuple[PipelineProblem, Solution, tuple[Alternative, ...]]:
    """Solve every choice; stop one as soon as its bound passes the best plan so far.

    Parameters
    ----------
    state : callable
        Problem of a choice; its memory may depend on the schedule.
    options : sequence of (vpp, schedule)
        The choices.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no choice has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before any choice had a plan.
    """
    best: tuple[PipelineProblem, Solution] | None = None
    outcomes: list[Alternative] = []
    interrupted = False
    pressed = presses()
    for interleaves, schedule in options:
        if presses() > pressed:  # the exception itself may have been caught earlier
            interrupted = True
            break
        name = choice_name(interleaves, schedule)

        def watch(progress: Progress, name: str = name) -> None:
            on_progress(replace(progress, note=f"{name} {progress.note}".rstrip()))

        to_beat = math.inf if best is None or best[1].objective is None else best[1].objective
        try:
            candidate = state(interleaves, schedule)
            build_schedule(schedule, candidate.stages, interleaves, candidate.micro_batches)
            solution = solve(candidate, to_beat, watch, name)
        except ValueError as error:
            outcomes.append(Alternative(interleaves, schedule, IMPOSSIBLE, note=str(error)))
            continue
        except KeyboardInterrupt:  # between two solves, which handle it themselves
            interrupted = True
            break
        better = solution.objective is not None and solution.objective < to_beat and solution.status != CUT_OFF
        outcomes.append(
            Alternative(
                interleaves,
                schedule,
                str(solution.status),
                None if solution.status == CUT_OFF else solution.objective,
                solution.bound,
                solution.seconds,
                solution.message,
            )
        )
        log.debug("%s: %s", name, outcomes[-1].outcome)
        if better:
            best = candidate, solution
        if solution.termination is Termination.INTERRUPTED:
            interrupted = True
            break
    if best is None:
        reasons = "; ".join(f"{one.name}: {one.note or one.status}" for one in outcomes)
        proven = all(one.status in (INFEASIBLE, IMPOSSIBLE) for one in outcomes)
        if interrupted:
            raise InterruptedSolve(f"interrupted before a plan was found{reasons and f': {reasons}'}")
        raise (InfeasibleError if proven else NoSolutionError)(f"no choice of schedule has a plan: {reasons}")
    # A proof for one choice says nothing of those that Ctrl-C left untried.
    found = best[1].ended_by(Termination.INTERRUPTED) if interrupted else best[1]
    return best[0], found, tuple(outcomes)
