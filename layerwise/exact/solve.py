"""The exact search: ever more contents listed, until the best plan among them is proven best of all.

The relaxation gives a bound of the step and reduced costs. Contents within a budget of the bound are listed and the
best selection of them found: a plan below bound plus budget is made of them alone, so that either the selection is
proven or the bound rises by the budget, which then grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.layerwise.exact.contents import Contents, StageListing, TooManyContents, coarsened
from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem, least_order
from taylor.layerwise.exact.large import Assembled, LargeSearch
from taylor.layerwise.exact.master import ROUNDING, Master
from taylor.layerwise.exact.relaxation import MOST_ROUNDS, relax
from taylor.layerwise.exact.stage_tree import StageTree, free_contents
from taylor.layerwise.exact.whole import WholeLayers
from taylor.layerwise.job import OuterChoice
from taylor.pipeline_solver.model.stopping import OutOfTime

FIRST_BUDGET, GROWTH = 0.002, 3.0
"""The first budget, as a fraction of the bound, and its growth factor."""
MANY_CHUNKS = 24
"""Number of chunks from which on a plan is built before contents are listed."""
MOST_CONTENTS = 60_000
"""Contents of all stages that a master takes."""
MANY_ROUNDS = 60
"""LPs of the relaxation there: the tree bounds the step; the relaxation only gives dual values."""
TREE_SHARE = 5e-4
"""Difference up to which contents of a stage count as one in the tree."""
COARSE = 1e-6
"""Gaps from which contents that hardly differ count as one, so that together they cost a quarter of the gap."""


@dataclass(frozen=True)
class FixedSolution:
    """The plan of one outer choice.

    Parameters
    ----------
    step_s, bound_s : float
        Its step, inf where there is no plan; and its lower bound, inf where none fits.
    plan : LayerwisePlan or None
    contents : int
        Contents listed, of all stages.
    seconds : float
    interrupted : bool
        Ctrl-C ended the search; the plan is the best until then.
    """

    step_s: float
    bound_s: float
    plan: LayerwisePlan | None
    contents: int
    seconds: float
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Proven relative gap."""
        return 0.0 if self.plan is None else max(0.0, 1 - self.bound_s / self.step_s)


def first_plan(problem: FixedProblem, outer: OuterChoice) -> FixedSolution:
    """A plan of even work under one outer choice, before anything is proven; one without a plan where that fails."""
    began = time.monotonic()
    found = None
    if len(problem.strategies) and problem.layers >= problem.chunks:
        found = LargeSearch(problem, LaggedGraph.of(problem.schedule), np.inf).first()
    if found is None:
        return FixedSolution(np.inf, 0.0, None, 0, time.monotonic() - began)
    return FixedSolution(found.step, 0.0, assembled_plan(problem, outer, found), 0, time.monotonic() - began)


