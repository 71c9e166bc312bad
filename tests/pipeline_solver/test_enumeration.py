"""Enumeration of a node's choices: it meets the best plan that is left, and closes a node only where none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.brute_force import comparable_problem, random_problem
from taylor.pipeline_solver import enumeration
from taylor.pipeline_solver.branch_and_cut import branch_and_cut
from taylor.pipeline_solver.checker import check
from taylor.pipeline_solver.columns import build_columns
from taylor.pipeline_solver.cut_pool import PathCuts
from taylor.pipeline_solver.durations import chunk_durations, schedule_of
from taylor.pipeline_solver.enumeration import tabulate, walk_choices
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.root import bound_root, start_search
from taylor.pipeline_solver.solution import OPTIMAL
from taylor.pipeline_solver.stage_tuples import stage_tuples
from taylor.pipeline_solver.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.tree_search import Search

MOST_CHOICES = 1500
"""Choices of one column a stage that these tests go through one by one."""


def search_of(problem: PipelineProblem) -> Search:
    """A tree whose root has met paths and prices, and no plan."""
    columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    search = Search(problem, columns, paths, 0.0, 0, Stopper(None), 1e9)
    if (np.diff(columns.start) > 0).all():
        start_search(search, None)
        bound_root(search)
    return search


def searches(number: int, seed: int) -> Iterator[tuple[np.random.Generator, Search]]:
    rng = np.random.default_rng(seed)
    while number:
        search = search_of(random_problem(rng))
        counts = np.diff(search.columns.start).astype(float)
        if 0 < counts.prod() <= MOST_CHOICES:
            number -= 1
            yield rng, search


def step_time(search: Search, chosen: tuple[int, ...]) -> float:
    """Of a choice that the checker finds nothing wrong with; inf for any other."""
    problem, columns = search.problem, search.columns
    if (columns.totals[list(chosen)].sum(axis=0) != [kind.count for kind in problem.placed_kinds]).any():
        return np.inf
    plan = columns.plan(np.array(chosen))
    if check(problem, plan):
        return np.inf
    return float(search.plans.paths.graph.longest_path(chunk_durations(problem, plan)))


def plans_of(search: Search, mask: NDArray[np.bool_]) -> dict[tuple[int, ...], float]:
    """Every plan of some columns with its step time, one by one."""
    start = search.columns.start
    stages = [a + np.nonzero(mask[a:b])[0] for a, b in zip(start[:-1], start[1:], strict=True)]
    found = {chosen: step_time(search, chosen) for chosen in product(*(part.tolist() for part in stages))}
    return {chosen: time for chosen, time in found.items() if time < np.inf}


def looked_through(
    search: Search,
    mask: NDArray[np.bool_],
    cutoff: float,
    paths: NDArray[np.int64] | None = None,
    look: Callable[[], None] = lambda: None,
) -> bool:
    """Whether all choices of a node below a step time, or the best plan's, are looked through."""
    plans = search.plans
    paths = np.arange(plans.pool.size) if paths is None else paths
    return search.enumeration.close(mask, paths, lambda: min(cutoff, plans.best_time), look)[0]


def afresh(search: Search) -> None:
    """Forget the best plan."""
    search.plans.best, search.plans.best_time = None, np.inf


def closed(search: Search, mask: NDArray[np.bool_], cutoff: float) -> bool:
    """The same, from no plan."""
    afresh(search)
    return looked_through(search, mask, cutoff)


def test_it_meets_the_best_plan_below_a_step_time_and_says_where_there_is_none() -> None:
    met = none = 0
    for rng, search in searches(60, 1):
        for share in (1.0, 0.6):
            mask = rng.random(len(search.columns)) < share
            if (np.add.reduceat(mask, search.columns.start[:-1]) == 0).any():
                continue
            every = plans_of(search, mask)
            best = min(every.values(), default=np.inf)
            assert closed(search, mask.copy(), 1e6)
            assert search.plans.best_time == pytest.approx(best, rel=1e-12)
            if every:
                met += 1
                assert closed(search, mask.copy(), best * (1 - 1e-9)) and search.plans.best is None
                assert closed(search, mask.copy(), best * (1 + 1e-9))
                assert search.plans.best_time == pytest.approx(best, rel=1e-12)
            else:
                none += 1
    assert met > 40 and none > 3


