"""Phases: places in a repeating pattern of layers at which chunks begin, which columns without order otherwise lack.

Where kinds alternate, columns that merge kinds of equal cost (`stage_pricing.alike`) let every chunk have the mixture
that suits it. In a plan the next chunk begins where the previous one ended. Positions in the model are too many for an
LP. Their remainders by the pattern's period are few, and determine the next layers. A plan satisfies them for any
period: a wrong period costs time, but the bound stays valid.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.model.problem import PipelineProblem

MOST_PERIOD = 8
"""Longest period in layers: longer ones have too many phases."""

LEAST_SHARE = 0.8
"""Least fraction of the layers with the cost of the layer a period before."""


class Phases(NamedTuple):
    """Phases at which chunks begin and end.

    Parameters
    ----------
    period : int
    begin, end : int8 [n, V]
        Phase of the first layer of each chunk of each column, and of the layer that follows its last one.
    """

    period: int
    begin: NDArray[np.int8]
    end: NDArray[np.int8]

    def take(self, rows: NDArray[np.int64]) -> Phases:
        """Those of some columns."""
        return Phases(self.period, self.begin[rows], self.end[rows])


def period_of(problem: PipelineProblem) -> int:
    """Period in layers with which most of the model repeats, at least twice; 1 where it does not, or is all alike."""
    costs: dict[object, int] = {}
    layers = np.repeat(
        [costs.setdefault(kind.costs, len(costs)) for kind in problem.placed_kinds],
        [kind.count for kind in problem.placed_kinds],
    )
    best, best_share = 1, 0.0
    for period in range(1, min(MOST_PERIOD, len(layers) // 2) + 1):
        share = float(np.mean(layers[period:] == layers[:-period]))
        if share > best_share + 1e-9:
            best, best_share = period, share
    return best if best_share >= LEAST_SHARE else 1


class Borders(NamedTuple):
    """The phases in which neighbour stages' chunks meet, those of all virtual stages encoded as one number.

    Parameters
    ----------
    number : int
        Number of borders.
    low, high : int64 [n]
        The border of each column with the stage before and the stage behind it.
    ends : int64 [E, 2]
        The borders before the first stage and behind the last one that a plan may have.
    """

    number: int
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    ends: NDArray[np.int64]


def borders_of(phases: Phases | None, columns: int, schedule: Schedule, layers: int) -> Borders:
    """The borders of `columns` columns of a model of `layers` layers; one for all without phases."""
    if phases is None:
        none = np.zeros(columns, dtype=np.int64)
        return Borders(1, none, none, np.zeros((1, 2), dtype=np.int64))
    period, V, S = phases.period, schedule.interleaves, schedule.stages
    back = np.array([schedule.position(v, 0) > schedule.position(v, S - 1) for v in range(V)])
    weights = period ** np.arange(V)

    def numbered(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.where(back, end, begin) @ weights, np.where(back, begin, end) @ weights

    low, high = numbered(phases.begin.astype(np.int64), phases.end.astype(np.int64))
    # A virtual stage begins where the previous one ended.
    begins = np.array([(0, *free, layers % period) for free in product(range(period), repeat=V - 1)], dtype=np.int64)
    return Borders(period**V, low, high, np.stack(numbered(begins[:, :-1], begins[:, 1:]), axis=1))
