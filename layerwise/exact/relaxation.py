"""The problem with fractions of layers and free changes of layout: a bound, and dual values that show good contents.

Variables: layers of every choice in every chunk; times of chunks, tails; the step, above every path found so far. Each
reduced cost says how far a layer of that choice in that chunk raises the bound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.base.budget import TimeBudget
from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpStatus
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper

MOST_ROUNDS = 300
TIGHT = 1e-9
"""Relative distance of step and bound below which no further path is looked for."""


@dataclass(frozen=True)
class Prices:
    """Reduced costs: the cost of a stage's content beyond the bound.

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
    """The relaxation's optimum: bound s, dual values, and the paths that make it, counts float64 [classes] each."""

    bound: float
    prices: Prices
    cuts: tuple[Array, ...]


@dataclass(frozen=True)
class RelaxedForm:
    """The relaxation's rows, and where its columns and rows begin."""

    rows: list[Row]
    first_cell: int
    count: int
    chunk_rows: int
    memory_rows: int
    time_rows: int

    def linear(self, names: int, integer_from: int) -> LinearForm:
        """With further columns behind its own, whole numbers from one on."""
        cost = np.zeros(names)
        cost[0] = 1.0
        integer = np.zeros(names, dtype=bool)
        integer[integer_from:] = True
        upper = np.full(names, np.inf)
        return LinearForm(tuple(f"x{each}" for each in range(names)), np.zeros(names), upper, cost, integer, self.rows)


FIRST_TIME = 1
"""Column of the first class's time; the step is column 0."""


def relaxed_form(problem: FixedProblem, graph: LaggedGraph, layers: NDArray[np.int64] | None) -> RelaxedForm:
    """The relaxation over fractions of layers, without cuts of paths.

    Parameters
    ----------
    layers : int64 [S, V] or None
        Layers of every chunk; any division where None.
    """
    S, V, C = problem.stages, problem.interleaves, len(problem.strategies)
    first_cell = FIRST_TIME + graph.classes
    numbers = np.arange(first_cell, first_cell + S * V * C).reshape(S, V, C)
    cells = [[tuple(row) for row in stage] for stage in numbers.tolist()]
    rows: list[Row] = []
    kinds = np.tile(problem.kind, S * V)
    for k, total in enumerate(problem.by_kind):
        mine = tuple((first_cell + np.nonzero(kinds == k)[0]).tolist())
        rows.append(Row(f"layers_{k}", mine, (1.0,) * len(mine), total, total))
    chunk_rows = len(rows)
    for s, v in np.ndindex(S, V):
        least, most = (1.0, np.inf) if layers is None else (float(layers[s, v]),) * 2
        rows.append(Row(f"chunk_{s}_{v}", cells[s][v], (1.0,) * C, least, most))
    memory_rows = len(rows)
    working = float(problem.working.min())
    for s in range(S):
        columns = sum(cells[s], ())
        for p, free in enumerate(problem.free[s]):
            weights = tuple(problem.memory[s][p].reshape(-1).tolist())
            rows.append(Row(f"memory_{s}_{p}", columns, weights, upper=float(free) - working))
    time_rows = len(rows)
    rows += _time_rows(problem, graph, cells)
    return RelaxedForm(rows, first_cell, first_cell + numbers.size, chunk_rows, memory_rows, time_rows)


def _time_rows(problem: FixedProblem, graph: LaggedGraph, cells: list[list[tuple[int, ...]]]) -> list[Row]:
    """Times of the classes: the layers' and what is fixed, which are the ends and the least transfer."""
    fixed = np.zeros(graph.classes)
    parts: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())] * graph.classes
    for position in range(problem.chunks):
        v, s = problem.schedule.chunk_at(position)
        for direction, times, ends in (
            (FORWARD, problem.forward, problem.end_forward),
            (BACKWARD, problem.backward, problem.end_backward),
        ):
            number = graph.class_of(direction, position)
            fixed[number] = ends[position]
            parts[number] = cells[s][v], tuple((-times).tolist())
        if position:
            fixed[graph.lag(position - 1)] = float(problem.handover.min())
    for s in range(problem.stages):
        fixed[graph.tail(s)] = problem.end_tail[s]
        parts[graph.tail(s)] = sum(cells[s], ()), tuple((-problem.tail).tolist()) * problem.interleaves
    return [
        Row(f"time_{number}", (FIRST_TIME + number, *of), (1.0, *values), side, side)
        for number, (of, values), side in zip(range(graph.classes), parts, fixed.tolist(), strict=True)
    ]


