"""The event graph of a schedule: step time as the longest path through its tasks, compiled.

A node is a task; it starts when the task before it on its stage has ended and the task that it
depends on has ended, plus the transfer lag where that edge crosses stages. The step ends when every
stage has ended its last task and then its tail. Every path gives a lower bound that is linear in the
durations, `counts @ durations + lag`, and the longest path attains it. A path's lag is computed from its number of
edges of each distinct transfer time, so that paths with the same numbers have the same lag to the last digit.

Duration classes: (direction * V + v) * S + s for a task of a direction (0 forward, 1 backward, 2 weight
gradient where the schedule has it) in chunk (v, s), then D * V * S + s for the tail of stage s. Where passes are
combined, a forward and a backward have two more directions for each virtual stage with which a chunk's tasks are
combined: after those of the schedule, forward and backward with the first such virtual stage (`partner_table`), then
the next.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.base.sized_cache import sized_cache
from taylor.pipeline.dependencies import feeders
from taylor.pipeline.partners import partners
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from taylor.pipeline_solver.timing import event_paths

FEW_TASKS = 20_000
"""Most tasks for plain sweeps while the compiler is not loaded, which takes longer."""


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
    level : int16 [tasks]
        Index into `lags` of the edge from `needed`; -1 inside a stage.
    last : int32 [S]
        Node of the last task of each stage.
    place : int64 [S, tasks of a stage]
        Node number of each task of ``schedule.order``.
    """

    schedule: Schedule
    lags: NDArray[np.float64]
    directions: int
    before: NDArray[np.int32]
    needed: NDArray[np.int32]
    task_class: NDArray[np.int32]
    level: NDArray[np.int16]
    last: NDArray[np.int32]
    place: NDArray[np.int64]
    edge_lag: NDArray[np.float64]
    _ends: NDArray[np.float64] = field(repr=False, compare=False)

    @classmethod
    def from_schedule(cls, schedule: Schedule, lag: float | Sequence[float], *, combined: bool = False) -> EventGraph:
        """The graph of a schedule with a transfer time `lag` (body-layer forward times) between stages (`edge_lags`).

        With `combined`, tasks of combined passes have separate classes.

        Raises
        ------
        ValueError
            When the schedule deadlocks.
        """
        directions, before, needed, task_class, crosses, last, place = _topology(schedule)
        block, stage = np.divmod(task_class, schedule.stages)
        edge_lag = edge_lags(schedule, lag)[stage, block]
        lags, level = np.unique(edge_lag[crosses], return_inverse=True)
        levels = np.full(len(crosses), -1, dtype=np.int16)
        levels[crosses] = level
        if combined:
            directions, task_class = _combined(schedule, task_class, place)
        return cls(
            schedule,
            lags,
            directions,
            before,
            needed,
            task_class,
            levels,
            last,
            place,
            edge_lag=edge_lag,
            _ends=np.zeros(len(before) + 1),
        )

    @property
    def crosses(self) -> NDArray[np.bool_]:
        """Edges from `needed` that cross stages, bool [tasks]."""
        crosses: NDArray[np.bool_] = self.level >= 0
        return crosses

    @property
    def class_in_order(self) -> NDArray[np.int32]:
        """Duration class of each task of ``schedule.order``, int32 [S, tasks]."""
        found: NDArray[np.int32] = self.task_class[self.place - 1]
        return found

    def lag_of(self, crossings: NDArray[np.int64]) -> float:
        """Lag of a path by its number of edges of each level, int64 [levels]."""
        return float(crossings @ self.lags)

    @property
    def classes(self) -> int:
        """Number of duration classes R."""
        return (self.directions * self.schedule.interleaves + 1) * self.schedule.stages

    def longest_path(self, durations: NDArray[np.float64]) -> float:
        """Step time under durations float64 [R]."""
        return float(
            _sweeps(len(self.before)).longest_path(
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
        self, durations: NDArray[np.float64], prefer: int = 0, sweeps: Any = None
    ) -> tuple[float, NDArray[np.float64], float]:
        """Step time, class counts of a longest path (float64 [R]), and the path's lag.

        ``prefer`` breaks ties: 0 follows the stage's order back, 1 the dependency. ``sweeps`` is `event_kernels` where
        many paths are asked for; without it, what answers one question quickest.
        """
        sweeps, durations = sweeps or _sweeps(len(self.before)), np.ascontiguousarray(durations, dtype=np.float64)
        graph = self.before, self.needed, self.task_class, self.edge_lag, self.last, durations, self._ends
        time = sweeps.longest_path(*graph)
        counts, crossings = sweeps.walk_back(*graph, time, prefer, self.level, len(self.lags))
        return float(time), counts, self.lag_of(crossings)

    def start_times(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """Earliest start of every task, float64 [S, tasks], aligned with ``schedule.order``."""
        durations = np.ascontiguousarray(durations, dtype=np.float64)
        sweep = _sweeps(len(self.before)).longest_path
        sweep(self.before, self.needed, self.task_class, self.edge_lag, self.last, durations, self._ends)
        starts = np.maximum(self._ends[self.before], self._ends[self.needed] + self.edge_lag)
        result: NDArray[np.float64] = starts[self.place - 1]
        return result


def partner_table(schedule: Schedule) -> NDArray[np.int64]:
    """Virtual stages with which each one's tasks are combined, in rising order, int64 [V, P]; padded with -1."""
    beside, of = partners(schedule), schedule.order[:, :, 1]
    found = [np.unique(beside[(of == v) & (beside >= 0)]) for v in range(schedule.interleaves)]
    table = np.full((len(found), max(map(len, found))), -1, dtype=np.int64)
    for v, row in enumerate(found):
        table[v, : len(row)] = row
    return table


def _combined(
    schedule: Schedule, task_class: NDArray[np.int32], place: NDArray[np.int64]
) -> tuple[int, NDArray[np.int32]]:
    """Number of directions, and the duration class of each node, with separate classes for combined passes."""
    table, beside, order = partner_table(schedule), partners(schedule), schedule.order
    stage, at = np.nonzero(beside >= 0)
    of = order[stage, at, 1]
    rank = (table[of] == beside[stage, at][:, None]).argmax(axis=1) if table.shape[1] else of
    direction = schedule.directions + 2 * rank + order[stage, at, 0]
    found = task_class.copy()
    found[place[stage, at] - 1] = (direction * schedule.interleaves + of) * schedule.stages + stage
    return schedule.directions + 2 * table.shape[1], found


def edge_lags(schedule: Schedule, lag: float | Sequence[float]) -> NDArray[np.float64]:
    """Transfer time of the input of each block of tasks, float64 [S, D·V]; 0 where it is on the same stage.

    Parameters
    ----------
    lag : float or sequence of float [chunks - 1]
        Between stages; or between the chunks at positions k and k + 1 of the model, in either direction.
    """
    source, _ = feeders(schedule)
    S, V = schedule.stages, schedule.interleaves
    by_boundary = np.full(schedule.chunks, lag) if isinstance(lag, (int, float)) else np.array([*lag, 0.0])
    place = np.array([[schedule.position(v, s) for v in range(V)] for s in range(S)])
    boundary = np.concatenate([np.maximum(place - 1, 0), *[place] * (schedule.directions - 1)], axis=1)
    crosses = (source >= 0) & (source != np.arange(S)[:, None])
    result: NDArray[np.float64] = np.where(crosses, by_boundary[boundary], 0.0)
    return result


def _sweeps(tasks: int) -> Any:
    """The module with the quickest sweeps for `tasks` tasks: one evaluation must not wait for a compiler."""
    if tasks <= FEW_TASKS and not _are_compiled():
        return event_paths
    from taylor.pipeline_solver.timing import event_kernels

    return event_kernels


def _are_compiled() -> bool:
    """Return whether the compiler is loaded, with the sweeps in memory or on disk."""
    if "numba" not in sys.modules:
        return False
    from taylor.base.compiled import are_kept
    from taylor.pipeline_solver.timing.event_kernels import longest_path, task_levels

    return are_kept((longest_path, task_levels)) is not False


KEPT_BYTES = 2**27
"""Memory of the graphs that are kept; the largest one takes two thirds of it."""


@sized_cache(most_entries=16, most_bytes=KEPT_BYTES)
def _cached_topology(
    order_bytes: bytes,
    whole_bytes: bytes,
    shape: tuple[int, ...],
    spec: ScheduleSpec,
    interleaves: int,
    micro_batches: int,
) -> tuple[Any, ...]:
    order = np.frombuffer(order_bytes, dtype=np.int32).reshape(shape)
    whole = np.zeros(shape[:2], dtype=np.bool_)
    if whole_bytes:
        whole = np.frombuffer(whole_bytes, dtype=np.bool_).reshape(shape[:2])
    schedule = Schedule(spec, shape[0], interleaves, micro_batches, order)
    source_stage, source_block = feeders(schedule)
    blocks = schedule.blocks()
    level, source, done = _sweeps(shape[0] * shape[1]).task_levels(
        blocks, schedule.pieces(), source_stage, source_block, micro_batches * spec.seq_splits, whole
    )
    if not done:
        raise ValueError("the schedule deadlocks")
    stages, tasks = shape[:2]
    # Nodes are numbered from 1 on by level, so that neighbours in memory do not wait for each other; 0 is none.
    owner = np.argsort(level, kind="stable")
    number = np.zeros(stages * tasks + 1, dtype=np.int64)
    number[owner] = np.arange(1, stages * tasks + 1)
    place = number[:-1].reshape(stages, tasks)
    ahead = np.arange(-1, stages * tasks - 1)
    ahead[::tasks] = -1
    before, needed = number[ahead[owner]].astype(np.int32), number[source[owner]].astype(np.int32)
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
        b"" if schedule.whole is None else schedule.whole.tobytes(),
        schedule.order.shape,
        schedule.spec,
        schedule.interleaves,
        schedule.micro_batches,
    )
