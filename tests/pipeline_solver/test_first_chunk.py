"""Kinds pinned to the first chunk: an encoder in front of the layers, whose backward has a ratio of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.random_instances import portion
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import check, exact_peak_memory, exact_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.result import problem_data
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import evaluate
from tests.solver_cases import small_problem

BODY = LayerKind("dense", 8, 1.0, 10.0, {NONE: 4.0, FULL: 1.0})
TOWER = LayerKind("vision", 3, 0.0, 5.0, {NONE: 2.0, FULL: 2.0}, pinned_first=True, added_forward=0.75)


def with_tower(tower: LayerKind = TOWER, **changes: object) -> PipelineProblem:
    problem = small_problem(stages=2, interleaves=1, kinds=(BODY, tower), micro_batches=4, static_mib=(0.0, 0.0),
                            limit_mib=(1e3, 1e3), schedule=ScheduleSpec("1f1b"), backward_ratio=2.0)  # fmt: skip
    return problem.replace(**changes)


@pytest.mark.slow
def test_the_optima_of_a_sample_are_those_over_every_plan() -> None:
    found = portion(seed=1, first=0, count=8, drawn="towers")
    assert found["faults"] == [] and found["checked"] > 15


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
@pytest.mark.parametrize("schedule", ["1f1b", "megatron-interleaved"])
def test_every_solver_puts_fewer_layers_behind_an_encoder(solver: str, schedule: str) -> None:
    interleaves = 1 if schedule == "1f1b" else 2
    problem = with_tower(
        replace(TOWER, added_forward=1.5, added_backward=0.5), interleaves=interleaves, schedule=ScheduleSpec(schedule)
    )
    truth, solution = enumerate_optimum(problem), solve(problem, SolveOptions(solver=solver, gap=0.0))
    assert truth is not None and solution.plan is not None
    assert solution.objective == pytest.approx(truth.objective, rel=1e-7)
    first, second = (sum(column) for column in zip(*solution.plan.layers["dense"], strict=True))
    assert first < second and solution.plan.layers["vision"][0] == (3, 0)
    assert check(problem, solution.plan, solution.objective) == []


def test_a_frozen_encoder_takes_time_in_forwards_alone_and_its_memory_on_the_first_stage() -> None:
    problem = with_tower()
    plan = PipelinePlan({"dense": ((4, 4),), "vision": ((3, 0),)}, {})
    # Stage 0: two forwards of 2.25 + 4 by 12.5, the first backward of 8 from 18.25 (stage 1: 6.25 + 4 + 8) to 26.25, a
    # forward, a backward, a forward to 46.75; stage 1 then has 4 + 8, and the last backward ends at 66.75.
    assert float(exact_step_time(problem, plan)) == evaluate(problem, plan).objective == 66.75
    # Two micro-batches alive on the first stage.
    assert [float(one) for one in exact_peak_memory(problem, plan)] == [40 + 15 + 2 * (16 + 6), 40 + 16]


def test_recompute_counts_from_the_first_layer_behind_the_encoder() -> None:
    plan = PipelinePlan({"dense": ((4, 4),), "vision": ((3, 0),)}, {FULL: ((4, 0),)})
    assert check(with_tower(), plan) == []
    assert plan.recompute_by_kind()["vision"][FULL] == ((0, 0),)
    more = PipelinePlan(plan.layers, {FULL: ((5, 0),)})
    assert check(with_tower(), more) == ["Chunk [0][0] recomputes a layer that is never recomputed."]


def test_the_checker_finds_an_encoder_elsewhere_or_in_parts() -> None:
    elsewhere = PipelinePlan({"dense": ((4, 4),), "vision": ((0, 3),)}, {})
    assert check(with_tower(), elsewhere) == ["Chunk [0][1] has vision layers, which belong on the first chunk."]
    parts = check(with_tower(), PipelinePlan({"dense": ((4, 4),), "vision": ((2, 1),)}, {}))
    assert "Chunk [0][0] has 2 of 3 vision layers, which must share a chunk." in parts


SPREAD = (
    BODY,
    replace(TOWER, count=2),
    replace(TOWER, name="vision#2", count=1, places=(1,), added_backward=0.5),
    LayerKind("embedding", 1, 0.0, 7.0, {NONE: 0.0, FULL: 0.0}, pinned_first=True, places=(1,), added_forward=0.25),
)


def spread(stages: int = 2, **changes: object) -> PipelineProblem:
    changes = {"kinds": SPREAD, **changes}
    return with_tower(stages=stages, static_mib=(0.0,) * stages, limit_mib=(1e3,) * stages, **changes)


def test_the_optima_of_a_sample_with_an_encoder_on_several_chunks_are_those_over_every_plan() -> None:
    found = portion(seed=1, first=6, count=8, drawn="spread")
    assert found["faults"] == [] and found["checked"] > 10


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
def test_every_solver_leaves_the_chunks_before_the_embedding_to_the_encoder(solver: str) -> None:
    problem = spread(stages=3)
    truth, solution = enumerate_optimum(problem), solve(problem, SolveOptions(solver=solver, gap=0.0))
    assert truth is not None and solution.plan is not None
    assert solution.objective == pytest.approx(truth.objective, rel=1e-7)
    assert solution.plan.layers["dense"][0][0] == 0 and solution.plan.layers["vision#2"] == ((0, 1, 0),)
    assert check(problem, solution.plan, solution.objective) == []
    assert problem.least_layers == (0, 1, 1)


def test_an_encoder_on_two_chunks_takes_its_time_and_memory_on_both() -> None:
    plan = PipelinePlan({"dense": ((0, 8),), "vision": ((2, 0),), "vision#2": ((0, 1),), "embedding": ((0, 1),)}, {})
    problem = spread()
    # Stage 0: forwards of 1.5 and nothing backward; stage 1: 8 + 0.75 + 0.25 forward, 16 + 0.5 backward.
    assert float(exact_step_time(problem, plan)) == evaluate(problem, plan).objective == 1.5 + 4 * (9 + 16.5)
    assert [float(one) for one in exact_peak_memory(problem, plan)] == [10 + 2 * 4, 80 + 5 + 7 + 8 * 4 + 2]
    assert check(problem, plan) == []
    early = PipelinePlan({**plan.layers, "dense": ((1, 7),)}, {})
    assert check(problem, early) == ["Chunk [0][0] has 1 layers, 0 are given."]
    elsewhere = PipelinePlan({**plan.layers, "vision#2": ((1, 0),)}, {})
    (fault,) = check(problem, elsewhere)
    assert "Chunk [0][0] has vision#2 layers, which belong on one of the chunks [1]" in fault
    assert "on chunk 1" in problem.summary()
    with pytest.raises(ValueError, match="before a kind pinned in front no layers"):
        problem.replace(fixed_layers={(0, 0): 1})
    with pytest.raises(ValueError, match="one where it is pinned in front"):
        problem.replace(kinds=(BODY, replace(TOWER, places=(0, 1))))


def test_wrong_kinds_are_refused_and_a_result_names_what_it_has() -> None:
    with pytest.raises(ValueError, match="listed behind free kinds"):
        with_tower().replace(kinds=(TOWER, BODY))
    with pytest.raises(ValueError, match="added times must be >= 0, and 0 unless it is pinned"):
        with_tower().replace(kinds=(replace(BODY, added_forward=1.0), TOWER))
    with pytest.raises(ValueError, match="added times"):
        with_tower(replace(TOWER, added_backward=-1.0))
    assert "on the first chunk" in with_tower().summary() and "0.75/0 more" in with_tower().summary()
    body, tower = problem_data(with_tower())["kinds"]
    assert "pinned_first" not in body and tower["pinned_first"] and tower["added_forward"] == 0.75