def relax(
    problem: FixedProblem, graph: LaggedGraph, layers: NDArray[np.int64] | None = None, cuts: Sequence[Array] = (),
    rounds: int = MOST_ROUNDS, deadline: float | None = None,
) -> Relaxed | None:  # fmt: skip
    """Solve the relaxation; None where nothing fits.

    Parameters
    ----------
    layers : int64 [S, V], optional
        Layers of every chunk, where they are given.
    cuts : sequence of float64 [classes]
        Paths that are known.
    rounds : int
        LPs to be solved at most: after fewer than it takes, the bound is lower than the optimum.
    deadline : float, optional
        `time.monotonic()` after which no further LP is begun.

    Raises
    ------
    OutOfTime
        When the deadline ends the first LP, or a later one half-way.
    """
    stopper = Stopper(deadline)
    stopper.check()
    S, V, C = problem.stages, problem.interleaves, len(problem.strategies)
    form = relaxed_form(problem, graph, layers)
    known = list(cuts)
    form.rows.extend(cut_row(each, FIRST_TIME) for each in known)
    model = HighsModel(form.linear(form.count, form.count), relaxed=True)
    bound = 0.0
    for number in range(rounds):
        left = TimeBudget(deadline).left
        if number and left == 0.0:
            break
        found = model.solve_lp(left)
        if found.status is MilpStatus.STOPPED or (found.status is not MilpStatus.OPTIMAL and left == 0.0):
            raise OutOfTime
        if found.status is not MilpStatus.OPTIMAL or found.values is None:
            return None
        bound = found.bound
        step, new = new_paths(graph, found.values[FIRST_TIME : form.first_cell])
        if step <= bound * (1 + TIGHT):
            break
        known += new
        model.add_rows([cut_row(each, FIRST_TIME) for each in new])
    reduced, duals = model.duals()
    memory: list[Array] = []
    at = form.memory_rows
    for s in range(S):
        memory.append(np.maximum(-duals[at : at + len(problem.free[s])], 0.0))
        at += len(problem.free[s])
    more = np.maximum(duals[form.chunk_rows : form.memory_rows], 0.0).reshape(S, V)
    prices = Prices(
        np.maximum(reduced[form.first_cell :], 0.0).reshape(S, V, C),
        more if layers is None else np.zeros((S, V)),  # Where the number is given none has more.
        tuple(memory),
        np.maximum(duals[form.time_rows : form.time_rows + graph.classes], 0.0),
    )
    return Relaxed(bound, prices, tuple(known))


def relax_above(
    problem: FixedProblem, graph: LaggedGraph, caps: NDArray[np.int64], cuts: Sequence[Array], deadline: float
) -> float:
    """The relaxation's bound with whole layers in one stage at least, s; inf where nothing fits.

    Of caps that add up to the layers of the model, either every stage holds just as many, or one holds more.

    Parameters
    ----------
    caps : int64 [S]
    deadline : float
        A moment of `time.monotonic`.
    """
    S = problem.stages
    assert caps.sum() == problem.layers
    form = relaxed_form(problem, graph, None)
    cells = problem.interleaves * len(problem.strategies)
    for s in range(S):
        start = form.first_cell + s * cells
        form.rows.append(
            Row(f"held_{s}", (*range(start, start + cells), form.count + s), (*[1.0] * cells, -1.0), 0.0, 0.0)
        )
    form.rows.extend(cut_row(each, FIRST_TIME) for each in cuts)
    model = HighsModel(form.linear(form.count + S, form.count + S), relaxed=True)
    bounds = np.zeros(S + 1)

    def solve(s: int) -> bool:
        """One stage above its cap, or (S) all at theirs: the bound, and whether further paths may take it up."""
        changed = range(S) if s == S else (s,)
        for each in changed:
            least, most = (caps[each], caps[each]) if s == S else (caps[each] + 1, np.inf)
            model.set_bounds(form.count + each, float(least), float(most))
        found = model.solve_lp(max(deadline - time.monotonic(), 0.05))
        for each in changed:
            model.set_bounds(form.count + each, 0.0, np.inf)
        if found.status is MilpStatus.INFEASIBLE:
            bounds[s] = np.inf
            return False
        if found.status is not MilpStatus.OPTIMAL or found.values is None:
            return False
        bounds[s] = max(bounds[s], found.bound)
        step, new = new_paths(graph, found.values[FIRST_TIME : form.first_cell])
        if step > found.bound * (1 + 1e-4):
            model.add_rows([cut_row(each, FIRST_TIME) for each in new])
            return True
        return False

    for s in range(S + 1):
        solve(s)
    for _ in range(MOST_ROUNDS):
        least = int(np.argmin(bounds))
        if not np.isfinite(bounds[least]) or time.monotonic() > deadline or not solve(least):
            break
    return float(bounds.min())


def new_paths(graph: LaggedGraph, times: Array) -> tuple[float, list[Array]]:
    """The step, and the one or two longest paths that make it."""
    step, counts = graph.path(times)
    other = graph.path(times, 1)[1]
    return step, [counts] if np.array_equal(other, counts) else [counts, other]


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
