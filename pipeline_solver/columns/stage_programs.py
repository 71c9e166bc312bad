"""The cheapest choice of one column a stage under given weights, by a dynamic programme over the stages."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part
from taylor.pipeline.chunks import FREE, V_SHAPE
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.stage_tuples import FEW_KINDS
from taylor.pipeline_solver.timing.durations import schedule_of

MAX_TABLE = 20_000_000
"""Most states times stages of the DP."""


class StagePrograms:
    """Cheapest choice of one column a stage under any weights, exact in layer totals and order of kinds.

    ``exact`` is false when the table would be too large, or the columns have no order; then `best` finds nothing.

    The border between kind j and the next one lies in one row of chunks (a virtual stage). For each choice of those
    rows, columns form classes by (layers by kind, kinds before and after each border), and a DP over the stages with
    the layers used so far and the borders passed is exact. Without virtual stages the layers used so far are a place in
    the model, for any number of kinds.
    """

    def __init__(self, columns: ColumnSet) -> None:
        self.columns = columns
        problem = columns.problem
        schedule = schedule_of(problem)
        kinds = problem.placed_kinds
        self.counts = np.array([kind.count for kind in kinds], dtype=np.int64)
        K, V = len(kinds), problem.interleaves
        self.places: _Places | None = _places(columns) if V == 1 and K > FEW_KINDS else None
        self.cases: list[tuple[NDArray[np.int64], ...]] = []
        # With chunks placed freely, a virtual stage is no stretch of the model.
        shape = schedule.placement.name
        self.exact = columns.ordered and (K == 1 or shape != FREE)
        if self.places is not None or not self.exact:
            return
        self.states = int(np.prod(self.counts + 1)) * 2 ** (K - 1)
        self.exact = self.states * problem.stages <= MAX_TABLE
        if not self.exact:
            return
        stage = columns.stage
        for rows in combinations_with_replacement(range(V), K - 1):
            fits = np.ones(len(columns), dtype=bool)
            needs = np.zeros(len(columns), dtype=np.int64)
            passes = np.zeros(len(columns), dtype=np.int64)
            for j, row in enumerate(rows):
                early, late = columns.least_kind <= j, columns.greatest_kind > j
                fits &= ~late[:, :row].any(axis=1) & ~early[:, row + 1 :].any(axis=1)
                first, second = early[:, row], late[:, row]
                if shape == V_SHAPE and row % 2:  # also where chunks may lie on any stages
                    first, second = second, first
                needs |= first.astype(np.int64) << j
                passes |= second.astype(np.int64) << j
            members = np.nonzero(fits)[0]
            if len(np.unique(stage[members])) < problem.stages:
                continue
            keys = np.column_stack([stage, columns.totals, needs, passes])[members]
            unique, label = np.unique(keys, axis=0, return_inverse=True)
            start = np.searchsorted(unique[:, 0], np.arange(problem.stages + 1))
            self.cases.append(
                (
                    members,
                    label.reshape(-1),
                    start,
                    unique[:, 1 : 1 + K].copy(),
                    unique[:, 1 + K].copy(),
                    unique[:, 2 + K].copy(),
                )
            )

    def best(self, weights: NDArray[np.float64]) -> NDArray[np.int64] | None:
        """One column a stage, int64 [S], of least total weight; None when no choice is consistent."""
        if self.places is not None:
            return self._best_by_place(self.places, weights)
        answer, least = None, np.inf
        for members, label, start, totals, needs, passes in self.cases:
            cost, winner = cheapest_members(members, label, len(totals), weights)
            value, chosen = stage_program(start, totals, needs, passes, cost, self.counts)
            if value < least:
                answer, least = winner[chosen], value
        return answer

    def _best_by_place(self, places: _Places, weights: NDArray[np.float64]) -> NDArray[np.int64] | None:
        every = np.arange(len(self.columns))
        cost, winner = cheapest_members(every, places.label, len(places.layers), weights)
        value, chosen = place_program(places.start, places.layers, places.first, places.last, cost, places.total)
        return winner[chosen] if value < np.inf else None


class _Places(NamedTuple):
    """Classes of columns by (stage, layers by kind) without virtual stages, and their possible places in the model.

    Parameters
    ----------
    label : int64 [n]
        Class of each column.
    start : int64 [S + 1]
        First class of each stage.
    layers, first, last : int64 [classes]
        Layers, and least and greatest number of layers before them.
    total : int
        Layers of the model.
    """

    label: NDArray[np.int64]
    start: NDArray[np.int64]
    layers: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    total: int


def _places(columns: ColumnSet) -> _Places:
    problem = columns.problem
    borders = np.concatenate([[0], np.cumsum([kind.count for kind in problem.placed_kinds])])
    keys = np.column_stack([columns.stage, columns.totals])
    unique, label = np.unique(keys, axis=0, return_inverse=True)
    by_kind, classes = unique[:, 1:], np.arange(len(unique))
    layers = by_kind.sum(axis=1)
    least = (by_kind > 0).argmax(axis=1)
    greatest = by_kind.shape[1] - 1 - (by_kind[:, ::-1] > 0).argmax(axis=1)
    # Layers of several kinds end the first of them; layers of one kind may lie anywhere among the kind's layers.
    several = greatest > least
    first = np.where(several, borders[least + 1] - by_kind[classes, least], borders[least])
    last = np.where(several, first, borders[least + 1] - layers)
    empty = layers == 0
    first, last = np.where(empty, 0, first), np.where(empty, borders[-1], last)
    start = np.searchsorted(unique[:, 0], np.arange(problem.stages + 1))
    return _Places(label.reshape(-1), start, layers, first, last, int(borders[-1]))


@compiled
def place_program(start, layers, first, last, cost, total):  # type: ignore[no-untyped-def]
    """DP over stages; the state is the number of layers before the stage.

    Returns
    -------
    (float, int64 [S])
        Least total cost (inf when nothing fits) and the class chosen on each stage.
    """
    S = len(start) - 1
    value = np.full(total + 1, np.inf)
    value[0] = 0.0
    choice = np.full((S, total + 1), -1, dtype=np.int64)
    for s in range(S):
        after = np.full(total + 1, np.inf)
        for c in range(start[s], start[s + 1]):
            if cost[c] == np.inf:
                continue
            for place in range(first[c], last[c] + 1):
                if value[place] + cost[c] < after[place + layers[c]]:
                    after[place + layers[c]] = value[place] + cost[c]
                    choice[s, place + layers[c]] = c
        value = after
    chosen = np.full(S, -1, dtype=np.int64)
    if value[total] == np.inf:
        return np.inf, chosen
    place = total
    for s in range(S - 1, -1, -1):
        chosen[s] = choice[s, place]
        place -= layers[chosen[s]]
    return value[total], chosen


@compiled
def cheapest_members(members, label, classes, weights):  # type: ignore[no-untyped-def]
    """Least weight of each class, and the column that has it."""
    cost = np.full(classes, np.inf)
    winner = np.full(classes, -1, dtype=np.int64)
    for i in range(len(members)):
        if weights[members[i]] < cost[label[i]]:
            cost[label[i]] = weights[members[i]]
            winner[label[i]] = members[i]
    return cost, winner


@kernel_part
def layers_with(code, layers, counts, stride):  # type: ignore[no-untyped-def]
    """Code of the layers used with those of one more column; -1 where they are more than the model has."""
    goal = code
    for j in range(len(counts)):
        if (code // stride[j]) % (counts[j] + 1) + layers[j] > counts[j]:
            return -1
        goal += stride[j] * layers[j]
    return goal


@kernel_part
def strides(counts):  # type: ignore[no-untyped-def]
    """Number of codes of layers used, and the step of each kind's count in such a code."""
    size, stride = 1, np.empty(len(counts), dtype=np.int64)
    for k in range(len(counts)):
        stride[k] = size
        size *= counts[k] + 1
    return size, stride


