"""The step as a graph of tasks: its longest path is the step time, its critical path a cut."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from pipeline.dependencies import dependencies, levels
from pipeline.schedule import Schedule


@dataclass(frozen=True)
class EventGraph:
    """Tasks in topological order, each with at most two predecessors.

    Node 0 is the start of the step; nodes 1…n are tasks in level order, then one tail a stage.

    Parameters
    ----------
    first, second : int32 [n]
        Predecessors of each node: the task before it on its stage, and the one it depends on (0 = none).
    lags : float64 [n]
        Transfer time on the edge from `second`.
    duration_class : int32 [n]
        Class whose duration the node takes: (direction·V + v)·S + s, then the S tails.
    node_of_task : int64 [S, tasks]
        Node of each task of the schedule's order.
    classes : int
        R, the number of classes.
    """

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    lags: NDArray[np.float64]
    duration_class: NDArray[np.int32]
    node_of_task: NDArray[np.int64]
    classes: int

    @classmethod
    def from_schedule(cls, schedule: Schedule, lag: float = 0.0) -> EventGraph:
        """The graph of a schedule; `lag` is paid on every edge that crosses stages.

        Raises
        ------
        ValueError
            When the schedule waits for itself.
        """
        stages, per_stage = schedule.order.shape[:2]
        level = levels(schedule)
        if (level < 0).any():
            raise ValueError("the schedule waits for itself")
        order = np.argsort(level.ravel(), kind="stable")
        node = np.empty(stages * per_stage, dtype=np.int64)
        node[order] = np.arange(1, len(order) + 1)
        directions = int(schedule.order[:, :, 0].max()) + 1
        direction, v = (schedule.order[:, :, column].astype(np.int64) for column in (0, 1))
        kind = (direction * schedule.interleaves + v) * stages + np.arange(stages)[:, None]
        needs = dependencies(schedule)
        before = np.zeros((stages, per_stage), dtype=np.int64)
        before[:, 1:] = node.reshape(stages, per_stage)[:, :-1]
        depends = np.where(needs >= 0, node[needs], 0)
        crosses = (needs >= 0) & (needs // per_stage != np.arange(stages)[:, None])

        total = len(order) + stages
        first, second = np.zeros(total, dtype=np.int32), np.zeros(total, dtype=np.int32)
        lags, classes = np.zeros(total), np.empty(total, dtype=np.int32)
        place = node.reshape(stages, per_stage) - 1
        first[place], second[place] = before, depends
        lags[place] = np.where(crosses, lag, 0.0)
        classes[place] = kind
        base = directions * schedule.interleaves * stages
        first[len(order) :] = node.reshape(stages, per_stage)[:, -1]
        classes[len(order) :] = base + np.arange(stages)
        return cls(first, second, lags, classes, node.reshape(stages, per_stage), base + stages)

    @property
    def nodes(self) -> int:
        """Tasks and tails."""
        return len(self.first)

    def longest_path(self, durations: NDArray[np.float64]) -> float:
        """Step time for durations [R]."""
        return float(_longest_path(self.first, self.second, self.lags, self.duration_class, durations, self._ends()))

    def critical_path(
        self, durations: NDArray[np.float64], prefer: int = 0
    ) -> tuple[float, NDArray[np.float64], float]:
        """Step time, how often each class lies on a critical path [R], and the path's total lag.

        `prefer` breaks ties: 0 towards the task before on the same stage, 1 towards the dependency.
        For any durations d, counts · d + lag is a lower bound of the step time.
        """
        counts = np.zeros(self.classes)
        time, lag = _critical_path(
            self.first, self.second, self.lags, self.duration_class, durations, self._ends(), prefer, counts
        )
        return float(time), counts, float(lag)

    def start_times(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Earliest start of every task, float64 [S, tasks], aligned with the schedule's order."""
        ends = self._ends()
        _longest_path(self.first, self.second, self.lags, self.duration_class, durations, ends)
        starts: NDArray[np.float64] = ends[self.node_of_task] - durations[self.duration_class[self.node_of_task - 1]]
        return starts

    def _ends(self) -> NDArray[np.float64]:
        return np.zeros(self.nodes + 1)


@numba.njit(cache=True, nogil=True)
def _longest_path(first, second, lags, duration_class, durations, ends):  # type: ignore[no-untyped-def]
    latest = 0.0
    for k in range(first.shape[0]):
        start = ends[first[k]]
        other = ends[second[k]] + lags[k]
        if other > start:
            start = other
        end = start + durations[duration_class[k]]
        ends[k + 1] = end
        if end > latest:
            latest = end
    return latest


@numba.njit(cache=True, nogil=True)
def _critical_path(first, second, lags, duration_class, durations, ends, prefer, counts):  # type: ignore[no-untyped-def]
    latest = _longest_path(first, second, lags, duration_class, durations, ends)
    node = 0
    for k in range(first.shape[0], 0, -1):
        if ends[k] >= latest:
            node = k
            break
    total_lag = 0.0
    while node > 0:
        k = node - 1
        counts[duration_class[k]] += 1.0
        a, b = ends[first[k]], ends[second[k]] + lags[k]
        if second[k] == 0 and lags[k] == 0.0:
            take_second = False
        elif first[k] == 0:
            take_second = b >= a
        elif abs(a - b) <= 1e-9 * latest:
            take_second = prefer == 1
        else:
            take_second = b > a
        if take_second:
            total_lag += lags[k]
            node = second[k]
        else:
            node = first[k]
    return latest, total_lag
