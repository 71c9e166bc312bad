"""The common sweeps over an event graph in plain Python; `event_kernels` has them compiled."""

from __future__ import annotations

import numpy as np

TIE = 1e-9
"""Two paths into a node count as equally long when they differ by less than this fraction of the makespan."""


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


def walk_back(before, needed, task_class, edge_lag, last, durations, ends, time, prefer, level, levels):  # type: ignore[no-untyped-def]
    """Class counts of one longest path of swept `ends`, and its number of edges of each lag, int64 [levels]."""
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
    return counts, crossings


def task_levels(blocks, pieces_at, source_stage, source_block, pieces, whole):  # type: ignore[no-untyped-def]
    """Levels of the tasks: each is above those of the task before it on its stage and of its input.

    Returns `level` and `source`, the input, int64 [tasks] by flat position in the order, -1 for none, and whether every
    task could run.
    """
    S, tasks = blocks.shape
    where = np.empty((S, source_block.shape[1] * pieces), dtype=np.int64)
    for s in range(S):
        for k in range(tasks):
            where[s, blocks[s, k] * pieces + pieces_at[s, k]] = k
    level = np.full(S * tasks, -1, dtype=np.int64)
    source = np.full(S * tasks, -1, dtype=np.int64)
    at = np.zeros(S, dtype=np.int64)
    count, moved = 0, True
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
                    sender = feeder * tasks + place
                    if feeder != s and whole[feeder, place]:
                        sender += 1  # sent with the weight gradient behind it
                    if level[sender] < 0:
                        break
                    source[mine] = sender
                    depth = level[sender] + 1
                if k > 0:
                    depth = max(depth, level[mine - 1] + 1)
                level[mine] = depth
                at[s] += 1
                count += 1
                moved = True
    return level, source, count == S * tasks
