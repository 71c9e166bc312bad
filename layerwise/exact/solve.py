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
from taylor.layerwise.exact.master import ROUNDING, Master, Selection
from taylor.layerwise.exact.relaxation import MOST_ROUNDS, Relaxed, relax
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
    on_plan: Callable[[float, float], None] | None = None,
) -> FixedSolution:
    """Find the plan of least step under one outer choice, and prove it to a relative gap.

    Parameters
    ----------
    cutoff_s : float
        Plans that take as long are of no interest: once the bound is there the search ends.
    time_limit : float, optional
        Seconds; then the best plan so far is returned with its bound.
    on_plan : callable, optional
        Called with every better plan's step and the bound, s.
    """
    began = time.monotonic()
    if not len(problem.strategies) or problem.layers < problem.chunks:
        return FixedSolution(np.inf, np.inf, None, 0, time.monotonic() - began)
    search = _FixedSearch(problem, outer, gap, cutoff_s, None if time_limit is None else began + time_limit, on_plan)
    interrupted = False
    try:
        search.run()
    except OutOfTime:
        pass
    except KeyboardInterrupt:
        interrupted = True
    bound = min(search.bound, search.best_step)
    return FixedSolution(search.best_step, bound, search.best, search.listed, time.monotonic() - began, interrupted)


class _FixedSearch:
    """The best plan and the bound of one outer choice, and the steps of the search that improve them.

    Parameters
    ----------
    deadline : float or None
        A moment of `time.monotonic`.
    """

    def __init__(
        self, problem: FixedProblem, outer: OuterChoice, gap: float, cutoff_s: float, deadline: float | None,
        on_plan: Callable[[float, float], None] | None,
    ) -> None:  # fmt: skip
        self.problem, self.outer, self.gap, self.cutoff_s = problem, outer, gap, cutoff_s
        self.deadline, self.on_plan = deadline, on_plan
        self.graph = LaggedGraph.of(problem.schedule)
        self.large = LargeSearch(problem, self.graph, np.inf if deadline is None else deadline)
        self.many = problem.chunks >= MANY_CHUNKS
        self.best: LayerwisePlan | None = None
        self.best_step = np.inf
        self.bound = 0.0
        self.listed = 0

    @property
    def limit(self) -> float:
        """Step that a plan of interest is below."""
        return min(self.best_step, self.cutoff_s)

    @property
    def goal(self) -> float:
        """Bound at which the search ends."""
        return min(self.best_step * (1 - self.gap), self.cutoff_s)

    def keep(self, step: float, plan: Callable[[], LayerwisePlan]) -> None:
        """Take over a better plan."""
        self.best, self.best_step = plan(), step
        if self.on_plan is not None:
            self.on_plan(step, self.bound)

    def keep_assembled(self, found: Assembled | None) -> None:
        """Take over an assembled plan that is better and below the cutoff."""
        if found is not None and found.step < self.limit:
            self.keep(found.step, lambda: assembled_plan(self.problem, self.outer, found))

    def raise_bound(self, value: float) -> None:
        """Raise the bound to a proven one."""
        self.bound = max(self.bound, value)

    def run(self) -> None:
        """Bound the step, then list contents until the best plan is proven."""
        if self.many:
            self.keep_assembled(self.large.first())
        rounds = MANY_ROUNDS if self.many else MOST_ROUNDS
        relaxed = relax(self.problem, self.graph, rounds=rounds, deadline=self.deadline)
        if relaxed is None:
            self.best, self.best_step, self.bound = None, np.inf, np.inf
            return
        self.bound = relaxed.bound
        self._bound_by_trees(relaxed)
        if self.bound < self.goal:
            self._list(relaxed)

    def _bound_by_trees(self, relaxed: Relaxed) -> None:
        """Raise the bound of many chunks by a tree over the stages, that of several chunks a stage by a MILP."""
        problem, large = self.problem, self.large
        if self.many and self.bound < self.goal:
            large.improve(relaxed, self.bound / (1 - self.gap), self.keep_assembled)
            self.raise_bound(_tree_bound(problem, self.graph, large, self.goal, self.raise_bound))
        if not self.many and problem.interleaves > 1 and len(problem.by_kind) == 1:
            # Chunks of a stage multiply what is to be listed.
            self.keep_assembled(large.first())
            whole_layers = WholeLayers(problem, self.graph, relaxed, large)
            self.raise_bound(whole_layers.solve(self.limit, self.gap, large.deadline, self.keep_assembled))

    def _list(self, relaxed: Relaxed) -> None:
        """List contents within a growing budget, and select the best plan among them."""
        problem, base, cuts = self.problem, relaxed.bound, relaxed.cuts
        listings = [
            StageListing(problem, self.graph, s, relaxed.prices, deadline=self.large.deadline)
            for s in range(problem.stages)
        ]
        share = self.gap / 8 if self.gap >= COARSE else 0.0
        budget = FIRST_BUDGET * base
        while self.deadline is None or time.monotonic() < self.deadline:
            limit = self.limit
            target = min(base + budget, limit)
            try:
                whole, parts = self._contents(listings, budget + ROUNDING * base, target * (1 + ROUNDING))
            except TooManyContents:
                self._assemble(relaxed, limit)
                break
            reached = np.inf if whole else target
            if min(map(len, parts)):
                ceiling = min(limit, np.inf if whole else target * (1 + 2 * share))
                parts = [coarsened(part, share, share * base) for part in parts]
                found = Master(problem, self.graph, parts, cuts).solve(ceiling, self.gap / 4, self.deadline)
                cuts = found.cuts
                self._keep_selected(parts, found)
                # A step that the kept contents cannot reach, no content can reach with a hardly shorter one.
                reached = min(min(found.bound, ceiling) / (1 + 2 * share), reached)
            self.raise_bound(min(reached, limit, self.best_step))
            # Once everything below the limit was listed, more contents prove no more.
            if whole or base + budget >= limit or self.bound >= self.goal:
                break
            budget *= GROWTH
            if np.isfinite(self.best_step):
                budget = min(budget, self.best_step - base)

    def _contents(self, listings: list[StageListing], budget: float, ceiling: float) -> tuple[bool, list[Contents]]:
        """Contents of every stage within a budget of the bound; true where no others are in plans below `ceiling`.

        Raises
        ------
        TooManyContents
            When a stage, or all stages together, have too many.
        """
        parts = [listing.list(budget, ceiling) for listing in listings]
        counts = list(map(len, parts))
        if sum(counts) > MOST_CONTENTS:
            raise TooManyContents
        self.listed = sum(counts)
        parts = _within(parts, budget)
        # A content that goes for the others' slack may be in a plan above the target, as one that was not listed.
        whole = not any(listing.cut_short for listing in listings) and counts == list(map(len, parts))
        return whole, parts if whole else _below(self.problem, self.graph, parts, ceiling)

    def _keep_selected(self, parts: list[Contents], found: Selection) -> None:
        chosen = found.chosen
        if chosen is not None and found.step < self.best_step:
            self.keep(found.step, lambda: _plan(self.problem, self.outer, parts, chosen))

    def _assemble(self, relaxed: Relaxed, limit: float) -> None:
        """Assemble a plan and bound it where contents are too many to list."""
        if self.many:
            return
        self.keep_assembled(self.large.first())
        self.raise_bound(min(self.large.bound(relaxed), limit))
        self.large.improve(relaxed, self.bound / (1 - self.gap), self.keep_assembled)


