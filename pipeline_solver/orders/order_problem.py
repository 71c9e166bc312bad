"""The tasks of a pipeline with open order: their times, memory and dependences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.dependencies import feeders
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.pipeline_solver.model.places import settled
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.timing.durations import chunk_durations, schedule_of
from taylor.pipeline_solver.timing.evaluate import states_and_kept_mib
from taylor.pipeline_solver.timing.event_graph import edge_lags


class TaskArrays(NamedTuple):
    """An `OrderProblem` for the kernels.

    Parameters
    ----------
    micro_batches : int
    durations, lag : float64 [K, S]
    tail : float64 [S]
    feeder_stage, feeder_block : int64 [S, K]
        `pipeline.dependencies.feeders`.
    change : float64 [K, S]
        Memory that a task takes (forward) or gives back (the last of its micro-batch's tasks: negative), MiB.
    free : float64 [S]
        Memory for that, MiB.
    """

    micro_batches: int
    durations: NDArray[np.float64]
    lag: NDArray[np.float64]
    tail: NDArray[np.float64]
    feeder_stage: NDArray[np.int64]
    feeder_block: NDArray[np.int64]
    change: NDArray[np.float64]
    free: NDArray[np.float64]


class Precedence(NamedTuple):
    """Order of tasks that every plan keeps: `OrderProblem.chain`, `before` and `gap`."""

    chain: NDArray[np.int64]
    before: NDArray[np.bool_]
    gap: NDArray[np.int64]


def bar_to_orders(problem: PipelineProblem) -> str:
    """The reason why no order is chosen for plans of a problem; empty where one is."""
    if problem.choices and problem.host_limit_mib:
        return "an order is not chosen where the host's memory has a limit too"
    if problem.lenders or problem.lent_limit_mib:
        return "an order is not chosen where stages lend memory to each other"
    return ""


@dataclass(frozen=True)
class OrderProblem:
    """One plan's tasks; a block is direction · V + virtual stage, and there are K = 3V on every stage.

    Parameters
    ----------
    schedule : Schedule
        Any order of the same tasks: only the places of chunks are used.
    durations : float64 [K, S]
        Time of a task.
    lag : float64 [K, S]
        Transfer time of a task's input; 0 where it is on the same stage.
    tail : float64 [S]
        Time after a stage's last task.
    kept_mib : float64 [V, S]
        Memory of a micro-batch in a chunk from its forward to its weight gradient.
    free_mib : float64 [S]
        Memory of a stage for that.
    """

    schedule: Schedule
    durations: NDArray[np.float64]
    lag: NDArray[np.float64]
    tail: NDArray[np.float64]
    kept_mib: NDArray[np.float64]
    free_mib: NDArray[np.float64]

    @classmethod
    def of(cls, problem: PipelineProblem, plan: PipelinePlan) -> OrderProblem:
        """The tasks of a plan under a problem whose schedule has separate weight gradients.

        Raises
        ------
        ValueError
            If it has none, or cuts sequences into pieces, host memory has a limit, too, or stages lend memory.
        """
        schedule = schedule_of(problem)
        if schedule.directions <= WEIGHT_GRADIENT or problem.schedule.seq_splits > 1:
            raise ValueError("an order is chosen where weight gradients are tasks of their own and sequences are whole")
        if reason := bar_to_orders(problem):
            raise ValueError(reason)
        S, V = problem.stages, problem.interleaves
        times = chunk_durations(problem, plan)
        states, kept = states_and_kept_mib(problem, plan)
        free = np.array(problem.limit_mib) + MEMORY_TOLERANCE_MIB - states
        lag = np.ascontiguousarray(edge_lags(schedule, settled(problem, plan).boundary_lags).T)
        return cls(schedule, times[: 3 * V * S].reshape(3 * V, S), lag, times[3 * V * S :], kept, free)

    @cached_property
    def waits(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`feeders` of the schedule: int64 [S, K] each."""
        return feeders(self.schedule)

    @cached_property
    def arrays(self) -> TaskArrays:
        """The tasks for the kernels."""
        return TaskArrays(
            self.schedule.micro_batches,
            np.ascontiguousarray(self.durations),
            self.lag,
            self.tail,
            *self.waits,
            self.change,
            self.free_mib,
        )

    @cached_property
    def precedence(self) -> Precedence:
        """The order of tasks that every plan keeps."""
        return Precedence(self.chain, self.before, self.gap)

    @cached_property
    def chain(self) -> NDArray[np.int64]:
        """(block, stage) of a micro-batch's tasks, each after its inputs, int64 [3VS, 2]."""
        chunks = [self.schedule.chunk_at(place) for place in range(self.schedule.chunks)]
        V = self.schedule.interleaves
        ahead = [(FORWARD * V + v, s) for v, s in chunks]
        back = [(direction * V + v, s) for v, s in reversed(chunks) for direction in (BACKWARD, WEIGHT_GRADIENT)]
        return np.array(ahead + back, dtype=np.int64)

    @cached_property
    def before(self) -> NDArray[np.bool_]:
        """Precedence of a micro-batch's task of block j over that of block k on a stage, bool [K, K, S]."""
        K, S = self.durations.shape
        V = self.schedule.interleaves
        result = np.zeros((K, K, S), dtype=np.bool_)
        for s in range(S):
            place = {v: self.schedule.position(v, s) for v in range(V)}
            for v in range(V):
                forward, backward, weight = v, BACKWARD * V + v, WEIGHT_GRADIENT * V + v
                for other in range(V):
                    result[other, forward, s] = place[other] < place[v]
                    result[other, backward, s] = result[other, weight, s] = True
                    result[BACKWARD * V + other, backward, s] = place[other] > place[v]
                    result[BACKWARD * V + other, weight, s] = place[other] >= place[v]
        return result

    @cached_property
    def gap(self) -> NDArray[np.int64]:
        """Micro-batches that a stage can keep without virtual stages, int64 [S]; 0 with them.

        Raises
        ------
        ValueError
            When a stage's memory does not suffice for one.
        """
        S, m = self.free_mib.shape[0], self.schedule.micro_batches
        if self.schedule.interleaves > 1:
            return np.zeros(S, dtype=np.int64)
        with np.errstate(divide="ignore", invalid="ignore"):
            fits = np.where(self.kept_mib[0] > 0, np.floor(self.free_mib / self.kept_mib[0]), m)
        if (fits < 1).any():
            raise ValueError("a stage's memory does not suffice for a micro-batch")
        return np.clip(fits, 1, m).astype(np.int64)

    @cached_property
    def change(self) -> NDArray[np.float64]:
        """Memory that a task takes or gives back, MiB, float64 [K, S]."""
        nothing = np.zeros_like(self.kept_mib)
        return np.concatenate([self.kept_mib, nothing, -self.kept_mib])

    def finish(self, words: NDArray[np.int16]) -> float:
        """Step time of the orders given as blocks, int16 [S, tasks]; infinite where they do not fit or deadlock."""
        from taylor.pipeline_solver.orders.order_moves import finish_of

        return float(finish_of(words, self.arrays))
