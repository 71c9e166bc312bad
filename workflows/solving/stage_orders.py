"""Solves a job on several kinds of devices in every order of its stages, beside the even split."""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.profile import MemoryProfile
from taylor.pipeline.plan import even_sizes, grid_in_order
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.evaluate_file import own_solution
from taylor.workflows.solving.variants import Variant, best_variant
from taylor.workflows.statement.stage_devices import order_name
from taylor.workflows.statement.stated_file import StatedFile

SECONDS_EVEN = 10.0
"""Most time for the plan of even layers that the best one is compared with."""


def solve_orders(
    file: StatedFile,
    memory: MemoryProfile,
    how: SolveOptions,
    on_progress: OnProgress | None,
    store: SolveStore | None,
) -> PlannedFile:
    """Best plan over the orders of stages that the job leaves open; see `best_variant`."""
    assert file.stages is not None
    variants = []
    for order in file.stages.orders(file.job.stage_order):
        variants.append(Variant(replace(file, stages=order), memory, order_name(order.specs)))
    chosen, problem, solution, tried = best_variant(variants, how, on_progress, store)
    own, even = own_solution(chosen.file, memory), _even_split(problem, how)
    return PlannedFile(file.config, chosen.file.facts, memory, problem, solution, tried, own=own, even=even)


def _even_split(problem: PipelineProblem, how: SolveOptions) -> Solution | None:
    """Best recompute for the layer spread of equal stages; None where nobody may spread them so."""
    sizes = even_sizes(problem.layers, problem.stages * problem.interleaves)
    grid = grid_in_order(sizes, problem.stages, problem.schedule.v_shape)
    even = {(v, s): count for v, row in enumerate(grid) for s, count in enumerate(row)}
    if problem.fixed_layers or any(even[chunk] > most for chunk, most in problem.max_layers.items()):
        return None
    if min(even.values()) < problem.min_layers:
        return None
    limit = SECONDS_EVEN if how.time_limit is None else min(SECONDS_EVEN, how.time_limit)
    return solve(problem.replace(fixed_layers=even), how.replace(time_limit=limit, cutoff=None))
