"""Peak memory of the strategies of a search, each under the schedule that its interleaves mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.frameworks import MINDFORMERS, Framework

MEMORY_ROWS = 1 << 15
"""Strategies whose memory is computed at once: keeps the intermediate arrays to some tens of MiB."""


def schedule_of(schedule: ScheduleSpec, framework: Framework, interleaves: int) -> ScheduleSpec:
    """The schedule that a strategy runs: the file's, with interleaving added or left out as vpp asks."""
    if schedule.name in ("1f1b", "interleaved", "megatron-interleaved"):
        if interleaves == 1:
            return ScheduleSpec("1f1b")
        name = "interleaved" if framework == MINDFORMERS else "megatron-interleaved"
        return schedule if schedule.name != "1f1b" else ScheduleSpec(name, schedule.low_memory)
    return schedule


def peaks(
    table: StrategyTable, context: SearchContext, recompute: str = "best", limit_mib: float | None = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Peak memory of each strategy's heaviest stage, MiB [n], and that stage [n].

    With `limit_mib`, peaks above it may be lower bounds (which saves refining what is pruned anyway).
    """
    peak = np.empty(len(table))
    stage = np.empty(len(table), dtype=np.int64)
    for interleaved in (False, True):
        rows = np.flatnonzero((table.vpp > 1) == interleaved)
        spec = schedule_of(context.schedule, context.rules.framework, 2 if interleaved else 1)
        for start in range(0, len(rows), MEMORY_ROWS):
            part = rows[start : start + MEMORY_ROWS]
            peak[part], stage[part] = context.peak_of(
                context.model,
                context.rules,
                table.select(part),
                recompute=recompute,
                device_limit_mib=limit_mib,
                schedule=spec,
            )
    return peak, stage
