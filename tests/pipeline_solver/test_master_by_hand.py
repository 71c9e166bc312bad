"""The LP over the columns of all stages, against another model of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from taylor.pipeline_solver.bounds.cut_pool import CutPool, PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.path_lp import LpResult
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.pipeline_solver.column_cases import PROBLEMS, folded, kind, listed
from tests.solver_cases import small_problem


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
        master.keep(cut)
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
    held = list(master.kept)
    master.add_columns(master.active)
    assert len(set(master.active.tolist())) == len(master.active)
    master.rebuild(np.arange(len(columns)))
    assert (master.kept, master.partial, master.candidates) == (held, False, 32)
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
