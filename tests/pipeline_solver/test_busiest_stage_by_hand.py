"""Paths through the busiest stage counted by hand, and the bound of every part against all its plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline_solver.check.checker import check, exact_step_time
from taylor.pipeline_solver.columns.stage_runs import stage_runs
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree.busiest_stage import BusiestStage, Part
from tests.solver_cases import plan_of, small_problem
from tests.solver_params import set_parameter


def search_of(problem: PipelineProblem, cutoff: float | None = None) -> BusiestStage:
    runs = stage_runs(problem)
    assert runs is not None
    graph = EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags)
    return BusiestStage(runs, graph, Stopper(None, None if cutoff is None else lambda: cutoff))


def mixed(**changes: Any) -> PipelineProblem:
    """Two kinds of layers on three stages, of which the first ones need recompute in some plans."""
    kept = {NONE: 4.0, FULL: 1.0, SELECT: 2.0}
    problem = small_problem(
        stages=3,
        kinds=(LayerKind("a", 3, 0.5, 10.0, kept), LayerKind("b", 4, 1.0, 12.0, kept)),
        static_mib=(0.0, 1.0, 2.0),
        limit_mib=(58.0, 55.0, 80.0),
        recompute_ratio={FULL: 1.0, SELECT: 0.375},
        head_forward=0.75,
        embedding_forward=0.125,
        lags=(0.25, 0.0625),
        tail=(0.5, 4.0, 0.0),
    )
    return problem.replace(**changes)


PROBLEMS = [
    mixed(),
    mixed(slowness=(1.0, 1.5, 0.75)),
    # Layers all alike on stages all alike: many works are the same.
    small_problem(
        stages=3,
        static_mib=(0.0,) * 3,
        limit_mib=(500.0,) * 3,
        kinds=(LayerKind("a", 7, 1.0, 1.0, {NONE: 1.0, FULL: 0.5}),),
    ),
    small_problem(stages=1, static_mib=(5.0,), limit_mib=(100.0,)),
    mixed(min_layers=0, micro_batches=2, tail=()),
]  # fmt: skip


def test_halves_part_the_works_and_then_the_stages() -> None:
    assert Part(0, 4, 0, 2).halves() == [Part(0, 2, 0, 2), Part(3, 4, 0, 2)]
    assert Part(1, 2, 0, 2).halves() == [Part(1, 1, 0, 2), Part(2, 2, 0, 2)]
    assert Part(3, 3, 0, 2).halves() == [Part(3, 3, 0, 1), Part(3, 3, 2, 2)]
    assert Part(3, 3, 1, 2).halves() == [Part(3, 3, 1, 1), Part(3, 3, 2, 2)]
    assert Part(3, 3, 2, 2).halves() == []


def test_paths_go_down_to_a_stage_and_up_again_at_either_end_of_its_work() -> None:
    """Four micro-batches on three stages, 1F1B. The longest way to stage 0's first backward leads down and up with the
    first micro-batch; between that and its last forward it has B0 F3; then down and up with the last micro-batch. Of
    stage 1 that is B0 F2 B1 F3 in between; the last stage begins and ends, and has all four in between."""
    problem = mixed(kinds=(LayerKind("a", 7, 1.0, 1.0, {NONE: 1.0, FULL: 1.0, SELECT: 1.0}),), limit_mib=(500.0,) * 3)
    search = search_of(problem)
    first, middle, last = search.paths
    assert [path.own.tolist() for path in search.paths] == [[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]]
    # What is before the first and behind the last stage, where there is none, is as of their neighbours.
    assert (first.before, middle.before, last.before) == ((1.0, 1.0),) * 3
    assert (first.after, middle.after, last.after) == ((2.0, 2.0),) * 3
    # All end on stage 0, whose tail is 0.5; crossings of the first boundary take 0.25, of the second 0.0625.
    assert first.constant == pytest.approx(4 * 0.25 + 4 * 0.0625 + 0.5)
    assert middle.constant == pytest.approx(2 * 0.25 + 4 * 0.0625 + 0.5)
    assert last.constant == pytest.approx(2 * 0.25 + 2 * 0.0625 + 0.5)
    assert search.cuts() == (
        (2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, first.constant),
        (1.0, 3.0, 2.0, 1.0, 3.0, 2.0, 0.0, 0.0, 0.0, middle.constant),
        (1.0, 1.0, 4.0, 1.0, 1.0, 4.0, 0.0, 0.0, 0.0, last.constant),
    )


def test_a_stage_alone_has_all_its_tasks_on_its_path() -> None:
    search = search_of(small_problem(stages=1, static_mib=(5.0,), limit_mib=(100.0,), tail=(3.0,)))
    ((own, before, after, constant),) = search.paths
    assert own.tolist() == [4.0, 4.0] and constant == 3.0
    assert before == after == (0.0, 0.0)
    assert search.search() and search.bound == search.time == 4 * 4 * 3.0 + 3.0


def test_where_going_down_and_up_takes_less_the_path_keeps_to_the_stage() -> None:
    """Two micro-batches on two stages: F0 F1 B0 B1 and F0 B0 F1 B1.

    By its last forward stage 0 can't be left where it is entered by its first backward, for that comes later. So its
    path is F0 F1 and down and up again with the second micro-batch, 2 forwards and 1 backward of its own; or down and
    up first and then B0 B1, 1 and 2. The one is longer where forwards are, the other where backwards are.
    """
    for ratio, own in ((2.0, [1.0, 2.0]), (0.5, [2.0, 1.0])):
        search = search_of(small_problem(micro_batches=2, backward_ratio=ratio))
        assert search.paths[0].own.tolist() == own
        first, last = search.paths
        assert first.after == last.after == (1.0, 1.0) and first.before == last.before == (1.0, 1.0)


class Filled(NamedTuple):
    """A choice of runs, one a stage, with what it tells: works, and the length of the path through each stage."""

    runs: tuple[tuple[int, int], ...]
    works: list[float]
    paths: list[float]


def all_runs(search: BusiestStage) -> Iterator[Filled]:
    """Every row of runs that holds the model's layers, each stage's behind those of the one before."""
    runs, problem = search.runs, search.runs.problem
    S = problem.stages
    for numbers in itertools.product(range(len(runs.counts)), repeat=S):
        ends = np.cumsum([0, *(int(runs.counts[c]) for c in numbers)]).tolist()
        if ends[-1] != problem.layers:
            continue
        chosen = tuple(zip(numbers, ends[:-1], strict=True))
        if not all(np.isfinite(runs.forward[s, c, place]) for s, (c, place) in enumerate(chosen)):
            continue
        times = [[float(runs.blocks[d, s, c, place]) for d in range(2)] for s, (c, place) in enumerate(chosen)]
        paths = []
        for s, path in enumerate(search.paths):
            counts = [path.before] * s + [tuple(path.own.tolist())] + [path.after] * (S - s - 1)
            lengths = [n * t for of, time in zip(counts, times, strict=True) for n, t in zip(of, time, strict=True)]
            paths.append(path.constant + sum(lengths))
        yield Filled(chosen, [sum(time) for time in times], paths)


def least_of(search: BusiestStage, filled: list[Filled], part: Part) -> float:
    """The least path through a stage of a part that has work within the part's, while no other stage has more."""
    low, high = float(search.works[part.low]), float(search.works[part.high])
    least = float("inf")
    for each in filled:
        for s in range(part.first, part.last + 1):
            own = low - 1e-7 <= each.works[s] <= high + 1e-7
            before = all(work <= high + 1e-7 for work in each.works[:s])
            # Of stages with the same work the last one is meant.
            beyond = 1e-7 if low < high else -1e-7
            after = all(work <= high + beyond for work in each.works[s + 1 :])
            if own and before and after:
                least = min(least, each.paths[s])
    return least


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_bound_of_a_part_is_the_least_path_of_all_its_plans_and_its_plan_attains_it(
    problem: PipelineProblem,
) -> None:
    search = search_of(problem)
    filled = list(all_runs(search))
    works = sorted({round(work, 7) for each in filled for work in each.works})
    assert set(works) <= {round(work, 7) for work in search.works.tolist()}
    assert (np.diff(search.works) > 1e-7).all()
    last = len(search.works) - 1
    S = problem.stages
    parts = [Part(w, w, s, s) for w in range(last + 1) for s in range(S)]
    parts += [Part(w, w, 0, S - 1) for w in range(last + 1)]
    parts += [Part(low, high, 0, S - 1) for low, high in ((0, last), (0, last // 2), (last // 2, last)) if low < high]
    parts += [Part(0, last, s, s) for s in range(S) if last]
    met = 0
    for part in parts:
        search.time, search.plan = float("inf"), None
        expected = least_of(search, filled, part)
        assert search._look_at(part) == pytest.approx(expected, rel=1e-12)
        assert (search.plan is None) is (expected == float("inf"))
        if search.plan is not None:
            taken = [each for each in filled if search.runs.plan(list(each.runs)) == search.plan]
            attained = [each.paths[s] for each in taken for s in range(part.first, part.last + 1)]
            assert any(path == pytest.approx(expected, rel=1e-12) for path in attained)
            assert not check(problem, search.plan, search.time)
            met += 1
    assert met > S - 1 and search.parts == len(parts)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_search_ends_with_the_least_bound_of_all_parts_or_the_best_plan(problem: PipelineProblem) -> None:
    search = search_of(problem)
    filled = list(all_runs(search))
    assert search.search() and search.plan is not None
    leaves = [Part(w, w, s, s) for w in range(len(search.works)) for s in range(problem.stages)]
    least = min(least_of(search, filled, part) for part in leaves)
    plans = [search.runs.plan(list(each.runs)) for each in filled]
    best = min(float(exact_step_time(problem, plan)) for plan in plans)
    assert least <= best * (1 + 1e-12)
    assert search.bound == pytest.approx(min(least, search.time), rel=1e-9)
    assert best <= search.time * (1 + 1e-12)
    assert float(exact_step_time(problem, search.plan)) == pytest.approx(search.time, rel=1e-12)


def test_without_any_run_or_any_plan_there_is_nothing_to_search() -> None:
    """Stages that can hold no layer at all; and stages that hold two each at the most, of five layers."""
    nothing = search_of(small_problem(limit_mib=(1.0, 1.0)))
    assert not nothing.search() and nothing.plan is None and nothing.parts == 0 and nothing.bound == 0.0
    few = search_of(
        small_problem(kinds=(LayerKind("a", 5, 1.0, 10.0, {NONE: 4.0, FULL: 1.0}),), limit_mib=(32.0, 32.0))
    )
    assert not few.search() and few.plan is None and few.parts <= 1


def test_a_step_time_to_beat_counts_once_the_first_parts_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    free = search_of(mixed())
    whole = free._look_at(Part(0, len(free.works) - 1, 0, 2))
    assert free.search()
    # All plans are behind what is to be beaten.
    set_parameter(monkeypatch, "tree.looked_at", 1)
    search = search_of(mixed(), cutoff=whole)
    assert search.search() and search.parts == 1 and search.bound == whole
    set_parameter(monkeypatch, "tree.looked_at", 2)
    search = search_of(mixed(), cutoff=whole)
    assert search.search() and search.parts == 3
    monkeypatch.undo()
    assert DEFAULT_PARAMS.tree.looked_at == 64
    # Nothing beats what is to be beaten: the bound is that, not the plan's time.
    set_parameter(monkeypatch, "tree.looked_at", 0)
    between = (whole + free.bound) / 2
    search = search_of(mixed(), cutoff=between)
    assert search.search() and between <= search.bound <= free.bound


def test_no_more_parts_than_allowed_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    free = search_of(mixed())
    assert free.search() and free.parts > 5
    for most, parts in ((1, 1), (2, 3), (3, 3), (4, 5)):
        set_parameter(monkeypatch, "tree.most_parts", most)
        search = search_of(mixed())
        assert search.search() and search.parts == parts and 0 < search.bound <= free.bound


def test_a_plan_is_taken_when_it_is_better_by_more_than_rounding() -> None:
    """Four micro-batches on two stages. With two layers each the last one waits for 2, works 4 · 6, and 4 follow: 30.
    With three layers the first one works all the time, 4 · 9.
    """
    problem = small_problem()
    search = search_of(problem)
    even, uneven = plan_of({"body": [[2, 2]]}), plan_of({"body": [[3, 1]]})
    recomputed = PipelinePlan(even.layers, {FULL: ((0, 0),)})
    search.offer(uneven)
    assert search.time == 36.0 and search.plan == uneven
    search.offer(even)
    assert search.time == 30.0 and search.plan == even
    search.offer(uneven)
    search.offer(recomputed)
    assert search.time == 30.0 and search.plan is even
    search.time = 30.0 * (1 + 1e-13)
    search.offer(recomputed)
    assert search.plan is even
    search.time = 30.0 * (1 + 1e-11)
    search.offer(recomputed)
    assert search.plan is recomputed and search.time == 30.0
