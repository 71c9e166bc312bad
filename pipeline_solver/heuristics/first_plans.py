"""A good plan before columns are listed: local search from the known plan, or from an even one made to fit."""

from __future__ import annotations

import time

import numpy as np

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.positions import State
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk, alternates
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, HeuristicsParams
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.evaluate import over_limits_mib
from taylor.pipeline_solver.timing.event_graph import EventGraph

SAME = 1e-9
"""Relative difference of two plans as good as each other."""


class FirstPlans:
    """The best plan of the local searches.

    Parameters
    ----------
    seed : int
        Of the local searches; without a time limit the result depends on it alone.
    params : HeuristicsParams
    """

    def __init__(
        self,
        problem: PipelineProblem,
        graph: EventGraph,
        seed: int,
        stopper: Stopper,
        params: HeuristicsParams = DEFAULT_PARAMS.heuristics,
    ) -> None:
        self.problem, self.graph, self.params = problem, graph, params
        self.walk = PlanWalk(problem, graph, params)
        self.random = np.random.default_rng(seed)
        self.stopper = stopper
        self.size = len(graph.before)
        self.over, self.time = np.inf, np.inf
        self.state: State | None = None
        self.start: State | None = None

    @property
    def _short(self) -> float:
        """Moves of a short local search."""
        return min(self.params.short_moves, self.params.short_tasks / self.size)

    @property
    def plan(self) -> PipelinePlan | None:
        """The best plan; None while none fits."""
        if self.state is None or self.over > MEMORY_TOLERANCE_MIB:
            return None
        return self.walk.plan_of(self.state)

    def begin(self, known: PipelinePlan | None) -> None:
        """Start from the known plan and from even ones, with a short local search from the best of them."""
        starts = [] if known is None else [self.walk.state_of(known)]
        starts += [start for by_work in (True, False) if (start := self.walk.even(by_work)) is not None]
        for start in starts:
            over, time, fitted = self.walk.fitted(start)
            self._take(over, time, fitted)
        self.start = self.state
        if self.state is not None:
            self._walk_from(self.state, self._short, 0.01)

    def start_again(self, seconds: float | None = None) -> bool:
        """Run short searches from the first one's start, for `seconds` at most; return whether enough found the best
        plan.

        A dozen short searches find better plans than one of their total length. A long one seldom improves a plan that
        several have found.
        """
        until = np.inf if seconds is None else time.monotonic() + seconds
        met: list[float] = []
        for k in range(self.params.starts):
            if self.start is None or time.monotonic() >= until:
                break
            hots = self.params.start_hot
            met.append(self._walk_from(self.start, self._short, hots[k % len(hots)]))
            if sum(one <= self.time * (1.0 + SAME) for one in met) >= self.params.enough:
                return True
        return False

    def go_on(self, attempt: int, seconds: float | None = None) -> None:
        """Run a long search from the best plan, of `seconds` at most: then it cools immediately."""
        if self.state is not None:
            until = None if seconds is None else time.monotonic() + seconds
            own = self.params
            moves = min(own.long_moves, own.long_tasks / self.size)
            hots, cold = own.hot, own.cold
            if alternates(self.problem, own):
                hots, cold = own.alternating_hot, own.alternating_cold
            self._walk_from(self.state, moves, hots[attempt % len(hots)], until, cold)

    def _walk_from(
        self, state: State, most_moves: float, hot: float, until: float | None = None, cold: float | None = None
    ) -> float:
        """Search from a state with falling temperature; return the best step time of a state that fits, inf without
        one."""
        moves = max(self.params.least_moves, int(most_moves))
        slices = max(1, int(np.ceil(moves * self.size / self.params.slice_tasks)))
        scale = self.time if np.isfinite(self.time) else self.walk.time_of(state)
        heats = np.geomspace(hot, cold or self.params.cold, slices + 1) * scale
        met = np.inf
        for before, after in zip(heats[:-1], heats[1:], strict=True):
            self.stopper.check()
            seed = int(self.random.integers(2**31))
            late = until is not None and time.monotonic() >= until
            if late:
                before, after, state = float(heats[-2]), float(heats[-1]), self.state or state
            over, step_time, best, state = self.walk.run(state, -(-moves // slices), seed, before, after)
            self._take(over, step_time, best)
            if over <= MEMORY_TOLERANCE_MIB:
                met = min(met, step_time)
            if late:
                break
        return met

    def offer(self, state: State) -> None:
        """Take a state where it is better, with the least recompute that fits."""
        self._take(*self.walk.fitted(state))

    def anneal(self, start: State, moves: float, hot: float, cold: float) -> tuple[float, State | None]:
        """Search once from a state; return the step time and the state of its best plan, None where none fits.

        Temperatures are fractions of the start's step time.
        """
        walk, step_time, found, now = self.walk, np.inf, None, start
        scale, moves = walk.time_of(start), max(self.params.least_moves, int(moves))
        slices = max(1, int(np.ceil(moves * self.size / self.params.slice_tasks)))
        heats = np.geomspace(hot, cold, slices + 1) * scale
        for before, after in zip(heats[:-1], heats[1:], strict=True):
            self.stopper.check()
            seed = int(self.random.integers(2**31))
            over, met, best, now = walk.run(now, -(-moves // slices), seed, before, after)
            self._take(over, met, best)
            if over <= MEMORY_TOLERANCE_MIB and met < step_time:
                step_time, found = met, best
        return step_time, found

    def _take(self, over: float, time: float, state: State) -> None:
        if self.problem.choices and (over, time) < (self.over, self.time):
            over, time = self._exact(state)
        if (over, time) < (self.over, self.time):
            self.over, self.time, self.state = over, time, state

    def _exact(self, state: State) -> tuple[float, float]:
        """Exact MiB over the limits and step time of a state: the search only uses the sum of a choice's task times,
        and ignores states and the host."""
        plan = self.walk.plan_of(state)
        return over_limits_mib(self.problem, plan), self.graph.longest_path(chunk_durations(self.problem, plan))
