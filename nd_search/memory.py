"""Peak memory of the strategies of a search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext

MEMORY_ROWS = 1 << 15
"""Strategies whose memory is computed at once: limits the intermediate arrays to some tens of MiB."""


def peaks(
    table: StrategyTable, context: SearchContext, recompute: str = "best", limit_mib: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Peak memory of each strategy's heaviest stage, MiB [n], and that stage [n].

    With `limit_mib`, peaks above it may be lower bounds (which saves refining strategies that are pruned anyway).
    """
    peak = np.empty(len(table))
    stage = np.empty(len(table), dtype=np.int64)
    for start in range(0, len(table), MEMORY_ROWS):
        part = slice(start, start + MEMORY_ROWS)
        peak[part], stage[part] = context.peak_of(
            context.model,
            context.rules,
            table.select(part),
            recompute=recompute,
            device_limit_mib=limit_mib,
            schedule=context.schedule,
        )
    return peak, stage
