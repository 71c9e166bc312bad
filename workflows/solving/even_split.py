"""Plan of evenly spread layers, which one on stages of several kinds of devices is compared with."""

from __future__ import annotations

from taylor.pipeline.plan import even_plan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.solving.solve import solve

SECONDS_EVEN = 10.0
"""Longest time of its solve."""


def even_split(problem: PipelineProblem, how: SolveOptions) -> Solution | None:
    """Best recompute for the layer spread of equal stages; None where nobody may spread them so."""
    counts = {kind.name: kind.count for kind in problem.placed_kinds}
    joined = [kind.name for kind in problem.placed_kinds if kind.joined]
    spread = even_plan(counts, problem.stages, problem.interleaves, v_shape=problem.schedule.v_shape, joined=joined)
    even = {(v, s): count for v, row in enumerate(spread.total_layers()) for s, count in enumerate(row)}
    if problem.fixed_layers or any(even[chunk] > most for chunk, most in problem.max_layers.items()):
        return None
    if min(even.values()) < problem.min_layers:
        return None
    limit = SECONDS_EVEN if how.time_limit is None else min(SECONDS_EVEN, how.time_limit)
    return solve(problem.replace(fixed_layers=even), how.replace(time_limit=limit, cutoff=None))
