"""Path cuts: every path of the event graph bounds the step time; finds the longest at some durations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.event_graph import EventGraph


class CutPool:
    """Path cuts without repetition: class counts, and the constant of lags and tails."""

    def __init__(self, classes: int) -> None:
        self.counts = np.zeros((256, classes))
        self.constant = np.zeros(256)
        self.size = 0
        self._known: dict[bytes, int] = {}

    def add(self, counts: NDArray[np.float64], constant: float) -> int:
        """Keep a cut; return its number, or -1 for a known one."""
        key = counts.tobytes() + np.float64(constant).tobytes()
        if key in self._known:
            return -1
        if self.size == len(self.counts):
            self.counts = np.vstack([self.counts, np.zeros_like(self.counts)])
            self.constant = np.concatenate([self.constant, np.zeros_like(self.constant)])
        self._known[key] = self.size
        self.counts[self.size], self.constant[self.size] = counts, constant
        self.size += 1
        return self.size - 1

    def number(self, counts: NDArray[np.float64], constant: float) -> int:
        """Number of a known cut."""
        return self._known[counts.tobytes() + np.float64(constant).tobytes()]

    def longest(self, durations: NDArray[np.float64], number: int, recent: int) -> list[tuple[float, int]]:
        """The longest of the `recent` newest paths under durations (tails left out): (length, cut), longest first."""
        first = max(0, self.size - recent)
        values = self.counts[first : self.size] @ durations + self.constant[first : self.size]
        number = min(number, len(values))
        top = np.argpartition(-values, number - 1)[:number] if number else np.zeros(0, dtype=np.int64)
        return sorted(((float(values[g]), first + int(g)) for g in top), reverse=True)


class PathCuts:
    """The event graph of a problem and all paths of it found so far.

    `tails` float64 [S] is the time after each stage's last task.
    """

    def __init__(self, problem: PipelineProblem, graph: EventGraph) -> None:
        self.graph = graph
        self.tails = np.array(problem.tail or [0.0] * problem.stages, dtype=np.float64)
        self.classes = graph.classes - problem.stages
        self.pool = CutPool(self.classes)

    def path(self, durations: NDArray[np.float64], prefer: int = 0) -> tuple[float, int]:
        """Step time under durations [classes] and the number of its path's cut in the pool, known or new."""
        from taylor.pipeline_solver.timing import event_kernels  # loads the compiler

        length, counts, lag = self.graph.critical_path(np.concatenate([durations, self.tails]), prefer, event_kernels)
        used, constant = counts[: self.classes].copy(), lag + float(counts[self.classes :] @ self.tails)
        self.pool.add(used, constant)
        return length, self.pool.number(used, constant)

    def seeds(self) -> list[int]:
        """For each stage the path through warm-up before it, all its tasks and cool-down after it."""
        graph, stages = self.graph, len(self.tails)
        feeds = np.zeros(len(graph.before) + 1, dtype=np.int64)
        feeds[graph.needed] = np.arange(1, len(graph.before) + 1)
        result = []
        for s in range(stages):
            counts = np.bincount(graph.task_class[graph.place[s] - 1], minlength=self.classes).astype(np.float64)
            crossings = np.zeros(len(graph.lags), dtype=np.int64)
            node = int(graph.place[s, 0])
            while graph.needed[node - 1] > 0:
                if graph.level[node - 1] >= 0:
                    crossings[graph.level[node - 1]] += 1
                node = int(graph.needed[node - 1])
                counts[graph.task_class[node - 1]] += 1.0
            node = end = int(graph.last[s])
            while feeds[node] > 0:
                node = end = int(feeds[node])
                if graph.level[node - 1] >= 0:
                    crossings[graph.level[node - 1]] += 1
                counts[graph.task_class[node - 1]] += 1.0
            tail = self.tails[graph.task_class[end - 1] % stages]
            constant = graph.lag_of(crossings) + tail
            self.pool.add(counts, constant)
            result.append(self.pool.number(counts, constant))
        return result
