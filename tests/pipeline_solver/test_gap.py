"""Every road stops at the gap that was asked for, with a bound that holds."""

from __future__ import annotations

import pytest

from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import reference_problem


@pytest.mark.parametrize("uniform", [(), tuple(("full", count) for count in range(9))], ids=["any", "one choice"])
@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
def test_a_wide_gap_is_kept_and_its_bound_is_below_the_optimum(
    solver: str, uniform: tuple[tuple[str, int], ...]
) -> None:
    problem = reference_problem().replace(uniform_recompute=uniform)
    best = solve(problem)
    near = solve(problem, SolveOptions(solver=solver, gap=0.05))
    assert near.status == OPTIMAL and near.gap is not None and near.gap <= 0.05
    assert near.bound is not None and near.objective is not None and best.objective is not None
    assert near.bound <= best.objective * (1 + 1e-6) and near.objective >= best.objective * (1 - 1e-6)
