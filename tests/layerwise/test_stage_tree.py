"""The tree over stages' contents: against every selection of them, and as a bound on every plan."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from benchmarks.layerwise_brute_force import BruteForce, Case, random_case
from taylor.layerwise.exact.contents import TooManyContents
from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.large import LargeSearch
from taylor.layerwise.exact.stage_tree import StageTree, free_contents

MOST_SELECTIONS = 10_000


class Small:
    """A job whose selections of contents can be gone through."""

    def __init__(self, case: Case) -> None:
        problem = case.problem()
        self.graph = LaggedGraph.of(problem.schedule)
        self.problem, self.parts = free_contents(problem, self.graph, np.inf, 0.0, np.inf)
        self.caps = LargeSearch(problem, self.graph, np.inf).even_layers().sum(axis=1)

    def best_s(self) -> float:
        """The least step of all selections, gone through one by one."""
        graph, problem = self.graph, self.problem
        times = np.zeros(graph.classes)
        times[2 * problem.chunks + problem.stages :] = problem.handover[0]
        best = np.inf
        for chosen in itertools.product(*(range(len(part)) for part in self.parts)):
            pairs = list(zip(self.parts, chosen, strict=True))
            if tuple(sum(part.by_kind[at] for part, at in pairs)) != problem.by_kind:
                continue
            for s, (part, at) in enumerate(pairs):
                times[graph.classes_of(s)] = part.times[at]
            best = min(best, graph.step(times))
        return best

    def proven(self, ceiling: float) -> tuple[float, list[float]]:
        """What the tree proves, and what it tells on the way."""
        told: list[float] = []
        return StageTree(self.problem, self.graph, self.parts, self.caps, ceiling).search(np.inf, told.append), told


@cache
def small_cases() -> list[int]:
    """Jobs of several stages with few selections."""
    found: list[int] = []
    for seed in itertools.count():
        case = random_case(seed)
        if case.outer.stages > 1:
            small = Small(case)
            if 1 < np.prod([float(len(part)) for part in small.parts]) <= MOST_SELECTIONS:
                found.append(seed)
        if len(found) == 8:
            return found
    raise AssertionError("there is always another seed")


@pytest.mark.parametrize("seed", small_cases())
def test_it_proves_the_best_selection_and_no_more(seed: int) -> None:
    case = random_case(seed)
    small = Small(case)
    best = small.best_s()
    if np.isinf(best):
        assert small.proven(1e3)[0] == 1e3
        return
    bound, told = small.proven(1.3 * best)
    assert bound == pytest.approx(best, rel=1e-4) and bound <= best * (1 + 1e-6)
    assert told == sorted(told)
    assert small.proven(0.99 * best)[0] == pytest.approx(0.99 * best)
    assert bound <= BruteForce(case).best_s() * (1 + 1e-6)


@pytest.mark.parametrize("seed", small_cases())
def test_the_estimate_of_a_split_is_the_bound_with_the_contents_of_one_side_alone(seed: int) -> None:
    small = Small(random_case(seed))
    tree = StageTree(small.problem, small.graph, small.parts, small.caps, 1e3)
    tree.search(np.inf, lambda bound: None)
    stages, every = range(small.problem.stages), np.arange(len(tree.split_stage))
    for j, estimates in enumerate(tree._estimates(np.ones(len(tree.stage), dtype=bool), every)):
        for side, found in zip((tree.low[j], tree.high[j]), estimates, strict=True):
            allowed = side | (tree.stage != tree.split_stage[j])
            cheapest = [
                value + sum(prices[allowed & (tree.stage == s)].min() for s in stages)
                for value, prices in zip(tree.values, tree.prices, strict=True)
            ]
            assert found == pytest.approx(max(cheapest))


def test_more_contents_than_time_are_refused() -> None:
    case = random_case(small_cases()[0])
    problem = case.problem()
    with pytest.raises(TooManyContents):
        free_contents(problem, LaggedGraph.of(problem.schedule), np.inf, 0.0, 0.0)


def test_shares_that_do_not_add_up_are_refused() -> None:
    small = Small(random_case(small_cases()[0]))
    with pytest.raises(ValueError, match="shares of"):
        StageTree(small.problem, small.graph, small.parts, small.caps + 1, 1.0)
