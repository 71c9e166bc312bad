"""The sweeps over an event graph, compiled."""

from __future__ import annotations

import numpy as np

from taylor.base.compiled import compiled
from taylor.pipeline_solver.timing import event_paths

TIE = 1e-9
"""Two paths into a node count as equally long when they differ by less than this fraction of the makespan."""

longest_path = compiled(event_paths.longest_path)
task_levels = compiled(event_paths.task_levels)


@compiled
def critical_path(  # type: ignore[no-untyped-def]
    before, needed, task_class, edge_lag, last, durations, ends, prefer, level, levels
):
    """Step time, class counts of one longest path, and its number of edges of each lag, int64 [levels]."""
    time = longest_path(before, needed, task_class, edge_lag, last, durations, ends)
    stages = last.shape[0]
    tails = durations.shape[0] - stages
    counts = np.zeros(durations.shape[0])
    best = 0
    for s in range(1, stages):
        if ends[last[s]] + durations[tails + s] > ends[last[best]] + durations[tails + best]:
            best = s
    counts[tails + best] = 1.0
    node = last[best]
    crossings = np.zeros(levels, dtype=np.int64)
    slack = TIE * time
    while node > 0:
        counts[task_class[node - 1]] += 1.0
        own, other = before[node - 1], needed[node - 1]
        gain = ends[other] + edge_lag[node - 1] - ends[own]
        if own == 0 and other == 0:
            node = 0
        elif other != 0 and (own == 0 or gain > slack or (gain >= -slack and prefer == 1)):
            if level[node - 1] >= 0:
                crossings[level[node - 1]] += 1
            node = other
        else:
            node = own
    return time, counts, crossings
