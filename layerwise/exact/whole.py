"""Whole layers in the relaxation: a MILP of few columns, for stages of several chunks with too many contents to list.

Layers of a chunk and choice are one whole number. The paths of each plan that is found are cuts of the next round. Its
optimum is the best plan where changes of layout cost nothing; else it is a bound, and its plans may be near it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.large import Assembled, Counts, LargeSearch
from taylor.layerwise.exact.relaxation import FIRST_TIME, Relaxed, cut_row, new_paths, relaxed_form
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpStatus

FIRST_NODES, MOST_NODES = 2000, 100_000
"""Nodes of the first round, of which a round that runs out of them leaves twice as many to the next; and of any."""
MOST_ROUNDS = 200
COARSEST = 1e-2
"""Gap of the first round, which only finds paths."""


class WholeLayers:
    """The MILP of one outer choice whose layers are of one kind.

    Parameters
    ----------
    large : LargeSearch
        Puts plans together, and keeps the best.
    """

    def __init__(self, problem: FixedProblem, graph: LaggedGraph, relaxed: Relaxed, large: LargeSearch) -> None:
        if len(problem.by_kind) != 1:
            raise ValueError("counts of layers determine no plan where layers of several kinds have an order")
        self.problem, self.graph, self.large = problem, graph, large
        self.bound = relaxed.bound
        self.known = {each.tobytes() for each in relaxed.cuts}
        form = relaxed_form(problem, graph, None)
        self.first_cell, self.cells_end = form.first_cell, form.count
        rows, S, C = list(form.rows), problem.stages, len(problem.strategies)
        self.levels = len(np.unique(problem.working)) > 1
        columns = form.count
        if self.levels:
            # What one layer holds while it runs: at least that of every choice that its stage takes at all.
            work, taken = form.count, form.count + S
            columns += S + S * C
            at = form.memory_rows
            for s in range(S):
                for row in rows[at : at + len(problem.free[s])]:
                    rows[at] = Row(row.name, (*row.columns, work + s), (*row.coefficients, 1.0), row.lower, row.upper)
                    at += 1
                for c in range(C):
                    mine, mark = self._cells(s, c), taken + s * C + c
                    most = -float(problem.layers)
                    rows.append(Row(f"taken_{s}_{c}", (mark, *mine), (most, *[1.0] * len(mine)), upper=0.0))
                    more = float(problem.working[c] - problem.working.min())
                    rows.append(Row(f"working_{s}_{c}", (work + s, mark), (1.0, -more), 0.0))
        rows += [cut_row(each, FIRST_TIME) for each in relaxed.cuts]
        cost, upper = np.zeros(columns), np.full(columns, np.inf)
        cost[0] = 1.0
        integer = np.zeros(columns, dtype=bool)
        integer[self.first_cell : self.cells_end] = True
        if self.levels:
            integer[form.count + S :] = True
            upper[form.count + S :] = 1.0
        names = tuple(f"x{each}" for each in range(columns))
        self.model = HighsModel(LinearForm(names, np.zeros(columns), upper, cost, integer, rows))
        self.columns = columns

    def _cells(self, stage: int, choice: int) -> tuple[int, ...]:
        V, C = self.problem.interleaves, len(self.problem.strategies)
        return tuple(self.first_cell + (stage * V + v) * C + choice for v in range(V))

    def solve(self, ceiling: float, gap: float, deadline: float, on_plan: Callable[[Assembled], None]) -> float:
        """Make the plan better until it is proven to a relative gap; no plan is shorter than what is returned, s.

        Parameters
        ----------
        ceiling : float
            Plans that take as long are of no interest.
        deadline : float
            A moment of `time.monotonic`.
        on_plan : callable
            Called with every plan that is the best so far.
        """
        self.model.set_bounds(0, 0.0, ceiling)
        nodes = FIRST_NODES
        for _ in range(MOST_ROUNDS):
            left = deadline - time.monotonic()
            least = min(self._best_step(), ceiling)
            if left <= 0 or self.bound >= least * (1 - gap):
                break
            open_gap = COARSEST if np.isinf(least) else (least - self.bound) / least / 10
            found = self.model.solve_milp(
                gap=min(COARSEST, max(gap / 4, open_gap)), time_limit=left, node_limit=nodes, start=self._start(),
                enough=lambda: self.bound >= ceiling * (1 - gap), on_bound=self._raise,
            )  # fmt: skip
            if found.interrupted:
                raise KeyboardInterrupt
            if found.status is MilpStatus.INFEASIBLE:
                self._raise(ceiling)
                break
            self._raise(found.bound)
            fresh = found.values is not None and self._taken(found.values, on_plan)
            if found.status is MilpStatus.STOPPED:
                nodes *= 2
            if nodes > MOST_NODES or (not fresh and found.status is not MilpStatus.STOPPED):
                break
        return self.bound

    def _taken(self, values: Array, on_plan: Callable[[Assembled], None]) -> bool:
        """Make a plan of a point, and cut both off by their longest paths; whether one of these was new."""
        before = self._best_step()
        plan = self._plan(values)
        if plan is not None and plan.step < before:
            on_plan(plan)
        return self._add_paths([values[FIRST_TIME : self.first_cell], *([] if plan is None else [plan.times])])

    def _raise(self, bound: float) -> None:
        if bound > self.bound:
            self.bound = bound

    def _best_step(self) -> float:
        return np.inf if self.large.best is None else self.large.best.step

    def _plan(self, values: Array) -> Assembled | None:
        """The plan of a point; None where rounding made it too large."""
        problem = self.problem
        cells = np.round(values[self.first_cell : self.cells_end]).astype(np.int16)
        counts: tuple[Counts, ...] = tuple(cells.reshape(problem.stages, problem.interleaves, -1))
        if not all(problem.fits(s, each) for s, each in enumerate(counts)):
            return None
        return self.large.keep(self.large.assembled(counts))

    def _add_paths(self, times: list[Array]) -> bool:
        """Cut off points by their longest paths; whether one of them was new."""
        rows = []
        for each in times:
            for path in new_paths(self.graph, each)[1]:
                if path.tobytes() not in self.known:
                    self.known.add(path.tobytes())
                    rows.append(cut_row(path, FIRST_TIME))
        self.model.add_rows(rows)
        return bool(rows)

    def _start(self) -> NDArray[np.float64] | None:
        """The best plan as a point; None without one."""
        best, problem = self.large.best, self.problem
        if best is None:
            return None
        point = np.zeros(self.columns)
        counts = np.array(best.counts, dtype=float)
        times = self._free_times(counts)
        point[0], point[FIRST_TIME : self.first_cell] = self.graph.step(times), times
        point[self.first_cell : self.cells_end] = counts.reshape(-1)
        if self.levels:
            S = problem.stages
            taken = counts.any(axis=1)
            more = problem.working - problem.working.min()
            point[self.cells_end : self.cells_end + S] = (taken * more).max(axis=1)
            point[self.cells_end + S :] = taken.reshape(-1)
        return point

    def _free_times(self, counts: Array) -> Array:
        """Times of counts [S, V, C] where changes of layout cost nothing, as the MILP has them."""
        problem, graph = self.problem, self.graph
        times = np.zeros(graph.classes)
        for k in range(problem.chunks):
            v, s = problem.schedule.chunk_at(k)
            times[graph.class_of(FORWARD, k)] = problem.end_forward[k] + counts[s, v] @ problem.forward
            times[graph.class_of(BACKWARD, k)] = problem.end_backward[k] + counts[s, v] @ problem.backward
            if k < problem.chunks - 1:
                times[graph.lag(k)] = problem.handover.min()
        for s in range(problem.stages):
            times[graph.tail(s)] = problem.end_tail[s] + (counts[s] @ problem.tail).sum()
        return times
