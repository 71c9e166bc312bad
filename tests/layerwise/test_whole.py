"""Whole layers in the relaxation: against every plan there is, and where it is a bound alone."""

from __future__ import annotations

import time

import numpy as np
import pytest

from benchmarks.layerwise_brute_force import BruteForce, Case, random_case
from taylor.layerwise.checker import check_plan
from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.large import LargeSearch
from taylor.layerwise.exact.relaxation import relax
from taylor.layerwise.exact.solve import assembled_plan
from taylor.layerwise.exact.whole import WholeLayers


def cases(free: bool) -> list[int]:
    """Small jobs of several interleaves whose changes of layout are free, or are not."""
    found = []
    for seed in range(600):
        case = random_case(seed)
        if case.outer.interleaves > 1 and len(case.job.stack) == 1 and (not case.costs.changes) == free:
            found.append(seed)
    return found[:6]


def whole(case: Case) -> tuple[LargeSearch, float]:
    """What the MILP finds and proves."""
    problem = case.problem()
    graph = LaggedGraph.of(problem.schedule)
    deadline = time.monotonic() + 60
    relaxed = relax(problem, graph)
    assert relaxed is not None
    large = LargeSearch(problem, graph, deadline)
    told: list[float] = []
    bound = WholeLayers(problem, graph, relaxed, large).solve(
        np.inf, 1e-7, deadline, lambda plan: told.append(plan.step)
    )
    assert told == sorted(told, reverse=True)
    if large.best is not None:
        plan = assembled_plan(problem, case.outer, large.best)
        assert not check_plan(case.job, plan, case.costs, claimed_s=large.best.step).faults
    return large, bound


@pytest.mark.parametrize("seed", cases(free=True))
def test_where_layouts_change_for_nothing_it_finds_the_best_of_all_plans(seed: int) -> None:
    case = random_case(seed)
    least = BruteForce(case).best_s()
    large, bound = whole(case)
    found = np.inf if large.best is None else large.best.step
    assert found == pytest.approx(least, rel=1e-7)
    assert bound <= least * (1 + 1e-7) and (bound >= least * (1 - 2e-7) or np.isinf(least))


@pytest.mark.parametrize("seed", cases(free=False))
def test_where_they_cost_it_bounds_every_plan(seed: int) -> None:
    case = random_case(seed)
    least = BruteForce(case).best_s()
    large, bound = whole(case)
    assert bound <= least * (1 + 1e-7)
    assert large.best is None or large.best.step >= least * (1 - 1e-9)


def test_plans_as_long_as_the_ceiling_are_of_no_interest() -> None:
    case = random_case(cases(free=True)[0])
    least = BruteForce(case).best_s()
    problem = case.problem()
    graph = LaggedGraph.of(problem.schedule)
    relaxed = relax(problem, graph)
    large = LargeSearch(problem, graph, np.inf)
    assert relaxed is not None
    bound = WholeLayers(problem, graph, relaxed, large).solve(0.99 * least, 1e-6, np.inf, lambda plan: None)
    assert bound == pytest.approx(0.99 * least, rel=1e-6) and large.best is None


def test_layers_of_several_kinds_are_refused() -> None:
    case = next(each for each in map(random_case, range(600)) if len(each.job.stack) > 1)
    problem = case.problem()
    graph = LaggedGraph.of(problem.schedule)
    relaxed = relax(problem, graph)
    assert relaxed is not None
    with pytest.raises(ValueError, match="several kinds"):
        WholeLayers(problem, graph, relaxed, LargeSearch(problem, graph, np.inf))
