"""Activations that a plan offloads to the host or lends to other stages, and the times of their transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.pipeline_solver.model.problem import LayerChoice, PipelineProblem
from taylor.report.intervals import FloatArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class HostTransfers:
    """Transfers of every micro-batch over the links to the hosts, or to the lenders, one entry for each task of a chunk
    that moves something.

    Parameters
    ----------
    stage, interleave, micro_batch : int [k]
    outward : bool [k]
        Whether it goes there, in a forward; else back, in a backward.
    start, end : float [k]
        In units of one body layer's forward.
    """

    stage: IntArray
    interleave: IntArray
    micro_batch: IntArray
    outward: NDArray[np.bool_]
    start: FloatArray
    end: FloatArray


def summed_choices(problem: PipelineProblem, plan: PipelinePlan, cost: str, *, lent: bool = False) -> FloatArray:
    """Cost of the layers' choices by chunk, float [V, S]: a field of `LayerChoice`, of choices that lend or others."""
    choices: dict[str, dict[str, LayerChoice]] = {kind.name: dict(kind.choices) for kind in problem.kinds}
    total = np.zeros((problem.interleaves, problem.stages))
    for kind, modes in plan.recompute_by_kind().items():
        for mode, choice in choices[kind].items():
            if mode in modes and bool(choice.lent_mib) == lent:
                total += getattr(choice, cost) * np.asarray(modes[mode], dtype=np.float64)
    return total


def host_transfers(
    problem: PipelineProblem,
    plan: PipelinePlan,
    order: IntArray,
    start: FloatArray,
    end: FloatArray,
    *,
    lent: bool = False,
) -> HostTransfers | None:
    """Times of a plan's transfers; None where it moves nothing.

    The transfer of a layer begins when its forward has ended, and has to be back before its backward begins. So the
    transfers of a chunk run one layer's computation later in a forward and one earlier in a backward, one after the
    other.

    Parameters
    ----------
    order : int [S, n, 4]
        Every stage's tasks, as `Schedule.order`.
    start, end : float [S, n]
        Of every task.
    lent : bool
        Transfers to lenders instead of hosts.
    """
    busy = summed_choices(problem, plan, "link_time", lent=lent) / problem.schedule.seq_splits
    if not busy.any():
        return None
    layers = np.maximum(plan.total_layers(list(plan.layers)), 1)
    columns: list[list[float]] = []
    for s in range(problem.stages):
        free = {FORWARD: -np.inf, BACKWARD: np.inf}
        for direction, last in ((FORWARD, 1), (BACKWARD, -1)):
            # Backward transfers are placed from the last one on: each ends where its layer's backward needs it.
            tasks = np.flatnonzero(order[s, :, 0] == direction)[::last]
            for task in tasks.tolist():
                v, micro_batch = order[s, task, 1:3].tolist()
                if not busy[v, s]:
                    continue
                one_layer = (end[s, task] - start[s, task]) / layers[v][s]
                if direction == FORWARD:
                    begins = max(free[FORWARD], start[s, task] + one_layer)
                    ends = free[FORWARD] = begins + busy[v, s]
                else:
                    ends = min(free[BACKWARD], end[s, task] - one_layer)
                    begins = free[BACKWARD] = ends - busy[v, s]
                columns.append([s, v, micro_batch, direction == FORWARD, begins, ends])
    table = np.asarray(columns, dtype=np.float64)
    table = table[np.lexsort((table[:, 4], table[:, 3], table[:, 0]))]
    stage, interleave, micro_batch = table[:, :3].astype(np.int64).T
    return HostTransfers(stage, interleave, micro_batch, table[:, 3] > 0, table[:, 4], table[:, 5])
