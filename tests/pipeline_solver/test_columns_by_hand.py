"""What chunks and stages may hold, and the LP over it, against plain enumeration and another model of the LP."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver import chunk_types as module
from taylor.pipeline_solver.checker import _exact_times as exact_times
from taylor.pipeline_solver.checker import exact_peak_memory
from taylor.pipeline_solver.chunk_types import (
    ChunkChoices,
    RecomputeOptions,
    _recompute_options,
    chunk_bounds,
    chunk_types,
    undominated,
)
from taylor.pipeline_solver.columns import ColumnSet, build_columns, recompute_extra
from taylor.pipeline_solver.cut_pool import CutPool, PathCuts
from taylor.pipeline_solver.durations import schedule_of
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.master import Master
from taylor.pipeline_solver.path_lp import LpResult
from taylor.pipeline_solver.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.stage_tuples import TooManyColumns, stage_tuples
from tests.solver_cases import plan_of, small_problem

KEPT = {NONE: 4.0, FULL: 1.0, SELECT: 2.0, "off": 1.5}


def kind(name: str, count: int, forward: float = 1.0, layer_mib: float = 10.0, **more: Any) -> LayerKind:
    return LayerKind(name, count, forward, layer_mib, more.pop("kept", KEPT), **more)


def straight(**changes: Any) -> PipelineProblem:
    """Three stages of which the first two need recompute in some plans."""
    problem = small_problem(
        stages=3,
        kinds=(kind("a", 2, 0.5), kind("b", 3), kind("mtp", 1, 0.25, pinned_last=True)),
        static_mib=(0.0, 1.0, 2.0),
        limit_mib=(46.0, 45.0, 200.0),
        head_forward=0.75,
        embedding_forward=0.125,
        slowness=(1.0, 1.5, 1.0),
    )
    return problem.replace(**changes)


def folded(**changes: Any) -> PipelineProblem:
    """Three kinds on four chunks that may be empty."""
    problem = small_problem(
        interleaves=2,
        micro_batches=2,
        kinds=(kind("a", 1), kind("b", 3, 0.5), kind("c", 1, 2.0)),
        schedule=ScheduleSpec("interleaved"),
        min_layers=0,
        limit_mib=(52.0, 54.0),
        lag=0.25,
        tail=(0.5, 1.0),
    )
    return problem.replace(**changes)


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
        np.array([-1.0, -2.0]), np.array([10.0, 20.0]), np.array([100.0, 200.0]),
    )  # fmt: skip
    alive = np.array([2.0, 3.0])
    assert choices.need(alive).tolist() == [[13.0, 14.0], [20.0, 22.0]]
    assert choices.host_need(alive).tolist() == [[120.0, 240.0], [130.0, 260.0]]
    assert choices.vectors[:, 1].tolist() == [2.0, 4.0, 6.0, 8.0, -2.0, 20.0, 200.0]
    second = choices.take(np.array([1]))
    assert len(second) == 1 and second.vectors[:, 0].tolist() == choices.vectors[:, 1].tolist()
    assert second.recompute.tolist() == [[2]]


def recomputed(problem: PipelineProblem, held: tuple[int, ...], fixed: tuple[int, ...]) -> list[list[int]]:
    found: list[list[int]] = _recompute_options(problem, held, fixed, {}).recompute.tolist()
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


def plan_with(problem: PipelineProblem, stage: int, layers: Any, recompute: Any) -> PipelinePlan:
    """A plan that holds something on one stage alone: layers [V][K] and recompute [V][modes]."""
    V, S = problem.interleaves, problem.stages

    def grid(values: list[int]) -> list[list[int]]:
        return [[values[v] if s == stage else 0 for s in range(S)] for v in range(V)]

    placed = {each.name: grid([int(layers[v][j]) for v in range(V)]) for j, each in enumerate(problem.placed_kinds)}
    schedule = schedule_of(problem)
    for each in problem.kinds:
        if each.pinned_last:
            at = schedule.chunk_at(schedule.chunks - 1)
            placed[each.name] = [[each.count * ((v, s) == at) for s in range(S)] for v in range(V)]
    modes = problem.searched_modes
    return plan_of(placed, {mode: grid([int(recompute[v][m]) for v in range(V)]) for m, mode in enumerate(modes)})


def listed(problem: PipelineProblem) -> ColumnSet:
    return build_columns(problem, stage_tuples(problem, 10_000), 10_000)


PROBLEMS = [straight(), folded(), straight(recompute_ratio={FULL: 1.0, SELECT: 0.25}), folded(slowness=(1.0, 1.5))]


def fits(problem: PipelineProblem, stage: int, layers: Any, recompute: Any) -> bool:
    peak = exact_peak_memory(problem, plan_with(problem, stage, layers, recompute))[stage]
    return bool(float(peak) <= problem.limit_mib[stage] + 1e-6)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_columns_of_a_stage_are_its_choices_of_which_no_chunk_can_take_the_next_cheaper(
    problem: PipelineProblem,
) -> None:
    columns, tuples = listed(problem), stage_tuples(problem, 10_000)
    groups = 0
    several = False
    for s in range(problem.stages):
        expected = []
        for number, member in enumerate(tuples[s].members.tolist()):
            chunks = [tuples[s].types[v][at] for v, at in enumerate(member)]
            layers = [chunk.layers for chunk in chunks]
            options = [chunk.choices.recompute.tolist() for chunk in chunks]
            for at in itertools.product(*(range(len(of)) for of in options)):
                taken = [of[i] for of, i in zip(options, at, strict=True)]
                cheaper = [
                    [of[i - (w == v)] for w, (of, i) in enumerate(zip(options, at, strict=True))]
                    for v in range(len(at))
                    if at[v]
                ]
                if fits(problem, s, layers, taken) and not any(fits(problem, s, layers, one) for one in cheaper):
                    expected.append((groups + number, [list(of) for of in layers], taken))
        groups += len(tuples[s].members)
        rows = range(columns.start[s], columns.start[s + 1])
        found = [(int(columns.group[c]), columns.layers[c].tolist(), columns.recompute[c].tolist()) for c in rows]
        assert sorted(found) == sorted(expected)
        several = several or len(found) > len({group for group, _, _ in found})
    assert several or problem.interleaves == 1


def choosing(weight_gradient: float = 0.0) -> PipelineProblem:
    choices = {"off": LayerChoice(0.125, 0.25, weight_gradient)}
    return straight(
        kinds=(kind("a", 2, 0.5, choices=choices), kind("b", 3, choices=choices)), choices=("off",), slowness=()
    )


@pytest.mark.parametrize("problem", [*PROBLEMS, choosing(0.0625)])
def test_what_is_told_of_a_column_is_what_its_chunks_say(problem: PipelineProblem) -> None:
    columns, schedule = listed(problem), schedule_of(problem)
    V, K = problem.interleaves, len(problem.placed_kinds)
    extra = recompute_extra(columns, np.arange(len(columns)))
    for c in range(len(columns)):
        s = int(columns.stage[c])
        assert columns.start[s] <= c < columns.start[s + 1]
        layers = columns.layers[c].tolist()
        plan = plan_with(problem, s, layers, columns.recompute[c])
        exact, _, _ = exact_times(problem, plan, schedule)
        times = [float(exact[d, v, s]) for d in range(2) for v in range(V)]
        assert columns.durations[c].tolist() == pytest.approx(times)
        assert columns.work[c] == pytest.approx(sum(times))
        assert columns.totals[c].tolist() == [sum(layers[v][j] for v in range(V)) for j in range(K)]
        held = [[j for j in range(K) if layers[v][j]] for v in range(V)]
        assert columns.least_kind[c].tolist() == [min(of, default=K) for of in held]
        assert columns.greatest_kind[c].tolist() == [max(of, default=-1) for of in held]
        plain, _, _ = exact_times(problem, PipelinePlan(plan.layers, {}), schedule)
        for d in range(2):
            more = [float(exact[d, v, s] - plain[d, v, s]) / problem.pace[s] for v in range(V)]
            assert extra[d, c].tolist() == pytest.approx(more, abs=1e-12)
    assert extra[1].max() > 0.1 and not extra[2].any()  # weight gradients belong to the backward here
    assert bool(extra[0].max() > 0.1) is bool(problem.choices)


def test_more_columns_of_a_stage_than_asked_for_are_too_many() -> None:
    for problem in (straight(), choosing()):
        tuples = stage_tuples(problem, 10_000)
        most = int(np.diff(listed(problem).start).max())
        assert most > 1 and len(build_columns(problem, tuples, most)) == len(listed(problem))
        with pytest.raises(TooManyColumns, match=f"more than {most - 1} configurations"):
            build_columns(problem, tuples, most - 1)


def test_a_stage_that_can_hold_nothing_has_no_columns() -> None:
    problem = straight(limit_mib=(46.0, 5.0, 200.0))
    columns = listed(problem)
    assert (len(columns), columns.start.tolist(), columns.durations.shape) == (0, [0, 0, 0, 0], (0, 2))


@pytest.mark.parametrize("problem", [*PROBLEMS, choosing(), choosing(0.0625)])
def test_a_plan_of_columns_is_found_again_and_one_that_recomputes_more_too(problem: PipelineProblem) -> None:
    columns = listed(problem)
    rng = np.random.default_rng(1)
    for _ in range(20):
        chosen = np.array([rng.integers(a, b) for a, b in zip(columns.start[:-1], columns.start[1:], strict=True)])
        plan = columns.plan(chosen)
        for s, c in enumerate(chosen):
            own = plan_with(problem, s, columns.layers[c], columns.recompute[c])
            for each in problem.placed_kinds:
                assert [row[s] for row in plan.layers[each.name]] == [row[s] for row in own.layers[each.name]]
            for mode in problem.searched_modes:
                assert [row[s] for row in plan.recompute[mode]] == [row[s] for row in own.recompute[mode]]
        found = columns.find(plan)
        assert found is not None and (columns.layers[found] == columns.layers[chosen]).all()
        assert (columns.durations[found] <= columns.durations[chosen] + 1e-9).all()
    if problem.interleaves == 1 and not problem.choices:
        assert (found == chosen).all()
        # Every layer recomputed: longer than any column needs.
        everything = PipelinePlan(plan.layers, {FULL: plan.total_layers([each.name for each in problem.placed_kinds])})
        again = columns.find(everything)
        assert again is not None and (columns.layers[again] == columns.layers[chosen]).all()
    moved = {name: tuple(tuple(row[::-1]) for row in grid[::-1]) for name, grid in plan.layers.items()}
    assert columns.find(PipelinePlan({**moved, "b": plan.layers["a"]}, {})) is None


def test_pinned_layers_lie_on_their_place_in_the_plan_of_columns() -> None:
    columns = listed(straight())
    assert columns.plan(columns.start[:-1]).layers["mtp"] == ((0, 0, 1),)
    nobody = straight(kinds=(*straight().kinds, kind("none", 0)))
    assert listed(nobody).plan(columns.start[:-1]).layers["none"] == ((0, 0, 0),)


def test_a_part_of_the_columns_keeps_their_stages_and_numbers() -> None:
    columns = listed(folded())
    mask = np.arange(len(columns)) % 3 == 1
    part, numbers = columns.part(mask)
    assert numbers.tolist() == np.nonzero(mask)[0].tolist()
    assert part.stage.tolist() == columns.stage[numbers].tolist()
    assert (part.layers == columns.layers[numbers]).all() and (part.group == columns.group[numbers]).all()
    assert (part.durations == columns.durations[numbers]).all() and part.ordered


def pooled(problem: PipelineProblem) -> PathCuts:
    """The paths that fill up to a stage, run all of it and drain, and those of some random times."""
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    paths.seeds()
    rng = np.random.default_rng(4)
    for _ in range(6):
        paths.path(rng.random(paths.classes))
    return paths


def by_another_model(columns: ColumnSet, pool: CutPool, allowed: NDArray[np.bool_]) -> float:
    """The LP written from its definition: T, columns, and switches z[j, k] that rise along the chunks."""
    problem = columns.problem
    schedule = schedule_of(problem)
    S, K, n, chunks = problem.stages, len(problem.placed_kinds), len(columns), schedule.chunks
    switches = (K - 1) * (chunks - 1)
    width = 1 + n + switches
    equal, sides, under, tops = [], [], [], []

    def row(at: Iterator[tuple[int, float]]) -> NDArray[np.float64]:
        found = np.zeros(width)
        for column, value in at:
            found[column] += value
        return found

    for s in range(S):
        equal.append(row((1 + c, 1.0) for c in range(n) if columns.stage[c] == s))
        sides.append(1.0)
    for j, each in enumerate(problem.placed_kinds):
        equal.append(row((1 + c, float(columns.totals[c, j])) for c in range(n)))
        sides.append(float(each.count))
    for cut in range(pool.size):
        counts = pool.counts[cut].reshape(-1, S)
        terms = [(1 + c, float(columns.durations[c] @ counts[:, columns.stage[c]])) for c in range(n)]
        under.append(row(iter([(0, -1.0), *terms])))
        tops.append(-float(pool.constant[cut]))
    for j, k in itertools.product(range(K - 1), range(chunks - 1)):
        z = 1 + n + j * (chunks - 1) + k

        def holding(place: int, late: bool, j: int = j) -> list[int]:
            v, s = schedule.chunk_at(place)
            some = slice(j + 1, K) if late else slice(0, j + 1)
            return [c for c in range(n) if columns.stage[c] == s and columns.layers[c, v, some].any()]

        if problem.min_layers:
            under.append(row((1 + c, 1.0) for c in [*holding(k, True), *holding(k + 1, False)]))
            tops.append(1.0)
            continue
        under.append(row(iter([*((1 + c, 1.0) for c in holding(k, True)), (z, -1.0)])))
        under.append(row(iter([*((1 + c, 1.0) for c in holding(k + 1, False)), (z, 1.0)])))
        tops += [0.0, 1.0]
        if k + 2 < chunks:
            under.append(row(iter([(z, 1.0), (z + 1, -1.0)])))
            tops.append(0.0)
    bounds = [(0, None), *((0, None if may else 0) for may in allowed), *[(0, 1)] * switches]
    found = linprog([1.0] + [0.0] * (width - 1), np.array(under), tops, np.array(equal), sides, bounds)
    return float(found.fun) if found.status == 0 else np.inf


def held_by(master: Master, paths: PathCuts) -> Master:
    for cut in range(paths.pool.size):
        master.hold(cut)
    return master


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_master_has_the_optimum_of_another_model_of_it(problem: PipelineProblem) -> None:
    columns, paths = listed(problem), pooled(problem)
    every = np.arange(len(columns))
    master = held_by(Master(columns, every, paths.pool), paths)
    rng = np.random.default_rng(2)
    masks = [np.ones(len(columns), dtype=bool), *(rng.random((4, len(columns))) < 0.6)]
    for mask in masks:
        master.allow(mask)
        result = master.solve()
        value = by_another_model(columns, paths.pool, mask)
        if value == np.inf:
            assert result.value == np.inf
            continue
        assert result.value == pytest.approx(value, rel=1e-7)
        assert result.bound == pytest.approx(value, rel=1e-7)
        assert not len(result.entering)
        assert_priced(master, result)


def assert_priced(master: Master, result: LpResult) -> None:
    """Reduced costs are what the prices say of a column's contents, and the bound is the value at the least of them."""
    columns, prices = master.columns, master.prices()
    V, K = columns.problem.interleaves, len(columns.problem.placed_kinds)
    assert result.reduced is not None and result.least is not None
    for c in range(len(columns)):
        s = int(columns.stage[c])
        cost = float(columns.totals[c] @ prices.layer) - float(prices.stage[s])
        cost += float(columns.durations[c] @ prices.duration[:, :, s].reshape(-1))
        for j, v in itertools.product(range(K - 1), range(V)):
            cost += prices.late[j, v, s] * (columns.greatest_kind[c, v] > j)
            cost += prices.early[j, v, s] * (columns.least_kind[c, v] <= j)
        assert result.reduced[c] == pytest.approx(cost, abs=1e-7)
    permitted = [
        min(0.0, *(result.reduced[c] for c in range(len(columns)) if columns.stage[c] == s and master.allowed[c]), 0.0)
        for s in range(columns.problem.stages)
    ]
    assert result.least.tolist() == pytest.approx(permitted)
    assert result.bound == pytest.approx(result.value + sum(permitted))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_columns_that_come_in_by_their_price_lead_to_the_same_optimum(problem: PipelineProblem) -> None:
    columns, paths = listed(problem), pooled(problem)
    everything = np.ones(len(columns), dtype=bool)
    truth = by_another_model(columns, paths.pool, everything)
    master = held_by(Master(columns, columns.start[:-1], paths.pool), paths)
    assert master.partial and master.candidates == 16
    result = master.solve()
    rounds = 0
    while len(result.entering):
        assert result.bound <= truth + 1e-7
        assert_priced(master, result)
        assert not master.is_active[result.entering].any()
        master.add_columns(result.entering)
        assert master.is_active[result.entering].all()
        result = master.solve()
        rounds += 1
    assert rounds >= 1
    assert (result.value, result.bound) == (pytest.approx(truth, rel=1e-7), pytest.approx(truth, rel=1e-7))
    held = list(master.held)
    master.add_columns(master.active)
    assert len(set(master.active.tolist())) == len(master.active)
    master.rebuild(np.arange(len(columns)))
    assert (master.held, master.partial, master.candidates) == (held, False, 32)
    assert master.solve().value == pytest.approx(truth, rel=1e-7)


