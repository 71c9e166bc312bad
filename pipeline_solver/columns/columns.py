"""Columns: the possible stage assignments, each with its task durations.

A column is a layer tuple (layers by kind in each chunk of a stage) with a recompute choice for every chunk. Only
minimal choices are kept: a choice that recomputes longer in some chunk and shorter in none, for the same layers, can
never be better, because the step time grows with every duration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline_solver.columns.choice_columns import resource_needs, undominated_choices
from taylor.pipeline_solver.columns.chunk_types import prefix_cost
from taylor.pipeline_solver.columns.phases import Phases
from taylor.pipeline_solver.columns.stage_tuples import StageTuples, TooManyColumns, fixed_parts
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.timing.durations import duration_blocks, exposed_of_stage, schedule_of

EXTRA = 3
"""Index of the choices' added times among the parts of a stage's columns."""


@dataclass(frozen=True)
class ColumnSet:
    """Columns of all stages, stage after stage; inside a stage, tuple after tuple.

    Parameters
    ----------
    start : int64 [S + 1]
        First column of each stage.
    layers : int16 [n, V, K]
    recompute : int16 [n, V, modes]
    durations : float64 [n, D·V]
        Column c of class block b adds to duration class b·S + stage.
    group : int64 [n]
        Number of the layer tuple.
    ordered : bool
        Plans keep the kinds in the problem's order. Columns with open order only bound the step time.
    phases : Phases, optional
        Of columns with open order: places of their chunks in the pattern of the layers.
    """

    problem: PipelineProblem
    start: NDArray[np.int64]
    layers: NDArray[np.int16]
    recompute: NDArray[np.int16]
    durations: NDArray[np.float64]
    group: NDArray[np.int64]
    ordered: bool = True
    phases: Phases | None = None

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def stage(self) -> NDArray[np.int64]:
        """Stage of each column, int64 [n]."""
        stages: NDArray[np.int64] = np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))
        return stages

    @cached_property
    def totals(self) -> NDArray[np.int64]:
        """Layers by kind on the stage, int64 [n, K]."""
        totals: NDArray[np.int64] = self.layers.sum(axis=1).astype(np.int64)
        return totals

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Time of one micro-batch on the stage (all its pieces), float64 [n]."""
        work: NDArray[np.float64] = self._least_durations.sum(axis=1) * self.problem.schedule.seq_splits
        return work

    @property
    def _least_durations(self) -> NDArray[np.float64]:
        """Least time of each chunk's task of each direction, float64 [n, D·V]: in combined passes, with the virtual
        stage that overlaps the most."""
        if self.problem.pairing is None:
            return self.durations
        blocks = self.durations.reshape(len(self), -1, self.problem.interleaves)
        directions = schedule_of(self.problem).directions
        least: NDArray[np.float64] = blocks[:, :directions].copy()
        for row in range(directions, blocks.shape[1]):
            at = (row - directions) % 2
            least[:, at] = np.minimum(least[:, at], blocks[:, row])
        joined: NDArray[np.float64] = least.reshape(len(self), -1)
        return joined

    @cached_property
    def least_kind(self) -> NDArray[np.int64]:
        """First kind of each chunk, int64 [n, V]; K where it is empty."""
        present = self.layers > 0
        first: NDArray[np.int64] = np.where(present.any(axis=2), present.argmax(axis=2), self.layers.shape[2])
        return first.astype(np.int64)

    @cached_property
    def greatest_kind(self) -> NDArray[np.int64]:
        """Last kind of each chunk, int64 [n, V]; -1 where it is empty."""
        present = self.layers[:, :, ::-1] > 0
        last = self.layers.shape[2] - 1 - present.argmax(axis=2)
        return np.where(present.any(axis=2), last, -1).astype(np.int64)

    def part(self, mask: NDArray[np.bool_]) -> tuple[ColumnSet, NDArray[np.int64]]:
        """Some of the columns as a separate set, and the number of each in this one, int64 [n]."""
        numbers = np.nonzero(mask)[0]
        start = np.searchsorted(numbers, self.start)
        part = ColumnSet(
            self.problem, start, self.layers[numbers], self.recompute[numbers], self.durations[numbers],
            self.group[numbers], self.ordered, None if self.phases is None else self.phases.take(numbers),
        )  # fmt: skip
        return part, numbers

    def plan(self, chosen: NDArray[np.int64]) -> PipelinePlan:
        """The plan of one column a stage, int [S]."""
        problem, shape = self.problem, (self.problem.interleaves, self.problem.stages)
        schedule = schedule_of(problem)
        layers = {}
        placed = problem.placed_kinds
        for kind in problem.kinds:
            grid = np.zeros(shape, dtype=np.int64)
            if kind in placed:
                grid = self.layers[chosen, :, placed.index(kind)].T
            elif kind.pinned:
                grid[schedule.chunk_at(problem.places_of(kind)[0])] = kind.count
            layers[kind.name] = as_grid(grid.tolist())
        recompute = {
            mode: as_grid(self.recompute[chosen, :, j].T.tolist()) for j, mode in enumerate(problem.searched_modes)
        }
        return PipelinePlan(layers, recompute)

    def find(self, plan: PipelinePlan) -> NDArray[np.int64] | None:
        """One column a stage, equal to the plan or better, int64 [S]; None when there is none."""
        problem = self.problem
        modes = problem.searched_modes
        chosen = np.empty(problem.stages, dtype=np.int64)
        layers = np.stack([np.array(plan.layers[kind.name]) for kind in problem.placed_kinds], axis=-1)
        grids = [
            np.array(plan.recompute[mode]) if mode in plan.recompute else np.zeros(layers.shape[:2], dtype=int)
            for mode in modes
        ]
        schedule = schedule_of(problem)
        for s in range(problem.stages):
            rows = np.arange(self.start[s], self.start[s + 1])
            rows = rows[(self.layers[rows] == layers[:, s]).all(axis=(1, 2))]
            _, ends = fixed_parts(problem, schedule, s, np.zeros((1, problem.interleaves)))
            here = problem.on_stage(s)
            placed = here.placed_kinds
            forward = layers[:, s] @ np.array([kind.forward for kind in placed]) + ends
            extra = np.array(
                [
                    prefix_cost(here, placed, modes, layers[v, s], [int(grid[v, s]) for grid in grids])[0]
                    for v in range(problem.interleaves)
                ]
            ).T
            plain = problem.pairing is None and not problem.adds_pinned
            exposed = None if plain else exposed_of_stage(problem, s, layers[None, :, s])[:, 0]
            asked = np.concatenate(duration_blocks(problem, forward, extra, s, exposed))
            rows = rows[(self.durations[rows] <= asked + 1e-9).all(axis=1)]
            if not len(rows):
                return None
            chosen[s] = rows[0]
        return chosen


