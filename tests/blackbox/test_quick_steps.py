"""A step of the most even division, without the exact solver."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from taylor.blackbox.degree_search import AHEAD
from taylor.blackbox.quick_steps import MOST_GROWTH, quick_step
from taylor.blackbox.stage_problem import alive_chunks, schedule_of
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


def test_one_light_layer_in_front_does_not_make_all_layers_light():
    kinds = tuple(
        LayerKind(name, count, 1.0, state, {"none": 1.0, "full": 1.0})
        for name, count, state in (("dense", 1, 1.0), ("layer", 11, 50.0))
    )
    # Three layers a stage, and each may hold one heavy one alone, or that and the light one.
    problem = PipelineProblem(4, 1, 8, kinds, (0.0,) * 4, (80.0,) * 4)
    assert quick_step(problem).ms == float("inf")
    assert solve(problem, SolveOptions(time_limit=10)).plan is None
    assert quick_step(problem.replace(limit_mib=(180.0,) * 4)).plan is not None


def _plain_shapes(layers, chunks):
    """Layers of a stage's chunks: equal ones, the later longer, or growing by as many as the ends lack and have."""
    equal = [layers // chunks + (chunk >= chunks - layers % chunks) for chunk in range(chunks)]
    found = [equal]
    for more in range(1, MOST_GROWTH + 1) if chunks > 1 else ():
        slope = [round(more * (2 * chunk / (chunks - 1) - 1)) for chunk in range(chunks)]
        slope[-1] -= sum(slope)
        grown = [one + step for one, step in zip(equal, slope, strict=True)]
        found.append(grown if min(grown) >= 1 else equal)
    return found


def _plain_step(problem, numbers):
    """`quick_step` number by number, without a bound: layer after layer to the stage whose work stays least."""
    stages, chunks, (kind,) = problem.stages, problem.interleaves, problem.kinds
    alive, both = alive_chunks(stages, chunks, problem.micro_batches), 1 + problem.backward_ratio
    none, full = kind.activation_mib["none"], kind.activation_mib["full"]
    ends = [0.0] * stages
    ends[0] += problem.embedding_forward * both
    ends[-1] += problem.head_forward * both
    work, best = {}, math.inf
    for number in numbers:
        work = {} if problem.uniform_recompute else work
        for stage in range(stages):
            for layers in range(chunks, problem.layers + 1):
                for sizes in _plain_shapes(layers, chunks):
                    again = [min(one, number) for one in sizes]
                    kept = [none * (one - each) + full * each for one, each in zip(sizes, again, strict=True)]
                    most = max(float(np.dot(row, kept)) for row in alive[stage])
                    if problem.static_mib[stage] + layers * kind.layer_mib + most <= problem.limit_mib[stage] + 1e-6:
                        took = layers * both + sum(again) + ends[stage]
                        work[layers, stage] = min(took, work.get((layers, stage), math.inf))
        every = [(work.get((layers, stage), math.inf), layers, stage)
                 for layers in range(chunks + 1, problem.layers + 1) for stage in range(stages)]  # fmt: skip
        taken = [chunks] * stages
        for _, _, stage in sorted(every)[: problem.layers - stages * chunks]:
            taken[stage] += 1
        each = [work.get((layers, stage), math.inf) for stage, layers in enumerate(taken)]
        best = min(best, problem.micro_batches * max(each) + (sum(each) - max(each)) / chunks)
    return best


@pytest.mark.parametrize("uniform", [True, False])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_leave_out_no_number_of_layers_and_no_step_to_beat(seed, chunks, uniform):
    draw = random.Random(seed)
    stages = draw.choice((2, 3, 4))
    layers = draw.randint(stages * chunks, stages * chunks + 9)
    kind = LayerKind("layer", layers, 1.0, 100.0, {"none": draw.uniform(20, 60), "full": draw.uniform(1, 9)})
    each = (100 + stages * draw.uniform(0.3, 1.0) * kind.activation_mib["none"]) * layers / stages
    numbers = sorted({0, *draw.sample(range(1, layers + 1), 3)}) if uniform else range(layers + 1)
    problem = PipelineProblem(
        stages, chunks, draw.choice((2, 4)) * stages, (kind,), tuple(draw.uniform(0, 50) for _ in range(stages)),
        (draw.uniform(1.0, 1.6) * each,) * stages, head_forward=draw.uniform(0, 2),
        uniform_recompute=tuple(("full", number) for number in numbers) if uniform else (),
        schedule=schedule_of(chunks),
    )  # fmt: skip
    longest = layers - (chunks * stages - 1)
    plain = _plain_step(problem, [min(number, longest) for number in numbers])
    whole = quick_step(problem)
    assert whole.ms == pytest.approx(plain, rel=1e-12)
    for share in (0.9, 0.999, 1.0, 1.001, 1.1):
        quick = quick_step(problem, beat_ms=share * plain)
        if math.isinf(plain) or share >= 1:
            assert quick == whole
        else:
            assert share * plain < quick.ms < math.inf