@compiled
def stage_program(start, totals, needs, passes, cost, counts):  # type: ignore[no-untyped-def]
    """DP over stages; the state is the layers of each kind used and the borders passed.

    Returns
    -------
    (float, int64 [S])
        Least total cost (inf when nothing fits) and the class chosen on each stage.
    """
    S, K = len(start) - 1, len(counts)
    flags = 2 ** (K - 1)
    size, stride = strides(counts)
    total_states = size * flags
    value = np.full(total_states, np.inf)
    value[0] = 0.0
    choice = np.full((S, total_states), -1, dtype=np.int32)
    origin = np.full((S, total_states), -1, dtype=np.int32)
    for s in range(S):
        after = np.full(total_states, np.inf)
        for state in range(total_states):
            if value[state] == np.inf:
                continue
            passed, code = state // size, state % size
            for c in range(start[s], start[s + 1]):
                if passed & needs[c] or cost[c] == np.inf:
                    continue
                goal = layers_with(code, totals[c], counts, stride)
                if goal < 0:
                    continue
                goal += (passed | passes[c]) * size
                if value[state] + cost[c] < after[goal]:
                    after[goal] = value[state] + cost[c]
                    choice[s, goal] = c
                    origin[s, goal] = state
        value = after
    best = size - 1
    for passed in range(1, flags):
        if value[passed * size + size - 1] < value[best]:
            best = passed * size + size - 1
    chosen = np.full(S, -1, dtype=np.int64)
    if value[best] == np.inf:
        return np.inf, chosen
    least = value[best]
    for s in range(S - 1, -1, -1):
        chosen[s] = choice[s, best]
        best = origin[s, best]
    return least, chosen
