"""A good plan before columns are listed: local search from the known plan, or from an even one made to fit."""

from __future__ import annotations

import time

import numpy as np

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.positions import State
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk, alternates
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.evaluate import over_limits_mib
from taylor.pipeline_solver.timing.event_graph import EventGraph

SLICE_TASKS = 3e7
"""Most tasks evaluated by a slice of a local search, about a quarter of a second: then the clock is checked."""

COLD = 5e-5
"""Last temperature of a local search, as a fraction of the step time."""

SHORT_TASKS, LONG_TASKS = 4e7, 1.6e9
"""Most tasks evaluated by a short local search, for the first plan, and by a long one, where a problem is hard."""

LEAST_MOVES, SHORT_MOVES, LONG_MOVES = 500, 10_000, 120_000
"""Least moves of any local search, most of a short and of a long one."""

HOT, ALTERNATING_HOT = (0.03, 0.01), (0.0075, 0.005)
"""First temperatures of successive long searches, as fractions of the step time; the latter where kinds alternate."""

ALTERNATING_COLD = 7.5e-4
"""Last temperature of long searches where kinds alternate: these gain by more frequent restarts."""

STARTS, START_HOT = 16, (0.005, 0.01, 0.005, 0.02)
"""Short searches from the start, where a problem is hard, and their successive first temperatures."""

ENOUGH, SAME = 3, 1e-9
"""Short searches that must find the best plan, or one as good within this fraction, before a problem counts as
searched."""


class FirstPlans:
    """The best plan of the local searches.

    Parameters
    ----------
    seed : int
        Of the local searches; without a time limit the result depends on it alone.
    """

    def __init__(self, problem: PipelineProblem, graph: EventGraph, seed: int, stopper: Stopper) -> None:
        self.problem, self.graph = problem, graph
        self.walk = PlanWalk(problem, graph)
        self.random = np.random.default_rng(seed)
        self.stopper = stopper
        self.size = len(graph.before)
        self.over, self.time = np.inf, np.inf
        self.state: State | None = None
        self.start: State | None = None

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
            self._walk_from(self.state, min(SHORT_MOVES, SHORT_TASKS / self.size), 0.01)

    def start_again(self, seconds: float | None = None) -> bool:
        """Run short searches from the first one's start, for `seconds` at most; return whether `ENOUGH` found the best
        plan.

        A dozen short searches find better plans than one of their total length. A long one seldom improves a plan that
        several have found.
        """
        until = np.inf if seconds is None else time.monotonic() + seconds
        met: list[float] = []
        for k in range(STARTS):
            if self.start is None or time.monotonic() >= until:
                break
            hot = START_HOT[k % len(START_HOT)]
            met.append(self._walk_from(self.start, min(SHORT_MOVES, SHORT_TASKS / self.size), hot))
            if sum(one <= self.time * (1.0 + SAME) for one in met) >= ENOUGH:
                return True
        return False

    def go_on(self, attempt: int, seconds: float | None = None) -> None:
        """Run a long search from the best plan, of `seconds` at most: then it cools immediately."""
        if self.state is not None:
            until = None if seconds is None else time.monotonic() + seconds
            moves = min(LONG_MOVES, LONG_TASKS / self.size)
            hots, cold = (ALTERNATING_HOT, ALTERNATING_COLD) if alternates(self.problem) else (HOT, COLD)
            self._walk_from(self.state, moves, hots[attempt % len(hots)], until, cold)

    def _walk_from(
        self, state: State, most_moves: float, hot: float, until: float | None = None, cold: float = COLD
    ) -> float:
        """Search from a state with falling temperature; return the best step time of a state that fits, inf without
        one."""
        moves = max(LEAST_MOVES, int(most_moves))
        slices = max(1, int(np.ceil(moves * self.size / SLICE_TASKS)))
        scale = self.time if np.isfinite(self.time) else self.walk.time_of(state)
        heats = np.geomspace(hot, cold, slices + 1) * scale
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
