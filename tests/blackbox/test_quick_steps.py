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


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_layers_of_another_kind_in_front_count_with_their_own_memory(seed, chunks):
    draw = random.Random(seed)
    layers, stages, dense = draw.randint(12, 16), draw.choice((2, 3)), draw.randint(1, 2)
    light, heavy = (("dense", dense, 0.5, 20.0, 8.0), ("layer", layers - dense, 1.0, 100.0, 40.0))
    kinds = tuple(
        LayerKind(name, count, forward, state, {"none": kept, "full": 1.0})
        for name, count, forward, state, kept in (light, heavy)
    )
    # As much as an even division takes whose first stage has all the light layers, and no more.
    each = -(-layers // stages)
    fronts = [(each - dense) * 100.0 + dense * 20.0 + 80.0, *[each * 100.0 + 80.0] * (stages - 1)]
    problem = PipelineProblem(
        stages, chunks, 8 * stages, kinds, (0.0,) * stages, tuple(fronts), schedule=schedule_of(chunks)
    )
    quick, solution = quick_step(problem), solve(problem, SolveOptions(time_limit=10, gap=1e-3))
    assert quick.plan is not None and not check(problem, quick.plan)
    assert 0.97 * solution.objective <= quick.ms <= solution.objective / 0.9


def test_a_division_whose_light_layers_reach_the_second_stage_is_not_ruled_out():
    kinds = tuple(
        LayerKind(name, count, 1.0, state, {"none": 1.0, "full": 1.0})
        for name, count, state in (("dense", 5, 1.0), ("layer", 1, 50.0))
    )
    # Three layers and two micro-batches of them on the first stage, three and one on the second.
    problem = PipelineProblem(2, 1, 2, kinds, (0.0, 0.0), (9.0, 55.0))
    quick = quick_step(problem)
    assert quick.plan is None and quick.ms < float("inf")
    assert solve(problem, SolveOptions(time_limit=10)).plan is not None
    assert quick_step(problem.replace(limit_mib=(6.0, 6.0))).ms == float("inf")
