"""Reduced-cost fixing by many LPs' dual values: the columns that are in no plan below a step time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part
from taylor.pipeline_solver.bounds.path_lp import Prices
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, BoundsParams

WORTH = 0.01
"""Least fraction of the columns that a pass over all dual values must rule out for one more pass."""


class ColumnFloors:
    """Bounds on a set of columns by all dual values of a pool.

    Parameters
    ----------
    pool : PricePool
        May grow; new entries are read at the next call.
    params : BoundsParams
    """

    def __init__(self, columns: ColumnSet, pool: PricePool, params: BoundsParams = DEFAULT_PARAMS.bounds) -> None:
        self.columns, self.pool = columns, pool
        self.capacity = int(np.clip(params.most_costs // max(1, len(columns)), 4, params.most_prices))
        self.read = 0
        self.known = 0
        self.values = np.zeros(self.capacity)
        self.costs = np.empty((self.capacity, len(columns)))

    def tighten(self, mask: NDArray[np.bool_], cutoff: float) -> tuple[float, NDArray[np.bool_]]:
        """Rule out the columns that are in no plan below a step time.

        Parameters
        ----------
        mask : bool [columns]
            Columns that may be used.

        Returns
        -------
        (float, bool [columns])
            Lower bound of their plans, -inf without dual values; and the remaining columns of `mask`. Where none remain
            for a stage, the bound is inf.
        """
        self._catch_up()
        if not self.known:
            return -np.inf, mask.copy()
        bound, left = rule_out(self.values[: self.known], self.costs[: self.known], self.columns.start, mask, cutoff)
        return float(bound), left

    def under_prices(self) -> NDArray[np.float64]:
        """Reduced costs of the columns under the newest dual values, float64 [prices, columns]."""
        self._catch_up()
        return self.costs[: self.known]

    def _catch_up(self) -> None:
        """Price the columns with the pool's new entries; the newest replace the oldest."""
        new = range(max(self.read, len(self.pool) - self.capacity), len(self.pool))
        self.read = len(self.pool)
        if not new:
            return
        places = np.array(new) % self.capacity
        self.values[places] = [self.pool.values[k] for k in new]
        self.costs[places] = column_costs(self.columns, [self.pool.prices[k] for k in new])
        self.known = min(self.capacity, len(self.pool))


@compiled
def rule_out(values, costs, start, mask, cutoff):  # type: ignore[no-untyped-def]
    """Rule out the columns of `mask` bool [n] by reduced costs below `cutoff`, until little changes.

    `values` float64 [P] and `costs` float64 [P, n] are the dual values' LP values and the columns' reduced costs,
    `start` int64 [S + 1] the first column of each stage. Returns the best bound, inf where a stage has no column, and
    the remaining columns, then none.
    """
    P, S = len(values), len(start) - 1
    highest = cutoff + 1e-9 * abs(cutoff)
    bound = -np.inf
    least = np.empty(S)
    left = mask.copy()
    members, first = np.empty(len(left), dtype=np.int64), np.zeros(S + 1, dtype=np.int64)
    while True:
        if not list_members(start, left, members, first):
            return np.inf, np.zeros_like(mask)
        gone = 0
        for p in range(P):
            total = values[p]
            for s in range(S):
                least[s] = np.inf
                for q in range(first[s], first[s + 1]):
                    if costs[p, members[q]] < least[s] and left[members[q]]:
                        least[s] = costs[p, members[q]]
                total += least[s]
            bound = max(bound, total)
            if bound >= cutoff:
                return bound, left
            for s in range(S):
                most = highest - (total - least[s])
                for q in range(first[s], first[s + 1]):
                    if costs[p, members[q]] > most and left[members[q]]:
                        left[members[q]] = False
                        gone += 1
        if gone <= WORTH * first[S]:
            return bound, left


@kernel_part
def list_members(start, left, members, first):  # type: ignore[no-untyped-def]
    """List the remaining columns stage by stage; return whether every stage has one.

    Written to `members` int64 [n] and `first` int64 [S + 1], each stage's first place there.
    """
    count = 0
    for s in range(len(start) - 1):
        first[s] = count
        for i in range(start[s], start[s + 1]):
            if left[i]:
                members[count] = i
                count += 1
        if count == first[s]:
            return False
    first[-1] = count
    return True


def column_costs(columns: ColumnSet, prices: list[Prices]) -> NDArray[np.float64]:
    """Reduced cost of every column under each LP's dual values, float64 [prices, columns]."""
    K = columns.layers.shape[2]
    layer = np.array([one.layer for one in prices])
    costs: NDArray[np.float64] = layer @ columns.totals.T
    late, early = np.array([one.late for one in prices]), np.array([one.early for one in prices])
    for s, (a, b) in enumerate(zip(columns.start[:-1], columns.start[1:], strict=True)):
        duration = np.array([one.duration[:, :, s].reshape(-1) for one in prices])
        costs[:, a:b] += duration @ columns.durations[a:b].T
        costs[:, a:b] -= np.array([[one.stage[s]] for one in prices])
        for j in range(K - 1):
            if late[:, j, :, s].any():
                costs[:, a:b] += late[:, j, :, s] @ (columns.greatest_kind[a:b] > j).T
            if early[:, j, :, s].any():
                costs[:, a:b] += early[:, j, :, s] @ (columns.least_kind[a:b] <= j).T
        for p, one in enumerate(prices):
            assert columns.phases is not None or not len(one.begin), "prices of phases apply to columns with phases"
            if columns.phases is not None and len(one.begin):
                begin, end = columns.phases.begin[a:b], columns.phases.end[a:b]
                for v in range(begin.shape[1]):
                    costs[p, a:b] += one.begin[begin[:, v], v, s] + one.end[end[:, v], v, s]
    return costs
