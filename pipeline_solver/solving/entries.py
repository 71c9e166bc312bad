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
    began = time.monotonic()
    deadline = None if options.time_limit is None else began + options.time_limit
    ones, least = placements(problem), options.params.solving.least_untried
    if warm_start is not None:  # where the known plan has them first: the others must be better
        known = settled(problem, warm_start)
        ones.sort(key=lambda one: one.kinds != known.kinds)
    best: Solution | None = None
    proven = [0.0] * len(ones)
    turns: Turns[int] = Turns(deadline)
    # Recompute choices are subproblems within each place; short time slices would leave them nothing.
    resumable = not problem.uniform_recompute
    memories = [TreeMemory() for _ in ones]
    stopped: Termination | None = None

    def to_beat() -> float:
        least = float("inf") if best is None or best.objective is None else best.objective * (1.0 - options.gap / 2)
        return min(least, float("inf") if options.cutoff is None else options.cutoff())

    def attempt(at: int, seconds: float | None) -> None:
        nonlocal best, stopped
        start = next((p for p in (None if best is None else best.plan, warm_start) if _lies_as(ones[at], p)), None)
        told = None if on_progress is None else lambda progress: tell(progress)
        within = options.replace(time_limit=seconds, cutoff=to_beat, memory=memories[at])
        found = run(ones[at], within, warm_start=start, on_progress=told)
        if found.termination is Termination.INTERRUPTED:
            stopped = Termination.INTERRUPTED
        reached = float("inf") if found.status is INFEASIBLE else found.bound or 0.0
        proven[at] = max(proven[at], reached)
        if found.objective is not None and (best is None or best.objective is None or found.objective < best.objective):
            best = found

    def tell(progress: Progress) -> None:
        assert on_progress is not None
        known = None if best is None else best.objective
        objectives = [value for value in (progress.objective, known) if value is not None]
        on_progress(
            Progress(time.monotonic() - began, min(objectives, default=None), min(proven) or None, progress.note)
        )

    def settled_all() -> bool:
        """Return whether the best plan is proven to the asked gap; places are cut off at half of that gap."""
        known = None if best is None else best.objective
        return known is not None and proven_within(known, min(proven), options.gap)

    def over() -> bool:
        return stopped is not None or (deadline is not None and time.monotonic() >= deadline)

    for at in range(len(ones)):
        if not over():
            # The problem without the rule takes a fraction of a place's time slice; the last places need no more.
            attempt(
                at,
                turns.first(len(ones) - at if resumable else max(least, len(ones) - at), resumable=resumable),
            )
    while not over() and not settled_all():
        pending = [(bound, at) for at, bound in enumerate(proven) if bound < to_beat()]
        if not pending:
            break
        at, seconds = turns.later(pending, resumable=resumable)
        before = proven[at]
        attempt(at, seconds)
        if deadline is None and proven[at] <= before:
            break
    bound, seconds = min(proven), time.monotonic() - began
    if best is None or best.objective is None:
        if bound == float("inf"):
            return Solution(INFEASIBLE, Termination.INFEASIBLE, seconds=seconds)
        end = Termination.CUT_OFF if options.cutoff is not None and bound >= options.cutoff() else None
        return Solution(NO_SOLUTION, bound=bound or None, seconds=seconds).ended_by(
            stopped or end or Termination.TIME_LIMIT
        )
    bound = min(bound, best.objective)
    whole = best.replace(status=FEASIBLE, bound=bound, seconds=seconds)
    if proven_within(best.objective, bound, options.gap):
        return whole.closed(interrupted=stopped is Termination.INTERRUPTED)
    if options.cutoff is not None and bound >= options.cutoff():
        stopped = stopped or Termination.CUT_OFF
    return whole.ended_by(stopped or (Termination.TIME_LIMIT if over() else Termination.STALLED))


def _lies_as(problem: PipelineProblem, plan: PipelinePlan | None) -> bool:
    """Return whether a plan has the pinned kinds where a problem with given places has them."""
    return plan is not None and settled(problem, plan).kinds == problem.kinds
