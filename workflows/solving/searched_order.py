"""Plans a file whose order of tasks is to be chosen: plan and order alternately, from the best known order on."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InputError, InterruptedSolve, NoSolutionError
from taylor.cost_model.profile import MemoryProfile
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.known_orders import known_orders
from taylor.pipeline.schedule import SEARCHED, SEARCHED_V
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import CUT_OFF, FEASIBLE, INFEASIBLE, Solution, Termination
from taylor.pipeline_solver.orders.order_problem import OrderProblem
from taylor.pipeline_solver.orders.order_search import OrderFound, search_order
from taylor.workflows.running.kept_solves import SolveStore, solve_or_find
from taylor.workflows.showing.alternative import Alternative
from taylor.workflows.showing.chosen_order import ChosenOrder
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.evaluate_file import own_solution
from taylor.workflows.statement.options import LISTED, FileJob
from taylor.workflows.statement.stated_file import StatedFile

MOST_ROUNDS = 4
"""Rounds of choosing an order for the plan and a plan for the order; most gain nothing after the first."""

GAIN = 1e-6
"""Relative difference from which a step time is shorter than another."""


def is_searched(job: FileJob) -> bool:
    """Return whether the job requests an order of its own."""
    return job.schedule in (SEARCHED, SEARCHED_V)


def refuse_with_searched(job: FileJob) -> None:
    """Refuse options that do not go with an order chosen for a plan.

    Raises
    ------
    InputError
        With the remedy.
    """
    if not is_searched(job):
        return
    if job.has_choices:
        raise InputError(
            f"auto is not combined with {job.schedule}", field="-vpp", value=job.vpp,
            cure="name the interleaves, or choose among the known schedules first (-schedule auto)",
        )  # fmt: skip
    if job.stage_devices and job.stage_order != LISTED:
        raise InputError(
            f"is not combined with {job.schedule}", field="--stage_order", value=job.stage_order,
            cure="find the order of the stages with a known schedule, then name it with --stage_order listed",
        )  # fmt: skip


def solve_searched(
    file: StatedFile, memory: MemoryProfile, how: SolveOptions, watch: OnProgress | None, store: SolveStore | None
) -> PlannedFile:
    """Best plan found with an order of its own, never worse than with a known one.

    The known orders of the placement are solved first, the next cut off by the best. The best plan then gets the best
    order of its tasks, the order its best plan, alternately until neither gains. The reported bound is one of all plans
    and all orders; whether the order is the best of its plan is reported in addition.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no known order has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    began = time.monotonic()
    problem = file.problem(memory)
    orders = known_orders(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    best: tuple[str, PipelineProblem, Solution] | None = None
    tried: list[Alternative] = []
    for turn, (name, spec) in enumerate(orders.items()):
        on_order = problem.replace(schedule=spec)
        share = _within(how, began, len(orders) - turn + 1)
        if best is not None and best[2].objective is not None:
            share = share.replace(cutoff=partial(float, best[2].objective))
        solution = solve_or_find(on_order, share, _named(watch, name), store, name, file.known_plan(on_order))
        lost = solution.status == CUT_OFF or solution.objective is None
        tried.append(
            Alternative(
                problem.interleaves, spec, str(solution.status), None if lost else solution.objective, solution.bound,
                solution.seconds, solution.message, name,
            )
        )  # fmt: skip
        if not lost and _shorter(solution, best):
            best = name, on_order, solution
        if solution.termination is Termination.INTERRUPTED:
            break
    if best is None:
        raise _no_plan(file, tried)
    known, on_order, solution = best
    assert solution.objective is not None
    known_step = solution.objective
    on_order, solution, found = _in_turn(file, on_order, solution, _within(how, began, 1), watch, store)
    told = "no order of this plan takes less" if found.proven else "no better order of this plan was found"
    message = f"{told}; the bound is that of all plans and all orders"
    solution = replace(
        solution.replace(
            status=FEASIBLE, termination=Termination.STALLED, bound=min(work_bound(problem), solution.objective or 0.0),
            seconds=time.monotonic() - began,
        ),
        message=message,
    )  # fmt: skip
    log.debug("%s: order from %s, %d partial orders looked at", file.config.path, known, found.nodes)
    running = replace(file, running=file.running.replace(schedule=on_order.schedule))
    return PlannedFile(
        file.config, running.facts, memory, on_order, solution, tuple(tried), own=own_solution(file, memory),
        order=ChosenOrder(found, known, known_step),
    )  # fmt: skip


def _in_turn(
    file: StatedFile,
    problem: PipelineProblem,
    solution: Solution,
    how: SolveOptions,
    watch: OnProgress | None,
    store: SolveStore | None,
) -> tuple[PipelineProblem, Solution, OrderFound]:
    """Plan and order improved alternately: the problem with the order, its plan, and the facts of the order."""
    found = _order(problem, solution)
    for _ in range(MOST_ROUNDS):
        assert solution.objective is not None
        if found.step >= solution.objective * (1 - GAIN) or solution.termination is Termination.INTERRUPTED:
            break
        problem = problem.replace(schedule=replace(problem.schedule, words=found.words))
        better = solve_or_find(problem, how, _named(watch, "searched"), store, "searched", solution.plan)
        if better.plan is None or better.objective is None:
            break
        solution = better
        found = _order(problem, solution)
    assert solution.objective is not None
    return problem, solution, replace(found, words=problem.schedule.words, step=solution.objective)


def _order(problem: PipelineProblem, solution: Solution) -> OrderFound:
    assert solution.plan is not None
    return search_order(
        OrderProblem.of(problem, solution.plan),
        [build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)],
    )


