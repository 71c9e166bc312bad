"""Columns of a stage: layers by chunk and choice that could be in a plan below a given step.

Layers of a kind are alike, so a chunk is counted by choice. Contents are made choice after choice; of those with as
many layers and the same layouts at both ends of every chunk, one that is no better in any time and any memory than
another is dropped. So is one whose dual values (`relaxation`) already take the bound above the step to beat.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled
from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem, least_order
from taylor.layerwise.exact.relaxation import Prices
from taylor.pipeline.schedule import BACKWARD, FORWARD


class TooManyContents(Exception):
    """A stage has more contents than can be listed, or listed in time."""


@dataclass(frozen=True)
class Contents:
    """Columns of one stage.

    Parameters
    ----------
    counts : int16 [n, V, C]
        Layers by chunk and choice.
    arrival, departure : int16 [n, V]
        Layout in which hidden states come to a chunk, and the layout of its last layer's output.
    times : float64 [n, 2 V + 1]
        Forward, then backward of each chunk, then the stage's tail, s; embedding and head included.
    slack : float64 [n]
        Least rise of the bound by the content, s.
    by_chunk : int64 [n, V, K]
        Layers by chunk and kind.
    """

    counts: NDArray[np.int16]
    arrival: NDArray[np.int16]
    departure: NDArray[np.int16]
    times: Array
    slack: Array
    by_chunk: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.slack)

    @property
    def by_kind(self) -> NDArray[np.int64]:
        """Layers of the stage by kind, int64 [n, K]."""
        total: NDArray[np.int64] = self.by_chunk.sum(axis=1)
        return total

    @property
    def layers(self) -> NDArray[np.int64]:
        """Layers of the stage, int64 [n]."""
        total: NDArray[np.int64] = self.by_chunk.sum(axis=(1, 2))
        return total

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> Contents:
        """Some of them."""
        return Contents(
            self.counts[which], self.arrival[which], self.departure[which], self.times[which], self.slack[which],
            self.by_chunk[which],
        )  # fmt: skip


@compiled
def undominated(keys, figures, order, starts):  # type: ignore[no-untyped-def]
    """Rows that no other row of the same key equals or beats in every figure; `order` sorts by key, then by sum."""
    keep = np.ones(len(keys), dtype=np.bool_)
    width = figures.shape[1]
    kept = np.empty(len(keys), dtype=np.int64)
    for g in range(len(starts) - 1):
        count = 0
        for at in range(starts[g], starts[g + 1]):
            row = order[at]
            beaten = False
            for k in range(count):
                other = kept[k]
                worse = True
                for j in range(width):
                    if figures[other, j] > figures[row, j]:
                        worse = False
                        break
                if worse:
                    beaten = True
                    # What beats one is likely to beat the next.
                    kept[k], kept[0] = kept[0], kept[k]
                    break
            if beaten:
                keep[row] = False
            else:
                kept[count] = row
                count += 1
    return keep


def coarsened(contents: Contents, share: float, slack_s: float) -> Contents:
    """Some of a stage's contents, such that each has one with as many layers and equal layouts that is hardly slower.

    Kinds count as layers do, and which of them each chunk has.

    Parameters
    ----------
    share : float
        Relative excess of its forwards and backwards; the step may get longer by as much.
    slack_s : float
        Excess of its tail, s; likewise.
    """
    if share <= 0 or len(contents) < 2:
        return contents
    keys = _grouped(contents.by_chunk)
    for column in (*contents.arrival.astype(np.int64).T, *contents.departure.astype(np.int64).T):
        keys = keys * (int(column.max()) + 1) + column
    order = np.lexsort((contents.slack, keys))
    starts = np.concatenate([[0], np.nonzero(np.diff(keys[order]))[0] + 1, [len(keys)]])
    limits = contents.times * (1 + share)
    limits[:, -1] = contents.times[:, -1] + slack_s
    return contents.take(_hardly_slower(contents.times, limits, order, starts))


def _grouped(layers: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for equal layers of each kind, and equal kinds in each chunk, int64 [n]."""
    count, V, K = layers.shape
    keys = (layers > 0).reshape(count, -1) @ (1 << np.arange(V * K))
    for column in layers.sum(axis=1).T:
        keys = keys * (int(column.max()) + 1) + column
    return keys


