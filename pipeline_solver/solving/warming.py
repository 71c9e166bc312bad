"""Compile every kernel of the solver once, so that the first solve after an installation finds them on the disk."""

from __future__ import annotations

import time

import numpy as np

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.kernel_wait import search_plans, search_tree, small_problem
from taylor.pipeline_solver.solving.solve import solve

SECONDS = 20.0
"""Time limit of each small solve; all of them end much earlier once the kernels are there."""


def warm() -> float:
    """Call every kernel of a solve with its argument types; return the seconds that this took.

    Kernels that are on the disk already are loaded in a second or two.
    """
    began = time.monotonic()
    search_plans()
    search_tree()
    how = SolveOptions(workers=1)
    for interleaves in (2, 3):
        solve(repeating_problem(interleaves), how.replace(time_limit=SECONDS))
    # Dual values of many choices: columns that are generated and enumerated, under one recompute choice too.
    wide = _with_layers(small_problem(2), 40)
    solve(wide, how.replace(time_limit=SECONDS))
    solve(wide.replace(uniform_recompute=((FULL, 1), (FULL, 2))), how.replace(time_limit=SECONDS))
    return time.monotonic() - began


def repeating_problem(interleaves: int) -> PipelineProblem:
    """A model whose kinds alternate, with memory that leaves a choice."""
    counts = np.tile([2, 1], 3 * interleaves)
    kinds = tuple(
        LayerKind(f"run{k}", int(count), 0.6 if k % 2 else 1.0, 120.0, {"none": 60.0, FULL: 6.0})
        for k, count in enumerate(counts)
    )
    limit = 130.0 * counts.sum() / 4 + 1200.0
    problem = small_problem(interleaves)
    return problem.replace(stages=4, kinds=kinds, static_mib=(100.0,) * 4, limit_mib=(limit,) * 4)


def _with_layers(problem: PipelineProblem, layers: int) -> PipelineProblem:
    """The problem with more layers of its last kind, on more memory."""
    *others, last = problem.kinds
    grown = LayerKind(last.name, layers, last.forward, last.layer_mib, last.activation_mib)
    more = layers - last.count
    limit = tuple(mib + more / 2 * (last.layer_mib + 60.0) for mib in problem.limit_mib)
    return problem.replace(kinds=(*others, grown), limit_mib=limit)
