"""Passes that combine a forward with a backward: which tasks they are, and what layers beside each other hide."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.brute_force import _passes as restated_passes
from benchmarks.random_instances import instance
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.partners import partners
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline.schedule import FORWARD, ScheduleSpec
from taylor.pipeline_solver.check.checker import check, exact_step_time
from taylor.pipeline_solver.model.problem import LayerKind, Pairing, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.durations import graph_of
from taylor.pipeline_solver.timing.evaluate import bubble_shares, evaluate, step_time
from tests.solver_cases import plan_of

DUAL, ONE_AHEAD = ScheduleSpec("dualpipev", whole_drain=True), ScheduleSpec("megatron-interleaved", one_ahead=True)


def deepseek(positions: int | None = 4, **changes: object) -> PipelineProblem:
    """DeepSeek-V3's layers on eight stages of two chunks; an exchange that nothing hides takes half a layer."""
    kinds = (
        LayerKind("dense", 3, 0.6, 10.0, {NONE: 1.0, FULL: 0.1}),
        LayerKind("moe", 58, 1.0, 30.0, {NONE: 2.0, FULL: 0.1}, exposed_forward=0.5, exposed_backward=0.5),
    )
    problem = PipelineProblem(
        8, 2, 32, kinds, (0.0,) * 8, (1e6,) * 8, DUAL, head_forward=1.5, pairing=Pairing(positions)
    )  # fmt: skip
    return problem.replace(**changes)


def plan_of_sizes(down: list[int], up: list[int]) -> PipelinePlan:
    """The plan whose chunks hold so many layers, the dense ones on the first."""
    return plan_of({"dense": [[3, *[0] * 7], [0] * 8], "moe": [[down[0] - 3, *down[1:]], up]})


EVEN = plan_of_sizes([4] * 8, [1, *[4] * 7])
"""Every layer has one beside it but two dense ones: the launch's own plan."""
UNEVEN = plan_of_sizes([5, 6, 6, 6, 6, 6, 6, 6], [2] * 7 + [0])
"""Two of eight layers of most stages have one beside them."""


@pytest.mark.parametrize(
    ("spec", "stages", "interleaves", "micro_batches"),
    [
        *((DUAL, stages, 2, 2 * stages + more) for stages, more in itertools.product((2, 3, 4, 8), (0, 1, 5))),
        *((ONE_AHEAD, 4, interleaves, 4 * rounds) for interleaves, rounds in itertools.product((2, 3), (1, 2, 5))),
    ],
)
def test_the_tasks_of_combined_passes_are_those_of_the_launchers_loops(
    spec: ScheduleSpec, stages: int, interleaves: int, micro_batches: int
) -> None:
    problem = deepseek(stages=stages, interleaves=interleaves, micro_batches=micro_batches, schedule=spec,
                       static_mib=(0.0,) * stages, limit_mib=(1e6,) * stages)  # fmt: skip
    schedule = build_schedule(spec, stages, interleaves, micro_batches)
    beside, order = partners(schedule), schedule.order.tolist()
    found = {
        (s, *order[s][t][:3]): int(beside[s, t])
        for s in range(stages)
        for t in range(len(order[s]))
        if beside[s, t] >= 0
    }
    assert found == restated_passes(problem, schedule)


def test_no_other_schedule_combines_passes() -> None:
    for spec in (ScheduleSpec("zbv"), ScheduleSpec("megatron-interleaved"), ScheduleSpec("interleaved")):
        assert (partners(build_schedule(spec, 4, 2, 8)) < 0).all()


@pytest.mark.parametrize(
    ("positions", "own", "other", "pairs"),
    [(None, 6, 2, 2), (4, 4, 4, 4), (4, 4, 1, 1), (4, 3, 1, 0), (6, 4, 4, 2), (6, 6, 2, 2), (8, 3, 4, 0)],
)
def test_a_layer_has_one_beside_it_unless_the_position_there_is_empty(
    positions: int | None, own: int, other: int, pairs: int
) -> None:
    assert Pairing(positions).count(own, other) == pairs
    if positions is not None:  # the positions of one chunk from the front, those of the other from the back
        slots = [at < own and positions - 1 - at < other for at in range(positions)]
        assert sum(slots) == pairs and slots[own - pairs : own] == [True] * pairs


def test_the_plan_whose_layers_are_all_paired_beats_one_that_pairs_few() -> None:
    """Its step is longer by a tenth and more than with every exchange hidden."""
    own, other = (deepseek(positions, micro_batches=120) for positions in (4, 6))
    hidden = own.replace(pairing=None)
    assert step_time(own, EVEN) < step_time(other, UNEVEN)
    assert step_time(other, UNEVEN) > 1.1 * step_time(hidden, UNEVEN)
    # Of the launch's own plan only the warm-up and the drain expose anything.
    exposed = step_time(own, EVEN) - step_time(hidden, EVEN)
    assert 0 < exposed < 0.05 * step_time(hidden, EVEN)
    assert bubble_shares(own, EVEN).communication == pytest.approx(exposed / step_time(own, EVEN))
    assert evaluate(own, EVEN).objective == step_time(own, EVEN)


@pytest.mark.parametrize("numbers", [range(300, 314)])
def test_evaluation_checker_and_brute_force_agree_on_random_instances(numbers: range) -> None:
    plans = 0
    for number in numbers:
        problem, truth = instance(0, number, "pairs")
        if truth.plan is not None:
            plans += 1
            assert step_time(problem, truth.plan) == pytest.approx(truth.objective, rel=1e-12)
            assert float(exact_step_time(problem, truth.plan)) == pytest.approx(truth.objective, rel=1e-12)
            assert check(problem, truth.plan, truth.objective) == []
    assert plans > 3


def test_tasks_of_combined_passes_have_classes_of_their_own_and_nothing_exposed_changes_nothing() -> None:
    problem = deepseek().replace(kinds=tuple(replace(kind, exposed_forward=0.0, exposed_backward=0.0)
                                             for kind in deepseek().kinds))  # fmt: skip
    assert step_time(problem, EVEN) == step_time(problem.replace(pairing=None), EVEN)
    graph = graph_of(deepseek())
    alone = graph.class_in_order < 3 * 2 * 8
    forwards = graph.schedule.order[:, :, 0] == FORWARD
    assert (~alone & forwards).sum() == (partners(graph.schedule) >= 0).sum() // 2


@pytest.mark.slow
def test_the_solver_keeps_the_plan_whose_layers_are_paired() -> None:
    problem = deepseek(max_layers={(v, s): 4 for v, s in np.ndindex(2, 8)})
    found = solve(problem, warm_start=EVEN)
    assert found.objective is not None and found.objective <= step_time(problem, EVEN)
    assert found.bound == pytest.approx(found.objective)


@pytest.mark.parametrize(("name", "value"), [("exposed_forward", -1.0), ("exposed_backward", float("inf"))])
def test_exposed_times_are_finite_and_not_negative(name: str, value: float) -> None:
    kinds = deepseek().kinds
    with pytest.raises(ValueError, match="exposed times"):
        deepseek(kinds=(kinds[0], replace(kinds[1], **{name: value})))