def test_an_enumeration_that_is_stopped_leaves_every_better_plan_and_goes_on_with_what_is_left(monkeypatch) -> None:
    monkeypatch.setattr(enumeration, "FIRST_STEPS", 3)
    monkeypatch.setattr(enumeration, "CHOICE_STEPS", 1)
    thinned = 0
    for _, search in searches(40, 2):
        mask = np.ones(len(search.columns), dtype=bool)
        every = plans_of(search, mask)
        best = min(every.values(), default=np.inf)
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            if looks % 4 == 0:
                raise OutOfTime

        plans = search.plans
        afresh(search)
        for _ in range(500):
            before = mask.copy()
            try:
                ended = looked_through(search, mask, 1e6, look=look)
            except OutOfTime:
                ended = False
            left = plans_of(search, mask)
            assert min([*left.values(), plans.best_time]) == pytest.approx(best, rel=1e-12)
            assert not (mask & ~before).any()
            thinned += bool((mask != before).any()) and not ended
            if ended or not mask.any():
                break
            monkeypatch.setattr(enumeration, "FIRST_STEPS", enumeration.FIRST_STEPS + 1)
        assert plans.best_time == pytest.approx(best, rel=1e-12) or not np.isfinite(best)
    assert thinned > 5


def test_what_would_take_too_much_is_left_as_it_is(monkeypatch) -> None:
    ((_, search),) = searches(1, 3)
    mask, paths = np.ones(len(search.columns), dtype=bool), np.arange(search.plans.pool.size)
    assert search.enumeration.close(mask, paths, lambda: np.inf, lambda: None) == (False, 0)
    for name in ("MOST_CELLS", "MOST_TABLE"):
        with monkeypatch.context() as patch:
            patch.setattr(enumeration, name, 1)
            assert search.enumeration.close(mask, paths, lambda: 1e6, lambda: None) == (False, 0)
    assert mask.all()


def test_without_room_for_a_path_the_node_stays_open(monkeypatch) -> None:
    monkeypatch.setattr(enumeration, "MOST_NEW", 0)
    ends = set()
    for _, search in searches(40, 4):
        mask = np.ones(len(search.columns), dtype=bool)
        best = min(plans_of(search, mask).values(), default=np.inf)
        if np.isfinite(best):
            few = np.array(search.plans.paths.seeds())
            search.enumeration.floors.known = 0
            afresh(search)
            ended = looked_through(search, mask, best * (1 + 1e-6), few)
            assert min([*plans_of(search, mask).values(), search.plans.best_time]) == pytest.approx(best)
            ends.add(ended)
    assert ends == {True, False}


def test_the_tables_and_the_walk_are_those_of_all_choices_one_by_one() -> None:
    """Three stages of random columns: the least that later stages add, and the choices that no row rules out."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        sizes = rng.integers(1, 5, 3)
        first = np.concatenate([[0], np.cumsum(sizes)])
        held, goal, rows = rng.integers(0, 4, first[-1]), 5, 4
        costs, values = rng.uniform(0, 10, (first[-1], rows)), rng.uniform(0, 3, rows)
        order = rng.permutation(3)
        rest = np.empty((4, goal + 1, rows))
        tabulate(costs, 0, 2, first, held, order, rest)
        tabulate(costs, 2, rows, first, held, order, rest)
        stages = [range(first[s], first[s + 1]) for s in order]
        for k in range(4):
            for left in range(goal + 1):
                sums = [
                    costs[list(some)].sum(axis=0) for some in product(*stages[k:]) if held[list(some)].sum() == left
                ]
                least = np.min(sums, axis=0) if sums else np.full(rows, np.inf)
                assert rest[k, left] == pytest.approx(least)
        cutoff = float(np.quantile([costs[list(some)].sum(axis=0) + values for some in product(*stages)], 0.7))
        expected = {
            some
            for some in product(*stages)
            if held[list(some)].sum() == goal and (costs[list(some)].sum(axis=0) + values < cutoff).all()
        }
        partial, state = np.empty((4, rows)), np.zeros(2, dtype=np.int64)
        partial[0] = values
        at, left, rank, chosen = first[order].copy(), np.full(4, goal), np.arange(rows), np.zeros(3, dtype=np.int64)
        met, until = set(), 2
        while True:
            end = walk_choices(
                costs, rows, rest, first, held, order, cutoff, until, partial, at, left, rank, chosen, state
            )
            if end == 0:
                break
            if end == 1:
                assert state[1] == until
                until += 2
                continue
            met.add(tuple(chosen.tolist()))
        assert met == expected and sorted(rank) == list(range(rows))


def test_trees_with_it_end_at_the_best_of_all_plans() -> None:
    rng = np.random.default_rng(6)
    for _ in range(15):
        problem, truth = comparable_problem(rng, 20_000)
        if problem.interleaves > 1 and np.isfinite(truth.objective):
            found = branch_and_cut(problem, SolveOptions(gap=0.0))
            assert found.status == OPTIMAL
            assert found.objective == pytest.approx(truth.objective, rel=1e-9)
