"""The best plan with an encoder of images on several of the first stages."""

from __future__ import annotations

import math
from dataclasses import replace

from taylor.base.budget import TimeBudget
from taylor.pipeline.plan import as_grid
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.kernel_wait import kernels_by
from taylor.register.tower import IN_FRONT
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.bounded import Bounded, best_bounded
from taylor.workflows.statement.spread_ways import SpreadPlan, least_step, spread_as, ways_of
from taylor.workflows.statement.stated_file import StatedFile


def with_best_spread(file: StatedFile, planned: PlannedFile, how: SolveOptions, budget: TimeBudget) -> PlannedFile:
    """The planned file with the encoder on several stages where that is faster than on the first one.

    Parameters
    ----------
    planned : PlannedFile
        The plan with the encoder on the first stage, from estimated memory.
    """
    assert planned.solution.objective is not None
    kernels_by(math.inf if budget.deadline is None else budget.deadline)  # no way waits for a compiler
    nested = planned.problem
    of = file.running_as(nested.interleaves, nested.schedule)
    unit = nested.unit_ms or 1.0
    ways = []
    for spread in ways_of(of):
        problem = spread_as(of, spread).problem(planned.memory)
        ways.append(Bounded(least_step(problem, spread) * unit, spread, problem))
    nested_ms, nested_bound = (unit * (one or 0.0) for one in (planned.solution.objective, planned.solution.bound))
    best, bounds, solved = best_bounded(ways, how, budget, nested_ms)
    step = nested_ms if best is None else best.step_ms
    layers = (planned.plan if best is None else best.plan).without(*IN_FRONT).total_layers()
    plan = SpreadPlan(
        None if best is None else best.key,
        step,
        nested_ms,
        min([step, nested_bound, *bounds]),
        as_grid(layers),
        len(ways),
        solved,
        nested.schedule.name,
    )
    if best is None:
        return replace(planned, spread=plan)
    chosen = spread_as(of, best.key)
    return replace(
        planned,
        config=planned.config.replace(tower=chosen.running.tower),
        facts=chosen.facts,
        problem=best.problem,
        solution=best.solution,
        spread=plan,
    )
