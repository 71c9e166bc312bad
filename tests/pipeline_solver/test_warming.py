"""Kernels compiled by one call: those that solves call afterwards are all there."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.base.compiled import are_kept
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.solving.warming import repeating_problem, warm
from taylor.pipeline_solver.tree.branch_and_cut import KERNELS_OF_LIMITED


def test_after_warming_the_kernels_of_a_solve_are_kept():
    assert warm() > 0.0
    assert all(kernel.signatures for kernel in KERNELS_OF_LIMITED if hasattr(kernel, "signatures"))
    assert are_kept(KERNELS_OF_LIMITED) is not False


@pytest.mark.parametrize("interleaves", [2, 3])
def test_a_repeating_problem_for_warming_alternates_and_has_a_plan_with_recompute(interleaves):
    problem = repeating_problem(interleaves)
    forward = [kind.forward for kind in problem.kinds]
    assert len(set(forward)) == 2 and (np.diff(forward) != 0).all()
    solution = solve(problem)
    assert check(problem, solution.plan, solution.objective) == []
