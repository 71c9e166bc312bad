"""The event graph of a schedule whose transfers differ: every boundary between chunks has a time of its own.

Classes of times: v · S + s for a forward of chunk (v, s), V · S more for its backward, then a tail a stage, then a
transfer a boundary, in model order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled
from taylor.pipeline.schedule import BACKWARD, FORWARD, Schedule
from taylor.pipeline_solver.timing.event_graph import EventGraph

Array = NDArray[np.float64]


@compiled
def sweep(before, needed, task_class, edge_class, last, times, ends):  # type: ignore[no-untyped-def]
    """Fill `ends` float64 [tasks + 1] with the end of every task; return the step and the stage that ends it."""
    ends[0] = 0.0
    for node in range(before.shape[0]):
        start = ends[before[node]]
        if needed[node] > 0:
            ready = ends[needed[node]]
            if edge_class[node] >= 0:
                ready += times[edge_class[node]]
            start = max(start, ready)
        ends[node + 1] = start + times[task_class[node]]
    stages = last.shape[0]
    tails = task_class.max() + 1
    step, best = -1.0, 0
    for s in range(stages):
        end = ends[last[s]] + times[tails + s]
        if end > step:
            step, best = end, s
    return step, best


@compiled
def longest(before, needed, task_class, edge_class, last, times, ends, prefer):  # type: ignore[no-untyped-def]
    """The step, and how often each class is on one longest path; `prefer` breaks ties: 0 own stage, 1 dependency."""
    step, best = sweep(before, needed, task_class, edge_class, last, times, ends)
    counts = np.zeros(times.shape[0])
    counts[task_class.max() + 1 + best] = 1.0
    node = last[best]
    while node > 0:
        counts[task_class[node - 1]] += 1.0
        own, other, edge = before[node - 1], needed[node - 1], edge_class[node - 1]
        ready = ends[other]
        if edge >= 0:
            ready += times[edge]
        if other > 0 and (own == 0 or ready > ends[own] or (prefer == 1 and ready >= ends[own] - 1e-12 * step)):
            if edge >= 0:
                counts[edge] += 1.0
            node = other
        else:
            node = own
    return step, counts


@dataclass(frozen=True)
class LaggedGraph:
    """The graph of one schedule."""

    schedule: Schedule
    graph: EventGraph
    edge_class: NDArray[np.int32]

    @classmethod
    def of(cls, schedule: Schedule) -> LaggedGraph:
        """The graph of a schedule without weight gradients of their own."""
        graph = EventGraph.from_schedule(schedule, 0.0)
        S, V = schedule.stages, schedule.interleaves
        direction, rest = np.divmod(graph.task_class, V * S)
        place = np.array([schedule.position(*divmod(each, S)) for each in range(V * S)])
        boundary = np.where(direction == FORWARD, place[rest] - 1, place[rest])
        edge = np.where(graph.crosses, 2 * V * S + S + boundary, -1)
        return cls(schedule, graph, edge.astype(np.int32))

    @property
    def classes(self) -> int:
        """Classes of times."""
        chunks = self.schedule.chunks
        return 2 * chunks + self.schedule.stages + chunks - 1

    def step(self, times: Array) -> float:
        """Step time under times float64 [classes], s."""
        graph = self.graph
        ends = np.empty(len(graph.before) + 1)
        return float(sweep(graph.before, graph.needed, graph.task_class, self.edge_class, graph.last, times, ends)[0])

    def path(self, times: Array, prefer: int = 0) -> tuple[float, Array]:
        """Step time, and how often each class is on a longest path, float64 [classes]."""
        graph = self.graph
        ends = np.empty(len(graph.before) + 1)
        step, counts = longest(
            graph.before, graph.needed, graph.task_class, self.edge_class, graph.last, times, ends, prefer
        )
        return float(step), counts

    def classes_of(self, stage: int) -> list[int]:
        """The classes of a stage: forward, then backward of each of its chunks, then its tail."""
        places = [self.schedule.position(v, stage) for v in range(self.schedule.interleaves)]
        tasks = [self.class_of(direction, k) for direction in (FORWARD, BACKWARD) for k in places]
        return [*tasks, self.tail(stage)]

    def class_of(self, direction: int, position: int) -> int:
        """The class of a chunk's tasks, by the chunk's place in model order."""
        v, s = self.schedule.chunk_at(position)
        return direction * self.schedule.chunks + v * self.schedule.stages + s

    def tail(self, stage: int) -> int:
        """The class of a stage's tail."""
        return 2 * self.schedule.chunks + stage

    def lag(self, boundary: int) -> int:
        """The class of the transfer behind a chunk."""
        return 2 * self.schedule.chunks + self.schedule.stages + boundary
