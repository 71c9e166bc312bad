"""The LP over counts: how many layers each chunk holds and recomputes, without a variable for each configuration.

Where the layers are of one kind, the times of a chunk are linear in its counts, and so is the memory. Then an LP whose
variables are the counts is a tenth as large as the one over configurations and proves about as much. The configurations
that a node allows give it the ranges of the counts, and under its prices each stage's cheapest one gives the bound:
that is never less than the LP's own value up to rounding, and it holds whatever the LP left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import NONE
from taylor.pipeline_solver.columns import ColumnSet
from taylor.pipeline_solver.cut_pool import CutPool
from taylor.pipeline_solver.durations import duration_blocks, schedule_of, times_of
from taylor.pipeline_solver.master import Master
from taylor.pipeline_solver.path_lp import INFINITY, LpResult, PathLp, Prices
from taylor.pipeline_solver.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.splits import Split, StageSplits
from taylor.pipeline_solver.stage_tuples import fixed_parts

DECIDED = 1e-6
"""Distance from a whole number within which a count is one."""


def counts_tell(problem: PipelineProblem) -> bool:
    """Whether the LP over counts can stand for a problem: layers of one kind, and nothing to choose but counts."""
    settled = not problem.searched_modes or len(problem.uniform_recompute) == 1
    return len(problem.placed_kinds) == 1 and not problem.choices and settled


def master_of(columns: ColumnSet, active: NDArray[np.int64], pool: CutPool) -> Master | CountMaster:
    """The LP for a tree over some columns, `active` those that it starts with where it holds them one by one."""
    return CountMaster(columns, pool) if counts_tell(columns.problem) else Master(columns, active, pool)


class CountMaster(PathLp):
    """The LP over counts of one kind's layers, x of them in a chunk and y = min(N, x) recomputed.

    N is that of the problem's one recompute choice, 0 without any. On a range of x the chord from end to end is the
    least that y may be, so it is exact once a chunk is split at N.
    """

    half_way = True
    probed = False
    quickness = 6
    improve_every = 48
    candidates, finalists = 16, 4
    partial = False

    def __init__(self, columns: ColumnSet, pool: CutPool) -> None:
        problem = columns.problem
        super().__init__(problem, pool)
        self.columns = columns
        self.V = problem.interleaves
        chosen = [one for one in problem.uniform_recompute if one[1] and one[0] in problem.searched_modes]
        self.mode: str | None = chosen[0][0] if chosen else None
        self.most = chosen[0][1] if chosen else 0
        self.active = np.zeros(0, dtype=np.int64)
        self.held_layers = np.hstack([columns.layers[:, :, 0].astype(np.int64), columns.totals])
        self.allowed: NDArray[np.bool_] | None = None
        self.empty = np.zeros(self.S, dtype=bool)
        self.slope, self.again, self.base = _times(problem, self.mode)
        self.cells = self.V * self.S
        self.rebuild(self.active)

    def rebuild(self, active: NDArray[np.int64], partial: bool | None = None) -> None:
        """Start afresh with the cuts that the LP held."""
        problem, cells = self.columns.problem, self.cells
        self.start()
        lp, held = self.lp, self.held
        count = cells * (2 if self.most else 1)
        lp.addVars(count, np.zeros(count), np.full(count, INFINITY))
        self.rows = 0
        every = np.arange(1, 1 + cells)
        total = float(problem.placed_kinds[0].count)
        self._row(total, total, every, np.ones(cells))
        for s in range(self.S):
            self._row(0.0, INFINITY, self._chunks(s), np.ones(self.V))
        for s, weights, again, room in _memory(problem, self.mode):
            columns = np.concatenate([self._chunks(s), cells + self._chunks(s)]) if self.most else self._chunks(s)
            self._row(-INFINITY, room, columns, np.concatenate([weights, again]) if self.most else weights)
        self.first_chord = self.rows
        if self.most:
            for k in range(cells):
                self._row(-INFINITY, 0.0, np.array([1 + cells + k, 1 + k]), np.array([1.0, -1.0]))
                self._row(-INFINITY, 0.0, np.array([1 + cells + k, 1 + k]), np.array([-1.0, 1.0]))
        self.hold_again(held)
        self.allowed = None
        self.allow(np.ones(len(self.columns), dtype=bool))

    def _row(self, lower: float, upper: float, columns: NDArray[np.int64], coefficients: NDArray[np.float64]) -> None:
        self.lp.addRow(lower, upper, len(columns), columns.astype(np.int32), coefficients)
        self.rows += 1

    def _chunks(self, s: int) -> NDArray[np.int64]:
        """The variables of a stage's layer counts."""
        return 1 + s + self.S * np.arange(self.V)

    def add_columns(self, new: NDArray[np.int64]) -> None:
        """All columns take part as it is."""

    def cut_terms(self, counts: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """Of the counts."""
        tasks = counts.reshape(-1, self.cells)
        terms = [(tasks * of).sum(axis=0) for of in ((self.slope, self.again) if self.most else (self.slope,))]
        coefficients = np.concatenate(terms)
        used = np.nonzero(coefficients)[0]
        return 1 + used, coefficients[used], float((tasks * self.base).sum())

    def allow(self, mask: NDArray[np.bool_]) -> None:
        """Permit only some columns: chunks and stages hold no fewer and no more layers than these."""
        start = self.columns.start
        changed = np.unique(self.columns.stage[mask != self.allowed]) if self.allowed is not None else range(self.S)
        self.allowed = mask.copy()
        for s in changed:
            held = self.held_layers[start[s] : start[s + 1]][mask[start[s] : start[s + 1]]]
            self.empty[s] = not len(held)
            if len(held):
                self._range(int(s), held.min(axis=0).astype(float), held.max(axis=0).astype(float))

    def _range(self, s: int, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        """Let a stage's chunks and, last, the stage hold no fewer and no more layers than these, float64 [V + 1]."""
        lp, x = self.lp, self._chunks(s).astype(np.int32)
        lp.changeRowBounds(1 + s, low[-1], high[-1])
        low, high = low[:-1], high[:-1]
        lp.changeColsBounds(self.V, x, low, high)
        if not self.most:
            return
        y_low, y_high = np.minimum(low, self.most), np.minimum(high, self.most)
        lp.changeColsBounds(self.V, x + self.cells, y_low, y_high)
        rise = (y_high - y_low) / np.maximum(high - low, 1.0)
        for v in range(self.V):
            row = self.first_chord + 2 * int(x[v] - 1) + 1
            lp.changeCoeff(row, int(x[v]), rise[v])
            lp.changeRowBounds(row, -INFINITY, rise[v] * low[v] - y_low[v])

    def solve(self, iteration_limit: int | None = None) -> LpResult:
        """Solve the LP, and bound the step time by the allowed columns' costs under its prices."""
        allowed = self.allowed
        if allowed is None:
            raise RuntimeError("allow must be called before solve")
        if self.empty.any():
            return LpResult(np.inf, np.inf)
        unsolved = self.unsolved(self.run(iteration_limit))
        if unsolved is not None:
            return unsolved
        solution = self.lp.getSolution()
        value = float(self.lp.getInfo().objective_function_value)
        point = np.array(solution.col_value)[1:]
        duals = np.array(solution.row_dual)
        # Of a true bound the paths' shares are none below 0 and add up to 1, whatever the rounding in the LP.
        share = np.maximum(-duals[self.rows :], 0.0) * self.scale
        if share.sum() <= 0.0:
            return LpResult(-np.inf, -np.inf)
        share /= share.sum()
        used = np.nonzero(share)[0]
        cuts = np.array(self.held, dtype=np.int64)[used]
        duration = share[used] @ self.pool.counts[cuts]
        layer = -duals[:1]
        columns, S, start = self.columns, self.S, self.columns.start
        fixed = float(share[used] @ self.pool.constant[cuts]) - float(layer[0]) * columns.problem.placed_kinds[0].count
        by_stage = duration.reshape(-1, S)
        costs = layer[0] * columns.totals[:, 0]
        for s in range(S):
            costs[start[s] : start[s + 1]] += columns.durations[start[s] : start[s + 1]] @ by_stage[:, s]
        least = np.minimum.reduceat(np.where(allowed, costs, np.inf), start[:-1])
        bound = fixed + float(least.sum())
        # Any prices of the stages serve that make up the LP's value together.
        stage = least + (value - bound) / S
        none = np.zeros((0, self.V, S))
        self.last_prices = Prices(stage, layer, duration.reshape(-1, self.V, S), none, none)
        return LpResult(bound, value, point, costs - stage[columns.stage], least - stage)

    def prices(self) -> Prices:
        """The duals of the last LP."""
        return self.last_prices

    def durations(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Task durations at a point of the LP, float64 [classes] (tails left out)."""
        found = self.base + self.slope * point[: self.cells]
        if self.most:
            found = found + self.again * point[self.cells :]
        return found.reshape(-1)

    def ways(self, splits: StageSplits, result: LpResult, mask: NDArray[np.bool_]) -> tuple[list[Split], bool]:
        """Splits between whole counts, or at them where all are whole, and whether they are: what the LP says of whole
        counts may still be too low."""
        assert result.point is not None
        layers = result.point[: self.cells].reshape(self.V, self.S)
        near = np.rint(layers)
        layers = np.where(np.abs(layers - near) <= DECIDED, near, layers)
        again = result.point[self.cells :].reshape(self.V, self.S) if self.most else np.zeros_like(layers)
        shape = (-1, self.V, self.S)
        time = self.base.reshape(shape) + self.slope.reshape(shape) * layers + self.again.reshape(shape) * again
        found, decided = splits.between(layers, time, mask)
        known = {split.below.tobytes() for split in found}
        further = self._at_the_count(np.minimum(layers, self.most) - again, mask)
        return [*found, *(split for split in further if split.below.tobytes() not in known)], decided

    def _at_the_count(self, short: NDArray[np.float64], mask: NDArray[np.bool_]) -> list[Split]:
        """Splits of chunks between fewer layers than are recomputed and more, where the chord says too little.

        Splits at the LP's own counts leave the range of a chunk on both sides of that count for long. On either side of
        it the chord is exact; and few layers in one chunk are many in others, so that side is soon ruled out.

        `short` float64 [V, S] is by how many recomputed layers the LP is below the true ones.
        """
        found = []
        start = self.columns.start
        for v, s in np.argwhere(short > DECIDED).tolist():
            members = start[s] + np.nonzero(mask[start[s] : start[s + 1]])[0]
            few = self.held_layers[members, v] < self.most
            if few.any() and not few.all():
                found.append(Split(float(short[v, s]), members[~few], members[few]))
        return found

    def chosen(self, result: LpResult, mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """The columns that hold the LP's counts, int64 [S]; None where one of them is not allowed."""
        assert result.point is not None
        layers = np.rint(result.point[: self.cells]).astype(np.int64).reshape(self.V, self.S)
        fits = mask & (self.held_layers[:, :-1] == layers.T[self.columns.stage]).all(axis=1)
        start = self.columns.start
        found = [a + np.nonzero(fits[a:b])[0][:1] for a, b in zip(start[:-1], start[1:], strict=True)]
        return np.concatenate(found) if all(len(rows) for rows in found) else None


def _times(
    problem: PipelineProblem, mode: str | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """What a layer, a recomputed one, and what is fixed, add to each task's time, float64 [D, V · S] each."""
    schedule, shape = schedule_of(problem), (problem.interleaves, problem.stages)
    (kind,) = problem.placed_kinds
    pace = np.array(problem.pace)
    none = np.zeros((3, *shape))
    fixed = np.array([fixed_parts(problem, schedule, s, np.zeros((1, shape[0])))[1] for s in range(problem.stages)]).T
    extra = none
    if mode is not None:
        extra = times_of(problem.choice_of(kind, mode))[:, None, None] * np.ones(shape)
    of_layer = duration_blocks(problem, np.full(shape, kind.forward), none, pace)
    of_again = duration_blocks(problem, np.zeros(shape), extra, pace)
    of_fixed = duration_blocks(problem, fixed, none, pace)
    slope, again, base = (np.array(blocks).reshape(len(blocks), -1) for blocks in (of_layer, of_again, of_fixed))
    return slope, again, base


def _memory(
    problem: PipelineProblem, mode: str | None
) -> list[tuple[int, NDArray[np.float64], NDArray[np.float64], float]]:
    """A row for each stage and alive vector: stage, MiB of a layer and what recompute adds by interleave, room."""
    schedule = schedule_of(problem)
    alive = alive_vectors(schedule)
    (kind,) = problem.placed_kinds
    kept = kind.activation_mib[NONE]
    saved = 0.0 if mode is None else kind.activation_mib[mode] - kept
    rows = []
    for s in range(problem.stages):
        room, _ = fixed_parts(problem, schedule, s, alive[s])
        for vector, left in zip(alive[s], room, strict=True):
            rows.append((s, kind.layer_mib + vector * kept, vector * saved, float(left) + MEMORY_TOLERANCE_MIB))
    return rows
