"""Pool of LP dual values: each bounds the step time of any choice of columns, at little cost.

Under the dual values of an LP the step time is at least the LP's value plus the reduced costs of a plan's columns, one
of each stage. That is also valid for columns which the LP did not allow, in other nodes of the tree and in other trees
of the same problem. The more columns are ruled out, the higher is the bound of all old dual values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # a pool alone loads no compiler and no solver
    from taylor.pipeline_solver.bounds.path_lp import Prices


class PricePool:
    """The values and dual values of LPs over columns of one problem."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.prices: list[Prices] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.values)

    def add(self, value: float, prices: Prices) -> None:
        """Keep an LP's value and its dual values, once."""
        key = np.float64(value).tobytes() + prices.stage.tobytes() + prices.duration.tobytes()
        if key in self._known:
            return
        self._known.add(key)
        self.values.append(value)
        self.prices.append(prices)