def work_bound(problem: PipelineProblem) -> float:
    """Bound on the step of all plans in all orders: the stages divide all work without recompute, each at its own pace
    from the earliest arrival of the first micro-batch.
    """
    forward = sum(kind.count * kind.forward for kind in problem.kinds)
    forward += problem.head_forward + problem.embedding_forward
    work = problem.micro_batches * (1 + problem.backward_ratio) * forward
    arrival, shared, rate = 0.0, work, 0.0
    for s, (pace, lag) in enumerate(zip(problem.least_pace, (*problem.boundary_lags, 0.0), strict=False)):
        tail = problem.tail[s] if problem.tail else 0.0
        shared += (arrival + tail) / pace
        rate += 1 / pace
        lightest = min(kind.forward for kind in problem.on_stage(s).placed_kinds)
        arrival += problem.least_layers[s] * lightest * problem.pace[s] + lag
    return shared / rate


def _within(how: SolveOptions, began: float, shares: int) -> SolveOptions:
    """Options with an equal part of the remaining time."""
    if how.time_limit is None:
        return how
    left = max(how.time_limit - (time.monotonic() - began), 0.0)
    return how.replace(time_limit=max(left / shares, 0.05))


def _named(watch: OnProgress | None, name: str) -> OnProgress:
    def told(progress: Progress) -> None:
        if watch is not None:
            watch(replace(progress, note=f"{name} {progress.note}".rstrip()))

    return told


def _shorter(solution: Solution, best: tuple[str, PipelineProblem, Solution] | None) -> bool:
    if best is None:
        return True
    assert solution.objective is not None and best[2].objective is not None
    return solution.objective < best[2].objective


def _no_plan(file: StatedFile, tried: list[Alternative]) -> Exception:
    reasons = "; ".join(f"{one.name}: {one.note or one.status}" for one in tried)
    if any(one.note == Termination.INTERRUPTED.sentence for one in tried):
        return InterruptedSolve(f"{file.config.path}: interrupted before a plan was found: {reasons}")
    kind = InfeasibleError if all(one.status == INFEASIBLE for one in tried) else NoSolutionError
    return kind(f"{file.config.path}: no known order has a plan: {reasons}")