@compiled
def _hardly_slower(times, limits, order, starts):  # type: ignore[no-untyped-def]
    """The rows that no kept row of the same key stays within the limits of."""
    keep = np.ones(len(times), dtype=np.bool_)
    kept = np.empty(len(times), dtype=np.int64)
    for g in range(len(starts) - 1):
        count = 0
        for at in range(starts[g], starts[g + 1]):
            row = order[at]
            for k in range(count):
                within = True
                for j in range(times.shape[1]):
                    if times[kept[k], j] > limits[row, j]:
                        within = False
                        break
                if within:
                    keep[row] = False
                    break
            if keep[row]:
                kept[count] = row
                count += 1
    return keep


@dataclass(frozen=True)
class _Labels:
    """Contents in the making."""

    counts: NDArray[np.int16]
    ends: NDArray[np.int16]
    used: NDArray[np.int64]
    times: Array
    memory: Array
    working: Array
    slack: Array

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> _Labels:
        return _Labels(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    @staticmethod
    def joined(parts: list[_Labels]) -> _Labels:
        if len(parts) == 1:
            return parts[0]
        return _Labels(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in _Labels.__dataclass_fields__)
        )


class StageListing:
    """Lists the contents of one stage.

    Parameters
    ----------
    prices : Prices or None
        Without them everything that fits is listed.
    most : int
        Contents in the making, at most.
    deadline : float
        A moment of `time.monotonic`.
    """

    def __init__(
        self, problem: FixedProblem, graph: LaggedGraph, stage: int, prices: Prices | None, most: int = 400_000,
        deadline: float = np.inf,
    ) -> None:  # fmt: skip
        self.problem, self.graph, self.stage, self.prices, self.most = problem, graph, stage, prices, most
        self.deadline = deadline
        self.V, self.C = problem.interleaves, len(problem.strategies)
        self.memory, self.free = problem.memory[stage], problem.free[stage]
        self.most_layers = problem.layers - self.V * (problem.stages - 1)
        self.layouts = len(problem.handover)
        self.cut_short = False
        self.most_busy = np.inf
        places = [problem.schedule.position(v, stage) for v in range(self.V)]
        self.places = places
        weights = np.zeros(2 * self.V + 1)
        if prices is not None:
            weights[: self.V] = [prices.times[graph.class_of(FORWARD, k)] for k in places]
            weights[self.V : -1] = [prices.times[graph.class_of(BACKWARD, k)] for k in places]
            weights[-1] = prices.times[graph.tail(stage)]
        self.weights = weights
        self.useful = self._useful_choices()

    def _useful_choices(self) -> NDArray[np.int64]:
        """The choices that no other of the same kind and layout equals or beats in every time and any memory."""
        problem = self.problem
        flat = self.memory.reshape(-1, self.C)
        figures = np.vstack([problem.forward, problem.backward, problem.tail, problem.working, flat])
        useful: list[int] = []
        for c in range(self.C):
            same = np.nonzero((problem.layout == problem.layout[c]) & (problem.kind == problem.kind[c]))[0]
            no_worse = (figures[:, same] <= figures[:, [c]]).all(axis=0)
            equal = (figures[:, same] == figures[:, [c]]).all(axis=0)
            if not (no_worse & ((same < c) | ~equal)).any():
                useful.append(c)
        return np.array(useful, dtype=np.int64)

    def list(self, budget: float, ceiling: float = np.inf) -> Contents:
        """All contents that take the bound up by `budget` seconds at most, and whose own tasks fit below `ceiling`.

        `cut_short` says afterwards whether any that fits was cut off.

        Raises
        ------
        TooManyContents
            When they are more than `most`, or the time is up.
        """
        self.cut_short = False
        problem = self.problem
        ends = sum(problem.end_forward[k] + problem.end_backward[k] for k in self.places)
        self.most_busy = (ceiling - problem.end_tail[self.stage]) / problem.schedule.micro_batches - ends
        labels = self._within(self.free, budget)
        if labels is None:
            return Contents(
                np.zeros((0, self.V, self.C), np.int16), np.zeros((0, self.V), np.int16),
                np.zeros((0, self.V), np.int16), np.zeros((0, 2 * self.V + 1)), np.zeros(0),
                np.zeros((0, self.V, len(problem.by_kind)), np.int64),
            )  # fmt: skip
        none = np.zeros(len(labels.slack))
        labels = replace(labels, working=none)
        labels = self._best(replace(labels, memory=np.zeros((len(labels.slack), 0))))
        times = labels.times.copy()
        for v, place in enumerate(self.places):
            times[:, v] += problem.end_forward[place]
            times[:, self.V + v] += problem.end_backward[place]
        times[:, -1] += problem.end_tail[self.stage]
        layers = problem.layers_by_kind(labels.counts)
        return Contents(labels.counts, labels.ends[:, :, 0], labels.ends[:, :, 1], times, labels.slack, layers)

    def _within(self, limit: Array, budget: float) -> _Labels | None:
        """Contents within some memory, all chunks."""
        V, P = self.V, len(limit)
        labels = _Labels(
            np.zeros((1, V, self.C), np.int16), np.zeros((1, V, 2), np.int16), np.zeros(1, np.int64),
            np.zeros((1, 2 * V + 1)), np.zeros((1, P)), np.zeros(1), np.zeros(1),
        )  # fmt: skip
        for v in range(V):
            # The dear ones first, while contents are few: what costs nothing multiplies them.
            prices = np.zeros(self.C) if self.prices is None else self.prices.layer[self.stage, v]
            for choice in sorted(self.useful.tolist(), key=lambda c: (-prices[c], self.problem.layout[c], c)):
                if time.monotonic() > self.deadline:
                    raise TooManyContents
                labels = self._extended(labels, v, choice, limit, budget)
            labels = self._closed(labels, v, budget)
            if not len(labels.slack):
                return None
        if self.prices is not None:
            least = float(self.problem.working.min())
            free = self.free - least - labels.memory
            slack = labels.slack + np.maximum(free, 0.0) @ self.prices.memory[self.stage]
            labels = self._kept(replace(labels, slack=slack), slack <= budget)
        return labels if len(labels.slack) else None

    def _kept(self, labels: _Labels, within: NDArray[np.bool_]) -> _Labels:
        if not within.all():
            self.cut_short = True
            return labels.take(within)
        return labels

    def _extended(self, labels: _Labels, v: int, choice: int, limit: Array, budget: float) -> _Labels:
        """With any number of layers of one choice more in a chunk."""
        problem = self.problem
        price = 0.0 if self.prices is None else float(self.prices.layer[self.stage, v, choice])
        weight = self.memory[:, v, choice]
        parts, now = [labels], labels
        kind = int(problem.kind[choice])
        bit = 1 << (kind * self.layouts + int(problem.layout[choice]))
        alike = problem.kind == kind
        chunks_left = self.V - 1 - v
        while len(now.slack):
            memory = now.memory + weight
            working = np.maximum(now.working, problem.working[choice])
            fits = (memory + working[:, None] <= limit).all(axis=1)
            fits &= now.counts.sum(axis=(1, 2)) + 1 + chunks_left <= self.most_layers
            if len(problem.by_kind) > 1:
                fits &= now.counts[:, :, alike].sum(axis=(1, 2)) + 1 <= problem.by_kind[kind]
            within = now.slack + price <= budget
            more = problem.forward[choice] + problem.backward[choice]
            within &= now.times[:, :-1].sum(axis=1) + more <= self.most_busy
            if (fits & ~within).any():
                self.cut_short = True
            chosen = np.nonzero(fits & within)[0]
            now = now.take(chosen)
            counts, times = now.counts.copy(), now.times.copy()
            counts[:, v, choice] += 1
            times[:, v] += problem.forward[choice]
            times[:, self.V + v] += problem.backward[choice]
            times[:, -1] += problem.tail[choice]
            now = _Labels(counts, now.ends, now.used | bit, times, memory[chosen], working[chosen], now.slack + price)
            parts.append(now)
            if sum(len(part.slack) for part in parts) > self.most:
                raise TooManyContents
        return self._best(_Labels.joined(parts))

    def _closed(self, labels: _Labels, v: int, budget: float) -> _Labels:
        """With a chunk done: it holds a layer at least, and its layouts have an order."""
        labels = labels.take(labels.used > 0)
        if not len(labels.slack):
            return labels
        slack = labels.slack
        if self.prices is not None:
            slack = slack + float(self.prices.more[self.stage, v]) * (labels.counts[:, v].sum(axis=1) - 1)
        labels = self._kept(replace(labels, slack=slack), slack <= budget)
        if self.layouts == 1:
            return self._best(replace(labels, used=np.zeros_like(labels.used)))
        parts = []
        for used in np.unique(labels.used).tolist():
            here = labels.take(labels.used == used)
            for arrival, departure, change, lag in self._ways(used, v):
                times, ends = here.times.copy(), here.ends.copy()
                times[:, v] += change / 2
                times[:, self.V + v] += change / 2
                ends[:, v] = arrival, departure
                extra = change / 2 * (self.weights[v] + self.weights[self.V + v]) + lag
                part = replace(here, times=times, ends=ends, slack=here.slack + extra)
                parts.append(self._kept(replace(part, used=np.zeros_like(part.used)), part.slack <= budget))
        return self._best(_Labels.joined(parts)) if parts else labels.take(np.zeros(len(labels.slack), dtype=bool))

    def _ways(self, used: int, v: int) -> Iterator[tuple[int, int, float, float]]:
        """Arrival, departure, cost of changes, and cost of the transfer behind, of a chunk with some layouts."""
        problem, place = self.problem, self.places[v]
        bits = [each for each in range(self.layouts * len(problem.by_kind)) if used >> each & 1]
        by_kind = [
            [bit % self.layouts for bit in bits if bit // self.layouts == k] for k in range(len(problem.by_kind))
        ]
        segments = [layouts for layouts in by_kind if layouts]
        members = segments[-1]
        final = place == problem.chunks - 1
        arrivals: Iterable[int] = (problem.end_layout,) if place == 0 else range(self.layouts)
        for arrival in arrivals:
            ways = [(least_order(problem.change, arrival, segments, last)[0], last) for last in members]
            if final:
                cost, last = min((cost + float(problem.change[last, problem.end_layout]), last) for cost, last in ways)
                yield arrival, last, cost, 0.0
                continue
            lag_price = 0.0 if self.prices is None else float(self.prices.times[self.graph.lag(place)])
            for cost, last in ways:
                yield arrival, last, cost, lag_price * float(problem.handover[last] - problem.handover.min())

    def _best(self, labels: _Labels) -> _Labels:
        """Contents without those that another equals or beats."""
        count = len(labels.slack)
        if count < 2:
            return labels
        # The last chunk's departure is nobody's concern: its change to the head's layout is paid.
        ends = labels.ends.astype(np.int64).reshape(count, -1)
        keys = _grouped(self.problem.layers_by_kind(labels.counts))
        for column in (labels.used, *ends.T):
            keys = keys * (int(column.max()) + 1) + column
        figures = np.hstack([labels.times, labels.memory, labels.working[:, None]])
        scale = np.maximum(np.abs(figures).max(axis=0), 1e-300)
        figures = np.ascontiguousarray(np.round(figures / scale, 12))
        order = np.lexsort((figures.sum(axis=1), keys))
        starts = np.concatenate([[0], np.nonzero(np.diff(keys[order]))[0] + 1, [count]])
        return labels.take(undominated(keys, figures, order, starts))