def build_columns(problem: PipelineProblem, tuples: list[StageTuples], most: int) -> ColumnSet:
    """All minimal columns.

    Raises
    ------
    TooManyColumns
        When one stage has more than `most`.
    """
    S = problem.stages
    schedule = schedule_of(problem)
    alive = alive_vectors(schedule)
    parts = []
    groups = 0
    for s in range(S):
        parts.append(_stage_columns(problem, tuples[s], s, alive[s], most, groups))
        groups += len(tuples[s].members)
    start = np.concatenate([[0], np.cumsum([len(part[0]) for part in parts])]).astype(np.int64)
    layers, recompute, forward, extra, group = (
        np.concatenate([part[i] for part in parts], axis=1 if i == EXTRA else 0) for i in range(5)
    )
    stage = np.repeat(np.arange(problem.stages), np.diff(start))[:, None]
    exposed = columns_exposed(problem, start, layers)
    durations = np.ascontiguousarray(np.hstack(duration_blocks(problem, forward, extra, stage, exposed)))
    return ColumnSet(problem, start, layers, recompute, durations, group)


def columns_exposed(
    problem: PipelineProblem, start: NDArray[np.int64], layers: NDArray[np.integer], ordered: bool = True
) -> NDArray[np.float64] | None:
    """Exposed communication and times of pinned kinds of columns with layers [n, V, K], as in `exposed_times`; None
    where there are none.

    A column has all chunks of its stage, so it determines their paired layers. For columns with open order of kinds the
    least exposed communication is taken.
    """
    if problem.pairing is None and not problem.adds_pinned:
        return None
    parts = [
        exposed_of_stage(problem, s, layers[a:b].astype(np.int64), ordered)
        for s, (a, b) in enumerate(zip(start[:-1], start[1:], strict=True))
    ]
    return np.concatenate(parts, axis=1)


def _stage_columns(
    problem: PipelineProblem, tuples: StageTuples, s: int, alive: NDArray[np.float64], most: int, first_group: int
) -> tuple[NDArray[Any], ...]:
    """Layers, recompute, forward, added times of choices and group of one stage's columns."""
    V, K, M = problem.interleaves, len(problem.placed_kinds), len(problem.searched_modes)
    if not len(tuples.members):
        return (
            np.zeros((0, V, K), np.int16),
            np.zeros((0, V, M), np.int16),
            np.zeros((0, V)),
            np.zeros((3, 0, V)),
            np.zeros(0, np.int64),
        )
    widest = max(len(kind.choices) for row in tuples.types for kind in row)
    types = max(len(row) for row in tuples.types)
    extra = np.zeros((3, V, types, widest))
    activation = np.zeros((V, types, widest))
    sizes = np.zeros((V, types), dtype=np.int64)
    for v, row in enumerate(tuples.types):
        for t, kind in enumerate(row):
            n = sizes[v, t] = len(kind.choices)
            extra[:, v, t, :n], activation[v, t, :n] = kind.choices.extra, kind.choices.activation
    free = np.ascontiguousarray(tuples.free_mib)
    if problem.choices:
        need, free = resource_needs(problem, tuples, alive, s, (types, widest))
        owner, option, complete = undominated_choices(
            tuples.members, free, need, extra, sizes, MEMORY_TOLERANCE_MIB, most
        )
    else:
        owner, option, complete = minimal_choices(
            tuples.members, free, alive, extra[1], activation, sizes, MEMORY_TOLERANCE_MIB, most
        )
    if not complete:
        raise TooManyColumns(f"a stage has more than {most} configurations")
    layers = np.empty((len(owner), V, K), dtype=np.int16)
    recompute = np.empty((len(owner), V, M), dtype=np.int16)
    time = np.empty((3, len(owner), V))
    for v, row in enumerate(tuples.types):
        member, chosen = tuples.members[owner, v], option[:, v]
        layers[:, v] = np.array([kind.layers for kind in row])[member]
        table = np.zeros((len(row), widest, M), dtype=np.int16)
        for t, kind in enumerate(row):
            table[t, : len(kind.choices)] = kind.choices.recompute
        recompute[:, v] = table[member, chosen]
        time[:, :, v] = extra[:, v, member, chosen]
    return layers, recompute, tuples.forward[owner], time, owner + first_group


