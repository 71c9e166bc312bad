"""Solves a job on several kinds of devices in every order of its stages, and stops those that cannot win."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError
from taylor.cost_model.profile import MemoryProfile
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import even_sizes, grid_in_order
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.progress import OnProgress, Progress
from taylor.pipeline_solver.solution import CUT_OFF, FEASIBLE, INFEASIBLE, Solution, Termination
from taylor.pipeline_solver.solve import solve
from taylor.pipeline_solver.work_limits import WorkLimits
from taylor.workflows.alternatives import Alternative
from taylor.workflows.evaluate_file import own_solution
from taylor.workflows.kept_solves import SolveStore, solve_or_find
from taylor.workflows.planned_file import PlannedFile
from taylor.workflows.stage_devices import order_name
from taylor.workflows.stated_file import StatedFile

SECONDS_EVEN = 10.0
"""Most time for the plan of even layers that the best one is compared with."""


def solve_orders(
    file: StatedFile,
    memory: MemoryProfile,
    how: SolveOptions,
    on_progress: OnProgress | None,
    store: SolveStore | None,
) -> PlannedFile:
    """The best plan over the orders of stages that the job leaves open.

    Every order is bounded by the work that its stages can share, and the one of the least bound is solved first; the
    others are cut off by the best plan so far. What is proven is proven of all orders.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no order has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    assert file.stages is not None
    files = [replace(file, stages=order) for order in file.stages.orders(file.job.stage_order)]
    problems = [one.problem(memory) for one in files]
    bounds = []
    for problem in problems:
        schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
        bounds.append(WorkLimits(problem, EventGraph.from_schedule(schedule, problem.boundary_lags)).bound())
    until = None if how.time_limit is None else time.monotonic() + how.time_limit
    best: tuple[StatedFile, int, Solution] | None = None
    tried: list[Alternative] = []
    interrupted = False
    turns = sorted(range(len(files)), key=lambda each: (bounds[each], each))
    for turn, number in enumerate(turns):
        one, problem = files[number], problems[number]
        assert one.stages is not None
        name = order_name(one.stages.specs)
        to_beat = math.inf if best is None or best[2].objective is None else best[2].objective

        def watch(progress: Progress, name: str = name) -> None:
            if on_progress is not None:
                on_progress(replace(progress, note=f"{name} {progress.note}".rstrip()))

        within = how if to_beat == math.inf else how.replace(cutoff=partial(float, to_beat))
        if until is not None:
            # Those to come get an equal share of what is left.
            left = max(until - time.monotonic(), 0.0) / (len(turns) - turn)
            within = within.replace(time_limit=max(left, 0.05))
        solution = solve_or_find(problem, within, watch, store, name, one.known_plan(problem))
        lost = solution.status == CUT_OFF
        bounds[number] = max(bounds[number], solution.bound or 0.0, math.inf if solution.status == INFEASIBLE else 0.0)
        if lost:
            bounds[number] = max(bounds[number], to_beat)
        objective = None if lost else solution.objective
        tried.append(
            Alternative(
                problem.interleaves, problem.schedule, str(solution.status), objective, solution.bound,
                solution.seconds, solution.message, name,
            )
        )  # fmt: skip
        log.debug("%s: %s", name, tried[-1].outcome)
        if objective is not None and objective < to_beat:
            best = one, number, solution
        if solution.termination is Termination.INTERRUPTED:
            interrupted = True
            break
    if best is None:
        reasons = "; ".join(f"{one.name}: {one.note or one.status}" for one in tried)
        if interrupted:
            raise InterruptedSolve(f"{file.config.path}: interrupted before a plan was found: {reasons}")
        kind = InfeasibleError if all(one.status == INFEASIBLE for one in tried) else NoSolutionError
        raise kind(f"{file.config.path}: no order of the stages has a plan: {reasons}")
    chosen, number, solution = best
    solution = _proven_of_all(solution, min(bounds), how.gap)
    if interrupted:
        solution = solution.ended_by(Termination.INTERRUPTED)
    own = own_solution(chosen, memory)
    problem = problems[number]
    even = _even_split(problem, how)
    return PlannedFile(file.config, chosen.facts, memory, problem, solution, tuple(tried), own=own, even=even)


def _even_split(problem: PipelineProblem, how: SolveOptions) -> Solution | None:
    """The best recompute where layers are spread as if all stages were alike; None where nobody may spread them so."""
    sizes = even_sizes(problem.layers, problem.stages * problem.interleaves)
    grid = grid_in_order(sizes, problem.stages, problem.schedule.v_shape)
    even = {(v, s): count for v, row in enumerate(grid) for s, count in enumerate(row)}
    if problem.fixed_layers or any(even[chunk] > most for chunk, most in problem.max_layers.items()):
        return None
    if min(even.values()) < problem.min_layers:
        return None
    limit = SECONDS_EVEN if how.time_limit is None else min(SECONDS_EVEN, how.time_limit)
    return solve(problem.replace(fixed_layers=even), how.replace(time_limit=limit, cutoff=None))


def _proven_of_all(solution: Solution, bound: float, gap: float) -> Solution:
    """The best order's solution with the bound of all orders."""
    if solution.bound is None or solution.objective is None or bound >= solution.bound:
        return solution
    weaker = solution.replace(bound=bound)
    if solution.objective - bound <= gap * abs(solution.objective):
        return weaker
    return weaker.replace(status=FEASIBLE, termination=Termination.TIME_LIMIT)
