"""Which layers a chunk may hold and which of its recompute choices are worth having, against plain enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.columns import chunk_types as module
from taylor.pipeline_solver.columns.chunk_types import (
    ChunkChoices,
    RecomputeOptions,
    _recompute_options,
    chunk_bounds,
    chunk_types,
    undominated,
)
from taylor.pipeline_solver.model.problem import LayerChoice, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from tests.pipeline_solver.column_cases import folded, kind, straight
from tests.solver_cases import small_problem


def test_bounds_of_chunks_come_from_all_that_is_given() -> None:
    """Five layers on three chunks: one each at least leaves three for any."""
    plain = straight()

    def bounds(problem: PipelineProblem) -> list[list[int]]:
        return [found[0].tolist() for found in chunk_bounds(problem, schedule_of(problem))]

    assert bounds(plain) == [[1, 1, 1], [3, 3, 3]]
    assert bounds(plain.replace(min_layers=0)) == [[0, 0, 0], [5, 5, 5]]
    assert bounds(plain.replace(max_layers={(0, 1): 2})) == [[1, 1, 1], [3, 2, 3]]
    assert bounds(plain.replace(max_layers={(0, 1): 9})) == [[1, 1, 1], [3, 3, 3]]
    assert bounds(plain.replace(fixed_layers={(0, 1): 2})) == [[1, 2, 1], [2, 2, 2]]
    assert bounds(plain.replace(fixed_layers={(0, 1): 2}, max_layers={(0, 1): 1})) == [[1, 2, 1], [2, 1, 2]]
    # A given 0 contradicts the least number: an empty range.
    assert bounds(plain.replace(fixed_layers={(0, 1): 0})) == [[1, 1, 1], [3, 0, 3]]
    pinned = plain.replace(kinds=(kind("a", 5), kind("mtp", 1, pinned_last=True, places=(1,))), entries_alone=True)
    assert bounds(pinned) == [[0, 0, 0], [5, 5, 0]]
    v_shaped = small_problem(
        interleaves=2, kinds=(kind("a", 5), kind("mtp", 1, pinned_last=True, places=(2,))), min_layers=0,
        schedule=ScheduleSpec("zbv"),
    )  # fmt: skip
    # The chunk behind the third is the second interleave of stage 0.
    assert [found.tolist() for found in chunk_bounds(v_shaped, schedule_of(v_shaped))][1] == [[5, 5], [0, 5]]


def types_of(problem: PipelineProblem, place: int) -> dict[tuple[int, ...], tuple[int, int]]:
    schedule = schedule_of(problem)
    lower, upper = chunk_bounds(problem, schedule)
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    low, high = (np.concatenate([[0], np.cumsum([of[c] for c in chunks])]) for of in (lower, upper))
    v, s = chunks[place]
    found = chunk_types(problem, v, s, place, low, high, lower, upper, RecomputeOptions())
    assert len({one.layers for one in found}) == len(found)
    return {one.layers: (one.first, one.last) for one in found}


def types_by_enumeration(problem: PipelineProblem, place: int) -> dict[tuple[int, ...], tuple[int, int]]:
    schedule = schedule_of(problem)
    lower, upper = chunk_bounds(problem, schedule)
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    kinds = [j for j, each in enumerate(problem.placed_kinds) for _ in range(each.count)]
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for sizes in itertools.product(*(range(lower[c], upper[c] + 1) for c in chunks)):
        if sum(sizes) == len(kinds):
            start = sum(sizes[:place])
            run = kinds[start : start + sizes[place]]
            held = tuple(run.count(j) for j in range(len(problem.placed_kinds)))
            first, last = found.get(held, (start, start))
            found[held] = min(first, start), max(last, start)
    return found


@pytest.mark.parametrize(
    "problem",
    [
        straight(limit_mib=(900.0,) * 3),
        straight(limit_mib=(900.0,) * 3, min_layers=0),
        straight(limit_mib=(900.0,) * 3, fixed_layers={(0, 1): 1}),
        straight(limit_mib=(900.0,) * 3, max_layers={(0, 0): 2, (0, 2): 2}),
        folded(limit_mib=(900.0,) * 2),
        folded(limit_mib=(900.0,) * 2, max_layers={(0, 0): 2, (1, 1): 1}),
    ],
)
def test_a_chunk_may_hold_the_runs_of_layers_that_some_sizes_of_chunks_give_it(problem: PipelineProblem) -> None:
    for place in range(problem.stages * problem.interleaves):
        assert types_of(problem, place) == types_by_enumeration(problem, place)


@pytest.mark.parametrize(("limit", "most"), [(30.0 - 1e-6, 3), (30.0 - 3e-6, 2)])
def test_layers_that_alone_pass_the_limit_by_more_than_a_byte_are_too_many(limit: float, most: int) -> None:
    """Two layers of 10 MiB less 2 of choice and one of 14 beside no static memory: 8 + 8 + 14."""
    choices = {"off": LayerChoice(states_mib=-2.0)}
    heavy = {"off": LayerChoice()}
    problem = small_problem(
        kinds=(kind("heavy", 2, layer_mib=14.0, choices=heavy), kind("light", 2, choices=choices)),
        choices=("off",),
        static_mib=(0.0, 0.0),
        limit_mib=(limit, 500.0),
        recompute_ratio={},
    )
    assert max(sum(held) for held in types_of(problem, 0)) == most


def test_choices_of_a_chunk_have_their_needs_beside_each_other() -> None:
    choices = ChunkChoices(
        np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([7.0, 8.0]), np.array([[1], [2]]),
        np.array([-1.0, -2.0]), np.array([10.0, 20.0]), np.array([100.0, 200.0]), np.array([5.0, 6.0]),
    )  # fmt: skip
    alive = np.array([2.0, 3.0])
    assert choices.need(alive).tolist() == [[13.0, 14.0], [20.0, 22.0]]
    host, lent = [[120.0, 240.0], [130.0, 260.0]], [[10.0, 12.0], [15.0, 18.0]]
    moved = LayerChoice(host_mib=1.0, lent_mib=1.0)
    problem = small_problem(kinds=(kind("a", 4, choices={"off": moved}),), choices=("off",), lenders=(1, -1))
    for limits, needs in (((), []), (("host_limit_mib",), [host]), (("lent_limit_mib",), [lent])):
        bounded = problem.replace(**{name: (50.0, 70.0) for name in limits})
        assert choices.needs_elsewhere(bounded, alive).tolist() == needs
        assert bounded.limits_elsewhere(1) == (70.0,) * len(limits)
    both = problem.replace(host_limit_mib=(50.0, 70.0), lent_limit_mib=(30.0, 40.0))
    assert choices.needs_elsewhere(both, alive).tolist() == [host, lent] and both.limits_elsewhere(0) == (50.0, 30.0)
    assert choices.vectors[:, 1].tolist() == [2.0, 4.0, 6.0, 8.0, -2.0, 20.0, 200.0, 6.0]
    second = choices.take(np.array([1]))
    assert len(second) == 1 and second.vectors[:, 0].tolist() == choices.vectors[:, 1].tolist()
    assert second.recompute.tolist() == [[2]]


def recomputed(problem: PipelineProblem, held: tuple[int, ...], fixed: tuple[int, ...]) -> list[list[int]]:
    found: list[list[int]] = _recompute_options(problem, held, fixed, {}, Stopper(None)).recompute.tolist()
    return found


def test_recompute_worth_having_takes_longer_only_where_it_saves_memory() -> None:
    """Two layers that keep 4, or 2 at a cost of 0.5, or 1 at a cost of 1: two partly (4 MiB) beat one fully (5 MiB)."""
    problem = small_problem(kinds=(kind("a", 2),), recompute_ratio={FULL: 1.0, SELECT: 0.5})
    # At a cost of 1 there are [1, 0] with 5 MiB and [0, 2] with 4.
    assert recomputed(problem, (2,), (-1, -1)) == [[0, 0], [0, 1], [0, 2], [1, 1], [2, 0]]
    assert recomputed(problem, (0,), (-1, -1)) == [[0, 0]]
    assert recomputed(problem, (2,), (1, -1)) == [[1, 0], [1, 1]]
    assert recomputed(problem, (2,), (-1, 0)) == [[0, 0], [1, 0], [2, 0]]
    assert recomputed(problem, (2,), (1, 2)) == []
    assert recomputed(problem.replace(uniform_recompute=((FULL, 3),)), (2,), (-1, -1)) == [[2, 0]]
    once = problem.replace(uniform_recompute=((SELECT, 1),))
    assert recomputed(once, (2,), (-1, -1)) == [[0, 1]]
    assert recomputed(once, (2,), (0, 1)) == [[0, 1]]
    assert recomputed(once, (2,), (-1, 0)) == []
    # What saves no memory is left out.
    idle = small_problem(kinds=(kind("a", 2, kept={NONE: 4.0, FULL: 4.0}),))
    assert recomputed(idle, (2,), (-1,)) == [[0]]
    chosen = small_problem(kinds=(kind("a", 2, choices={"off": LayerChoice()}),), choices=("off",), recompute_ratio={})
    assert recomputed(chosen, (2,), (-1,)) == [[2]]
    assert recomputed(chosen, (2,), (1,)) == [[1]]


def test_of_rows_the_same_but_for_rounding_one_stays_and_known_ones_count() -> None:
    rows = np.array([[1.0, 2.0], [1.0, 2.0 + 1e-14], [0.5, 3.0], [1.0, 2.5]])
    assert undominated(rows, 0).tolist() in ([0, 2], [1, 2])
    assert undominated(np.zeros((0, 2)), 0).tolist() == []
    # The first one is known: it stays, and rows are counted behind it.
    assert undominated(np.array([[9.0, 9.0], [1.0, 1.0], [2.0, 0.5]]), 1).tolist() == [0, 1]
    assert undominated(np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 0.5]]), 1).tolist() == [1]
    assert undominated(np.array([[0.0, 1.0], [0.0, 0.0]]), 0).tolist() == [1]
    assert module.ROUNDING == 1e-13
