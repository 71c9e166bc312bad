"""Stages of the plan's chunks chosen with the order of tasks: the best fixed shape first, then any placement."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, NoSolutionError
from taylor.pipeline.chunks import Placement
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import Solution, Termination
from taylor.pipeline_solver.orders.placement_search import ChunkTasks, PlacementFound, search_placement
from taylor.workflows.running.kept_solves import SolveStore, solve_or_find
from taylor.workflows.showing.chosen_order import ChosenOrder
from taylor.workflows.solving.own_order import GAIN, MOST_ROUNDS, best_with_own_order, work_bound
from taylor.workflows.solving.solve_variants import Best
from taylor.workflows.solving.variants import Variant


def best_with_own_placement(
    variants: list[Variant], how: SolveOptions, on_progress: OnProgress | None, store: SolveStore | None
) -> tuple[Best, ChosenOrder | None]:
    """Best plan found with chunks on stages and an order of its own, never worse than on a loop or a V.

    Each shape is solved as `best_with_own_order` does. From the better one on, the plan gets the best placement of its
    chunks with an order, and the placement its best plan, alternately until neither gains. The reported bound is one of
    all plans, placements and orders.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When no shape has a plan, or none was found within the limit.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    began = time.monotonic()
    shapes: dict[tuple[int, ...], list[Variant]] = {}
    for variant in variants:
        shapes.setdefault(variant.file.running.schedule.stage_of, []).append(variant)
    limit = how.time_limit
    part = how.replace(time_limit=None if limit is None else limit / (len(shapes) + 1))
    found: list[tuple[Best, ChosenOrder | None]] = []
    failed: list[InfeasibleError | NoSolutionError] = []
    for of_shape in shapes.values():
        try:
            found.append(best_with_own_order(of_shape, part, on_progress, store))
        except (InfeasibleError, NoSolutionError) as error:
            failed.append(error)
    if not found:
        raise next((error for error in failed if isinstance(error, NoSolutionError)), failed[0])
    fixed, order = min(found, key=lambda one: one[0].solution.objective or 0.0)
    bound = min(_bound(one) for one in (fixed.problem, *_stated(shapes.values())))
    alternatives = tuple(one for best, _ in found for one in best.alternatives)
    fixed = replace(fixed, alternatives=alternatives)
    if order is None or any(best.solution.termination is Termination.INTERRUPTED for best, _ in found):
        return _bounded(fixed, bound, began), order
    within = how if limit is None else how.replace(time_limit=max(limit - (time.monotonic() - began), 0.05))
    placed, chosen = _alternately(fixed, within, on_progress, store)
    shape = fixed.problem.placement.name
    order = replace(order, placement=placed.problem.placement, shape=shape, shape_step=fixed.solution.objective)
    if chosen is not None:
        log.debug("%d placements looked at from the %s", chosen.tried, shape)
        order = replace(order, found=replace(chosen.order, bound=max(chosen.order.bound, bound)))
    return _bounded(placed, bound, began), order


def _alternately(
    best: Best, how: SolveOptions, watch: OnProgress | None, store: SolveStore | None
) -> tuple[Best, PlacementFound | None]:
    """Plan and placement improved alternately: the best plan, and the facts of its placement and order."""
    found: PlacementFound | None = None
    for _ in range(MOST_ROUNDS):
        problem, solution = best.problem, best.solution
        assert solution.plan is not None and solution.objective is not None
        schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
        tasks = ChunkTasks.of(problem, solution.plan, _ends(best.variant, problem))
        found = search_placement(tasks, [(problem.placement, schedule)])
        if found.order.step >= solution.objective * (1 - GAIN):
            break
        spec = replace(problem.schedule, words=found.order.words, stage_of=found.placement.stage_of)
        variant = _with_schedule(best.variant, spec)
        ordered = variant.problem()
        start = _moved(solution.plan, problem.placement, found.placement)
        better = solve_or_find(ordered, how, watch, store, "placed", start)
        if better.plan is None or (better.objective or 0.0) >= solution.objective:
            break
        best = Best(variant, ordered, better, best.alternatives)
        if better.termination is Termination.INTERRUPTED:
            break
    if found is not None:
        step = best.solution.objective or found.order.step
        found = replace(found, order=replace(found.order, words=best.problem.schedule.words, step=step))
    return best, found


def _ends(variant: Variant, problem: PipelineProblem) -> list[PipelineProblem]:
    """The problem with the last chunk on the last stage, and with it on the first, for their static memory."""
    S, V = problem.stages, problem.interleaves
    loop = Placement.shaped(S, V, v_shape=False)
    back = Placement((*loop.stage_of[:-S], *reversed(range(S))))
    return [
        _with_schedule(variant, replace(problem.schedule, words=(), stage_of=one.stage_of)).problem()
        for one in (loop, back)
    ]


def _with_schedule(variant: Variant, spec: ScheduleSpec) -> Variant:
    file = variant.file
    return replace(variant, file=replace(file, running=file.running.replace(schedule=spec)), names=variant.names[:-1])


def _moved(plan: PipelinePlan, old: Placement, new: Placement) -> PipelinePlan:
    """The plan with the layers of its chunks, in model order, on another placement."""
    return PipelinePlan(
        {kind: new.grid(old.values(grid)) for kind, grid in plan.layers.items()},
        {mode: new.grid(old.values(grid)) for mode, grid in plan.recompute.items()},
    )


def _stated(shapes: Iterable[Sequence[Variant]]) -> Iterator[PipelineProblem]:
    """A problem of each shape, of those that the framework starts."""
    for of_shape in shapes:
        with suppress(ValueError):
            yield of_shape[0].problem()


def _bound(problem: PipelineProblem) -> float:
    """Bound on the step of all plans on all placements: that of work, with the shortest transfer everywhere."""
    return work_bound(problem.replace(lags=(), lag=min(problem.boundary_lags, default=0.0)))


def _bounded(best: Best, bound: float, began: float) -> Best:
    solution: Solution = best.solution
    objective = solution.objective or 0.0
    message = f"{solution.message.partition(';')[0]}; the bound is that of all plans, placements and orders"
    solution = replace(solution.replace(bound=min(bound, objective), seconds=time.monotonic() - began), message=message)
    return replace(best, solution=solution)
