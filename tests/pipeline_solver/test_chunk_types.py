"""What a chunk may hold, and its recompute choices, against counting them one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from benchmarks.brute_force import random_problem, with_choices
from taylor.pipeline_solver.columns.chunk_types import (
    _costs,
    _distinct_starts,
    _layers_between,
    _recompute_options,
    prefix_cost,
    undominated,
)
from taylor.pipeline_solver.model.stopping import Stopper


def test_costs_of_all_choices_at_once_are_those_of_each():
    rng = np.random.default_rng(5)
    for _ in range(60):
        problem = random_problem(rng, most_kinds=5)
        if rng.random() < 0.5:
            problem = with_choices(problem, rng, 3)
        kinds, modes = problem.placed_kinds, problem.searched_modes
        held = [int(rng.integers(0, kind.count + 1)) for kind in kinds]
        every = itertools.product(range(sum(held) + 1), repeat=len(modes))
        within = [one for one in every if sum(one) <= sum(held)]
        taken = np.array(within, dtype=np.int64).reshape(len(within), len(modes))
        some = [(kind, count) for kind, count in zip(kinds, held, strict=True) if count]
        each = [prefix_cost(problem, kinds, modes, held, one) for one in taken.tolist()]
        found = _costs(problem, some, taken)
        assert pytest.approx(np.array([times for times, _ in each]), abs=1e-9) == found.extra.T
        assert found.activation == pytest.approx(np.array([mib for _, mib in each]), abs=1e-9)


def test_choices_worth_having_are_those_of_all_counts_that_no_other_is_as_good_as():
    rng = np.random.default_rng(8)
    several = 0
    for _ in range(60):
        problem = with_choices(random_problem(rng, most_kinds=3), rng, 4)
        held = tuple(min(3, int(rng.integers(0, kind.count + 1))) for kind in problem.placed_kinds)
        some = [(kind, count) for kind, count in zip(problem.placed_kinds, held, strict=True) if count]
        every = itertools.product(range(sum(held) + 1), repeat=len(problem.searched_modes))
        within = np.array([one for one in every if sum(one) <= sum(held)], dtype=np.int64)
        costs = _costs(problem, some, within).vectors[: 7 if problem.bounds_host else 5].T
        best = {
            tuple(np.round(one, 6))
            for one in costs
            if not ((costs <= one + 1e-7).all(axis=1) & (costs < one - 1e-7).any(axis=1)).any()
        }
        found = _recompute_options(problem, held, (-1,) * len(problem.searched_modes), {}, Stopper(None))
        several += len(found) > 3
        assert {tuple(np.round(one[: costs.shape[1]], 6)) for one in found.vectors.T} == best
    assert several > 20


@given(arrays(np.float64, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.integers(0, 3)))
def test_a_row_stays_where_no_other_is_as_good_and_one_of_those_that_are_the_same(vectors):
    kept = undominated(vectors, 0)
    for row in range(len(vectors)):
        as_good = (vectors[kept] <= vectors[row]).all(axis=1)
        assert as_good.any()
        assert row not in kept or as_good.sum() == 1


def test_the_distinct_starts_have_every_content_of_a_window_at_its_first_and_last_start():
    rng = np.random.default_rng(6)
    for _ in range(200):
        bounds = [0, *np.cumsum(rng.integers(1, 6, size=int(rng.integers(1, 6)))).tolist()]
        count = int(rng.integers(0, bounds[-1] + 1))
        begin, until = sorted(int(rng.integers(0, bounds[-1] - count + 1)) for _ in range(2))

        def windows(starts, count=count, bounds=bounds):
            found: dict[tuple[int, ...], list[int]] = {}
            for start in starts:
                found.setdefault(_layers_between(start, start + count, bounds), [start, start])[1] = start
            return found

        assert windows(_distinct_starts(count, begin, until, bounds)) == windows(range(begin, until + 1))


@pytest.mark.parametrize("block", [1, 7, 64])
def test_in_blocks_the_undominated_rows_are_those_of_one_after_the_other(block, monkeypatch):
    monkeypatch.setattr("taylor.pipeline_solver.columns.chunk_types.BLOCK", block)
    rng = np.random.default_rng(block)
    for _ in range(40):
        costs = rng.integers(0, rng.integers(2, 9), (int(rng.integers(1, 150)), 4)).astype(float)
        known = int(rng.integers(0, min(5, len(costs))))
        kept = [costs[row] for row in range(known)]
        left = []
        for row in sorted(range(known, len(costs)), key=lambda row: (*costs[row], row)):
            if not any((one <= costs[row]).all() for one in kept):
                kept.append(costs[row])
                left.append(row - known)
        assert undominated(costs, known).tolist() == sorted(left)
