"""One strategy for all layers, spread evenly: a plan that is there before anything is bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.large import Counts, LargeSearch
from taylor.layerwise.exact.solve import FixedSolution, assembled_plan
from taylor.layerwise.job import OuterChoice
from taylor.pipeline.plan import even_sizes


def uniform_plan(problem: FixedProblem, outer: OuterChoice) -> FixedSolution | None:
    """The even plan of the quickest strategy that every kind of layers has and that fits; None where none does."""
    if problem.layers < problem.chunks:
        return None
    began = time.monotonic()
    for choice in _by_time(problem):
        counts = _even_counts(problem, choice)
        if all(problem.fits(s, layers) for s, layers in enumerate(counts)):
            found = LargeSearch(problem, LaggedGraph.of(problem.schedule), np.inf).assembled(counts)
            plan = assembled_plan(problem, outer, found)
            return FixedSolution(found.step, 0.0, plan, 0, time.monotonic() - began)
    return None


def _by_time(problem: FixedProblem) -> Iterator[tuple[int, ...]]:
    """Choices of every kind that are one strategy, the quickest first."""
    known: dict[object, dict[int, int]] = {}
    for c, strategy in enumerate(problem.strategies):
        known.setdefault(strategy, {})[int(problem.kind[c])] = c
    kinds = range(len(problem.by_kind))
    whole = [tuple(of[k] for k in kinds) for of in known.values() if len(of) == len(kinds)]
    times = problem.forward + problem.backward
    yield from sorted(whole, key=lambda choice: sum(n * times[c] for n, c in zip(problem.by_kind, choice, strict=True)))


def _even_counts(problem: FixedProblem, choice: tuple[int, ...]) -> tuple[Counts, ...]:
    """Layers of every stage by chunk and choice, chunks of even size in model order."""
    counts = [np.zeros((problem.interleaves, len(problem.strategies)), dtype=np.int16) for _ in range(problem.stages)]
    borders = np.cumsum(problem.by_kind)
    at = 0
    for position, size in enumerate(even_sizes(problem.layers, problem.chunks)):
        v, s = problem.schedule.chunk_at(position)
        for layer in range(at, at + size):
            counts[s][v, choice[int(np.searchsorted(borders, layer, side="right"))]] += 1
        at += size
    return tuple(counts)
