"""Layers that lie on the chunk of the layer before them: no chunk begins with one, whichever solver places them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.random_instances import cadence_problem, portion
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.solving.result import Result, problem_data
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.durations import graph_of
from tests.solver_cases import small_problem


def shared_choices(
    layers: int, every: int, offset: int, stages: int = 2, interleaves: int = 1, **changes: object
) -> PipelineProblem:
    """A model whose layers up to number `offset`, and each `every`-th behind it, choose for those that follow."""
    reuses = [max(number - offset, 0) % every != 0 for number in range(1, layers + 1)]
    kinds = tuple(
        LayerKind(f"run{k}", len(list(same)), 1.0 if of else 1.4, 10.0, {NONE: 4.0, FULL: 1.0}, joined=of)
        for k, (of, same) in enumerate(itertools.groupby(reuses))
    )
    return small_problem(
        stages=stages,
        interleaves=interleaves,
        kinds=kinds,
        static_mib=(5.0,) * stages,
        limit_mib=(1e6,) * stages,
        schedule=ScheduleSpec("1f1b" if interleaves == 1 else "megatron-interleaved"),
    ).replace(**changes)


def first_layers(plan: PipelinePlan) -> list[int]:
    """Number of the first layer of each chunk that has one."""
    sizes = [count for row in plan.total_layers() for count in row]
    return [before + 1 for before, size in zip(itertools.accumulate(sizes, initial=0), sizes, strict=False) if size]


def in_order(problem: PipelineProblem, sizes: list[int]) -> PipelinePlan:
    """The plan with these layers by chunk."""
    line = [kind.name for kind in problem.kinds for _ in range(kind.count)]
    ends = [0, *itertools.accumulate(sizes)]
    chunks = [line[a:b] for a, b in itertools.pairwise(ends)]
    S = problem.stages
    grids = {
        kind.name: as_grid([[chunk.count(kind.name) for chunk in chunks[v * S : v * S + S]]
                            for v in range(problem.interleaves)])
        for kind in problem.kinds
    }  # fmt: skip
    return PipelinePlan(grids, {})


def test_the_optima_of_a_sample_are_those_over_every_plan() -> None:
    found = portion(seed=0, first=45, count=8, drawn="cadence")
    assert found["faults"] == [] and found["checked"] > 15 and found["files"] >= 1


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
@pytest.mark.parametrize("interleaves", [1, 2])
def test_every_solver_finds_the_best_plan_whose_chunks_begin_with_a_choosing_layer(
    solver: str, interleaves: int
) -> None:
    problem = shared_choices(11, 3, 2, interleaves=interleaves, head_forward=1.5, micro_batches=4)
    truth = enumerate_optimum(problem)
    solution = solve(problem, SolveOptions(solver=solver, gap=0.0))
    assert truth is not None and solution.plan is not None
    assert solution.objective == pytest.approx(truth.objective, rel=1e-7)
    assert set(first_layers(solution.plan)) <= {1, 2, 5, 8, 11}
    loose = problem.replace(kinds=tuple(LayerKind(k.name, k.count, k.forward, k.layer_mib, k.activation_mib)
                                        for k in problem.kinds))  # fmt: skip
    assert (solve(loose).objective or 0.0) < truth.objective


def test_the_checker_takes_exactly_the_plans_whose_chunks_begin_with_a_choosing_layer() -> None:
    problem = shared_choices(9, 3, 2, stages=3)
    for first, second in itertools.combinations(range(1, 9), 2):
        faults = check(problem, in_order(problem, [first, second - first, 9 - second]))
        assert (not faults) is ({first + 1, second + 1} <= {1, 2, 5, 8}), faults
        assert all("apart from the layer before them" in fault for fault in faults)


@pytest.mark.parametrize(("stages", "interleaves"), [(4, 1), (4, 2), (8, 2)])
def test_a_published_model_is_proven_on_the_layers_where_its_chunks_may_begin(stages: int, interleaves: int) -> None:
    """GLM-5.2: 78 layers, of which the first three and every fourth from the third on choose tokens."""
    problem = shared_choices(78, 4, 3, stages, interleaves, micro_batches=4 * stages, head_forward=2.0)
    solution = solve(problem, SolveOptions(time_limit=120.0))
    assert solution.status == OPTIMAL and solution.plan is not None
    assert set(first_layers(solution.plan)) <= {1, 2, *range(3, 79, 4)}
    if (stages, interleaves) == (4, 1):
        published = in_order(problem, [18, 24, 24, 12])  # Megatron-LM issue 6392
        assert check(problem, published) == []
        assert check(problem, in_order(problem, [19, 24, 24, 11])) != []


def test_local_search_ends_on_allowed_borders_from_wherever_it_starts() -> None:
    met = 0
    for seed in range(40):
        problem = cadence_problem(np.random.default_rng([9, seed]))
        if problem.pinned_kinds or problem.uniform_recompute or problem.fixed_layers or problem.max_layers:
            continue
        first = FirstPlans(problem, graph_of(problem), 0, Stopper(None))
        first.begin(None)
        first.go_on(0)
        if first.plan is not None:
            assert check(problem, first.plan, first.time) == []
            met += 1
        for by_work in (True, False):
            even = PlanWalk(problem, graph_of(problem)).even(by_work)
            assert even is None or not problem.border_strays[even.begin].any()
    assert met > 10


def test_borders_stray_by_the_layers_to_the_nearest_allowed_one() -> None:
    problem = shared_choices(8, 4, 2)
    assert problem.border_strays.tolist() == [0, 0, 1, 2, 1, 0, 1, 1, 0]
    assert [kind.joined for kind in problem.kinds] == [False, True, False, True]
    over, _, _ = PlanWalk(problem, graph_of(problem)).fitted(PlanWalk(problem, graph_of(problem)).state_of(
        in_order(problem, [3, 5])))  # fmt: skip
    assert over == 2 > MEMORY_TOLERANCE_MIB


def test_joined_kinds_are_free_and_behind_another_one() -> None:
    body = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0})
    for wrong in ({"joined": True}, {"joined": True, "pinned_last": True}):
        kinds = (LayerKind("a", 4, 1.0, 1.0, body.activation_mib, **wrong), body)
        with pytest.raises(ValueError, match="a joined kind must be free to place, behind another one, found 'a'"):
            small_problem(kinds=kinds)
    ahead = LayerKind("none", 0, 1.0, 1.0, body.activation_mib)
    with pytest.raises(ValueError, match="a joined kind must be free"):
        small_problem(kinds=(ahead, LayerKind("a", 4, 1.0, 1.0, body.activation_mib, joined=True)))


def test_a_result_keeps_which_kinds_are_joined_and_says_so() -> None:
    problem = shared_choices(8, 4, 2)
    solution = solve(problem)
    again = Result.from_dict(Result(problem, solution).to_dict())
    assert again.problem == problem and again.solution.plan == solution.plan
    assert "3 run1 layers on the chunk of the layer before them" in problem.summary()
    plain = small_problem()
    assert not any("joined" in kind for kind in problem_data(plain)["kinds"])
