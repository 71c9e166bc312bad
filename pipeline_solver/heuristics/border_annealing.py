"""Annealing of repeating patterns from many unlike starts: local search alone seldom leaves the shape of its start.

Where kinds of layers alternate, good plans give each virtual stage a work of its own: short chunks in some, long ones
in others. A layer that moves between distant chunks changes the layers of all chunks between them, so the local search
(`plan_walk`) seldom finds another such shape. Starts therefore fill the chunks of each virtual stage up to a work limit
drawn at random. The best few results are annealed again.
"""

from __future__ import annotations

import time
from typing import Callable

import numpy as np

from taylor.pipeline_solver.columns.positions import State
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB

MOST_DRAWS = 200
"""Draws of work limits for one start, before the even plan stands in: limits may be too low to place all layers."""


class BorderAnnealing:
    """A pool of the best annealed plans of a problem, and the runs that fill it.

    Parameters
    ----------
    first : FirstPlans
        Receives every plan found; its parameters, stopper and starts apply.
    seed : int
        Of starts and runs; without a time limit the result depends on it alone.
    """

    def __init__(self, first: FirstPlans, seed: int) -> None:
        self.first, self.own = first, first.params
        self.random = np.random.default_rng([seed, 1])
        self.pool: list[tuple[float, State]] = []

    def run(self, runs: int, seconds: float | None, enough: float, on_better: Callable[[], None]) -> None:
        """Anneal `runs` times, for `seconds` at most.

        Parameters
        ----------
        enough : float
            Step time that ends the runs: that of a closed gap.
        on_better : callable
            Called after each better plan.
        """
        own, first, in_vain = self.own, self.first, 0
        until = np.inf if seconds is None else time.monotonic() + seconds
        for _ in range(runs):
            late = in_vain >= own.border_without_success or time.monotonic() >= until
            if late or first.time <= enough:
                break
            met = first.time
            self._once()
            in_vain += 1
            if first.time < met:
                in_vain = 0
                on_better()

    def _once(self) -> None:
        """One run, from a new start or from one of the best states."""
        own, first = self.own, self.first
        moves = min(own.border_moves, own.border_tasks / first.size)
        if len(self.pool) < own.border_starts or self.random.random() < own.border_new:
            start, hot = self.start(), own.border_hot
            if start is None:
                return
        else:
            start = self.pool[int(self.random.integers(own.border_elite))][1]
            hot = float(self.random.choice(own.border_again))
            moves *= 2
        step_time, state = first.anneal(start, moves, hot, own.border_cold)
        if state is not None:
            # Equal step times are mostly the same plan, which would fill the pool.
            self.pool = [one for one in self.pool if abs(one[0] - step_time) > 1e-9 * step_time]
            self.pool = sorted([*self.pool, (step_time, state)], key=lambda one: one[0])[: own.border_pool]

    def start(self) -> State | None:
        """A state whose chunks are filled up to a work limit of their virtual stage, with the least recompute that
        fits; the even one after too many draws, None where bounds leave none."""
        walk, own = self.first.walk, self.own
        line, work, layers = walk.line, walk.stack.forward[0], self.first.problem.layers
        chunks, interleaves = len(line.stage), line.place.shape[0]
        even = (work[-1] + line.besides.sum()) / chunks
        behind = np.concatenate([np.cumsum(line.lower[::-1])[::-1], [0]])
        for _ in range(MOST_DRAWS):
            limits = even * self.random.choice(own.border_limits, size=interleaves)
            if self.random.random() < 0.5:  # a stage's later virtual stages keep fewer micro-batches
                limits = np.sort(limits)
            begin = np.zeros(chunks + 1, dtype=np.int64)
            for k in range(chunks):
                until = work[begin[k]] + limits[line.interleave[k]] - line.besides[k]
                filled = int(np.searchsorted(work, until * (1 + 1e-12), side="right")) - 1
                most = min(begin[k] + line.upper[k], layers - behind[k + 1])
                low = begin[k] + line.lower[k]
                begin[k + 1] = max(low, min(filled, most))
                if line.unit > 1 and low <= most:
                    begin[k + 1] = walk.near_border(int(begin[k + 1]), int(low), int(most))
            lacking = layers - begin[-1]
            if lacking < 0 or begin[-1] - begin[-2] + lacking > line.upper[-1] or lacking > interleaves:
                continue
            begin[-1] = layers
            return self._fitted(State(begin, np.zeros((line.fixed.shape[0], chunks), dtype=np.int64)))
        by_layers = walk.even(False)
        return None if by_layers is None else self._fitted(by_layers)

    def _fitted(self, state: State) -> State:
        """The state with the least recompute that fits; the best plan's where it is over the limits."""
        over, _, fitted = self.first.walk.fitted(state)
        best = self.first.state
        return fitted if over <= MEMORY_TOLERANCE_MIB or best is None else best
