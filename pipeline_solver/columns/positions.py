"""Plans as positions in the model's sequence of layers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.timing.durations import chunk_durations, schedule_of
from taylor.pipeline_solver.timing.evaluate import over_limits_mib


class State(NamedTuple):
    """A plan as numbers.

    Parameters
    ----------
    begin : int64 [C + 1]
        Position of each chunk's first layer.
    taken : int64 [modes, C]
        Recomputed layers of each chunk by mode.
    """

    begin: NDArray[np.int64]
    taken: NDArray[np.int64]

    def copy(self) -> State:
        """An independent copy."""
        return State(self.begin.copy(), self.taken.copy())


def plan_of_state(problem: PipelineProblem, state: State) -> PipelinePlan:
    """The plan whose chunks begin at these positions."""
    schedule = schedule_of(problem)
    shape = problem.interleaves, problem.stages
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    cells = tuple(np.array(side) for side in zip(*chunks, strict=True))
    placed = problem.placed_kinds
    borders = np.cumsum([0, *(kind.count for kind in placed)])
    layers = {}
    for kind in problem.kinds:
        grid = np.zeros(shape, dtype=np.int64)
        if kind in placed:
            low, high = borders[placed.index(kind)], borders[placed.index(kind) + 1]
            within = np.minimum(state.begin[1:], high) - np.maximum(state.begin[:-1], low)
            grid[cells] = np.maximum(within, 0)
        elif kind.pinned:
            grid[chunks[problem.places_of(kind)[0]]] = kind.count
        layers[kind.name] = as_grid(grid.tolist())
    recompute = {}
    for mode, taken in zip(problem.searched_modes, state.taken, strict=True):
        grid = np.zeros(shape, dtype=np.int64)
        grid[cells] = taken
        recompute[mode] = as_grid(grid.tolist())
    return PipelinePlan(layers, recompute)


def plan_in_order(problem: PipelineProblem, columns: ColumnSet, chosen: NDArray[np.int64]) -> PipelinePlan | None:
    """The plan with the layer counts of one column a stage, int64 [S], of columns with open order.

    None where a chunk's layers then have another cost than the column's, do not fit, or are not all of a joined kind.
    """
    schedule = schedule_of(problem)
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    cells = tuple(np.array(side) for side in zip(*chunks, strict=True))
    begin = np.concatenate([[0], np.cumsum(columns.layers[chosen].sum(axis=2).T[cells])])
    taken = np.array([grid.T[cells] for grid in columns.recompute[chosen].transpose(2, 0, 1)], dtype=np.int64)
    plan = plan_of_state(problem, State(begin.astype(np.int64), taken.reshape(-1, len(chunks))))
    if problem.border_strays[begin.astype(np.int64)].any():
        return None
    durations = columns.durations[chosen].T.reshape(-1)
    same = np.allclose(chunk_durations(problem, plan)[: len(durations)], durations, rtol=1e-9, atol=1e-12)
    return plan if same and over_limits_mib(problem, plan) <= MEMORY_TOLERANCE_MIB else None
