"""Places of kinds that lie together on one of several chunks (MTP, …): a problem for each, and those of a plan."""

from __future__ import annotations

import itertools
from dataclasses import replace

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem


def placed(problem: PipelineProblem, places: dict[str, int]) -> PipelineProblem:
    """The problem with the one place of each of the named kinds."""

    def at(kind: LayerKind) -> LayerKind:
        return replace(kind, places=(places[kind.name],)) if kind.name in places else kind

    return problem.replace(kinds=tuple(map(at, problem.kinds)))


def has_places(problem: PipelineProblem) -> bool:
    """Return whether some kind has several places to choose from."""
    return any(len(kind.places) > 1 for kind in problem.pinned_kinds)


def placements(problem: PipelineProblem) -> list[PipelineProblem]:
    """A problem for each choice of places that keeps the kinds' order, the last places first; itself without any.

    Choices that force a chunk to stay empty which may not be are left out, unless there are no others.
    """
    if not has_places(problem):
        return [problem]
    kinds = problem.pinned_kinds
    choices = itertools.product(*(sorted(problem.places_of(kind), reverse=True) for kind in kinds))
    named = [{kind.name: at for kind, at in zip(kinds, places, strict=True) if kind.places}
             for places in choices if list(places) == sorted(places)]  # fmt: skip
    found = [placed(problem, places) for places in named]
    return [one for one in found if not _leaves_a_gap(one)] or found[:1]


def _leaves_a_gap(problem: PipelineProblem) -> bool:
    """Return whether a chunk needs layers, yet lies behind a pinned kind."""
    return any(least and problem.is_beyond(place) for place, least in enumerate(problem.least_layers))


def settled(problem: PipelineProblem, plan: PipelinePlan) -> PipelineProblem:
    """The problem with the pinned kinds where a plan has them; the same where it spreads one over chunks."""
    places = {}
    chunk_at = problem.placement.positions
    for kind in problem.pinned_kinds:
        grid = plan.layers.get(kind.name, ())
        positions = [chunk_at[v, s] for v, row in enumerate(grid) for s, n in enumerate(row) if n]
        if len(positions) == 1 and (positions[0],) != problem.places_of(kind):
            places[kind.name] = positions[0]
    return placed(problem, places) if places else problem
