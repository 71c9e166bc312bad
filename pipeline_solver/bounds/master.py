"""The master LP: fractional columns, their task durations, and path cuts on the step time.

Columns λ, one unit of them a stage; layer totals by kind; the order of kinds along the model; task durations d = Σ
dur·λ as separate variables; and for each path found, counts·d + constant <= T.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.cut_pool import CutPool
from taylor.pipeline_solver.bounds.path_lp import INFINITY, NO_PHASES, LpResult, PathLp, Prices
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.columns.phases import Phases
from taylor.pipeline_solver.columns.splits import Split, StageSplits
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, BoundsParams
from taylor.pipeline_solver.timing.durations import schedule_of

_OrderRow = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], float, list[tuple[int, float]]]
"""Row numbers, columns and coefficients, the upper bound, and (switch, coefficient) of the switches in it."""


class Master(PathLp):
    """One LP for a whole solve: columns and cuts come and go, the basis stays warm."""

    probed = True
    """Classes of columns are worth probing (`probing`)."""
    quickness = 1
    """Number of simplex iterations that take as long as one here."""

    def __init__(
        self,
        columns: ColumnSet,
        active: NDArray[np.int64],
        pool: CutPool,
        params: BoundsParams = DEFAULT_PARAMS.bounds,
    ) -> None:
        problem = columns.problem
        super().__init__(problem, pool, params)
        self.improve_every, self.finalists = params.improve_every, params.finalists
        self.columns = columns
        schedule = schedule_of(problem)
        self.chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
        self.blocks = columns.durations.shape[1]
        self.classes = self.blocks * self.S
        self._build_matrix()
        self.rebuild(active)

    def _build_matrix(self) -> None:
        """The columns' coefficients in every base row (sparse [rows, columns]), and the rows' bounds."""
        columns, S = self.columns, self.S
        kinds = columns.problem.placed_kinds
        n = len(columns)
        every = np.arange(n)
        row, col, val = [columns.stage], [every], [np.ones(n)]
        lower, upper = [1.0] * S, [1.0] * S
        count = S
        for j, kind in enumerate(kinds):
            present = np.nonzero(columns.totals[:, j])[0]
            row.append(np.full(len(present), count))
            col.append(present)
            val.append(columns.totals[present, j].astype(float))
            lower.append(float(kind.count))
            upper.append(float(kind.count))
            count += 1
        self.duration_row = count
        for b in range(self.blocks):
            row.append(count + b * S + columns.stage)
            col.append(every)
            val.append(-columns.durations[:, b])
        count += self.classes
        lower += [0.0] * self.classes
        upper += [0.0] * self.classes
        self.switches: list[list[tuple[int, float]]] = []
        for rows, cols, values, bound, switches in self._order_rows(count):
            row.append(rows)
            col.append(cols)
            val.append(values)
            lower.append(-INFINITY)
            upper.append(bound)
            for switch, coefficient in switches:
                while len(self.switches) <= switch:
                    self.switches.append([])
                self.switches[switch].append((count, coefficient))
            count += 1
        self.phase_row = count
        if columns.phases is not None:
            for rows, cols, values in self._phase_rows(columns.phases, count):
                row.append(rows)
                col.append(cols)
                val.append(values)
            count += (columns.phases.period - 1) * (len(self.chunks) - 1)
            lower += [0.0] * (count - self.phase_row)
            upper += [0.0] * (count - self.phase_row)
        self.rows = count
        self.lower, self.upper = np.array(lower), np.array(upper)
        self.matrix = sparse.csc_matrix(
            (np.concatenate(val), (np.concatenate(row), np.concatenate(col))), shape=(count, n)
        )
        self.matrix.sum_duplicates()
        self.transposed = self.matrix.T.tocsr()

    def _order_rows(self, first: int) -> list[_OrderRow]:
        """Rows that keep kinds in order: after a chunk with a later kind, none has an earlier one.

        Between neighbours that is λ(later in k) + λ(earlier in k+1) <= 1. Where chunks may be empty a switch variable
        passes it on: λ(later in k) <= z_k <= z_{k+1}, λ(earlier in k+1) <= 1 - z_k.
        """
        columns = self.columns
        problem = columns.problem
        K = len(problem.placed_kinds)
        chunks = self.chunks
        by_stage = [np.arange(columns.start[s], columns.start[s + 1]) for s in range(self.S)]
        rows: list[_OrderRow] = []
        self.order_terms: list[tuple[int, int, tuple[int, int], bool]] = []
        if not columns.ordered:
            return rows
        count, switch = first, 0

        def holding(k: int, test: NDArray[np.bool_]) -> NDArray[np.int64]:
            v, s = chunks[k]
            found: NDArray[np.int64] = by_stage[s][test[by_stage[s], v]]
            return found

        for j in range(K - 1):
            late, early = columns.greatest_kind > j, columns.least_kind <= j
            reach = max((k for k in range(len(chunks)) if len(holding(k, early))), default=0)
            for k in range(reach):
                a, b = holding(k, late), holding(k + 1, early)
                if problem.min_layers >= 1:
                    if len(a) and len(b):
                        both = np.concatenate([a, b])
                        rows.append((np.full(len(both), count), both, np.ones(len(both)), 1.0, []))
                        self.order_terms += [(count, j, chunks[k], True), (count, j, chunks[k + 1], False)]
                        count += 1
                    continue
                none = np.zeros(0, dtype=np.int64)
                self.order_terms += [(count, j, chunks[k], True), (count + 1, j, chunks[k + 1], False)]
                for cols, bound, terms in (
                    (a, 0.0, [(switch, -1.0)]),
                    (b, 1.0, [(switch, 1.0)]),
                    (none, 0.0, [(switch, 1.0), (switch + 1, -1.0)] if k + 1 < reach else []),
                ):
                    if terms:
                        rows.append((np.full(len(cols), count), cols, np.ones(len(cols)), bound, terms))
                        count += 1
                switch += 1
        return rows

    def _phase_rows(
        self, phases: Phases, first: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
        """Row numbers, columns and coefficients: a chunk begins in the phase at which the previous chunk ended.

        A border's last phase needs no row.
        """
        start, last = self.columns.start, phases.period - 1
        chunks = self.chunks
        for k, (before, behind) in enumerate(zip(chunks[:-1], chunks[1:], strict=True)):
            for (v, s), of, sign in ((before, phases.end, 1.0), (behind, phases.begin, -1.0)):
                phase = of[start[s] : start[s + 1], v].astype(np.int64)
                rows = np.nonzero(phase < last)[0]
                yield first + k * last + phase[rows], start[s] + rows, np.full(len(rows), sign)

    def rebuild(self, active: NDArray[np.int64], partial: bool | None = None) -> None:
        """Build a new LP over the given columns with the cuts of the old one.

        With ``partial`` other columns may be allowed, too, and enter by reduced cost; by default so when columns are
        missing.
        """
        self.start()
        lp = self.lp
        lp.addVars(self.classes, np.zeros(self.classes), np.full(self.classes, INFINITY))
        empty_i, empty_f = np.zeros(0, dtype=np.int32), np.zeros(0)
        for r in range(self.rows):
            k = r - self.duration_row
            if 0 <= k < self.classes:
                lp.addRow(0.0, 0.0, 1, np.array([1 + k], dtype=np.int32), np.ones(1))
            else:
                lp.addRow(self.lower[r], self.upper[r], 0, empty_i, empty_f)
        first = 1 + self.classes
        for terms in self.switches:
            lp.addCol(
                0.0,
                0.0,
                1.0,
                len(terms),
                np.array([t[0] for t in terms], dtype=np.int32),
                np.array([t[1] for t in terms]),
            )
            first += 1
        self.partial = len(active) < len(self.columns) if partial is None else partial
        self.penalty = 0.0
        if self.partial:
            # Artificial columns keep the restricted LP feasible; their cost is above any step time.
            problem = self.columns.problem
            self.penalty = 4.0 * float(self.columns.work.max()) * problem.micro_batches * problem.stages
            for r in (*range(self.duration_row), *range(self.phase_row, self.rows)):
                for sign in (1.0, -1.0):
                    lp.addCol(self.penalty, 0.0, INFINITY, 1, np.array([r], dtype=np.int32), np.array([sign]))
                    first += 1
        self.first_column = first
        kept = self.kept
        self.active = np.zeros(0, dtype=np.int64)
        self.is_active = np.zeros(len(self.columns), dtype=bool)
        self.allowed = np.ones(len(self.columns), dtype=bool)
        self.add_columns(active)
        self.keep_again(kept)

    def add_columns(self, new: NDArray[np.int64]) -> None:
        """Let columns take part in the LP."""
        new = new[~self.is_active[new]]
        if not len(new):
            return
        part = self.matrix[:, new]
        top = np.where(self.allowed[new], INFINITY, 0.0)
        self.lp.addCols(
            len(new),
            np.zeros(len(new)),
            np.zeros(len(new)),
            top,
            part.nnz,
            part.indptr[:-1].astype(np.int32),
            part.indices.astype(np.int32),
            part.data,
        )
        self.active = np.concatenate([self.active, new])
        self.is_active[new] = True

    def cut_terms(self, counts: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64], float]:
        """The terms in the durations, which are separate variables."""
        used = np.nonzero(counts)[0]
        return 1 + used, counts[used], 0.0

    def allow(self, mask: NDArray[np.bool_]) -> None:
        """Allow only some columns (a node of the tree)."""
        self.allowed = mask
        indices = np.arange(self.first_column, self.first_column + len(self.active), dtype=np.int32)
        self.lp.changeColsBounds(
            len(indices), indices, np.zeros(len(indices)), np.where(mask[self.active], INFINITY, 0.0)
        )

    def solve(self, iteration_limit: int | None = None) -> LpResult:
        """Solve the LP over the active and allowed columns, and price the others."""
        lp = self.lp
        unsolved = self.unsolved(self.run(iteration_limit))
        if unsolved is not None:
            return unsolved
        solution = lp.getSolution()
        value = float(lp.getInfo().objective_function_value)
        weights = np.zeros(len(self.columns))
        weights[self.active] = np.array(solution.col_value)[self.first_column :]
        self.duals = np.array(solution.row_dual)[: self.rows]
        reduced = -(self.transposed @ self.duals)
        permitted = np.where(self.allowed, reduced, np.inf)
        least = np.minimum(np.minimum.reduceat(permitted, self.columns.start[:-1]), 0.0)
        bound = value + float(least.sum())
        entering = np.zeros(0, dtype=np.int64)
        if self.partial and bound < value - 1e-8 * abs(value):
            entering = self._entering(np.where(self.is_active, np.inf, permitted))
        return LpResult(bound, value, weights, reduced, least, entering)

    def _entering(self, reduced: NDArray[np.float64]) -> NDArray[np.int64]:
        parts = []
        for s in range(self.S):
            a, b = self.columns.start[s], self.columns.start[s + 1]
            part = reduced[a:b]
            k = min(self.params.priced_a_round, len(part)) - 1
            best = np.argpartition(part, k)[: k + 1]
            parts.append(a + best[part[best] < -1e-9 * self.penalty])
        return np.concatenate(parts)

    def prices(self) -> Prices:
        """The dual values of the last LP."""
        problem, S, V, y = self.columns.problem, self.S, self.columns.problem.interleaves, self.duals
        K = len(problem.placed_kinds)
        late, early = np.zeros((K - 1, V, S)), np.zeros((K - 1, V, S))
        for row, j, (v, s), is_late in self.order_terms:
            (late if is_late else early)[j, v, s] -= y[row]
        durations = y[self.duration_row : self.duration_row + self.classes]
        begin, end = self._phase_prices()
        return Prices(y[:S], -y[S : S + K], durations.reshape(-1, V, S), late, early, begin, end)

    def _phase_prices(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        phases = self.columns.phases
        if phases is None:
            return NO_PHASES, NO_PHASES
        begin = np.zeros((phases.period, self.columns.problem.interleaves, self.S))
        end = np.zeros_like(begin)
        chunks = self.chunks
        duals = self.duals[self.phase_row : self.rows].reshape(len(chunks) - 1, phases.period - 1)
        for dual, (v, s), (w, t) in zip(duals, chunks[:-1], chunks[1:], strict=True):
            end[:-1, v, s] = -dual
            begin[:-1, w, t] = dual
        return begin, end

    def durations(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Task durations of fractional columns, float64 [classes] (tails left out)."""
        used = np.nonzero(weights > 1e-12)[0]
        stage = self.columns.stage[used]
        parts = [
            np.bincount(stage, weights=weights[used] * self.columns.durations[used, b], minlength=self.S)
            for b in range(self.blocks)
        ]
        return np.concatenate(parts)

    @property
    def candidates(self) -> int:
        """Number of splits of a node that are tried."""
        return self.params.strong_candidates // 2 if self.partial else self.params.strong_candidates

    def ways(self, splits: StageSplits, result: LpResult, mask: NDArray[np.bool_]) -> tuple[list[Split], bool]:
        """Splits of the stages with fractional columns, and whether all stages are integral."""
        assert result.point is not None
        found = splits.ways(result.point, mask)
        return found, not found

    def chosen(self, result: LpResult, mask: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        """The integral columns of the LP, int64 [S]."""
        assert result.point is not None
        start = self.columns.start
        return np.array([a + int(np.argmax(result.point[a:b])) for a, b in zip(start[:-1], start[1:], strict=True)])