@compiled
def minimal_choices(  # type: ignore[no-untyped-def]
    members, free, alive, extra, activation, sizes, tolerance, most
):
    """Minimal recompute choices of every tuple that fit its memory.

    A choice is minimal when no chunk can take its next cheaper option. Once a chunk could, whatever the chunks behind
    it take, these are not enumerated: with many chunks most choices end early in this way. Two passes: count, then
    fill.

    Returns
    -------
    owner int64 [n], option int64 [n, V], whether all were listed (no more than `most`)
    """
    tuples, V = members.shape
    owner = np.zeros(0, dtype=np.int64)
    option = np.zeros((0, V), dtype=np.int64)
    at = np.zeros(V, dtype=np.int64)
    used = np.zeros((V + 1, alive.shape[0]))
    # Least and greatest memory of chunks v...
    least, greatest = np.zeros((V + 1, alive.shape[0])), np.zeros((V + 1, alive.shape[0]))
    for fill in range(2):
        found = 0
        for t in range(tuples):
            memory_ranges(members[t], alive, activation, sizes, least, greatest)
            v = 0
            at[0] = 0
            while v >= 0:
                kind = members[t, v]
                if at[v] >= sizes[v, kind]:
                    v = next_of(at, v - 1)
                    continue
                if not fits_memory(v, alive, activation[v, kind, at[v]], used, least, free[t], tolerance) or may_loosen(
                    members[t], at, v, alive, activation, used, greatest, free[t], tolerance
                ):
                    at[v] += 1
                    continue
                if v < V - 1:
                    v += 1
                    at[v] = 0
                    continue
                if fill == 1:
                    owner[found] = t
                    overwrite(option[found], at, V)
                found += 1
                if found > most:
                    return owner, option, False
                v = next_of(at, v - 1)
        if fill == 0:
            owner = np.zeros(found, dtype=np.int64)
            option = np.zeros((found, V), dtype=np.int64)
    return owner, option, True


@kernel_part
def next_of(at, v):  # type: ignore[no-untyped-def]
    """Go on to the next option of chunk v, where there is such a chunk; return v."""
    if v >= 0:
        at[v] += 1
    return v


@kernel_part
def memory_ranges(kinds, alive, activation, sizes, least, greatest):  # type: ignore[no-untyped-def]
    """Fill `least` and `greatest` float64 [V + 1, P]; options have falling memory."""
    for v in range(len(kinds) - 1, -1, -1):
        kind = kinds[v]
        for p in range(alive.shape[0]):
            least[v, p] = least[v + 1, p] + alive[p, v] * activation[v, kind, sizes[v, kind] - 1]
            greatest[v, p] = greatest[v + 1, p] + alive[p, v] * activation[v, kind, 0]


@kernel_part
def fits_memory(v, alive, kept, used, least, free, tolerance):  # type: ignore[no-untyped-def]
    """Add what chunk v keeps to `used`; return whether the chunks behind it can fit."""
    fits = True
    for p in range(alive.shape[0]):
        used[v + 1, p] = used[v, p] + alive[p, v] * kept
        if used[v + 1, p] + least[v + 1, p] > free[p] + tolerance:
            fits = False
    return fits


@kernel_part
def may_loosen(kinds, at, v, alive, activation, used, greatest, free, tolerance):  # type: ignore[no-untyped-def]
    """Return whether one of the chunks 0..v could take its next cheaper option, whatever those behind v take."""
    if at[v] == 0:  # without recompute here, the chunks before have the same free memory
        return False
    for w in range(v + 1):
        if at[w] == 0:
            continue
        looser = activation[w, kinds[w], at[w] - 1] - activation[w, kinds[w], at[w]]
        over = False
        for p in range(alive.shape[0]):
            if used[v + 1, p] + greatest[v + 1, p] + alive[p, w] * looser > free[p] + tolerance:
                over = True
                break
        if not over:
            return True
    return False
