"""The event graph of a schedule: step time as the longest path through its tasks, compiled.

A node is a task; it starts when the task before it on its stage has ended and the task that it
depends on has ended, plus the transfer lag where that edge crosses stages. The step ends when every
stage has ended its last task and then its tail. Every path gives a lower bound that is linear in the
durations, `counts @ durations + lag`, and the longest path attains it.

Duration classes: (direction * V + v) * S + s for a task of a direction (0 forward, 1 backward, 2 weight
gradient where the schedule has it) in chunk (v, s), then D * V * S + s for the tail of stage s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.dependencies import feeders
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from taylor.pipeline_solver.compiled import compiled

TIE = 1e-9
"""Two ways into a node count as equally long when they differ by less than this share of the makespan."""


@dataclass(frozen=True)
class EventGraph:
    """Tasks in topological order, two predecessors each; build it with `from_schedule`.

    Parameters
    ----------
    before, needed : int32 [tasks]
        The predecessor on the same stage, and the one whose output a task needs; node numbers start
        at 1, and 0 is the start of the step.
    task_class : int32 [tasks]
        Duration class of each node.
    crosses : bool [tasks]
        Whether the edge from `needed` crosses stages, so that `lag` applies.
    last : int32 [S]
        Node of the last task of each stage.
    place : int64 [S, tasks of a stage]
        Node number of each task of ``schedule.order``.
    """

    schedule: Schedule
    lag: float
    directions: int
    before: NDArray[np.int32]
    needed: NDArray[np.int32]
    task_class: NDArray[np.int32]
    crosses: NDArray[np.bool_]
    last: NDArray[np.int32]
    place: NDArray[np.int64]
    edge_lag: NDArray[np.float64]
    _ends: NDArray[np.float64] = field(repr=False, compare=False)

    @classmethod
    def from_schedule(cls, schedule: Schedule, lag: float) -> EventGraph:
        """The graph of a schedule with a transfer time `lag` (body-layer forward times) between stages.

        Raises
        ------
        ValueError
            When the schedule deadlocks.
        """
        directions, before, needed, task_class, crosses, last, place = _topology(schedule)
        return cls(
            schedule,
            lag,
            directions,
            before,
            needed,
            task_class,
            crosses,
            last,
            place,
            edge_lag=np.where(crosses, float(lag), 0.0),
            _ends=np.zeros(len(before) + 1),
        )

    @property
    def classes(self) -> int:
        """Number of duration classes R."""
        return (self.directions * self.schedule.interleaves + 1) * self.schedule.stages

    def longest_path(self, durations: NDArray[np.float64]) -> float:
        """Step time under durations float64 [R]."""
        return float(
            longest_path(
                self.before,
                self.needed,
                self.task_class,
                self.edge_lag,
                self.last,
                np.ascontiguousarray(durations, dtype=np.float64),
                self._ends,
            )
        )

    def critical_path(
        self, durations: NDArray[np.float64], prefer: int = 0
    ) -> tuple[float, NDArray[np.float64], float]:
        """Step time, how often each class is on a longest path (float64 [R]), and the path's lag.

        ``prefer`` breaks ties: 0 follows the stage's own order back, 1 the dependency.
        """
        time, counts, crossings = critical_path(
            self.before,
            self.needed,
            self.task_class,
            self.edge_lag,
            self.last,
            np.ascontiguousarray(durations, dtype=np.float64),
            self._ends,
            prefer,
            self.crosses,
        )
        return float(time), counts, float(crossings * self.lag)

    def start_times(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Earliest start of every task, float64 [S, tasks], aligned with ``schedule.order``."""
        durations = np.ascontiguousarray(durations, dtype=np.float64)
        longest_path(self.before, self.needed, self.task_class, self.edge_lag, self.last, durations, self._ends)
        starts = np.maximum(self._ends[self.before], self._ends[self.needed] + self.edge_lag)
        result: NDArray[np.float64] = starts[self.place - 1]
        return result


@compiled
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


@compiled
def critical_path(  # type: ignore[no-untyped-def]
    before, needed, task_class, edge_lag, last, durations, ends, prefer, crosses
):
    """Step time, class counts of one longest path, and how many of its edges cross stages."""
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
    crossings = 0
    slack = TIE * time
    while node > 0:
        counts[task_class[node - 1]] += 1.0
        own, other = before[node - 1], needed[node - 1]
        gain = ends[other] + edge_lag[node - 1] - ends[own]
        if own == 0 and other == 0:
            node = 0
        elif other != 0 and (own == 0 or gain > slack or (gain >= -slack and prefer == 1)):
            if crosses[node - 1]:
                crossings += 1
            node = other
        else:
            node = own
    return time, counts, crossings


@lru_cache(maxsize=16)
def _cached_topology(
    order_bytes: bytes, shape: tuple[int, ...], spec: ScheduleSpec, interleaves: int, micro_batches: int
) -> tuple[Any, ...]:
    order = np.frombuffer(order_bytes, dtype=np.int32).reshape(shape)
    schedule = Schedule(spec, shape[0], interleaves, micro_batches, order)
    source_stage, source_block = feeders(schedule)
    blocks = schedule.blocks()
    before, needed, owner, done = _level_order(
        blocks, schedule.pieces(), source_stage, source_block, micro_batches * spec.seq_splits
    )
    if not done:
        raise ValueError("the schedule deadlocks")
    stages, tasks = shape[:2]
    number = np.empty(stages * tasks, dtype=np.int64)
    number[owner] = np.arange(1, stages * tasks + 1)
    place = number.reshape(stages, tasks)
    stage, block = owner // tasks, blocks.reshape(-1)[owner]
    task_class = (block * stages + stage).astype(np.int32)
    feeder = source_stage[stage, block]
    crosses = (feeder >= 0) & (feeder != stage)
    arrays = (before, needed, task_class, crosses, place[:, -1].astype(np.int32), place)
    for array in arrays:
        array.setflags(write=False)
    return (schedule.directions, *arrays)


def _topology(schedule: Schedule) -> tuple[Any, ...]:
    return _cached_topology(
        schedule.order.tobytes(),
        schedule.order.shape,
        schedule.spec,
        schedule.interleaves,
        schedule.micro_batches,
    )


@compiled
def _level_order(blocks, pieces_at, source_stage, source_block, pieces):  # type: ignore[no-untyped-def]
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
                    source = feeder * tasks + where[feeder, source_block[s, blocks[s, k]] * pieces + pieces_at[s, k]]
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
