"""Steps whose micro-batches differ in cost, and the step times of plans in them.

A scenario is one step: a factor for each of its micro-batches. The event graph is that of the schedule; the time of a
task is that of its chunk times its micro-batch's factor. So the step time of a plan in a scenario is the longest path
of the graph still, and every path is a lower bound that is linear in the chunks' times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of, schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scenarios:
    """Sampled steps.

    Parameters
    ----------
    layers : float64 [n * replicas, m]
        Factor on the time of each micro-batch in layers; 1 is the time that the problem states.
    ends : float64 [n * replicas, m]
        The same on its time in embedding and head.
    replicas : int
        Pipelines of data parallelism that end a step together, in rows that follow each other.

    Raises
    ------
    ValueError
        When the two differ in shape, a factor is not a finite number above 0, or the rows are no whole steps.
    """

    layers: Array
    ends: Array
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.layers.ndim != 2 or self.layers.shape != self.ends.shape or not self.layers.size:
            raise ValueError("layers and ends must have one row a scenario and one column a micro-batch")
        for factors in (self.layers, self.ends):
            if not (np.isfinite(factors).all() and (factors > 0).all()):
                raise ValueError("every factor must be a finite number above 0")
        if self.replicas < 1 or len(self.layers) % self.replicas:
            raise ValueError("layers must have one row for each of a scenario's replicas")

    def __len__(self) -> int:
        return len(self.layers) // self.replicas

    def largest_first(self) -> Scenarios:
        """The same steps with their micro-batches in falling order of their time in layers."""
        order = np.argsort(-self.layers, axis=1, kind="stable")
        layers, ends = (np.take_along_axis(each, order, 1) for each in (self.layers, self.ends))
        return Scenarios(layers, ends, self.replicas)


class PathCut:
    """A path of one scenario: ``step >= weights @ durations + constant``, for every plan.

    Parameters
    ----------
    scenario : int
    weights : float64 [R]
        By duration class of the event graph, those of tails included.
    constant : float
    """

    __slots__ = ("constant", "scenario", "weights")

    def __init__(self, scenario: int, weights: Array, constant: float) -> None:
        self.scenario, self.weights, self.constant = scenario, weights, constant


class ScenarioGraph:
    """The event graph of a problem under scenarios.

    Parameters
    ----------
    problem : PipelineProblem
        Without a pairing, and with one place for every pinned kind.
    scenarios : Scenarios
        With a factor for each of the problem's micro-batches.

    Raises
    ------
    ValueError
        When they do not fit together.
    """

    def __init__(self, problem: PipelineProblem, scenarios: Scenarios) -> None:
        if scenarios.layers.shape[1] != problem.micro_batches:
            raise ValueError(
                f"{scenarios.layers.shape[1]} factors a scenario do not fit {problem.micro_batches} micro-batches"
            )
        if problem.pairing is not None:
            raise ValueError(
                "passes that overlap each other's exchanges have no times for micro-batches of unlike cost"
            )
        self.problem, self.scenarios = problem, scenarios
        schedule, graph = schedule_of(problem), graph_of(problem)
        micro_batch = np.empty(len(graph.task_class), dtype=np.int64)
        micro_batch[graph.place.reshape(-1) - 1] = schedule.order[:, :, 2].reshape(-1)
        self._class = graph.task_class.astype(np.int64)
        self.classes = graph.classes
        self._layers, self._ends = scenarios.layers[:, micro_batch], scenarios.ends[:, micro_batch]
        # Every task has a class of its own, so that the common sweeps serve.
        tasks = np.arange(len(graph.task_class), dtype=np.int32)
        self._graph: EventGraph = replace(graph, task_class=tasks, _ends=np.zeros(len(tasks) + 1))
        nothing = as_grid([[0] * problem.stages for _ in range(problem.interleaves)])
        outside = chunk_durations(problem, PipelinePlan({kind.name: nothing for kind in problem.kinds}, {}))
        self._outside = outside[self._class]

    def _tasks(self, row: int, durations: Array) -> Array:
        """Time of every task in a row of the scenarios, and the tails, float64 [tasks + S]."""
        inside = durations[self._class] - self._outside
        times = self._layers[row] * inside + self._ends[row] * self._outside
        return np.concatenate([times, durations[self.classes - self.problem.stages :]])

    def _slowest(self, durations: Array) -> tuple[Array, NDArray[np.int64]]:
        """Step time in every scenario, and the row of its slowest replica, both [n]."""
        rows = range(len(self.scenarios.layers))
        times = np.array([self._graph.longest_path(self._tasks(row, durations)) for row in rows])
        by_step = times.reshape(len(self.scenarios), self.scenarios.replicas)
        slowest = by_step.argmax(axis=1)
        return by_step.max(axis=1), np.arange(len(self.scenarios)) * self.scenarios.replicas + slowest

    def step_times(self, plan: PipelinePlan) -> Array:
        """Step time of a plan in every scenario, in forward times of a body layer, float64 [n]."""
        return self._slowest(chunk_durations(self.problem, plan))[0]

    def cuts(self, durations: Array) -> tuple[Array, list[PathCut]]:
        """Step time in every scenario under chunks' durations, float64 [R], and one longest path of each."""
        times, rows = self._slowest(durations)
        tails, found = self.classes - self.problem.stages, list[PathCut]()
        for scenario, row in enumerate(rows.tolist()):
            _, counts, lag = self._graph.critical_path(self._tasks(row, durations))
            on_path, last = counts[: len(self._class)], counts[len(self._class) :]
            weights: Array = np.bincount(
                self._class, weights=on_path * self._layers[row], minlength=self.classes
            ).astype(np.float64)
            weights[tails:] = last
            outside = on_path * (self._ends[row] - self._layers[row]) * self._outside
            found.append(PathCut(scenario, weights, float(outside.sum()) + lag))
        return times, found
