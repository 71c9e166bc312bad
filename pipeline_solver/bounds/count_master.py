"""The LP over counts: the layers of each chunk and the recomputed ones, without a variable for each column.

Where the layers are of one kind, the times and memory of a chunk are linear in its counts. Then an LP whose variables
are the counts is a tenth as large as the one over columns and proves about as much. The columns that a node allows give
the ranges of the counts, and under the LP's dual values each stage's cheapest column gives the bound. It is never less
than the LP's value up to rounding, and it is valid whatever the LP left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import NONE
from taylor.pipeline_solver.bounds.cut_pool import CutPool
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.path_lp import INFINITY, LpResult, PathLp, Prices
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.splits import Split, StageSplits
from taylor.pipeline_solver.columns.stage_tuples import fixed_parts
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, BoundsParams
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.uniform_rule import counts_suffice
from taylor.pipeline_solver.timing.durations import duration_blocks, pinned_times, schedule_of, times_of

DECIDED = 1e-6
"""Distance from a whole number within which a count is one."""


def master_of(
    columns: ColumnSet, active: NDArray[np.int64], pool: CutPool, params: BoundsParams = DEFAULT_PARAMS.bounds
) -> Master | CountMaster:
    """The LP for a tree over some columns; `active` are the first ones of an LP over columns.

    Where all columns fit into an LP and some layers are recomputed, the LP over columns proves more: it has the
    possible recompute and layers of each stage.
    """
    if not params.count_lp or not counts_suffice(columns.problem):
        return Master(columns, active, pool, params)
    uniform = columns.problem.uniform_recompute
    few = len(columns) <= params.price_above and any(most for _, most in uniform)
    return Master(columns, active, pool, params) if few else CountMaster(columns, pool, params)


class CountMaster(PathLp):
    """The LP over counts of one kind's layers, x of them in a chunk and y = min(N, x) recomputed.

    N is the problem's one recompute choice, 0 without any. On a range of x the chord from end to end is the least y, so
    it is exact once a chunk is split at N.
    """

    half_way = True
    probed = False
    quickness = 6
    partial = False

    def __init__(self, columns: ColumnSet, pool: CutPool, params: BoundsParams = DEFAULT_PARAMS.bounds) -> None:
        problem = columns.problem
        super().__init__(problem, pool, params)
        self.improve_every, self.finalists = params.count_improve_every, params.count_finalists
        self.candidates = params.count_candidates
        self.columns = columns
        self.V = problem.interleaves
        chosen = [one for one in problem.uniform_recompute if one[1] and one[0] in problem.searched_modes]
        self.mode: str | None = chosen[0][0] if chosen else None
        self.most = chosen[0][1] if chosen else 0
        self.active = np.zeros(0, dtype=np.int64)
        self.chunk_layers = np.hstack([columns.layers[:, :, 0], columns.totals]).astype(np.int16)
        self.allowed: NDArray[np.bool_] | None = None
        self.empty = np.zeros(self.S, dtype=bool)
        self.slope, self.again, self.base = _times(problem, self.mode)
        self.cells = self.V * self.S
        self.levels = np.arange(int(self.chunk_layers[:, :-1].max(initial=0)) + 1)
        times = [of.reshape(-1, self.V, self.S, 1) for of in (self.base, self.slope, self.again)]
        self.level_times = times[0] + times[1] * self.levels + times[2] * np.minimum(self.levels, self.most)
        self.rebuild(self.active)

    def rebuild(self, active: NDArray[np.int64], partial: bool | None = None) -> None:
        """Rebuild the LP with the cuts that it had."""
        problem, cells = self.columns.problem, self.cells
        self.start()
        lp, kept = self.lp, self.kept
        count = cells * (2 if self.most else 1)
        lp.addVars(count, np.zeros(count), np.full(count, INFINITY))
        self.rows = 0
        every = np.arange(1, 1 + cells)
        total = float(problem.placed_kinds[0].count)
        self._row(total, total, every, np.ones(cells))
        for s in range(self.S):
            self._row(0.0, INFINITY, self._chunks(s), np.ones(self.V))
        for s, weights, again, free in _memory(problem, self.mode):
            columns = np.concatenate([self._chunks(s), cells + self._chunks(s)]) if self.most else self._chunks(s)
            self._row(-INFINITY, free, columns, np.concatenate([weights, again]) if self.most else weights)
        self.first_chord = self.rows
        if self.most:
            for k in range(cells):
                self._row(-INFINITY, 0.0, np.array([1 + cells + k, 1 + k]), np.array([1.0, -1.0]))
                self._row(-INFINITY, 0.0, np.array([1 + cells + k, 1 + k]), np.array([-1.0, 1.0]))
        self.keep_again(kept)
        self.low, self.high = (np.full((self.S, self.V + 1), -1) for _ in range(2))
        self.allow(np.ones(len(self.columns), dtype=bool))

    def _row(self, lower: float, upper: float, columns: NDArray[np.int64], coefficients: NDArray[np.float64]) -> None:
        self.lp.addRow(lower, upper, len(columns), columns.astype(np.int32), coefficients)
        self.rows += 1

    def _chunks(self, s: int) -> NDArray[np.int64]:
        """The variables of a stage's layer counts."""
        return 1 + s + self.S * np.arange(self.V)

    def add_columns(self, new: NDArray[np.int64]) -> None:
        """Do nothing: all columns take part already."""

    def cut_terms(self, counts: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """The terms in the counts."""
        tasks = counts.reshape(-1, self.cells)
        terms = [(tasks * of).sum(axis=0) for of in ((self.slope, self.again) if self.most else (self.slope,))]
        coefficients = np.concatenate(terms)
        used = np.nonzero(coefficients)[0]
        return 1 + used, coefficients[used], float((tasks * self.base).sum())

    def allow(self, mask: NDArray[np.bool_]) -> None:
        """Allow only some columns: their least and most layers bound chunks and stages."""
        self.allowed = mask.copy()
        low, high = present_ranges(self.chunk_layers, self.columns.start, mask)
        self.empty = low[:, -1] > high[:, -1]
        changed = ((low != self.low) | (high != self.high)) & ~self.empty[:, None]
        for s, v in np.argwhere(changed).tolist():
            self.low[s, v], self.high[s, v] = low[s, v], high[s, v]
            if v == self.V:
                self.lp.changeRowBounds(1 + s, float(low[s, v]), float(high[s, v]))
            else:
                self._range(v * self.S + s, int(low[s, v]), int(high[s, v]))

    def _range(self, cell: int, low: int, high: int) -> None:
        """Bound the layers of a chunk; `cell` is v · S + s."""
        lp = self.lp
        lp.changeColBounds(1 + cell, float(low), float(high))
        if not self.most:
            return
        y_low, y_high = min(low, self.most), min(high, self.most)
        lp.changeColBounds(1 + cell + self.cells, float(y_low), float(y_high))
        rise = (y_high - y_low) / max(high - low, 1)
        row = self.first_chord + 2 * cell + 1
        lp.changeCoeff(row, 1 + cell, rise)
        lp.changeRowBounds(row, -INFINITY, rise * low - y_low)

    def solve(self, iteration_limit: int | None = None) -> LpResult:
        """Solve the LP, and bound the step time by the allowed columns' costs under its dual values.

        An interrupted LP gives no column's cost.
        """
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
        # For a valid bound the paths' weights must be at least 0 and add up to 1, whatever the rounding in the LP.
        share = np.maximum(-duals[self.rows :], 0.0) * self.scale
        if share.sum() <= 0.0:
            return LpResult(-np.inf, -np.inf)
        share /= share.sum()
        used = np.nonzero(share)[0]
        cuts = np.array(self.kept, dtype=np.int64)[used]
        duration = share[used] @ self.pool.counts[cuts]
        layer = -duals[:1]
        columns, S = self.columns, self.S
        fixed = float(share[used] @ self.pool.constant[cuts]) - float(layer[0]) * columns.problem.placed_kinds[0].count
        by_level = (duration.reshape(-1, self.V, S, 1) * self.level_times).sum(axis=0) + layer[0] * self.levels
        every = iteration_limit is None
        costs, least = column_prices(self.chunk_layers, columns.start, allowed, by_level, every)
        bound = fixed + float(least.sum())
        # Any dual values of the stages serve that add up to the LP's value.
        stage = least + (value - bound) / S
        none = np.zeros((0, self.V, S))
        self.last_prices = Prices(stage, layer, duration.reshape(-1, self.V, S), none, none)
        reduced = costs - stage[columns.stage] if every else None
        return LpResult(bound, value, point, reduced, least - stage)

    def prices(self) -> Prices:
        """The dual values of the last LP."""
        return self.last_prices

    def durations(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Task durations at a point of the LP, float64 [classes] (tails left out)."""
        found = self.base + self.slope * point[: self.cells]
        if self.most:
            found = found + self.again * point[self.cells :]
        return found.reshape(-1)

    def ways(self, splits: StageSplits, result: LpResult, mask: NDArray[np.bool_]) -> tuple[list[Split], bool]:
        """Splits between whole counts, or at them where all are whole, and whether they are: even at whole counts the
        LP's value may be too low."""
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
        """Splits of chunks at the recompute count, where the chord is too low.

        Splits at the LP's counts keep ranges on both sides of the recompute count for long. On either side of it the
        chord is exact; and few layers in one chunk are many in others, so that side is soon ruled out.

        `short` float64 [V, S] is the number of recomputed layers by which the LP is below the true ones.
        """
        found = []
        start = self.columns.start
        for v, s in np.argwhere(short > DECIDED).tolist():
            members = start[s] + np.nonzero(mask[start[s] : start[s + 1]])[0]
            few = self.chunk_layers[members, v] < self.most
            if few.any() and not few.all():
                found.append(Split(float(short[v, s]), members[~few], members[few]))
        return found

    def chosen(self, result: LpResult, mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """The columns with the LP's counts, int64 [S]; None where one of them is not allowed."""
        assert result.point is not None
        layers = np.rint(result.point[: self.cells]).astype(np.int64).reshape(self.V, self.S)
        fits = mask & (self.chunk_layers[:, :-1] == layers.T[self.columns.stage]).all(axis=1)
        start = self.columns.start
        found = [a + np.nonzero(fits[a:b])[0][:1] for a, b in zip(start[:-1], start[1:], strict=True)]
        return np.concatenate(found) if all(len(rows) for rows in found) else None


@compiled
def present_ranges(layers, start, left):  # type: ignore[no-untyped-def]
    """Fewest and most layers of every chunk, and of the stage, among the remaining columns, int64 [S, V + 1] each.

    `layers` int16 [n, V + 1] are those of every column by chunk, and last their sum, `start` int64 [S + 1] the first
    column of each stage, `left` bool [n]. A stage without columns has a minimum above its maximum.
    """
    S, width = len(start) - 1, layers.shape[1]
    low, high = np.full((S, width), 32767), np.full((S, width), -1)
    for s in range(S):
        for i in range(start[s], start[s + 1]):
            if left[i]:
                for v in range(width):
                    low[s, v] = min(low[s, v], layers[i, v])
                    high[s, v] = max(high[s, v], layers[i, v])
    return low, high


@compiled
def column_prices(layers, start, left, by_level, every):  # type: ignore[no-untyped-def]
    """Costs of the columns float64 [n], and the least of each stage's remaining ones, float64 [S].

    `layers`, `start` and `left` as for `present_ranges`; `by_level` float64 [V, S, levels] is the cost of each number
    of layers in each chunk. Without `every` only the remaining columns are priced: the others cost nothing.
    """
    S, V = len(start) - 1, layers.shape[1] - 1
    costs, least = np.zeros(len(layers)), np.full(S, np.inf)
    for s in range(S):
        for i in range(start[s], start[s + 1]):
            if every or left[i]:
                for v in range(V):
                    costs[i] += by_level[v, s, layers[i, v]]
                if left[i] and costs[i] < least[s]:
                    least[s] = costs[i]
    return costs, least


def _times(
    problem: PipelineProblem, mode: str | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Time in each task of a layer, of its recompute, and of the fixed work, float64 [D, V · S] each."""
    schedule, shape = schedule_of(problem), (problem.interleaves, problem.stages)
    of = [problem.on_stage(s) for s in range(problem.stages)]
    kinds = [one.placed_kinds[0] for one in of]
    stage = np.arange(problem.stages)
    none = np.zeros((3, *shape))
    fixed = np.array([fixed_parts(problem, schedule, s, np.zeros((1, shape[0])))[1] for s in range(problem.stages)]).T
    extra = none
    if mode is not None:
        times = [times_of(one.choice_of(kind, mode)) for one, kind in zip(of, kinds, strict=True)]
        extra = np.array(times).T[:, None] * np.ones(shape)
    forward = np.array([kind.forward for kind in kinds]) * np.ones(shape)
    of_layer = duration_blocks(problem, forward, none, stage)
    of_again = duration_blocks(problem, np.zeros(shape), extra, stage)
    beside = np.stack([pinned_times(problem, s, 2) for s in range(problem.stages)], axis=2)
    of_fixed = duration_blocks(problem, fixed, none, stage, beside)
    slope, again, base = (np.array(blocks).reshape(len(blocks), -1) for blocks in (of_layer, of_again, of_fixed))
    return slope, again, base


def _memory(
    problem: PipelineProblem, mode: str | None
) -> list[tuple[int, NDArray[np.float64], NDArray[np.float64], float]]:
    """A row for each stage and alive vector: stage, MiB of a layer and of its recompute by virtual stage, free MiB."""
    schedule = schedule_of(problem)
    alive = alive_vectors(schedule)
    (kind,) = problem.placed_kinds
    kept = kind.activation_mib[NONE]
    saved = 0.0 if mode is None else kind.activation_mib[mode] - kept
    rows = []
    for s in range(problem.stages):
        free, _ = fixed_parts(problem, schedule, s, alive[s])
        for vector, left in zip(alive[s], free, strict=True):
            rows.append((s, kind.layer_mib + vector * kept, vector * saved, float(left) + MEMORY_TOLERANCE_MIB))
    return rows
