"""One content a stage: the plan of least step among those that are listed, by cuts of its paths."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.layerwise.exact.contents import Contents
from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.relaxation import TIGHT, cut_row
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpStatus

MOST_ROUNDS = 400
ROUNDING = 1e-7
"""Fraction of the step by which LPs may be wrong."""


@dataclass(frozen=True)
class Selection:
    """Result of the master.

    Parameters
    ----------
    bound : float
        No selection of the listed contents has a shorter step, s; inf where there is none below the cut-off.
    step : float
        Step of the best one, s; inf where there is none.
    chosen : int64 [S] or None
        Its content of every stage.
    cuts : tuple of float64 [classes]
        All paths known.
    """

    bound: float
    step: float
    chosen: NDArray[np.int64] | None
    cuts: tuple[Array, ...]


class Master:
    """The master of one list of contents."""

    def __init__(
        self, problem: FixedProblem, graph: LaggedGraph, contents: Sequence[Contents], cuts: Sequence[Array]
    ) -> None:
        self.problem, self.graph = problem, graph
        self.contents = list(contents)
        self.cuts = list(cuts)
        self.whole = [np.arange(len(each)) for each in contents]

    def times_of(self, chosen: NDArray[np.int64]) -> Array:
        """Times of one content a stage, float64 [classes]."""
        problem, graph = self.problem, self.graph
        times = np.zeros(graph.classes)
        for s, (part, at) in enumerate(zip(self.contents, chosen, strict=True)):
            for number, value in zip(graph.classes_of(s), part.times[at], strict=True):
                times[number] = value
            for v in range(problem.interleaves):
                k = problem.schedule.position(v, s)
                if k < problem.chunks - 1:
                    times[graph.lag(k)] = problem.handover[part.departure[at, v]]
        return times

    def _form(self, ceiling: float) -> LinearForm:
        """The master as arrays: the step, the classes' times, then the contents."""
        problem, graph = self.problem, self.graph
        first = 1 + graph.classes
        starts = first + np.cumsum([0, *(len(part) for part in self.contents)])
        # The layers of every stage and kind are variables of their own, for the solver to branch on; then, of every
        # chunk and kind but the last, whether a later kind has begun by then.
        number, K = int(starts[-1]), len(problem.by_kind)
        begun = number + problem.stages * K
        count = begun + problem.chunks * (K - 1)
        columns = [list(range(a, b)) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
        rows: list[Row] = []
        for s, (part, mine) in enumerate(zip(self.contents, columns, strict=True)):
            rows.append(Row(f"stage_{s}", tuple(mine), (1.0,) * len(mine), 1.0, 1.0))
            for k, layers in enumerate(part.by_kind.T.astype(float).tolist()):
                rows.append(Row(f"stage_{s}_{k}", (number + s * K + k, *mine), (-1.0, *layers), 0.0, 0.0))
            rows += self._order_rows(part, s, mine, begun)
        for k, total in enumerate(problem.by_kind):
            of_kind = tuple(number + s * K + k for s in range(problem.stages))
            rows.append(Row(f"layers_{k}", of_kind, (1.0,) * problem.stages, total, total))
        rows += self._time_rows(columns)
        rows += self._flow_rows(columns)
        rows += [cut_row(each, 1) for each in self.cuts]
        upper = np.full(count, np.inf)
        upper[0] = ceiling
        upper[first:number] = 1.0
        upper[number:begun] = problem.layers
        upper[begun:] = 1.0
        cost = np.zeros(count)
        cost[0] = 1.0
        integer = np.zeros(count, dtype=bool)
        integer[first:] = True
        return LinearForm(tuple(f"x{k}" for k in range(count)), np.zeros(count), upper, cost, integer, rows)

    def _time_rows(self, columns: Sequence[list[int]]) -> list[Row]:
        """The time of a class is that of its stage's content, the lag of a boundary that of its departure."""
        problem, graph = self.problem, self.graph
        parts: list[tuple[list[int], list[float]]] = [([1 + k], [1.0]) for k in range(graph.classes)]
        for s, (part, mine) in enumerate(zip(self.contents, columns, strict=True)):
            for k, times in zip(graph.classes_of(s), part.times.T, strict=True):
                parts[k][0].extend(mine)
                parts[k][1].extend((-times).tolist())
            for v in range(problem.interleaves):
                k = problem.schedule.position(v, s)
                if k < problem.chunks - 1:
                    parts[graph.lag(k)][0].extend(mine)
                    parts[graph.lag(k)][1].extend((-problem.handover[part.departure[:, v]]).tolist())
        return [Row(f"time_{k}", tuple(a), tuple(b), 0.0, 0.0) for k, (a, b) in enumerate(parts)]

    def _flow_rows(self, columns: Sequence[list[int]]) -> list[Row]:
        """A chunk begins with the layout that the chunk before it ends with."""
        problem = self.problem
        flow: dict[tuple[int, int], dict[int, float]] = {}
        for s, part in enumerate(self.contents if len(problem.handover) > 1 else ()):
            for v in range(problem.interleaves):
                k = problem.schedule.position(v, s)
                for boundary, layouts, sign in ((k, part.departure[:, v], 1.0), (k - 1, part.arrival[:, v], -1.0)):
                    if 0 <= boundary < problem.chunks - 1:
                        for column, layout in zip(columns[s], layouts.tolist(), strict=True):
                            row = flow.setdefault((boundary, layout), {})
                            row[column] = row.get(column, 0.0) + sign
        kept = {key: {column: sign for column, sign in row.items() if sign} for key, row in flow.items()}
        return [Row(f"flow_{b}_{y}", tuple(row), tuple(row.values()), 0.0, 0.0) for (b, y), row in kept.items()]

    def _order_rows(self, part: Contents, stage: int, columns: list[int], begun: int) -> list[Row]:
        """No layer of a kind stands behind one of a later kind."""
        problem, K = self.problem, len(self.problem.by_kind)
        rows = []
        for v in range(problem.interleaves if K > 1 else 0):
            k = problem.schedule.position(v, stage)
            has = part.by_chunk[:, v] > 0
            for j in range(K - 1):
                mark = begun + k * (K - 1) + j
                later = [columns[i] for i in np.nonzero(has[:, j + 1 :].any(axis=1))[0]]
                rows.append(Row(f"later_{k}_{j}", (mark, *later), (-1.0, *[1.0] * len(later)), upper=0.0))
                if k:
                    sooner = [columns[i] for i in np.nonzero(has[:, : j + 1].any(axis=1))[0]]
                    values = (1.0, *[1.0] * len(sooner))
                    rows.append(Row(f"sooner_{k}_{j}", (mark - (K - 1), *sooner), values, upper=1.0))
        return rows

    def _marks(self, chosen: NDArray[np.int64]) -> list[float]:
        """Layers of every stage and kind, and which later kinds have begun by every chunk, of one selection."""
        problem, K = self.problem, len(self.problem.by_kind)
        layers = [float(n) for part, at in zip(self.contents, chosen, strict=True) for n in part.by_kind[at]]
        marks = []
        for k in range(problem.chunks):
            v, s = problem.schedule.chunk_at(k)
            has = self.contents[s].by_chunk[chosen[s], v] > 0
            marks += [float(has[j + 1 :].any()) for j in range(K - 1)]
        return layers + marks

    def solve(self, ceiling: float, gap: float, deadline: float | None) -> Selection:
        """The best selection whose step is at most `ceiling`, to a relative gap."""
        bound = self._reduce(ceiling, deadline)
        if not np.isfinite(bound) or min(map(len, self.contents)) == 0:
            return Selection(np.inf, np.inf, None, tuple(self.cuts))
        form = self._form(ceiling * (1 + ROUNDING) if np.isfinite(ceiling) else np.inf)
        first = 1 + self.graph.classes
        starts = first + np.cumsum([0, *(len(part) for part in self.contents)])
        model = HighsModel(form)
        best, best_step = None, np.inf
        for _ in range(MOST_ROUNDS):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.05)
            start = None
            if best is not None:
                start = np.zeros(len(form.names))
                start[starts[:-1] + best] = 1.0
                times = self.times_of(best)
                start[0], start[1:first] = best_step, times
                start[starts[-1] :] = self._marks(best)
            found = model.solve_milp(gap=min(gap / 4, 1e-4), time_limit=left, start=start)
            if found.interrupted:
                raise KeyboardInterrupt
            if found.status is MilpStatus.INFEASIBLE:
                bound = np.inf
                break
            if np.isfinite(found.bound):
                bound = max(bound, found.bound)
            if found.values is None:
                break
            weights = found.values[first:]
            chosen = np.array(
                [int(np.argmax(weights[a - first : b - first])) for a, b in zip(starts[:-1], starts[1:], strict=True)]
            )
            times = self.times_of(chosen)
            step, counts = self.graph.path(times)
            if step < best_step:
                best, best_step = chosen, step
            if best_step * (1 - gap) <= bound or found.status is MilpStatus.STOPPED:
                break
            new = [counts]
            other = self.graph.path(times, 1)[1]
            if not np.array_equal(other, counts):
                new.append(other)
            self.cuts += new
            model.add_rows([cut_row(each, 1) for each in new])
        chosen_all = None if best is None else np.array([w[i] for w, i in zip(self.whole, best, strict=True)])
        return Selection(min(bound, best_step), best_step, chosen_all, tuple(self.cuts))

    def _reduce(self, ceiling: float, deadline: float | None) -> float:
        """The LP's bound, all its paths known; contents that no plan under the ceiling can have are dropped."""
        if min(map(len, self.contents)) == 0:
            return np.inf
        form = self._form(np.inf)
        model = HighsModel(form, relaxed=True)
        first = 1 + self.graph.classes
        bound = 0.0
        for _ in range(MOST_ROUNDS):
            found = model.solve_lp()
            if found.status is MilpStatus.INFEASIBLE:
                return np.inf
            if found.status is not MilpStatus.OPTIMAL or found.values is None:
                return bound
            bound = found.bound
            if deadline is not None and time.monotonic() > deadline:
                return bound
            times = found.values[1:first]
            step, counts = self.graph.path(times)
            if step <= bound * (1 + TIGHT):
                break
            self.cuts.append(counts)
            model.add_rows([cut_row(counts, 1)])
        if np.isfinite(ceiling):
            reduced, _ = model.duals()
            at = first
            kept_parts, whole = [], []
            for part, numbers in zip(self.contents, self.whole, strict=True):
                kept = bound + reduced[at : at + len(part)] <= ceiling * (1 + ROUNDING)
                at += len(part)
                kept_parts.append(part.take(kept))
                whole.append(numbers[kept])
            self.contents, self.whole = kept_parts, whole
        return bound
