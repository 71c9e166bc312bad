"""The common sweeps over an event graph in plain Python; `event_kernels` has them compiled."""

from __future__ import annotations

import numpy as np


def longest_path(before, needed, task_class, edge_lag, last, durations, ends):  # type: ignore[no-untyped-def]
    """Fill `ends` float64 [tasks + 1] with the end of every task; return the step time."""
    ends[0] = 0.0
    for node in range(before.shape[0]):
        start = max(ends[before[node]], ends[needed[node]] + edge_lag[node])
        ends[node + 1] = start + durations[task_class[node]]
    tails = durations.shape[0] - last.shape[0]
    time = 0.0
    for s in range(last.shape[0]):
        time = max(time, ends[last[s]] + durations[tails + s])
    return time


def level_order(blocks, pieces_at, source_stage, source_block, pieces, whole):  # type: ignore[no-untyped-def]
    """Predecessors with the nodes numbered by level, so that neighbours in memory do not wait for each other.

    Returns `before`, `needed` int32 [tasks] (1-based node numbers, 0 for none), `owner` int64 [tasks]
    (flat position in the order of each node), and whether every task could run.
    """
    S, tasks = blocks.shape
    total = S * tasks
    where = np.empty((S, source_block.shape[1] * pieces), dtype=np.int64)
    for s in range(S):
        for k in range(tasks):
            where[s, blocks[s, k] * pieces + pieces_at[s, k]] = k
    level = np.full(total, -1, dtype=np.int64)
    other = np.full(total, -1, dtype=np.int64)
    at = np.zeros(S, dtype=np.int64)
    highest, count, moved = 0, 0, True
    while moved:
        moved = False
        for s in range(S):
            while at[s] < tasks:
                k = at[s]
                mine = s * tasks + k
                depth = 0
                feeder = source_stage[s, blocks[s, k]]
                if feeder >= 0:
                    place = where[feeder, source_block[s, blocks[s, k]] * pieces + pieces_at[s, k]]
                    source = feeder * tasks + place
                    if feeder != s and whole[feeder, place]:
                        source += 1  # sent with the weight gradient behind it
                    if level[source] < 0:
                        break
                    other[mine] = source
                    depth = level[source] + 1
                if k > 0:
                    depth = max(depth, level[mine - 1] + 1)
                level[mine] = depth
                highest = max(highest, depth)
                at[s] += 1
                count += 1
                moved = True
    first = np.zeros(highest + 2, dtype=np.int64)
    for mine in range(total):
        if level[mine] >= 0:
            first[level[mine] + 1] += 1
    for depth in range(highest + 1):
        first[depth + 1] += first[depth]
    number = np.zeros(total, dtype=np.int64)
    owner = np.zeros(total, dtype=np.int64)
    for mine in range(total):
        if level[mine] >= 0:
            number[mine] = first[level[mine]]
            owner[first[level[mine]]] = mine
            first[level[mine]] += 1
    before = np.zeros(total, dtype=np.int32)
    needed = np.zeros(total, dtype=np.int32)
    for mine in range(total):
        if mine % tasks > 0:
            before[number[mine]] = number[mine - 1] + 1
        if other[mine] >= 0:
            needed[number[mine]] = number[other[mine]] + 1
    return before, needed, owner, count == total
