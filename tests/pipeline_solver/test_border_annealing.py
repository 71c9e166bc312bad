"""Annealing of repeating patterns from unlike starts: compared with brute force and the checker."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.pattern_instances import instance
from benchmarks.random_instances import alternating_problem
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.heuristics.border_annealing import BorderAnnealing
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import graph_of


def annealing_of(problem, seed=0):
    first = FirstPlans(problem, graph_of(problem), seed, Stopper(None))
    first.begin(None)
    return first, BorderAnnealing(first, seed)


@pytest.mark.parametrize("seed", range(12))
def test_an_annealed_plan_of_alternating_kinds_is_the_best_of_all_plans(seed):
    problem = alternating_problem(np.random.default_rng([29, seed]))
    best = enumerate_optimum(problem, 20_000)
    if best is None or best.plan is None:
        pytest.skip("too many plans to try, or none")
    first, borders = annealing_of(problem)
    borders.run(6, None, 0.0, lambda: None)
    assert check(problem, first.plan, first.time) == []
    assert best.objective * (1 - 1e-9) <= first.time <= best.objective * 1.02


@pytest.mark.parametrize("number", [3, 10, 16])
def test_every_start_places_all_layers_and_differs_from_the_even_plan(number):
    _, problem = instance(number)
    first, borders = annealing_of(problem)
    line, even = first.walk.line, first.walk.even(True)
    starts = [borders.start() for _ in range(40)]
    for state in starts:
        sizes = np.diff(state.begin)
        assert state.begin[0] == 0 and state.begin[-1] == problem.layers
        assert (line.lower <= sizes).all() and (sizes <= line.upper).all()
    assert len({tuple(state.begin) for state in starts} - {tuple(even.begin)}) > 6


def test_a_seed_determines_the_annealed_plan_and_later_runs_only_improve_it():
    _, problem = instance(10)
    found = []
    for _ in range(2):
        first, borders = annealing_of(problem, seed=4)
        steps = [first.time]
        borders.run(4, None, 0.0, lambda first=first, steps=steps: steps.append(first.time))
        assert steps == sorted(steps, reverse=True) and len(set(steps)) == len(steps)
        found.append((first.time, first.state.begin.tolist(), first.state.taken.tolist()))
    assert found[0] == found[1]


def test_annealing_ends_at_a_step_time_that_is_enough():
    _, problem = instance(10)
    first, borders = annealing_of(problem)
    before = first.time
    borders.run(8, None, before, lambda: pytest.fail("no run is needed"))
    assert first.time == before and not borders.pool