def solve_fixed(
    problem: FixedProblem,
    outer: OuterChoice,
    *,
    gap: float = 1e-3,
    cutoff_s: float = np.inf,
    time_limit: float | None = None,
    tell: Callable[[float, float], None] | None = None,
) -> FixedSolution:
    """Find the plan of least step under one outer choice, and prove it to a relative gap.

    Parameters
    ----------
    cutoff_s : float
        Plans that take as long are of no interest: once the bound is there the search ends.
    time_limit : float, optional
        Seconds; then the best plan so far is returned with its bound.
    tell : callable, optional
        Called with every better plan's step and the bound, s.
    """
    began = time.monotonic()
    deadline = None if time_limit is None else began + time_limit
    graph = LaggedGraph.of(problem.schedule)

    def done(
        step: float, bound: float, plan: LayerwisePlan | None, listed: int, interrupted: bool = False
    ) -> FixedSolution:
        return FixedSolution(step, bound, plan, listed, time.monotonic() - began, interrupted)

    if not len(problem.strategies) or problem.layers < problem.chunks:
        return done(np.inf, np.inf, None, 0)
    best: LayerwisePlan | None = None
    best_step = np.inf
    bound, listed = 0.0, 0
    large = LargeSearch(problem, graph, np.inf if deadline is None else deadline)

    def kept(found: Assembled | None) -> None:
        nonlocal best, best_step
        if found is not None and found.step < min(best_step, cutoff_s):
            best, best_step = assembled_plan(problem, outer, found), found.step
            if tell is not None:
                tell(best_step, bound)

    def raised(value: float) -> None:
        nonlocal bound
        bound = max(bound, value)

    interrupted = False
    try:
        many = problem.chunks >= MANY_CHUNKS
        if many:
            kept(large.first())
        relaxed = relax(problem, graph, rounds=MANY_ROUNDS if many else MOST_ROUNDS, deadline=deadline)
        if relaxed is None:
            return done(np.inf, np.inf, None, 0)
        bound = base = relaxed.bound
        if many and bound < min(best_step * (1 - gap), cutoff_s):
            large.improve(relaxed, bound / (1 - gap), kept)
            bound = max(bound, _tree_bound(problem, graph, large, min(best_step * (1 - gap), cutoff_s), raised))
        if not many and problem.interleaves > 1 and len(problem.by_kind) == 1:
            # Chunks of a stage multiply what is to be listed.
            kept(large.first())
            whole_layers = WholeLayers(problem, graph, relaxed, large)
            bound = max(bound, whole_layers.solve(min(best_step, cutoff_s), gap, large.deadline, kept))
        if bound >= min(best_step * (1 - gap), cutoff_s):
            return done(best_step, min(bound, best_step), best, 0)
        cuts = relaxed.cuts
        stages = range(problem.stages)
        listings = [StageListing(problem, graph, s, relaxed.prices, deadline=large.deadline) for s in stages]
        share = gap / 8 if gap >= COARSE else 0.0
        budget = FIRST_BUDGET * base
        while deadline is None or time.monotonic() < deadline:
            limit = min(best_step, cutoff_s)
            target = min(base + budget, limit)
            try:
                parts = [listing.list(budget + ROUNDING * base, target * (1 + ROUNDING)) for listing in listings]
                if sum(map(len, parts)) > MOST_CONTENTS:
                    raise TooManyContents
            except TooManyContents:
                if not many:
                    kept(large.first())
                    bound = max(bound, min(large.bound(relaxed), limit))
                    large.improve(relaxed, bound / (1 - gap), kept)
                break
            whole = not any(listing.cut_short for listing in listings)
            listed = sum(map(len, parts))
            held = list(map(len, parts))
            parts = _within(parts, budget + ROUNDING * base)
            # A content that goes for the others' slack may be in a plan above the target, as one that was not listed.
            whole = whole and held == list(map(len, parts))
            if not whole:
                parts = _below(problem, graph, parts, target * (1 + ROUNDING))
            if min(map(len, parts)):
                ceiling = min(limit, np.inf if whole else target * (1 + 2 * share))
                parts = [coarsened(part, share, share * base) for part in parts]
                master = Master(problem, graph, parts, cuts)
                found = master.solve(ceiling, gap / 4, deadline)
                cuts = found.cuts
                if found.chosen is not None and found.step < best_step:
                    best_step = found.step
                    best = _plan(problem, outer, parts, found.chosen)
                    if tell is not None:
                        tell(best_step, bound)
                # What the kept contents cannot do below a step, no content can below hardly less.
                reached = min(min(found.bound, ceiling) / (1 + 2 * share), np.inf if whole else target)
            else:
                reached = np.inf if whole else target
            bound = max(bound, min(reached, limit, best_step))
            # Once everything below the step to beat was listed, more contents tell no more.
            if whole or base + budget >= limit or bound >= min(best_step * (1 - gap), cutoff_s):
                break
            budget *= GROWTH
            if np.isfinite(best_step):
                budget = min(budget, best_step - base)
    except OutOfTime:
        pass
    except KeyboardInterrupt:
        interrupted = True
    return done(best_step, min(bound, best_step), best, listed, interrupted)


