"""The problem with fractions of layers and free changes of layout: a bound, and prices that tell what can be good.

Variables: layers of every choice in every chunk; times of chunks, tails; the step, above every path found so far. Each
reduced cost says how far a layer of that choice in that chunk raises the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.pipeline_solver.highs_model import HighsModel
from taylor.pipeline_solver.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp import MilpStatus

MOST_ROUNDS = 300
TIGHT = 1e-9
"""Relative distance of step and bound below which no further path is looked for."""


@dataclass(frozen=True)
class Prices:
    """What a stage's content costs beyond the bound.

    Parameters
    ----------
    layer : float64 [S, V, C]
        Of a layer, >= 0.
    more : float64 [S, V]
        Of every layer in a chunk beyond its first, >= 0.
    memory : tuple of float64 [P], one a stage
        Of a MiB that stays free, >= 0.
    times : float64 [classes]
        Of a second in each class, >= 0.
    """

    layer: Array
    more: Array
    memory: tuple[Array, ...]
    times: Array


@dataclass(frozen=True)
class Relaxed:
    """The relaxation's optimum: bound s, prices, and the paths that make it, counts float64 [classes] each."""

    bound: float
    prices: Prices
    cuts: tuple[Array, ...]


def relax(problem: FixedProblem, graph: LaggedGraph) -> Relaxed | None:
    """Solve the relaxation; None where nothing fits."""
    S, V, C = problem.stages, problem.interleaves, len(problem.strategies)
    cells = S * V * C
    classes, first_time = graph.classes, 1
    first_cell = first_time + classes
    count = first_cell + cells

    def cell(s: int, v: int) -> range:
        start = first_cell + (s * V + v) * C
        return range(start, start + C)

    rows: list[Row] = []
    kinds = np.tile(problem.kind, S * V)
    for k, layers in enumerate(problem.by_kind):
        mine = tuple((first_cell + np.nonzero(kinds == k)[0]).tolist())
        rows.append(Row(f"layers_{k}", mine, (1.0,) * len(mine), layers, layers))
    chunk_rows = len(rows)
    for s in range(S):
        for v in range(V):
            rows.append(Row(f"chunk_{s}_{v}", tuple(cell(s, v)), (1.0,) * C, 1.0))
    memory_rows = len(rows)
    least = float(problem.working.min())
    for s in range(S):
        columns = tuple(each for v in range(V) for each in cell(s, v))
        for p in range(len(problem.room[s])):
            weights = tuple(problem.memory[s][p].reshape(-1).tolist())
            rows.append(Row(f"memory_{s}_{p}", columns, weights, upper=float(problem.room[s][p]) - least))
    time_rows = len(rows)
    lag = float(problem.handover.min())
    fixed = np.zeros(classes)
    parts: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())] * classes
    for position in range(problem.chunks):
        v, s = problem.schedule.chunk_at(position)
        for direction, times, ends in (
            (FORWARD, problem.forward, problem.end_forward),
            (BACKWARD, problem.backward, problem.end_backward),
        ):
            number = graph.class_of(direction, position)
            fixed[number] = ends[position]
            parts[number] = tuple(cell(s, v)), tuple((-times).tolist())
        if position:
            fixed[graph.lag(position - 1)] = lag
    for s in range(S):
        fixed[graph.tail(s)] = problem.end_tail[s]
        columns = tuple(each for v in range(V) for each in cell(s, v))
        parts[graph.tail(s)] = columns, tuple((-problem.tail).tolist()) * V
    for number, (columns, values) in enumerate(parts):
        side = float(fixed[number])
        rows.append(Row(f"time_{number}", (first_time + number, *columns), (1.0, *values), side, side))
    upper = np.full(count, np.inf)
    cost = np.zeros(count)
    cost[0] = 1.0
    form = LinearForm(
        tuple(f"x{each}" for each in range(count)), np.zeros(count), upper, cost, np.zeros(count, dtype=bool), rows
    )
    model = HighsModel(form, relaxed=True)
    cuts: list[Array] = []
    bound = 0.0
    for _ in range(MOST_ROUNDS):
        found = model.solve_lp()
        if found.status is not MilpStatus.OPTIMAL or found.values is None:
            return None
        bound = found.bound
        times = found.values[first_time:first_cell]
        step, counts = graph.path(times)
        if step <= bound * (1 + TIGHT):
            break
        new = [counts]
        other = graph.path(times, 1)[1]
        if not np.array_equal(other, counts):
            new.append(other)
        cuts += new
        model.add_rows([cut_row(each, first_time) for each in new])
    reduced, duals = model.duals()
    memory: list[Array] = []
    at = memory_rows
    for s in range(S):
        memory.append(np.maximum(-duals[at : at + len(problem.room[s])], 0.0))
        at += len(problem.room[s])
    prices = Prices(
        np.maximum(reduced[first_cell:], 0.0).reshape(S, V, C),
        np.maximum(duals[chunk_rows:memory_rows], 0.0).reshape(S, V),
        tuple(memory),
        np.maximum(duals[time_rows : time_rows + classes], 0.0),
    )
    return Relaxed(bound, prices, tuple(cuts))


def cut_row(counts: Array, first_time: int) -> Row:
    """The step is above a path."""
    used = np.nonzero(counts)[0]
    scale = 1.0 / max(float(counts.max()), 1.0)
    return Row(
        "path",
        (0, *(first_time + used).tolist()),
        (scale, *(-scale * counts[used]).tolist()),
        0.0,
    )
