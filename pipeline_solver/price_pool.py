"""LP prices that have been met: each bounds the step time of any choice of configurations, at little cost.

Under the prices of an LP the step time is at least the LP's value plus the reduced costs of the columns that a plan
takes, one of each stage. That holds for columns which the LP did not allow, in other nodes of the tree and in other
trees of the same problem. The more columns are ruled out, the higher every old price bounds what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a pool alone loads no compiler and no solver
    from taylor.pipeline_solver.columns import ColumnSet
    from taylor.pipeline_solver.master import Prices

MOST_PRICES = 400
"""Prices that a set of columns is held against at most, the newest ones."""

MOST_COSTS = 4_000_000
"""Reduced costs that are kept at most: fewer prices where the columns are many."""


class PricePool:
    """The values and prices of LPs over configurations of one problem."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.prices: list[Prices] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float, prices: Prices) -> None:
        """Keep an LP's value and its prices, once."""
        key = np.float64(value).tobytes() + prices.stage.tobytes() + prices.duration.tobytes()
        if key in self._known:
            return
        self._known.add(key)
        self.values.append(value)
        self.prices.append(prices)


class ColumnFloors:
    """What all prices of a pool say of a set of columns.

    Parameters
    ----------
    pool : PricePool
        May grow; what is new is read when it is asked for.
    """

    def __init__(self, columns: ColumnSet, pool: PricePool) -> None:
        self.columns, self.pool = columns, pool
        self.room = int(np.clip(MOST_COSTS // max(1, len(columns)), 4, MOST_PRICES))
        self.read = 0
        self.values = np.zeros(0)
        self.costs = np.zeros((0, len(columns)))

    def tighten(self, mask: NDArray[np.bool_], cutoff: float) -> tuple[float, NDArray[np.bool_]]:
        """Rule out the columns that are in no plan below a step time.

        Parameters
        ----------
        mask : bool [columns]
            Columns that may be used.

        Returns
        -------
        (float, bool [columns])
            A step time that no plan of them beats, -inf without prices; and the columns of `mask` that are left. Where
            none are left for a stage, the bound is inf.
        """
        self._catch_up()
        bound = -np.inf
        members = np.nonzero(mask)[0]
        costs = self.costs[:, members]
        while len(self.values):
            stage = self.columns.stage[members]
            first = np.searchsorted(stage, np.arange(len(self.columns.start) - 1))
            if len(members) == 0 or (np.diff(first, append=len(members)) == 0).any():
                return np.inf, np.zeros_like(mask)
            least = np.minimum.reduceat(costs, first, axis=1)
            bounds = self.values + least.sum(axis=1)
            bound = max(bound, float(bounds.max()))
            if bound >= cutoff:
                break
            floor = (costs + (bounds[:, None] - least)[:, stage]).max(axis=0)
            kept = floor <= cutoff + 1e-9 * abs(cutoff)
            if kept.all():
                break
            members, costs = members[kept], costs[:, kept]
        left = np.zeros_like(mask)
        left[members] = True
        return bound, left

    def _catch_up(self) -> None:
        """Price the columns with what is new in the pool."""
        new = range(max(self.read, len(self.pool) - self.room), len(self.pool))
        self.read = len(self.pool)
        if not new:
            return
        values = np.array([self.pool.values[k] for k in new])
        costs = column_costs(self.columns, [self.pool.prices[k] for k in new])
        self.values = np.concatenate([self.values, values])[-self.room :]
        self.costs = np.vstack([self.costs, costs])[-self.room :]


def column_costs(columns: ColumnSet, prices: list[Prices]) -> NDArray[np.float64]:
    """Reduced cost of every column under each of the prices, float64 [prices, columns]."""
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
    return costs
