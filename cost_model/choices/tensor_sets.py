"""The best sets of a layer's saved tensors to keep, to make again, and to move to the host: exact Pareto fronts.

A tensor is made again by the operator that made it, once, when the backward first needs it. That operator's inputs
must then be there: kept, back from the host, or made again themselves; a tensor that nothing saves is always made
again. It lives until its last reader's backward, or the last backward before which an operator runs again from it.
Tensors on the host are back when the layer's backward begins. At every operator of the backward all that lives,
gradients included, fits in what the layer keeps, the buffer for what comes back, and the workspace that full recompute
needs.

Which tensors are made again decides the time and what is stored; how much of that lies on the host, the exposed part of
the transfers, as for offload by module. So all sets of the largest tensors are enumerated for the first decision, at
once in arrays, and for the second the sums of the stored ones' sizes, of those sets alone that a bound with divisible
tensors does not exclude.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.choices.layer_graph import LayerGraph

MOST_TENSORS = 14
"""Tensors of a layer, the largest, that are chosen for; all smaller ones, a hundredth of what a layer of DeepSeek-V3
saves, are kept."""

_BLOCK = 1 << 14
"""Sets whose arrays are computed at once."""
_FEW = 16
"""Sets of the first block that the front excludes together; each further one is as large as all before it."""
_SAME = 1e-9
"""Times and bytes that differ by less, or by this part of them, are equal: sums in another order round so."""
_Floats = NDArray[np.float64]
_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class LayerTimes:
    """Times beside which tensors move: of a layer's forward and backward, ms, and MiB that the link moves in a ms."""

    forward: float
    backward: float
    mib_per_ms: float | None

    def added(self, again: float | _Floats, host: float | _Floats) -> tuple[float | _Floats, float | _Floats]:
        """Time added to forward and backward, ms, by what runs again and by MiB on the host."""
        link = 0.0 if self.mib_per_ms is None else np.divide(host, self.mib_per_ms)
        exposed = np.maximum(0.0, np.subtract(np.subtract(link, self.backward), again))
        return np.maximum(0.0, np.subtract(link, self.forward)), np.add(again, exposed)

    def most_host(self, again: _Floats, within: _Floats) -> _Floats:
        """Most MiB on the host with which a set that runs again in `again` takes `within` at most."""
        if self.mib_per_ms is None:
            return np.zeros(np.broadcast_shapes(np.shape(again), np.shape(within)))
        # Both ends together pass a transfer free of the shorter, then at one time a unit, then at two.
        low = np.minimum(self.forward, self.backward + again)
        high = np.maximum(self.forward, self.backward + again)
        spare = np.maximum(0.0, within - again)
        link = np.where(spare <= high - low, low + spare, high + (spare - (high - low)) / 2)
        return np.where(within < again * (1 - _SAME) - _SAME, -np.inf, link * self.mib_per_ms)


@dataclass(frozen=True)
class TensorSet:
    """A choice for every saved tensor of a layer.

    Parameters
    ----------
    again, moved : tuple of int
        Tensors that are made again, and that lie on the host; the others are kept.
    again_ms : float
        Time of the operators that run again.
    added_ms : float
        All time that it adds: that, and the exposed transfers.
    kept_mib, host_mib : float
    """

    again: tuple[int, ...]
    moved: tuple[int, ...]
    again_ms: float
    added_ms: float
    kept_mib: float
    host_mib: float