def test_times_and_columns_of_a_point_are_those_of_its_weights() -> None:
    columns, paths = listed(folded()), pooled(folded())
    master = Master(columns, np.arange(len(columns)), paths.pool)
    rng = np.random.default_rng(6)
    weights = rng.random(len(columns)) * (rng.random(len(columns)) < 0.5)
    times = np.zeros(paths.classes)
    for c, weight in enumerate(weights):
        times[np.arange(4) * 2 + columns.stage[c]] += weight * columns.durations[c]
    assert master.durations(weights) == pytest.approx(times)
    chosen = master.chosen(LpResult(0.0, 0.0, point=weights), np.ones(len(columns), dtype=bool))
    assert chosen is not None
    for s, c in enumerate(chosen):
        assert columns.stage[c] == s and weights[c] == weights[columns.stage == s].max()
    unordered = Master(replace(columns, ordered=False), np.arange(len(columns)), paths.pool)
    assert unordered.order_terms == [] and unordered.rows < master.rows


def test_with_choices_a_stage_has_those_of_which_no_other_that_fits_is_as_quick() -> None:
    """Of two that take the same time in every direction the first one stays."""
    problem = choosing(0.0625)
    columns, tuples = listed(problem), stage_tuples(problem, 10_000)
    groups = 0
    for s in range(3):
        expected = []
        for number, (at,) in enumerate(tuples[s].members.tolist()):
            chunk = tuples[s].types[0][at]
            taken, extra = chunk.choices.recompute.tolist(), chunk.choices.extra.T
            able = [i for i, one in enumerate(taken) if fits(problem, s, [chunk.layers], [one])]
            for i in able:
                as_quick = [j for j in able if j != i and (extra[j] <= extra[i]).all()]
                if not any((extra[j] < extra[i]).any() or j < i for j in as_quick):
                    expected.append((groups + number, list(chunk.layers), taken[i]))
        groups += len(tuples[s].members)
        rows = range(columns.start[s], columns.start[s + 1])
        found = [(int(columns.group[c]), columns.layers[c, 0].tolist(), columns.recompute[c, 0].tolist()) for c in rows]
        assert sorted(found) == sorted(expected)
    assert len(columns) > groups


def test_an_empty_chunk_between_does_not_let_an_earlier_kind_come_back() -> None:
    """Chunks of nothing, both b, nothing, a and c: each could be, and not all of them."""
    problem = small_problem(
        stages=5, kinds=(kind("a", 1), kind("b", 2), kind("c", 1)), static_mib=(0.0,) * 5, limit_mib=(500.0,) * 5,
        min_layers=0, recompute_ratio={},
    )  # fmt: skip
    columns, paths = listed(problem), pooled(problem)
    master = Master(columns, np.arange(len(columns)), paths.pool)

    def value_of(*layers: list[int]) -> float:
        mask = np.array([columns.totals[c].tolist() == layers[columns.stage[c]] for c in range(len(columns))])
        assert mask.sum() == 5
        master.allow(mask)
        return master.solve().value

    nothing = [0, 0, 0]
    assert value_of(nothing, [0, 2, 0], nothing, [1, 0, 0], [0, 0, 1]) == np.inf
    assert value_of([1, 0, 0], [0, 2, 0], nothing, nothing, [0, 0, 1]) < np.inf
    assert value_of(nothing, [1, 0, 0], nothing, [0, 2, 0], [0, 0, 1]) < np.inf
