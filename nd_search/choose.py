"""The choice of what to profile: the fastest strategies, spread over tp, pp and ep."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy_table import StrategyTable

SPREAD = 0.5
"""Relative slowdown at which a strategy may still be chosen for its other degrees: an estimate is
easily 30 % wrong for one degree of tp or ep, seldom more than half.
"""

SPREAD_OVER = ("tp", "pp", "ep")


def choose(
    table: StrategyTable, estimated_ms: NDArray[np.float64], number: int, spread: bool = True
) -> NDArray[np.int64]:
    """Indices of about `number` strategies, fastest first.

    Takes one after the other the strategy with the least time · (1 + `SPREAD` · the fraction of those
    already chosen that have its tp, its pp, its ep, averaged). So the fastest is always in, and the
    set never leans on one degree alone. Twins that differ only in other dimensions wait until every
    (dp, tp, pp, ep) within the spread was chosen.

    Parameters
    ----------
    estimated_ms : float64 [n]
        Estimated step time.
    spread : bool
        Without it, simply the fastest.

    Returns
    -------
    int64 [min(number, n)]
    """
    if not spread:
        return np.argsort(estimated_ms, kind="stable")[:number].astype(np.int64)
    degrees = np.column_stack([getattr(table, name) for name in SPREAD_OVER])
    _, mesh = np.unique(np.column_stack([table.dp, degrees]), axis=0, return_inverse=True)
    mesh = mesh.ravel()
    alike = np.zeros(len(table))
    twins = np.zeros(len(table))
    taken = np.zeros(len(table), dtype=bool)
    chosen: list[int] = []
    for _ in range(min(number, len(table))):
        share = alike / (len(SPREAD_OVER) * max(1, len(chosen)))
        score = np.where(taken, np.inf, estimated_ms * (1.0 + SPREAD * share + SPREAD * twins))
        best = int(np.argmin(score))
        chosen.append(best)
        taken[best] = True
        alike += (degrees == degrees[best]).sum(axis=1)
        twins += mesh == mesh[best]
    picked = np.array(chosen, dtype=np.int64)
    return picked[np.argsort(estimated_ms[picked], kind="stable")]