def _tree_bound(
    problem: FixedProblem, graph: LaggedGraph, large: LargeSearch, target: float, on_bound: Callable[[float], None]
) -> float:  # fmt: skip
    """Prove that no plan is shorter than a target, or a bound below it, s; 0 where contents are too many."""
    more = 1 + TREE_SHARE
    try:
        free, parts = free_contents(problem, graph, target * more, TREE_SHARE, large.deadline)
    except TooManyContents:
        return 0.0
    parts = _below(free, graph, parts, target * more)
    tree = StageTree(free, graph, parts, large.even_layers().sum(axis=1), target * more)
    proven: float = tree.search(large.deadline, lambda step: on_bound(step / more))
    return proven / more


def _within(parts: list[Contents], budget: float) -> list[Contents]:
    """Contents whose slack and the least of all other stages are within the budget."""
    if not min(map(len, parts)):
        return parts
    least = np.array([part.slack.min() for part in parts])
    return [part.take(part.slack <= budget - (least.sum() - least[s])) for s, part in enumerate(parts)]


def _below(problem: FixedProblem, graph: LaggedGraph, parts: list[Contents], ceiling: float) -> list[Contents]:
    """Contents whose step is below a ceiling when all other stages take their least times, and whose layers add up."""
    parts, before = list(parts), None
    while min(map(len, parts)) and before != (before := list(map(len, parts))):
        few = np.array([part.by_kind.min(axis=0) for part in parts])
        many = np.array([part.by_kind.max(axis=0) for part in parts])
        for s, part in enumerate(parts):
            least = problem.by_kind - (many.sum(axis=0) - many[s])
            most = problem.by_kind - (few.sum(axis=0) - few[s])
            layers = part.by_kind
            parts[s] = part.take(((layers >= least) & (layers <= most)).all(axis=1))
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
    chunks = []
    for position in range(problem.chunks):
        v, s = problem.schedule.chunk_at(position)
        part, at = parts[s], chosen[s]
        chunks.append((part.counts[at, v], int(part.arrival[at, v]), int(part.departure[at, v])))
    return _written(problem, outer, chunks)


def assembled_plan(problem: FixedProblem, outer: OuterChoice, found: Assembled) -> LayerwisePlan:
    """The plan of the assembled contents."""
    chunks = []
    for position in range(problem.chunks):
        v, s = problem.schedule.chunk_at(position)
        chunks.append((found.counts[s][v], int(found.arrival[position]), int(found.departure[position])))
    return _written(problem, outer, chunks)


def _written(problem: FixedProblem, outer: OuterChoice, chunks: Sequence[tuple[np.ndarray, int, int]]) -> LayerwisePlan:
    """Every chunk's counts, arrival and departure as a plan: equal layouts together, recomputed layers first."""
    layers: list[LayerStrategy] = []
    for counts, arrival, departure in chunks:
        used = np.nonzero(counts)[0].tolist()
        kinds = sorted({int(problem.kind[c]) for c in used})
        _, order = least_order(problem.change, arrival, problem.segments(used), departure)
        for segment, layout in order:
            members = [c for c in used if problem.layout[c] == layout and problem.kind[c] == kinds[segment]]
            members.sort(key=lambda c: (not problem.strategies[c].recompute, -problem.strategies[c].zero, c))
            for c in members:
                layers += [problem.strategies[c]] * int(counts[c])
    ends: EndStrategy = outer.ends
    division = tuple(int(counts.sum()) for counts, _, _ in chunks)
    return LayerwisePlan(
        division, tuple(layers), ends, outer.global_batch, outer.micro_batches, outer.schedule.name,
        interleaves=outer.interleaves,
    )  # fmt: skip
