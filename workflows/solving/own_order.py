"""Order of tasks of the plan's own: plan and order improved alternately, from the best known order on."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.pipeline.generators import build_schedule
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution, Termination
from taylor.pipeline_solver.orders.order_problem import OrderProblem, bar_to_orders
from taylor.pipeline_solver.orders.order_search import OrderFound, search_order
from taylor.workflows.running.kept_solves import SolveStore, solve_or_find
from taylor.workflows.showing.chosen_order import ChosenOrder
from taylor.workflows.solving.solve_variants import Best, VariantSolves
from taylor.workflows.solving.variants import Variant

MOST_ROUNDS = 4
"""Rounds of choosing an order for the plan and a plan for the order; most gain nothing after the first."""

GAIN = 1e-6
"""Relative difference from which a step time is shorter than another."""


def best_with_own_order(
    variants: list[Variant], how: SolveOptions, on_progress: OnProgress | None, store: SolveStore | None
) -> tuple[Best, ChosenOrder | None]:
    """Best plan found with an order of its own, never worse than with a known one.

    The variants are solved with the known orders. The best plan then gets the best order of its tasks, the order its
    best plan, alternately until neither gains. The reported bound is one of all plans and all orders; whether the order
    is the best of its plan is reported in addition. A solve that Ctrl-C ended searches no order.

    Raises
    ------
    InputError
        When the job asks for what no order is chosen with.
    InfeasibleError, NoSolutionError
        When no known order has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    _require_open_order(variants[0])
    began, limit = time.monotonic(), how.time_limit
    part = None if limit is None else limit * len(variants) / (len(variants) + 1)
    solves = VariantSolves(variants, how.replace(time_limit=part), on_progress, store)
    solves.run()
    if (known := solves.best) is None:
        raise solves.no_plan()
    bound = min(map(work_bound, solves.problems.values()))
    assert known.solution.objective is not None
    if solves.interrupted:
        lowered = known.solution.replace(bound=min(bound, known.solution.objective), status=FEASIBLE)
        return replace(known, solution=lowered.ended_by(Termination.INTERRUPTED)), None
    within = how if limit is None else how.replace(time_limit=max(limit - (time.monotonic() - began), 0.05))
    problem, solution, found = _alternately(known.problem, known.solution, within, on_progress, store)
    assert solution.objective is not None
    reason = "no order of this plan takes less" if found.proven else "no better order of this plan was found"
    solution = replace(
        solution.replace(
            status=FEASIBLE, termination=Termination.STALLED, bound=min(bound, solution.objective),
            seconds=time.monotonic() - began,
        ),
        message=f"{reason}; the bound is that of all plans and all orders",
    )  # fmt: skip
    variant, name = known.variant, known.variant.names[-1]
    log.debug("%s: order from %s, %d partial orders looked at", variant.file.config.path, name, found.nodes)
    if problem is not known.problem:
        running = variant.file.running.replace(schedule=problem.schedule)
        variant = replace(variant, file=replace(variant.file, running=running), names=variant.names[:-1])
    order = ChosenOrder(found, name, known.solution.objective)
    return Best(variant, problem, solution, known.alternatives), order


def _require_open_order(variant: Variant) -> None:
    with suppress(ValueError):  # a variant that does not run is reported with the others
        if reason := bar_to_orders(variant.problem()):
            raise InputError(
                reason,
                file=variant.file.config.path,
                field="-schedule",
                value=variant.file.job.schedule,
                cure="leave out --lend and --offload, or name a schedule",
            )


def _alternately(
    problem: PipelineProblem,
    solution: Solution,
    how: SolveOptions,
    watch: OnProgress | None,
    store: SolveStore | None,
) -> tuple[PipelineProblem, Solution, OrderFound]:
    """Plan and order improved alternately: the problem with the order, its plan, and the facts of the order."""

    def watch_named(progress: Progress) -> None:
        if watch is not None:
            watch(replace(progress, note=f"searched {progress.note}".rstrip()))

    found = _order(problem, solution)
    for _ in range(MOST_ROUNDS):
        assert solution.objective is not None
        if found.step >= solution.objective * (1 - GAIN) or solution.termination is Termination.INTERRUPTED:
            break
        ordered = problem.replace(schedule=replace(problem.schedule, words=found.words))
        better = solve_or_find(ordered, how, watch_named, store, "searched", solution.plan)
        if better.plan is None or better.objective is None:
            break
        problem, solution = ordered, better
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
