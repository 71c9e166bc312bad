"""Overlapping jobs of one device, spread over as few lanes as possible."""

from __future__ import annotations

import heapq

import numpy as np

from taylor.report.intervals import FloatArray
from taylor.report.timeline import IntArray


def lanes_of(row: IntArray, start: FloatArray, end: FloatArray) -> IntArray:
    """Lane of every job, int [n]: jobs of a row that run at once get different lanes, the earliest the lowest.

    Interval partitioning by start: the number of lanes of a row is the most jobs it runs at once.
    """
    lane = np.zeros(len(row), dtype=np.int64)
    for one in np.unique(row):
        mine = np.flatnonzero(row == one)
        free: list[int] = []
        running: list[tuple[float, int]] = []
        used = 0
        for job in mine[np.lexsort((end[mine], start[mine]))].tolist():
            while running and running[0][0] <= start[job]:
                heapq.heappush(free, heapq.heappop(running)[1])
            if free:
                lane[job] = heapq.heappop(free)
            else:
                lane[job], used = used, used + 1
            heapq.heappush(running, (float(end[job]), int(lane[job])))
    return lane