@lru_cache(maxsize=64)
def tensor_front(graph: LayerGraph, times: LayerTimes, most: int = MOST_TENSORS) -> tuple[TensorSet, ...]:
    """Sets of which no other takes less time without keeping more, by rising time."""
    chosen = sorted(sorted(graph.saved, key=lambda tensor: -graph.sizes[tensor])[:most])
    made = [tensor for tensor in chosen if tensor in graph.producer]
    rest = graph.kept_mib - sum(graph.sizes[tensor] for tensor in chosen)
    sets = _Sets.of(graph, made)
    stored = rest + sets.stored(chosen)
    order = np.argsort(sets.ms, kind="stable")
    front, start = _Front(), 0
    while start < len(order):
        # The front of a few sets excludes most of the others.
        block = order[start : max(_FEW, 2 * start)]
        start += len(block)
        open_ones = block[~front.excludes(times, sets.ms[block], stored[block], stored[block] - rest)]
        for index in open_ones.tolist():
            ms, kept = float(sets.ms[index]), float(stored[index])
            if front.excludes(times, np.array([ms]), np.array([kept]), np.array([kept - rest]))[0]:
                continue
            again = [tensor for tensor, one in zip(made, sets.members[index], strict=True) if one]
            movable = [tensor for tensor in chosen if tensor not in again]
            front.add(_moved_sets(graph, times, (tuple(again), ms, kept), movable))
    return tuple(front.points)


def _moved_sets(
    graph: LayerGraph, times: LayerTimes, made: tuple[tuple[int, ...], float, float], movable: Sequence[int]
) -> list[TensorSet]:
    """The front of the sets that move some of `movable`, where `made` are the tensors made again, their time, and MiB
    that are stored.
    """
    again, ms, kept = made
    sums = np.zeros(1)
    if times.mib_per_ms is not None:
        for tensor in movable:
            sums = np.concatenate([sums, sums + graph.sizes[tensor]])
    ahead, behind = times.added(ms, sums)
    added = np.broadcast_to(np.add(ahead, behind), sums.shape)
    best = _lowest(added, kept - sums)
    found = []
    for index in best.tolist():
        bits = [bool(index >> place & 1) for place in range(len(movable))]
        moved, host = tuple(compress(movable, bits)), float(sums[index])
        found.append(TensorSet(again, moved, ms, float(added[index]), max(0.0, kept - host), host))
    return found


def _lowest(time: _Floats, kept: _Floats) -> NDArray[np.int64]:
    """Points that no other one is as good as in both, by rising time; of equal ones the first."""
    order = np.lexsort((kept, time))
    least = np.minimum.accumulate(kept[order])
    before = np.concatenate([[np.inf], least[:-1]])
    return order[kept[order] < before * (1 - _SAME) - _SAME]


class _Front:
    """Points of which none is as good as another in time and MiB kept, by rising time."""

    def __init__(self) -> None:
        self.points: list[TensorSet] = []
        self._time, self._kept = np.zeros(0), np.zeros(0)

    def add(self, found: Sequence[TensorSet]) -> None:
        """Take further points in."""
        every = [*self.points, *found]
        best = _lowest(np.array([one.added_ms for one in every]), np.array([one.kept_mib for one in every]))
        self.points = [every[index] for index in best.tolist()]
        self._time = np.array([one.added_ms for one in self.points])
        self._kept = np.array([one.kept_mib for one in self.points])

    def excludes(self, times: LayerTimes, again: _Floats, stored: _Floats, movable: _Floats) -> _Flags:
        """Return which sets have no point below the front, whatever part of `movable` MiB they move, [n]."""
        if not self.points:
            return np.zeros(len(again), dtype=np.bool_)
        # Up to the next point's time the front keeps what this point keeps; the set then keeps least.
        until = np.concatenate([self._time[1:], [np.inf]])
        host = np.minimum(times.most_host(again[:, np.newaxis], until), movable[:, np.newaxis])
        below = stored[:, np.newaxis] - host < self._kept * (1 - _SAME) - _SAME
        before = again[:, np.newaxis] < self._time[0] - _SAME
        out: _Flags = ~(below.any(axis=1) | before.any(axis=1))
        return out


