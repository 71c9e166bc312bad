"""A step of the most even division, told without the exact solver."""

from __future__ import annotations

import random

import pytest

from taylor.blackbox.degree_search import AHEAD
from taylor.blackbox.quick_steps import quick_step
from taylor.blackbox.stage_problem import schedule_of
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_its_plan_holds_and_is_near_the_exact_solvers_step(seed, chunks):
    draw = random.Random(seed)
    layers, stages = draw.randint(8, 14), draw.choice((2, 3, 4))
    kind = LayerKind("layer", layers, 1.0, 100.0, {"none": draw.uniform(20, 60), "full": draw.uniform(1, 9)})
    whole = sum((kind.layer_mib, stages * kind.activation_mib["none"]))
    static = tuple(draw.uniform(0, 300) for _ in range(stages))
    uniform = tuple(("full", count) for count in range(layers + 1)) if seed % 2 else ()
    problem = PipelineProblem(
        stages, chunks, 8 * stages, (kind,), static, (300 + draw.uniform(0.7, 1.1) * whole * layers / stages,) * stages,
        head_forward=draw.uniform(0, 2), embedding_forward=draw.uniform(0, 1), uniform_recompute=uniform,
        schedule=schedule_of(chunks),
    )  # fmt: skip
    solution = solve(problem, SolveOptions(time_limit=10, gap=1e-3))
    quick = quick_step(problem)
    if quick.plan is None:
        assert chunks > 1 or solution.objective is None
    else:
        assert not check(problem, quick.plan)
        assert 0.97 * solution.objective <= quick.ms <= solution.objective / AHEAD
