"""Jobs whose stages have too many contents to list: column generation, a plan improved step by step.

First layers are divided over chunks, evenly by work. Given them, the best content of a stage under dual values of
times is an integer knapsack; the dual values come from the relaxation and from the longest paths of the current
plan. Layers move between stages while that helps. The bound is the relaxation's, and above it this: either all stages
hold just their even share, or one holds a whole layer more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem, least_order
from taylor.layerwise.exact.relaxation import Relaxed, relax, relax_above
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row

Counts = NDArray[np.int16]
"""Layers of one stage by chunk and choice [V, C]."""
MOST_MOVES = 40
"""Moves of a layer that are tried before new dual values."""
A_PRICING_S = 1.0
"""Seconds for one knapsack."""


@dataclass(frozen=True)
class Assembled:
    """A plan of one content a stage.

    Parameters
    ----------
    counts : tuple of int16 [V, C], one a stage
    arrival, departure : int64 [chunks]
        Layouts of hidden states before and behind each chunk.
    times : float64 [classes]
    step : float
        s.
    """

    counts: tuple[Counts, ...]
    arrival: NDArray[np.int64]
    departure: NDArray[np.int64]
    times: Array
    step: float


class LargeSearch:
    """The search of one large outer choice.

    Parameters
    ----------
    deadline : float
        A moment of `time.monotonic`.
    """

    def __init__(self, problem: FixedProblem, graph: LaggedGraph, deadline: float) -> None:
        self.problem, self.graph, self.deadline = problem, graph, deadline
        self.known: dict[tuple[object, ...], Counts | None] = {}
        self.works: dict[tuple[int, int], float] = {}
        self.number = 0
        self.best: Assembled | None = None

    def first(self) -> Assembled | None:
        """A plan of even work, before any dual values."""
        weights = np.zeros(self.graph.classes)
        weights[: 2 * self.problem.chunks] = float(self.problem.schedule.micro_batches)
        weights[2 * self.problem.chunks : 2 * self.problem.chunks + self.problem.stages] = 1.0
        return self._taken(self.even_layers(), weights)

    def even_layers(self) -> NDArray[np.int64]:
        """Layers by chunk [S, V]: one each, then always to the stage that is done first."""
        problem = self.problem
        S, V = problem.stages, problem.interleaves
        even = np.full(S, V, dtype=np.int64)
        after = np.array([self._work(s, V + 1) for s in range(S)])
        for _ in range(problem.layers - V * S):
            least = int(np.argmin(after))
            even[least] += 1
            after[least] = self._work(least, int(even[least]) + 1)
        layers = np.empty((S, V), dtype=np.int64)
        for s, total in enumerate(even.tolist()):
            each, more = divmod(total, V)
            layers[s] = [each + (v < more) for v in range(V)]
        return layers

    def bound(self, relaxed: Relaxed) -> float:
        """No plan is shorter, s: all stages hold their even share of layers, or one holds more."""
        caps = self.even_layers().sum(axis=1)
        half = time.monotonic() + max(0.0, self.deadline - time.monotonic()) / 2
        return max(relaxed.bound, relax_above(self.problem, self.graph, caps, relaxed.cuts, half))

    def _work(self, stage: int, layers: int) -> float:
        """Estimated time of a micro-batch on a stage with `layers` layers, s: its best mix of two choices."""
        key = (stage, layers)
        if key in self.works:
            return self.works[key]
        problem = self.problem
        places = [problem.schedule.position(v, stage) for v in range(problem.interleaves)]
        ends = sum(float(problem.end_forward[k] + problem.end_backward[k]) for k in places)
        times = problem.forward + problem.backward
        free = problem.free[stage] - float(problem.working.min())
        tightest = int(np.argmin(free / problem.memory[stage].mean(axis=1).min(axis=1)))
        memory, most = problem.memory[stage][tightest].mean(axis=0), float(free[tightest]) / layers
        fits = memory <= most
        mean = float(times[fits].min()) if fits.any() else np.inf
        if fits.any() and not fits.all():
            low, high = np.nonzero(fits)[0], np.nonzero(~fits)[0]
            share = (most - memory[low, None]) / (memory[None, high] - memory[low, None])
            mean = min(mean, float((times[low, None] + share * (times[None, high] - times[low, None])).min()))
        self.works[key] = layers * mean + ends
        return self.works[key]

    def improve(self, relaxed: Relaxed, target: float, on_plan: Callable[[Assembled], None]) -> None:
        """Make the plan better until it is within a step, nothing helps, or the time is up."""
        layers = self.even_layers() if self.best is None else self._layers(self.best)
        fixed = relax(self.problem, self.graph, layers, relaxed.cuts)
        weights = relaxed.prices.times if fixed is None else fixed.prices.times
        while time.monotonic() < self.deadline:
            before = np.inf if self.best is None else self.best.step
            self._taken(layers, weights)
            self._exchange(weights)
            self._move(weights)
            if self.best is None:
                return
            if self.best.step < before:
                on_plan(self.best)
            if self.best.step <= target or self.best.step >= before * (1 - 1e-6):
                return
            layers = self._layers(self.best)
            path = self.graph.path(self.best.times)[1]
            weights = 0.5 * weights + 0.5 * path

    def _layers(self, plan: Assembled) -> NDArray[np.int64]:
        return np.array([counts.sum(axis=1) for counts in plan.counts], dtype=np.int64)

    def _taken(self, layers: NDArray[np.int64], weights: Array) -> Assembled | None:
        """The plan of the best contents under some dual values, kept where it is the best so far."""
        self.number += 1
        parts = [self._content(s, layers, weights) for s in range(self.problem.stages)]
        if any(part is None for part in parts):
            return None
        return self.keep(self.assembled(tuple(part for part in parts if part is not None)))

    def keep(self, plan: Assembled) -> Assembled:
        """The plan itself, kept where it is the best so far."""
        if self.best is None or plan.step < self.best.step:
            self.best = plan
        return plan

    def _exchange(self, weights: Array) -> None:
        """Another content for one stage after the other, of equal layers under dual values that lean to either end."""
        if self.best is None:
            return
        self.number += 1
        tails = slice(2 * self.problem.chunks, 2 * self.problem.chunks + self.problem.stages)
        heavier = weights.copy()
        heavier[tails] += 1.0
        for s in range(self.problem.stages):
            if time.monotonic() > self.deadline:
                return
            other = self._content(s, self._layers(self.best), heavier)
            if other is not None and not np.array_equal(other, self.best.counts[s]):
                counts = list(self.best.counts)
                counts[s] = other
                self.keep(self.assembled(tuple(counts)))

    def _move(self, weights: Array) -> None:
        """One layer from a chunk of a busy stage to another, while that helps."""
        tried = 0
        while self.best is not None and tried < MOST_MOVES:
            layers = self._layers(self.best)
            path = self.graph.path(self.best.times)[1]
            busy = [self._on_path(path, s) for s in range(self.problem.stages)]
            givers = [s for s in np.argsort(busy)[::-1].tolist() if (layers[s] > 1).any()][:2]
            takers = np.argsort(busy).tolist()[:8]
            better = False
            for giver in givers:
                for taker in takers:
                    if giver == taker or tried >= MOST_MOVES or time.monotonic() > self.deadline:
                        continue
                    tried += 1
                    moved = layers.copy()
                    moved[giver, int(np.argmax(layers[giver]))] -= 1
                    moved[taker, int(np.argmin(layers[taker]))] += 1
                    step = self.best.step
                    if len(self.problem.by_kind) > 1:
                        self._taken(moved, weights)
                    else:
                        pair = [self._content(s, moved, weights) for s in (giver, taker)]
                        if pair[0] is not None and pair[1] is not None:
                            counts = list(self.best.counts)
                            counts[giver], counts[taker] = pair[0], pair[1]
                            self.keep(self.assembled(tuple(counts)))
                    if self.best.step < step:
                        better = True
                        break
                if better:
                    break
            if not better:
                return

    def _on_path(self, path: Array, stage: int) -> float:
        assert self.best is not None
        return float(sum(path[k] * self.best.times[k] for k in self.graph.classes_of(stage)))

    def _content(self, stage: int, layers: NDArray[np.int64], weights: Array) -> Counts | None:
        """The cheapest content of a stage under dual values of times, a knapsack; None where none fits."""
        problem = self.problem
        V, K = problem.interleaves, len(problem.by_kind)
        flat = np.array([layers[s, v] for v, s in map(problem.schedule.chunk_at, range(problem.chunks))])
        starts = np.concatenate([[0], np.cumsum(flat)])
        borders = np.concatenate([[0], np.cumsum(problem.by_kind)])
        wanted = np.zeros((V, K), dtype=np.int64)
        for v in range(V):
            k = problem.schedule.position(v, stage)
            for j in range(K):
                wanted[v, j] = max(0, min(starts[k + 1], borders[j + 1]) - max(starts[k], borders[j]))
        key = (self.number, stage, wanted.tobytes())
        if key not in self.known:
            self.known[key] = self._priced(stage, wanted, weights)
        return self.known[key]

    def _priced(self, stage: int, wanted: NDArray[np.int64], weights: Array) -> Counts | None:
        problem, graph = self.problem, self.graph
        V, C = problem.interleaves, len(problem.strategies)
        cells = V * C
        least, levels = float(problem.working.min()), np.unique(problem.working)
        cost = np.zeros(cells + 1 + C)
        rows: list[Row] = []
        for v in range(V):
            k = problem.schedule.position(v, stage)
            cost[v * C : (v + 1) * C] = (
                weights[graph.class_of(FORWARD, k)] * problem.forward
                + weights[graph.class_of(BACKWARD, k)] * problem.backward
                + weights[graph.tail(stage)] * problem.tail
            )
            for j, count in enumerate(wanted[v].tolist()):
                mine = tuple((v * C + np.nonzero(problem.kind == j)[0]).tolist())
                rows.append(Row(f"layers_{v}_{j}", mine, (1.0,) * len(mine), count, count))
        # What one layer holds while it runs: at least that of every choice that is taken at all.
        work = cells
        for p, free in enumerate(problem.free[stage].tolist()):
            weight = problem.memory[stage][p].reshape(-1).tolist()
            rows.append(Row(f"memory_{p}", (*range(cells), work), (*weight, 1.0), upper=free - least))
        most = int(wanted.sum())
        if len(levels) > 1:
            for c in range(C):
                taken = cells + 1 + c
                rows.append(Row(f"taken_{c}", (taken, *(v * C + c for v in range(V))), (-most, *[1.0] * V), upper=0.0))
                extra = float(problem.working[c]) - least
                rows.append(Row(f"working_{c}", (work, taken), (1.0, -extra), 0.0))
        upper = np.full(cells + 1 + C, np.inf)
        upper[:cells], upper[cells + 1 :] = most, 1.0
        integer = np.ones(cells + 1 + C, dtype=bool)
        integer[work] = False
        names = tuple(f"x{each}" for each in range(cells + 1 + C))
        form = LinearForm(names, np.zeros(cells + 1 + C), upper, cost, integer, rows)
        left = min(A_PRICING_S, max(self.deadline - time.monotonic(), 0.05))
        found = HighsModel(form).solve_milp(gap=1e-4, time_limit=left)
        if found.interrupted:
            raise KeyboardInterrupt
        if found.values is None:
            return None
        counts = np.round(found.values[:cells]).reshape(V, C).astype(np.int16)
        return counts if problem.fits(stage, counts) else None

    def assembled(self, counts: tuple[Counts, ...]) -> Assembled:
        """Contents of all stages in the cheapest layouts, with the step that they make."""
        problem, graph = self.problem, self.graph
        ways: dict[int, tuple[float, tuple[tuple[int, int, float], ...]]] = {problem.end_layout: (0.0, ())}
        for k in range(problem.chunks):
            v, s = problem.schedule.chunk_at(k)
            segments = problem.segments(np.nonzero(counts[s][v])[0].tolist())
            after: dict[int, tuple[float, tuple[tuple[int, int, float], ...]]] = {}
            for arrival, (cost, path) in ways.items():
                for last in segments[-1]:
                    change = least_order(problem.change, arrival, segments, last)[0]
                    if k == problem.chunks - 1:
                        change += float(problem.change[last, problem.end_layout])
                    total = cost + change + float(problem.handover[last])
                    if last not in after or total < after[last][0]:
                        after[last] = total, (*path, (arrival, last, change))
            ways = after
        path = min(ways.values())[1]
        times = np.zeros(graph.classes)
        for k, (_, last, change) in enumerate(path):
            v, s = problem.schedule.chunk_at(k)
            mine = counts[s][v]
            times[graph.class_of(FORWARD, k)] = problem.end_forward[k] + mine @ problem.forward + change / 2
            times[graph.class_of(BACKWARD, k)] = problem.end_backward[k] + mine @ problem.backward + change / 2
            times[graph.tail(s)] += float(mine @ problem.tail)
            if k < problem.chunks - 1:
                times[graph.lag(k)] = problem.handover[last]
        for s in range(problem.stages):
            times[graph.tail(s)] += problem.end_tail[s]
        ends = np.array([[arrival, departure] for arrival, departure, _ in path], dtype=np.int64)
        return Assembled(counts, ends[:, 0], ends[:, 1], times, graph.step(times))