def _tree_bound(
    problem: FixedProblem, graph: LaggedGraph, large: LargeSearch, target: float, raised: Callable[[float], None]
) -> float:  # fmt: skip
    """Prove that no plan is shorter than a target, or a bound below it, s; 0 where contents are too many."""
    more = 1 + TREE_SHARE
    try:
        free, parts = free_contents(problem, graph, target * more, TREE_SHARE, large.deadline)
    except TooManyContents:
        return 0.0
    parts = _below(free, graph, parts, target * more)
    tree = StageTree(free, graph, parts, large.even_layers().sum(axis=1), target * more)
    proven: float = tree.search(large.deadline, lambda step: raised(step / more))
    return proven / more


def _within(parts: list[Contents], budget: float) -> list[Contents]:
    """Contents whose slack and the least of all other stages are within the budget."""
    if not min(map(len, parts)):
        return parts
    least = np.array([part.slack.min() for part in parts])
    return [part.take(part.slack <= budget - (least.sum() - least[s])) for s, part in enumerate(parts)]


def _below(problem: FixedProblem, graph: LaggedGraph, parts: list[Contents], ceiling: float) -> list[Contents]:
    """Contents whose step is below a ceiling when all other stages take their least times, and whose layers add up."""
    before = None
    while min(map(len, parts)) and before != (before := list(map(len, parts))):
        few = np.array([part.by_kind.min(axis=0) for part in parts])
        many = np.array([part.by_kind.max(axis=0) for part in parts])
        for s, part in enumerate(parts):
            least = problem.by_kind - (many.sum(axis=0) - many[s])
            most = problem.by_kind - (few.sum(axis=0) - few[s])
            held = part.by_kind
            parts[s] = part.take(((held >= least) & (held <= most)).all(axis=1))
        if not min(map(len, parts)):
            break
        classes = [graph.classes_of(s) for s in range(problem.stages)]
        times = np.zeros(graph.classes)
        times[2 * problem.chunks + problem.stages :] = problem.handover.min()
        for s, part in enumerate(parts):
            times[classes[s]] = part.times.min(axis=0)
        for s, part in enumerate(parts):
            own = times[classes[s]].copy()
            steps = np.empty(len(part))
            for at, figures in enumerate(part.times):
                times[classes[s]] = figures
                steps[at] = graph.step(times)
            times[classes[s]] = own
            parts[s] = part.take(steps <= ceiling)
    return parts


def _plan(problem: FixedProblem, outer: OuterChoice, parts: list[Contents], chosen: np.ndarray) -> LayerwisePlan:
    """The plan of one content a stage."""
    held = []
    for position in range(problem.chunks):
        v, s = problem.schedule.chunk_at(position)
        part, at = parts[s], chosen[s]
        held.append((part.counts[at, v], int(part.arrival[at, v]), int(part.departure[at, v])))
    return _written(problem, outer, held)


def assembled_plan(problem: FixedProblem, outer: OuterChoice, found: Assembled) -> LayerwisePlan:
    """The plan of the assembled contents."""
    held = []
    for position in range(problem.chunks):
        v, s = problem.schedule.chunk_at(position)
        held.append((found.counts[s][v], int(found.arrival[position]), int(found.departure[position])))
    return _written(problem, outer, held)


def _written(problem: FixedProblem, outer: OuterChoice, held: Sequence[tuple[np.ndarray, int, int]]) -> LayerwisePlan:
    """Every chunk's counts, arrival and departure as a plan: equal layouts together, recomputed layers first."""
    layers: list[LayerStrategy] = []
    for counts, arrival, departure in held:
        used = np.nonzero(counts)[0].tolist()
        kinds = sorted({int(problem.kind[c]) for c in used})
        _, order = least_order(problem.change, arrival, problem.segments(used), departure)
        for segment, layout in order:
            members = [c for c in used if problem.layout[c] == layout and problem.kind[c] == kinds[segment]]
            members.sort(key=lambda c: (not problem.strategies[c].recompute, -problem.strategies[c].zero, c))
            for c in members:
                layers += [problem.strategies[c]] * int(counts[c])
    ends: EndStrategy = outer.ends
    division = tuple(int(counts.sum()) for counts, _, _ in held)
    return LayerwisePlan(
        division, tuple(layers), ends, outer.global_batch, outer.micro_batches, outer.schedule.name,
        interleaves=outer.interleaves,
    )  # fmt: skip
