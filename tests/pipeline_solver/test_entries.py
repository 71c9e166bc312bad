"""Kinds that lie together on one of several chunks, and chunks that hold nothing but them, embedding or head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.random_instances import portion
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.stage_pricing import alike
from taylor.pipeline_solver.check.checker import check, exact_peak_memory, exact_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.places import placements, settled
from taylor.pipeline_solver.model.problem import LayerKind, Pairing, PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL, Solution
from taylor.pipeline_solver.solving.entries import solve_places
from taylor.pipeline_solver.solving.result import Result, problem_data
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.durations import pinned_times
from taylor.pipeline_solver.timing.evaluate import evaluate, peak_memory_mib
from tests.solver_cases import plan_of, small_problem


def with_mtp(places: tuple[int, ...] = (0, 1, 2), **changes: object) -> PipelineProblem:
    """Three stages, a body of four layers and one MTP layer, a head as long as three layers."""
    body = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0})
    mtp = LayerKind("mtp", 1, 2.0, 20.0, {NONE: 6.0, FULL: 6.0}, pinned_last=True, places=places, hand_over=1.0)
    problem = small_problem(
        stages=3,
        kinds=(body, mtp),
        static_mib=(5.0, 6.0, 7.0),
        limit_mib=(100.0,) * 3,
        head_forward=3.0,
        lag=0.5,
        entries_alone=True,
        micro_batches=1,
    )
    return problem.replace(**changes)


def test_the_optima_of_a_sample_are_those_over_every_plan() -> None:
    found = portion(seed=0, first=45, count=8, drawn="entries")
    assert found["faults"] == [] and found["checked"] > 15 and found["files"] >= 1


def test_the_optima_with_mtp_layers_placed_one_by_one_are_those_over_every_plan() -> None:
    found = portion(seed=0, first=45, count=8, drawn="depths")
    assert found["faults"] == [] and found["checked"] > 15 and found["files"] >= 1


def with_two_depths(shared_mib: float = 9.0, **changes: object) -> PipelineProblem:
    """`with_mtp`, with a second MTP layer on the last two chunks, and 9 MiB that a stage with either holds once."""
    body, mtp = with_mtp((1, 2)).kinds
    mtp = replace(mtp, shared_mib=shared_mib)
    return (
        with_mtp().replace(kinds=(body, mtp, replace(mtp, name="mtp#2", shared_mib=shared_mib + 1))).replace(**changes)
    )


def test_a_stage_holds_what_its_mtp_layers_share_once() -> None:
    apart = plan_of({"body": [[2, 2, 0]], "mtp": [[0, 1, 0]], "mtp#2": [[0, 0, 1]]})
    together = plan_of({"body": [[2, 2, 0]], "mtp": [[0, 1, 0]], "mtp#2": [[0, 1, 0]]})
    problem, one = with_two_depths(), 20 + 6
    assert peak_memory_mib(problem, apart) == (5 + 20 + 8, 6 + 20 + 8 + one + 9, 7 + one + 10)
    assert peak_memory_mib(problem, together) == (5 + 20 + 8, 6 + 20 + 8 + 2 * one + 10, 7)
    for plan in (apart, together):
        assert [float(peak) for peak in exact_peak_memory(problem, plan)] == list(peak_memory_mib(problem, plan))
        assert check(problem, plan, evaluate(problem, plan).objective) == []


def test_mtp_layers_lie_apart_where_one_stage_cannot_hold_both() -> None:
    problem = with_two_depths(limit_mib=(200.0, 70.0, 60.0), micro_batches=8)
    truth, solution = enumerate_optimum(problem), solve(problem)
    assert truth is not None and solution.status == OPTIMAL and solution.plan is not None
    assert solution.objective == pytest.approx(truth.objective, rel=1e-9)
    assert solution.plan.layers["mtp"] == ((0, 1, 0),) and solution.plan.layers["mtp#2"] == ((0, 0, 1),)
    again = Result(problem, solution).to_dict()
    assert again["layers"]["mtp"] == [[0, 1, 1]] and Result.from_dict(again).solution.plan == solution.plan


def test_places_that_leave_a_chunk_without_the_layers_that_it_needs_are_not_tried() -> None:
    """Positions 1 and 2 of three for two MTP layers; where entries stand with others, the last stage has some layer."""
    tried = [[kind.places for kind in one.pinned_kinds] for one in placements(with_two_depths())]
    assert tried == [[(2,), (2,)], [(1,), (2,)], [(1,), (1,)]]
    fewer = [[kind.places for kind in one.pinned_kinds] for one in placements(with_two_depths(entries_alone=False))]
    assert fewer == [[(2,), (2,)]]


@pytest.mark.parametrize(("at", "mib"), [(0, 9.0), (2, -1.0)])
def test_shared_memory_is_of_pinned_kinds_and_never_negative(at: int, mib: float) -> None:
    kinds = list(with_two_depths().kinds)
    kinds[at] = replace(kinds[at], shared_mib=mib)
    with pytest.raises(ValueError, match=f"shared_mib must be >= 0, and 0 unless it is pinned, found {mib}"):
        with_mtp().replace(kinds=tuple(kinds))


def test_a_kind_lies_where_the_step_is_shortest_and_the_head_may_be_alone() -> None:
    problem = with_mtp(micro_batches=16, lag=0.0)
    truth, solution = enumerate_optimum(problem), solve(problem)
    assert truth is not None and solution.status == OPTIMAL
    assert solution.objective == pytest.approx(truth.objective, rel=1e-9)
    assert solution.plan == plan_of({"body": [[3, 1, 0]], "mtp": [[0, 1, 0]]}, {FULL: [[0, 0, 0]]})
    together = solve(problem.replace(entries_alone=False))
    assert together.objective is not None and together.objective > truth.objective


def test_what_passes_behind_the_kind_takes_as_many_times_as_long_more_as_it_says() -> None:
    """One micro-batch: 9 forward and 18 backward, and transfers of 0.5 either way, 1 behind the MTP layer."""
    apart = plan_of({"body": [[2, 2, 0]], "mtp": [[0, 1, 0]]})
    ahead = plan_of({"body": [[4, 0, 0]], "mtp": [[1, 0, 0]]})
    with_head = plan_of({"body": [[2, 1, 1]], "mtp": [[0, 0, 1]]})
    for plan, transfers in ((apart, 1.5), (with_head, 1.0)):
        assert exact_step_time(with_mtp(), plan) == 27 + 2 * transfers
        assert evaluate(with_mtp(), plan).objective == 27 + 2 * transfers
    assert exact_step_time(with_mtp(), ahead) == 27 + 2 * 2.0
    assert peak_memory_mib(with_mtp(), apart) == (5 + 20 + 8, 6 + 40 + 14, 7)
    assert settled(with_mtp(), apart).boundary_lags == (0.5, 1.0)


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ({"body": [[2, 1, 1]], "mtp": [[1, 0, 0]]}, "has body layers after mtp layers have begun"),
        ({"body": [[2, 2, 0]], "mtp": [[0, 1, 0]]}, ""),
        ({"body": [[0, 4, 0]], "mtp": [[0, 0, 1]]}, ""),
        ({"body": [[4, 0, 0]], "mtp": [[0, 0, 1]]}, "at least 1 are required"),
    ],
)
def test_the_checker_holds_the_order_of_kinds_and_lets_entries_alone_have_chunks(layers: dict, says: str) -> None:
    found = check(with_mtp(), plan_of(layers))
    assert found == [] if not says else any(says in fault for fault in found)


def test_the_checker_tells_a_kind_in_another_place_or_in_pieces() -> None:
    problem = with_mtp((1, 2))
    there = plan_of({"body": [[4, 0, 0]], "mtp": [[1, 0, 0]]})
    assert "belong on one of the chunks [1, 2]" in check(problem, there)[0]
    two = problem.replace(kinds=(problem.kinds[0], replace(problem.kinds[1], count=2)))
    apart = plan_of({"body": [[2, 2, 0]], "mtp": [[0, 1, 1]]})
    assert "1 of 2 mtp layers, which must share a chunk" in " ".join(check(two, apart))
    bare = plan_of({"body": [[2, 2, 0]], "mtp": [[0, 1, 0]]})
    assert "at least 1 are required" in check(problem.replace(entries_alone=False), bare)[0]


def test_places_that_no_plan_can_keep_are_refused() -> None:
    body, mtp = with_mtp().kinds
    for kinds, says in (
        ((body, replace(mtp, places=(2, 1))), "rising positions of 0 to 2"),
        ((body, replace(mtp, places=(3,))), "rising positions of 0 to 2"),
        ((body, replace(mtp, pinned_last=False)), "of a pinned kind"),
        ((mtp, body), "behind all kinds that are free"),
        ((body, replace(mtp, places=(2,)), replace(mtp, name="head", places=(0, 1))), "before those of a kind"),
    ):
        with pytest.raises(ValueError, match=says):
            with_mtp().replace(kinds=kinds)


def test_several_kinds_keep_their_order_in_every_choice_of_places() -> None:
    body, mtp = with_mtp().kinds
    problem = with_mtp().replace(kinds=(body, mtp, replace(mtp, name="head", places=(1, 2))))
    places = [tuple(kind.places[0] for kind in one.pinned_kinds) for one in placements(problem)]
    assert places == [(2, 2), (1, 2), (1, 1), (0, 1)]  # behind (0, 2) the second chunk lacks the layer that it needs


def test_kinds_of_equal_cost_on_different_chunks_stay_apart_where_bounds_merge_kinds() -> None:
    """Each stage keeps the exposed communication of the MTP layer that lies on it."""
    body, mtp = with_mtp().kinds
    runs = [replace(mtp, name=name, places=(at,), exposed_forward=0.5) for name, at in (("mtp", 1), ("mtp#2", 2))]
    problem = with_mtp().replace(kinds=(replace(body, count=3), replace(body, name="like it", count=1), *runs))
    problem = problem.replace(pairing=Pairing())
    merged = alike(problem)
    assert [kind.count for kind in merged.free_kinds] == [4]
    for stage, exposed in enumerate((0.0, 0.5, 0.5)):
        for one in (problem, merged):
            assert pinned_times(one, stage, 2)[:, 0].tolist() == [exposed, 0.0]


def test_a_kind_that_fits_nowhere_is_told_with_the_least_memory_of_its_best_place() -> None:
    problem = with_mtp(limit_mib=(30.0, 30.0, 30.0))
    solution = solve(problem)
    assert solution.status == INFEASIBLE and "least device memory with which a plan exists" in solution.message
    enough = float(solution.message.split("plan exists is ")[1].split()[0])
    assert solve(problem.replace(limit_mib=(enough,) * 3)).plan is not None
    assert solve(problem.replace(limit_mib=(enough - 0.001,) * 3)).plan is None


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_with_no_time_the_known_plan_is_kept_and_one_choice_of_recompute_holds(solver: str) -> None:
    rule = {"uniform_recompute": ((FULL, 0), (FULL, 1)), "schedule": ScheduleSpec("1f1b")}
    problem = with_mtp(micro_batches=4, limit_mib=(30.0, 90.0, 60.0), **rule)
    known = plan_of({"body": [[1, 3, 0]], "mtp": [[0, 1, 0]]}, {FULL: [[1, 1, 0]]})
    assert check(problem, known) == []
    kept = solve(problem, SolveOptions(solver=solver, time_limit=0.0), warm_start=known)
    assert kept.objective is not None and kept.objective <= float(exact_step_time(problem, known))
    truth, solution = enumerate_optimum(problem), solve(problem, SolveOptions(solver=solver))
    assert truth is not None and solution.objective == pytest.approx(truth.objective)


def test_a_problem_with_places_goes_through_its_data_and_back() -> None:
    problem = with_mtp((1, 2), lags=(0.25, 0.75))
    result = Result(problem, solve(problem))
    assert Result.from_dict(result.to_dict()).problem == problem
    assert problem_data(problem)["kinds"][1]["places"] == [1, 2]


def test_a_place_that_is_proven_as_far_as_was_asked_is_not_tried_again() -> None:
    """Places are cut off at half of the gap; a proof between half of it and all of it is one nevertheless."""
    problem = with_mtp((1, 2))
    tried = []

    def run(asked: PipelineProblem, options: SolveOptions, **_further: object) -> Solution:
        tried.append(asked)
        return Solution(OPTIMAL, plan=plan_of({"body": [[2, 1, 1]], "mtp": [[0, 0, 1]]}), objective=30.0).replace(
            bound=30.0 * (1 - 0.8 * options.gap)
        )

    found = solve_places(problem, SolveOptions(time_limit=20.0, gap=1e-3), run=run)
    assert found.status == OPTIMAL and found.objective == 30.0 and found.seconds < 10.0
    assert len(tried) == 2 == len(placements(problem))
