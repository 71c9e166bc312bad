"""Solves every choice of interleaves and schedule that a framework can run, and stops those that cannot win."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import AUTO, PLAIN, ScheduleSpec
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.progress import Progress
from taylor.pipeline_solver.solution import INFEASIBLE, Solution, Termination

MOST_INTERLEAVES = 4
"""Most interleaves tried: with more, warm-up memory and transfers outweigh the smaller bubble in practice."""

CUT_OFF = "cut off"
IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Alternative:
    """How one choice of interleaves and schedule came out.

    Parameters
    ----------
    status : str
        The solve's own status, ``cut off`` (its bound passed the best plan of another choice) or
        ``impossible`` (the schedule does not exist for these numbers; `note` says why).
    objective, bound : float or None
        In body-layer forward times, comparable between choices.
    """

    interleaves: int
    schedule: ScheduleSpec
    status: str
    objective: float | None = None
    bound: float | None = None
    seconds: float = 0.0
    note: str = ""

    @property
    def name(self) -> str:
        """Schedule and interleaves as a person writes them."""
        switch = f", low memory {'on' if self.schedule.low_memory else 'off'}"
        memory = switch if self.schedule.traits.low_memory_switch else ""
        return f"{self.schedule.name} vpp {self.interleaves}{memory}"

    def to_dict(self) -> dict[str, Any]:
        """The alternative as plain data."""
        return {
            "name": self.name,
            "interleaves": self.interleaves,
            "schedule": self.schedule.name,
            "status": self.status,
            "objective": self.objective,
            "bound": self.bound,
            "note": self.note,
        }

    @property
    def outcome(self) -> str:
        """Status and figure in a few words."""
        if self.objective is not None:
            return f"{self.status}, step {self.objective:.6f}"
        if self.bound is not None:
            return f"{self.status}, bound {self.bound:.6f}"
        return f"{self.status}, {self.note}" if self.note else self.status


class _CutOff(Exception):
    """Raised inside a solve whose bound has passed the best known plan."""


def choices(
    config: TrainingConfig, interleaves: int | str, schedule: ScheduleSpec | str | None
) -> list[tuple[int, ScheduleSpec]]:
    """Interleaves and schedules to try: what is given is kept, what is ``auto`` varies as the
    framework allows. With None the schedule is the framework's own for each number of interleaves."""
    most = sum(config.model.layer_counts().values()) // config.strategy.pp
    counts = range(1, min(MOST_INTERLEAVES, most) + 1) if interleaves == AUTO else [int(interleaves)]
    framework = config.rules.framework
    found: list[tuple[int, ScheduleSpec]] = []
    for vpp in counts:
        if schedule != AUTO:
            asked = schedule if isinstance(schedule, ScheduleSpec) else config.schedule.renamed(PLAIN)
            found.append((vpp, asked.for_interleaves(vpp, framework)))
            continue
        for spec in map(config.schedule.renamed, framework.schedules):
            # Which interleaved order runs is the environment's choice: no file can say it.
            if spec.traits.offered_with(vpp):
                found.append((vpp, spec))
    return found


def solve_alternatives(
    state: Callable[[int, ScheduleSpec], PipelineProblem],
    options: Sequence[tuple[int, ScheduleSpec]],
    solve: Callable[[PipelineProblem, Callable[[Progress], None]], Solution],
    on_progress: Callable[[Progress], None],
) -> tuple[PipelineProblem, Solution, tuple[Alternative, ...]]:
    """Solve every choice, stopping one as soon as its bound passes the best plan so far.

    Parameters
    ----------
    state : callable
        Gives the problem of a choice; its memory may depend on the schedule.
    options : sequence of (interleaves, schedule)
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
    for interleaves, schedule in options:
        began = time.monotonic()
        reached: list[float] = []

        to_beat = float("inf") if best is None else best[1].objective

        def watch(progress: Progress, reached: list[float] = reached, to_beat: float | None = to_beat) -> None:
            on_progress(progress)
            if progress.bound is not None:
                reached.append(progress.bound)
                # HiGHS reports from a thread of its own, where an exception would be lost.
                here = threading.current_thread() is threading.main_thread()
                if here and to_beat is not None and progress.bound > to_beat:
                    raise _CutOff

        try:
            candidate = state(interleaves, schedule)
            build_schedule(schedule, candidate.stages, interleaves, candidate.micro_batches)
            solution = solve(candidate, watch)
        except ValueError as error:
            outcomes.append(Alternative(interleaves, schedule, IMPOSSIBLE, note=str(error)))
            continue
        except _CutOff:
            seconds = time.monotonic() - began
            outcomes.append(Alternative(interleaves, schedule, CUT_OFF, bound=reached[-1], seconds=seconds))
            log.info("%s: cut off, no plan below %.6f", outcomes[-1].name, reached[-1])
            continue
        outcomes.append(
            Alternative(
                interleaves,
                schedule,
                solution.status,
                solution.objective,
                solution.bound,
                solution.seconds,
                solution.message,
            )
        )
        log.info("%s: %s", outcomes[-1].name, outcomes[-1].outcome)
        if solution.objective is not None and (best is None or solution.objective < (best[1].objective or 0.0)):
            best = candidate, solution
        if solution.termination is Termination.INTERRUPTED:
            interrupted = True
            break
    if best is None:
        reasons = "; ".join(f"{one.name}: {one.note or one.status}" for one in outcomes)
        proven = all(one.status in (INFEASIBLE, IMPOSSIBLE) for one in outcomes)
        if interrupted:
            raise InterruptedSolve(f"interrupted before a plan was found: {reasons}")
        raise (InfeasibleError if proven else NoSolutionError)(f"no choice of schedule has a plan: {reasons}")
    # What is proven of one choice says nothing of those that Ctrl-C left untried.
    found = best[1].ended_by(Termination.INTERRUPTED) if interrupted else best[1]
    return best[0], found, tuple(outcomes)
