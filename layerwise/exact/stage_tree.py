"""A tree over the contents of every stage, where changes of layout cost nothing: it bounds jobs of many chunks.

Once layouts are ignored, and contents that hardly differ count as one, a stage has a dozen contents rather than
thousands. An LP mixes them badly: half a stage of three layers and half of five is as busy as neither. So
the tree begins where integers cannot follow: either every stage holds its even share of layers, or one holds more.
Then it splits one stage's contents by their layers or their times.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taylor.layerwise.exact.contents import Contents, StageListing, TooManyContents, coarsened
from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.relaxation import new_paths
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpStatus

Mask = NDArray[np.bool_]
MOST_COLUMNS = 2000
"""Contents of all stages: an LP over more takes too long."""
MOST_NODES = 3000
"""Nodes after which the tree is abandoned, for it may have no end."""
FIRST_ROUNDS, NODE_ROUNDS, LAST_ROUNDS = 100, 6, 100
"""LPs of the root, of a node, and of a node that mixes nothing."""
MANY_PATHS, KEPT_PATHS = 350, 150
"""Paths in the LP from which on it restarts with those that bound the step recently."""
MANY_PRICES, KEPT_PRICES = 400, 300
"""The same of dual values."""
TRIED = 4
"""Splits tried with an LP of each side: the best by dual values, and as many best dividers of the mixture."""
MIXED = 0.02
"""Fraction of a side from which on a split divides a mixture."""
EXACT = 2e-5
"""Relative distance of an LP's value and the step of its times, below which no further path is looked for."""
LEAST_GAIN = 1e-3


def free_contents(
    problem: FixedProblem, graph: LaggedGraph, ceiling: float, share: float, deadline: float
) -> tuple[FixedProblem, list[Contents]]:
    """The problem without layouts and with the least of tails, and every stage's contents in plans below a step.

    Tails come once a step; they would make thousands of contents that differ in nothing else.

    Parameters
    ----------
    share : float
        Difference up to which contents count as one, as for `coarsened`.
    deadline : float
        A moment of `time.monotonic`.

    Raises
    ------
    TooManyContents
        When they are too many for the tree, or the time is up.
    """
    least = problem.handover.min(keepdims=True)
    free = replace(
        problem, change=np.zeros((1, 1)), handover=least, layout=np.zeros_like(problem.layout), end_layout=0,
        tail=np.full_like(problem.tail, problem.tail.min()),
    )  # fmt: skip
    parts: list[Contents] = []
    for s in range(problem.stages):
        listing = StageListing(free, graph, s, None, deadline=deadline)
        parts.append(coarsened(listing.list(np.inf, ceiling), share, 0.0))
        if sum(map(len, parts)) > MOST_COLUMNS:
            raise TooManyContents
    return free, parts


