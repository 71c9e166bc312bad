"""What a chunk may hold, and its recompute choices, against counting them one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.brute_force import random_problem
from taylor.pipeline_solver.chunk_types import _held, _prefix_costs, _telling_starts, prefix_cost


def test_costs_of_all_choices_at_once_are_those_of_each():
    rng = np.random.default_rng(5)
    for _ in range(60):
        problem = random_problem(rng, most_kinds=5)
        kinds, modes = problem.placed_kinds, problem.searched_modes
        held = [int(rng.integers(0, kind.count + 1)) for kind in kinds]
        every = itertools.product(range(sum(held) + 1), repeat=len(modes))
        within = [one for one in every if sum(one) <= sum(held)]
        taken = np.array(within, dtype=np.int64).reshape(len(within), len(modes))
        some = [(kind, count) for kind, count in zip(kinds, held, strict=True) if count]
        each = [prefix_cost(problem, kinds, modes, held, one) for one in taken.tolist()]
        assert np.stack(_prefix_costs(problem, some, taken), axis=1) == pytest.approx(np.array(each), abs=1e-9)


def test_the_telling_starts_hold_every_content_of_a_window_at_its_first_and_last_start():
    rng = np.random.default_rng(6)
    for _ in range(200):
        bounds = [0, *np.cumsum(rng.integers(1, 6, size=int(rng.integers(1, 6)))).tolist()]
        count = int(rng.integers(0, bounds[-1] + 1))
        begin, until = sorted(int(rng.integers(0, bounds[-1] - count + 1)) for _ in range(2))

        def windows(starts, count=count, bounds=bounds):
            found: dict[tuple[int, ...], list[int]] = {}
            for start in starts:
                found.setdefault(_held(start, start + count, bounds), [start, start])[1] = start
            return found

        assert windows(_telling_starts(count, begin, until, bounds)) == windows(range(begin, until + 1))
