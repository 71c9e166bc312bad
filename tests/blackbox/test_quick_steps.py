"""A step of the most even division, told without the exact solver."""

from __future__ import annotations

import random

import pytest

from taylor.blackbox.degree_search import AHEAD
from taylor.blackbox.quick_steps import quick_ms
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solve import solve


@pytest.mark.parametrize("seed", range(12))
def test_it_is_near_the_exact_solvers_step_and_infinite_where_nothing_fits(seed):
    draw = random.Random(seed)
    layers, stages = draw.randint(6, 14), draw.choice((2, 3, 4))
    kind = LayerKind("layer", layers, 1.0, 100.0, {"none": draw.uniform(20, 60), "full": draw.uniform(1, 9)})
    whole = sum((kind.layer_mib, stages * kind.activation_mib["none"]))
    static = tuple(draw.uniform(0, 300) for _ in range(stages))
    uniform = tuple(("full", count) for count in range(layers + 1)) if seed % 2 else ()
    problem = PipelineProblem(
        stages, 1, 8 * stages, (kind,), static, (300 + draw.uniform(0.7, 1.1) * whole * layers / stages,) * stages,
        head_forward=draw.uniform(0, 2), embedding_forward=draw.uniform(0, 1), uniform_recompute=uniform,
    )  # fmt: skip
    solution = solve(problem, SolveOptions(time_limit=10, gap=1e-4))
    if solution.objective is None:
        assert quick_ms(problem) == float("inf")
    else:
        assert 0.97 * solution.objective <= quick_ms(problem) <= solution.objective / AHEAD