class StageTree:
    """The tree of one list of contents, whose layouts are one.

    Parameters
    ----------
    parts : sequence of Contents, one a stage
    caps : int64 [S]
        An even share of layers, which adds up to those of the model.
    ceiling : float
        Step to be proven, s.
    """

    def __init__(
        self, problem: FixedProblem, graph: LaggedGraph, parts: Sequence[Contents], caps: NDArray[np.int64],
        ceiling: float,
    ) -> None:  # fmt: skip
        if caps.sum() != problem.layers:
            raise ValueError(f"shares of {caps.sum()} layers, of {problem.layers}")
        self.problem, self.graph, self.caps, self.ceiling = problem, graph, caps, ceiling
        self.empty = not min(map(len, parts))
        self.starts = np.cumsum([0, *map(len, parts)])
        self.stage = np.repeat(np.arange(problem.stages), [len(part) for part in parts])
        self.layers = np.concatenate([part.layers for part in parts])
        self.by_kind = np.concatenate([part.by_kind for part in parts])
        count = len(self.stage)
        self.times = np.zeros((count, graph.classes))
        for s, part in enumerate(parts):
            self.times[self.starts[s] : self.starts[s + 1], graph.classes_of(s)] = part.times
        self.lags = np.zeros(graph.classes)
        self.lags[2 * problem.chunks + problem.stages :] = problem.handover[0]
        self.split_stage, self.low, self.high = self._splits(parts)
        self.values, self.prices = np.zeros(0), np.zeros((0, count))
        self.paths: list[Array] = []
        self.used: list[int] = []
        self.runs = 0
        if not self.empty:
            self.model = self._model()

    def _splits(self, parts: Sequence[Contents]) -> tuple[NDArray[np.int64], Mask, Mask]:
        """Every way to part a stage's contents by a figure: the stage [J], and both sides [J, n]."""
        V = self.problem.interleaves
        stages, sides = [], []
        for s, part in enumerate(parts):
            forward, backward = part.times[:, :V], part.times[:, V : 2 * V]
            pairs = (forward[:, :, None] + backward[:, None, :]).reshape(len(part), V * V)
            figures = np.column_stack(
                [part.layers, part.by_chunk.sum(axis=2), part.times[:, : 2 * V].sum(axis=1), pairs]
            )
            seen: set[bytes] = set()
            for figure in np.round(figures, 6).T:
                for value in np.unique(figure)[:-1]:
                    low = figure <= value
                    if low.tobytes() not in seen:
                        seen.add(low.tobytes())
                        stages.append(s)
                        side = np.zeros(len(self.stage), dtype=bool)
                        side[self.starts[s] : self.starts[s + 1]] = low
                        sides.append(side)
        numbers = np.array(stages, dtype=np.int64)
        low_sides = np.array(sides, dtype=bool).reshape(len(stages), len(self.stage))
        return numbers, low_sides, (self.stage[None, :] == numbers[:, None]) & ~low_sides

    def _model(self) -> HighsModel:
        """The LP with the known paths: the step, then the fraction of every content."""
        count = len(self.stage)
        rows = [
            Row(f"stage_{s}", tuple(range(1 + a, 1 + b)), (1.0,) * (b - a), 1.0, 1.0)
            for s, (a, b) in enumerate(zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True))
        ]
        columns = tuple(range(1, 1 + count))
        for k, layers in enumerate(self.problem.by_kind):
            rows.append(Row(f"layers_{k}", columns, tuple(self.by_kind[:, k].astype(float).tolist()), layers, layers))
        self.first_path = len(rows)
        rows += [self._row(path) for path in self.paths]
        upper, cost = np.full(1 + count, np.inf), np.zeros(1 + count)
        cost[0] = 1.0
        self.allowed = np.ones(count, dtype=bool)
        names = tuple(f"x{each}" for each in range(1 + count))
        form = LinearForm(names, np.zeros(1 + count), upper, cost, np.zeros(1 + count, dtype=bool), rows)
        return HighsModel(form, relaxed=True)

    def _row(self, path: Array) -> Row:
        weights = -(self.times @ path)
        return Row("path", tuple(range(1 + len(weights))), (1.0, *weights.tolist()), float(self.lags @ path))

    def search(self, deadline: float, raised: Callable[[float], None]) -> float:
        """Prove the ceiling, as far as there is time; no plan of these contents is shorter than what is returned, s.

        Parameters
        ----------
        deadline : float
            A moment of `time.monotonic`.
        raised : callable
            Called with every better bound.
        """
        if self.empty:
            return self.ceiling
        bound, closed = 0.0, self.ceiling
        nodes = self._first_nodes()
        number = self.problem.stages
        for _ in range(MOST_NODES):
            least = min(nodes[0][0] if nodes else self.ceiling, closed)
            if least > bound:
                raised(bound := least)
            if not nodes or bound >= closed or time.monotonic() > deadline:
                break
            value, _, mask = heapq.heappop(nodes)
            value, weights = self._bounded(mask, value, NODE_ROUNDS)
            sides = self._divided(mask, value, weights)
            if sides is None and value < self.ceiling:
                value, weights = self._bounded(mask, value, LAST_ROUNDS)
                sides = self._divided(mask, value, weights)
            if sides is None:
                closed = min(closed, value)
                continue
            for value, mask in sides:
                if value < self.ceiling:
                    number += 1
                    heapq.heappush(nodes, (value, number, mask))
        return bound

    def _first_nodes(self) -> list[tuple[float, int, Mask]]:
        """One stage above its share, the dearest first and those before it not; or every stage at its share."""
        mask = np.ones(len(self.stage), dtype=bool)
        self._bounded(mask, 0.0, FIRST_ROUNDS)
        over = self.layers > self.caps[self.stage]
        above = []
        for s in np.unique(self.stage[over]).tolist():
            above.append((self._bounded(mask & ((self.stage != s) | over), 0.0, NODE_ROUNDS)[0], s))
        nodes = []
        for value, s in sorted(above, reverse=True):
            here = self.stage == s
            kept = mask & (~here | over)
            mask = mask & ~(here & over)
            value, _ = self._bounded(kept, value, NODE_ROUNDS)
            if value < self.ceiling:
                nodes.append((value, s, kept))
        mask = mask & (self.layers == self.caps[self.stage])
        value, _ = self._bounded(mask, 0.0, NODE_ROUNDS)
        if value < self.ceiling:
            nodes.append((value, self.problem.stages, mask))
        heapq.heapify(nodes)
        return nodes

    def _bounded(self, mask: Mask, value: float, rounds: int) -> tuple[float, Array]:
        """A node's bound, by dual values and `rounds` LPs, and the LP's mixture; `mask` loses excluded contents."""
        value = max(value, self._priced(mask))
        weights = np.zeros(len(self.stage))
        if value < self.ceiling:
            found, weights = self._relaxed(mask, rounds)
            value = max(value, found)
        if value < self.ceiling:
            value = max(value, self._priced(mask))
        return min(value, self.ceiling), weights

    def _priced(self, mask: Mask) -> float:
        """The best bound of all dual values, after removing the contents that they exclude from `mask`."""
        while np.logical_or.reduceat(mask, self.starts[:-1]).all():
            if not len(self.values):
                return 0.0
            prices = np.where(mask, self.prices, np.inf)
            least = np.minimum.reduceat(prices, self.starts[:-1], axis=1)
            bounds = self.values + least.sum(axis=1)
            dear = mask & (bounds[:, None] + prices - least[:, self.stage] >= self.ceiling).any(axis=0)
            if bounds.max() >= self.ceiling or not dear.any():
                return float(bounds.max())
            mask &= ~dear
        return np.inf

    def _relaxed(self, mask: Mask, rounds: int) -> tuple[float, Array]:
        """The value of the LP over some contents, and their fractions."""
        if len(self.paths) > MANY_PATHS:
            kept = sorted(np.argsort(self.used, kind="stable")[-KEPT_PATHS:].tolist())
            self.paths, self.used = [self.paths[i] for i in kept], [self.used[i] for i in kept]
            self.model = self._model()
        for i in np.nonzero(mask != self.allowed)[0].tolist():
            self.model.set_bounds(1 + i, 0.0, np.inf if mask[i] else 0.0)
        self.allowed = mask.copy()
        value, weights = 0.0, np.zeros(len(self.stage))
        for _ in range(rounds):
            found = self.model.solve_lp()
            self.runs += 1
            if found.status is MilpStatus.INFEASIBLE:
                return np.inf, weights
            if found.status is not MilpStatus.OPTIMAL or found.values is None:
                break
            value, weights = found.bound, found.values[1:]
            reduced, duals = self.model.duals()
            self._keep_prices(value, reduced[1:])
            for i in np.nonzero(duals[self.first_path :] > 1e-9)[0].tolist():
                self.used[i] = self.runs
            if value >= self.ceiling:
                break
            step, paths = new_paths(self.graph, weights @ self.times + self.lags)
            if step <= value * (1 + EXACT):
                break
            self.paths += paths
            self.used += [self.runs] * len(paths)
            self.model.add_rows([self._row(path) for path in paths])
        return value, weights

    def _keep_prices(self, value: float, reduced: Array) -> None:
        """Keep an LP's dual values: a plan takes at least its value plus the reduced cost of every content."""
        if len(self.values) >= MANY_PRICES:
            self.values, self.prices = self.values[-KEPT_PRICES:], self.prices[-KEPT_PRICES:]
        self.values = np.append(self.values, value)
        self.prices = np.vstack([self.prices, reduced])

    def _divided(self, mask: Mask, value: float, weights: Array) -> list[tuple[float, Mask]] | None:
        """Both sides of the split that raises the bound most, each with its bound; None where nothing is mixed."""
        if value >= self.ceiling:
            return []
        low = self.low & mask
        share = low @ weights
        mixed = np.nonzero((share > MIXED) & (share < 1 - MIXED))[0]
        if not len(mixed):
            return None
        estimates = self._estimates(mask, mixed)
        by_price = sorted(
            zip((self._gain(value, each) for each in estimates), mixed.tolist(), strict=True), reverse=True
        )
        rest = sorted((j for _, j in by_price[TRIED:]), key=lambda j: (-min(share[j], 1 - share[j]), j))
        best: tuple[float, list[tuple[float, Mask]]] | None = None
        for j in [*(j for _, j in by_price[:TRIED]), *rest[:TRIED]]:
            there = self.stage != self.split_stage[j]
            sides = []
            for side in (self.low[j], self.high[j]):
                kept = mask & (side | there)
                sides.append((self._bounded(kept, value, 1)[0], kept))
            gain = self._gain(value, (sides[0][0], sides[1][0]))
            if best is None or gain > best[0]:
                best = gain, sides
            if min(bound for bound, _ in sides) >= self.ceiling:
                break
        return None if best is None else best[1]

    def _gain(self, value: float, sides: tuple[float, float]) -> float:
        gains = [max(min(each, self.ceiling) - value, LEAST_GAIN) for each in sides]
        return gains[0] * gains[1]

    def _estimates(self, mask: Mask, splits: NDArray[np.int64]) -> list[tuple[float, float]]:
        """Bounds of both sides of some splits by known dual values."""
        prices = np.where(mask, self.prices, np.inf)
        least = np.minimum.reduceat(prices, self.starts[:-1], axis=1)
        bounds = self.values + least.sum(axis=1)
        found = []
        for j in splits.tolist():
            s = self.split_stage[j]
            here = slice(self.starts[s], self.starts[s + 1])
            low, high = (
                float((bounds - least[:, s] + np.where(side[j, here], prices[:, here], np.inf).min(axis=1)).max())
                for side in (self.low, self.high)
            )
            found.append((low, high))
        return found
