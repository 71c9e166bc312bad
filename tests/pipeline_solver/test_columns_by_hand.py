"""The columns of a stage against plain enumeration, and what is told of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline_solver.check.checker import _exact_times as exact_times
from taylor.pipeline_solver.check.checker import exact_peak_memory
from taylor.pipeline_solver.columns.choice_columns import undominated_choices
from taylor.pipeline_solver.columns.columns import build_columns, minimal_choices
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns, stage_tuples
from taylor.pipeline_solver.model.problem import LayerChoice, PipelineProblem
from taylor.pipeline_solver.timing.durations import schedule_of
from tests.pipeline_solver.column_cases import PROBLEMS, folded, kind, listed, straight
from tests.solver_cases import plan_of


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
    for c in range(len(columns)):
        s = int(columns.stage[c])
        assert columns.start[s] <= c < columns.start[s + 1]
        layers = columns.layers[c].tolist()
        plan = plan_with(problem, s, layers, columns.recompute[c])
        exact, _, _ = exact_times(problem, plan, schedule)
        times = [float(exact[d, v, s, -1]) for d in range(2) for v in range(V)]
        assert columns.durations[c].tolist() == pytest.approx(times)
        assert columns.work[c] == pytest.approx(sum(times))
        assert columns.totals[c].tolist() == [sum(layers[v][j] for v in range(V)) for j in range(K)]
        held = [[j for j in range(K) if layers[v][j]] for v in range(V)]
        assert columns.least_kind[c].tolist() == [min(of, default=K) for of in held]
        assert columns.greatest_kind[c].tolist() == [max(of, default=-1) for of in held]


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


@pytest.mark.parametrize("seed", range(20))
def test_choices_of_random_memory_are_those_of_the_enumeration(seed: int) -> None:
    """Chunks of up to four options and two alive vectors; in order, and with times and needs of the other road."""
    random = np.random.default_rng(seed)
    V, options, vectors = 4, 4, 2
    sizes = random.integers(1, options + 1, (V, 1))
    alive = random.integers(1, 5, (vectors, V)).astype(float)
    activation = -np.sort(-random.integers(0, 12, (V, 1, options)).astype(float), axis=2)
    extra = np.zeros((3, V, 1, options))
    extra[1] = np.arange(options)
    needs = alive.T[:, None, None, :] * activation[..., None]
    room = random.uniform(0.2, 0.9) * needs[:, 0, 0].sum(axis=0)[None]
    members = np.zeros((1, V), dtype=np.int64)

    def need_of(chosen: tuple[int, ...]) -> Any:
        return sum(needs[v, 0, i] for v, i in enumerate(chosen))

    everything = [one for one in itertools.product(*(range(n) for n in sizes[:, 0])) if (need_of(one) <= room[0]).all()]
    expected = [
        list(one)
        for one in everything
        if not any((*one[:v], i, *one[v + 1 :]) in everything for v in range(V) for i in range(one[v]))
    ]
    _, in_order, whole = minimal_choices(members, room, alive, extra[1], activation, sizes, 1e-9, 1000)
    assert whole and in_order.tolist() == expected
    _, free, whole = undominated_choices(members, room, needs, extra, sizes, 1e-9, 1000)
    assert whole and free.tolist() == expected


def test_choices_of_many_chunks_are_few() -> None:
    """Of 24 chunks of one layer two must be recomputed: 276 choices, to be found among 16 million."""
    V = 24
    alive, activation = np.ones((1, V)), np.tile([[4.0, 1.0]], (V, 1, 1))
    extra, sizes = np.tile([[0.0, 1.0]], (V, 1, 1)), np.full((V, 1), 2)
    room = np.array([[V * 4.0 - 2 * 3.0]])
    members = np.zeros((1, V), dtype=np.int64)
    _, option, whole = minimal_choices(members, room, alive, extra, activation, sizes, 1e-9, 1000)
    assert whole and len(option) == 276 and (option.sum(axis=1) == 2).all()
    times = np.stack([0 * extra, extra, 0 * extra])
    _, free, whole = undominated_choices(members, room, activation[..., None], times, sizes, 1e-9, 1000)
    assert whole and sorted(free.tolist()) == sorted(option.tolist())