@dataclass(frozen=True)
class _Sets:
    """Sets of tensors that are made again, [n], of those that fit at every point of the backward.

    `members` [n, tensors], `ms` [n].
    """

    graph: LayerGraph
    made: Sequence[int]
    members: _Flags
    ms: _Floats

    @classmethod
    def of(cls, graph: LayerGraph, made: Sequence[int]) -> _Sets:
        """All sets of some tensors."""
        members, ms = [], []
        count = 1 << len(made)
        for start in range(0, count, _BLOCK):
            numbers = np.arange(start, min(start + _BLOCK, count))
            block = (numbers[:, np.newaxis] >> np.arange(len(made)) & 1).astype(np.bool_)
            time, fits = _run_again(graph, made, block)
            members.append(block[fits])
            ms.append(time[fits])
        return cls(graph, made, np.concatenate(members), np.concatenate(ms))

    def stored(self, chosen: Sequence[int]) -> _Floats:
        """MiB of the tensors `chosen` that a set does not make again, [n]."""
        sizes = np.array([self.graph.sizes[tensor] for tensor in self.made])
        whole = sum(self.graph.sizes[tensor] for tensor in chosen)
        return whole - (self.members @ sizes if len(sizes) else np.zeros(len(self.ms)))


def _run_again(graph: LayerGraph, made: Sequence[int], block: _Flags) -> tuple[_Floats, _Flags]:
    """Time of the operators that run again, and whether everything fits at every point of the backward, [n]."""
    count, last = len(block), len(graph.operators)
    bits = dict(zip(made, block.T, strict=True))
    never = np.full(count, -1, dtype=np.int64)
    # When an operator runs again that reads a tensor: first and last, counted backwards; -1 and `last` for never.
    first_run: dict[int, NDArray[np.int64]] = {}
    last_run: dict[int, NDArray[np.int64]] = {}
    ms, fits = np.zeros(count), np.ones(count, dtype=np.bool_)
    live = np.zeros((last, count))
    stored = np.zeros(count)
    places = np.arange(last)[:, np.newaxis]

    def settle(tensor: int) -> NDArray[np.int64]:
        """When a tensor is made again, -1 for never; it is alive at the start where it is stored."""
        nonlocal stored
        asked, least = first_run.get(tensor, never), last_run.get(tensor, np.full(count, last))
        readers = graph.readers.get(tensor)
        if readers is None:
            return asked
        again = bits.get(tensor, np.zeros(count, dtype=np.bool_))
        stored = stored + np.where(again, 0.0, graph.sizes[tensor])
        end = np.minimum(readers[0], least)
        live[:] += np.where(~again & (places >= end), graph.sizes[tensor], 0.0)
        return np.where(again, np.maximum(readers[1], asked), -1)

    for place in range(last - 1, -1, -1):
        one = graph.operators[place]
        when = {tensor: settle(tensor) for tensor in one.outputs}
        runs_at = np.maximum.reduce([never, *when.values()])
        runs = runs_at >= 0
        ms = ms + np.where(runs, one.ms, 0.0)
        for tensor, asked in when.items():
            readers = graph.readers.get(tensor)
            end = last_run.get(tensor, np.full(count, last))
            end = end if readers is None else np.minimum(end, readers[0])
            alive = (asked >= 0) & (places >= end) & (places <= runs_at)
            live += np.where(alive, graph.sizes[tensor], 0.0)
        for tensor in one.inputs:
            first_run[tensor] = np.maximum(first_run.get(tensor, never), runs_at)
            now = np.where(runs, runs_at, last)
            last_run[tensor] = np.minimum(last_run.get(tensor, np.full(count, last)), now)
    for tensor in {tensor for one in graph.operators for tensor in (*one.inputs, *one.saves)} - set(graph.producer):
        if tensor in graph.readers:
            settle(tensor)
        else:  # nothing stores it, so what is made from it cannot be made again
            fits &= first_run.get(tensor, never) < 0
    free = stored + graph.workspace_mib * (1 + _SAME) + _SAME
    fits &= (live + np.array(graph.gradient_mib)[:, np.newaxis] <= free).all(axis=0) if last else True
    return ms, fits
