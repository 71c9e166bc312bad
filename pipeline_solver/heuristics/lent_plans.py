"""First plans that lend: other recompute than a known plan, and as many lent layers as the memory then needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import Grid, PipelinePlan, as_grid
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.uniform_rule import distinct_choices
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib


def lent_plans(problem: PipelineProblem, known: PipelinePlan) -> Iterator[PipelinePlan]:
    """Plans with the layers of a known one and, by turns, each recompute choice for all chunks, or none without such a
    rule; their lenders may hold too much.

    Parameters
    ----------
    problem : PipelineProblem
        With `lenders` and choices that lend.
    """
    free = [kind.name for kind in problem.free_kinds if kind.name in known.layers]
    layers = np.array(known.total_layers(free))
    nothing = as_grid(np.zeros_like(layers).tolist())
    choices = distinct_choices(problem) if problem.uniform_recompute else [(problem.choices[0], 0)]
    for mode, most in choices:
        again = np.minimum(layers, most)
        grids = {**dict.fromkeys(problem.searched_modes, nothing), mode: as_grid(again.tolist())}
        for name in problem.lending_choices:
            yield _lent_as_needed(problem, PipelinePlan(known.layers, grids), name, layers - again)


def _lent_as_needed(problem: PipelineProblem, plan: PipelinePlan, name: str, most: NDArray[np.int64]) -> PipelinePlan:
    """The plan whose stages lend, under one choice, the fewest layers that leave them within their limits, at the most
    `most` of a chunk, int64 [V, S]: all of these where that is too few."""
    lent, limits = np.zeros_like(most), np.array(problem.limit_mib) + MEMORY_TOLERANCE_MIB

    def with_lent() -> PipelinePlan:
        grid: Grid = as_grid(lent.tolist())
        return PipelinePlan(plan.layers, {**plan.recompute, name: grid})

    borrows = np.array(problem.lenders) >= 0
    while True:
        found = with_lent()
        more = borrows & (np.array(peak_memory_mib(problem, found)) > limits) & ((most - lent).max(axis=0) > 0)
        if not more.any():
            return found
        stages = np.flatnonzero(more)
        lent[(most - lent).argmax(axis=0)[stages], stages] += 1
