"""Problems in which one recompute choice holds for every chunk alike, as the flags of some launchers ask.

The choice is a small number, so the problem is solved once for each: a choice is cut off as soon as its
proven bound reaches the best plan so far. Before them the problem without the rule is solved: its plan may
keep the rule by itself, its bound holds for every choice, and what it reaches tells what the rule costs.
"""

from __future__ import annotations

import threading
import time

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.progress import OnProgress, Progress
from taylor.pipeline_solver.solution import (
    CUT_OFF,
    FEASIBLE,
    INFEASIBLE,
    NO_SOLUTION,
    OPTIMAL,
    Solution,
    Termination,
)
from taylor.pipeline_solver.solvers import Solver

UNRESTRICTED_OBJECTIVE, UNRESTRICTED_BOUND = "unrestricted_objective", "unrestricted_bound"
"""Names of the statistics that hold the step time and the bound without the rule."""

FIRST_SHARE = 0.4
"""Share of the time limit that the problem without the rule may take."""


class _ChoiceCannotWin(Exception):
    """Ends a choice whose bound has reached the best plan so far; a class of its own, for callers raise theirs."""


def uniform_choice(problem: PipelineProblem, plan: PipelinePlan) -> int | None:
    """Index of the choice that a plan follows in every chunk; None when it follows none."""
    held = plan.total_layers([kind.name for kind in problem.free_kinds if kind.name in plan.layers])
    cells = [(v, s) for v in range(plan.interleaves) for s in range(plan.stages)]
    for index, (mode, most) in enumerate(problem.uniform_recompute):
        modes = {mode, *plan.recompute}
        if all(
            (plan.recompute[of][v][s] if of in plan.recompute else 0) == (min(most, held[v][s]) if of == mode else 0)
            for v, s in cells
            for of in modes
        ):
            return index
    return None


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
        What solves the problem without the rule, and then with it.
    one_by_one : bool
        The solver takes one choice at a time; otherwise its model says all of them.

    Returns
    -------
    Solution
        `bound` holds for every choice; the statistics hold what is reached without the rule.
    """
    began = time.monotonic()
    deadline = None if options.time_limit is None else began + options.time_limit
    gap = options.gap

    def within(share: float = 1.0) -> SolveOptions:
        """The options with a share of the time that is left."""
        left = None if deadline is None else max(0.01, share * (deadline - time.monotonic()))
        return options.replace(time_limit=left)

    free = run(
        problem.replace(uniform_recompute=()), within(FIRST_SHARE), warm_start=warm_start, on_progress=on_progress
    )
    floor = free.bound or 0.0
    known = {UNRESTRICTED_BOUND: floor}
    if free.objective is not None:
        known[UNRESTRICTED_OBJECTIVE] = free.objective
    proven = free.status == OPTIMAL and free.plan is not None and uniform_choice(problem, free.plan) is not None
    if free.status == INFEASIBLE or proven:
        return free.replace(statistics={**free.statistics, **known})
    interrupted = free.termination is Termination.INTERRUPTED
    if not one_by_one and not interrupted:
        found = run(problem, within(), warm_start=warm_start, on_progress=on_progress)
        bound = None if found.bound is None else max(found.bound, floor)
        return found.replace(bound=bound, statistics={**found.statistics, **known})

    best = None if free.plan is None else _nearest(problem, free.plan, free.solver)
    if free.status == CUT_OFF:
        # What no plan at all can beat, none of these can.
        found = best or Solution(CUT_OFF, solver=free.solver)
        return found.replace(bound=floor, seconds=time.monotonic() - began, statistics=known).ended_by(
            Termination.CUT_OFF
        )
    stopped: Termination | None = None
    bound = float("inf")
    done: list[tuple[str, int]] = []
    for choice in _distinct(problem):
        if best is not None and best.objective is not None:
            # A plan that beats the best has no chunk of more layers: counts from there on are the same choice.
            room = _layers_within(problem, best.objective)
            if any(of == choice[0] and room <= most <= choice[1] for of, most in done):
                continue
        late = deadline is not None and time.monotonic() >= deadline
        if late or interrupted:
            stopped, bound = Termination.TIME_LIMIT if late else Termination.INTERRUPTED, min(bound, floor)
            break
        done.append(choice)
        try:
            # Without the warm start: a plan for another choice says nothing of this one.
            found = run(
                problem.replace(uniform_recompute=(choice,)),
                within(),
                on_progress=_watch(best, floor, gap, began, choice, on_progress),
            )
        except _ChoiceCannotWin:
            assert best is not None and best.objective is not None
            bound = min(bound, best.objective * (1.0 - gap / 2))
            continue
        if found.status == INFEASIBLE:
            continue
        bound = min(bound, max(found.bound or 0.0, floor))
        interrupted = found.termination is Termination.INTERRUPTED
        if interrupted or found.status in (FEASIBLE, NO_SOLUTION):
            stopped = found.termination
        elif found.status == CUT_OFF:
            stopped = stopped or Termination.CUT_OFF
        if found.objective is not None and (best is None or found.objective < (best.objective or 0.0)):
            best = found
    seconds = time.monotonic() - began
    if best is None or best.objective is None:
        none = Solution(INFEASIBLE, Termination.INFEASIBLE, solver=free.solver, seconds=seconds, statistics=known)
        return none if stopped is None else none.replace(bound=floor).ended_by(stopped)
    bound = min(bound, best.objective)
    whole = best.replace(bound=bound, seconds=seconds, statistics={**best.statistics, **known})
    optimal = best.objective - bound <= gap * abs(best.objective)
    return whole.closed(interrupted=interrupted) if optimal else whole.ended_by(stopped or Termination.STALLED)


def _nearest(problem: PipelineProblem, free: PipelinePlan, solver: str) -> Solution | None:
    """The best plan with the layers of a free one that follows a choice; None when none fits the memory."""
    from taylor.pipeline_solver.checker import check
    from taylor.pipeline_solver.evaluate import evaluate, peak_memory_mib

    held = free.total_layers([kind.name for kind in problem.free_kinds if kind.name in free.layers])
    best: Solution | None = None
    fitting: set[str] = set()
    for mode, most in _distinct(problem):
        if mode in fitting:
            continue  # a greater count takes longer
        plan = PipelinePlan(
            free.layers,
            {
                of: tuple(tuple(min(most, count) if of == mode else 0 for count in row) for row in held)
                for of in problem.recompute_ratio
            },
        )
        peaks = zip(peak_memory_mib(problem, plan), problem.limit_mib, strict=True)
        if any(peak > limit + MEMORY_TOLERANCE_MIB for peak, limit in peaks) or check(problem, plan):
            continue
        fitting.add(mode)
        objective = evaluate(problem, plan).objective
        if objective is not None and (best is None or objective < (best.objective or 0.0)):
            best = Solution(FEASIBLE, plan=plan, objective=objective, solver=solver)
    return best


def _distinct(problem: PipelineProblem) -> list[tuple[str, int]]:
    """The choices that differ, counts rising: no chunk has more layers than the others leave, nothing is nothing."""
    most = max(1, problem.layers - (problem.stages * problem.interleaves - 1) * max(problem.min_layers, 0))
    first_mode = problem.uniform_recompute[0][0]
    choices = {(mode if count else first_mode, min(count, most)) for mode, count in problem.uniform_recompute}
    return sorted(choices, key=lambda choice: (choice[1], choice[0]))


def _layers_within(problem: PipelineProblem, step_time: float) -> int:
    """Layers that a stage can run forward and backward for all micro-batches within a step."""
    left = step_time * (1.0 + 1e-9) / (problem.micro_batches * (1.0 + problem.backward_ratio))
    most = 0
    for kind in sorted(problem.free_kinds, key=lambda kind: kind.forward):
        held = kind.count if left >= kind.count * kind.forward else int(left / kind.forward)
        most += held
        left -= held * kind.forward
        if held < kind.count:
            break
    return most


def _watch(
    best: Solution | None,
    floor: float,
    gap: float,
    began: float,
    choice: tuple[str, int],
    on_progress: OnProgress | None,
) -> OnProgress:
    """Passes progress on as that of the whole, and ends a choice that cannot win."""
    thread = threading.get_ident()
    to_beat = None if best is None else best.objective

    def watch(progress: Progress) -> None:
        if on_progress is not None:
            found = [value for value in (progress.objective, to_beat) if value is not None]
            note = f"{choice[0]} recompute of {choice[1]} layers a chunk: {progress.note}"
            on_progress(Progress(time.monotonic() - began, min(found, default=None), floor or None, note))
        # A solver may report from a thread of its own, where an exception would be lost.
        reached = progress.bound is not None and to_beat is not None and progress.bound >= to_beat * (1.0 - gap / 2)
        if reached and threading.get_ident() == thread:
            raise _ChoiceCannotWin

    return watch
