"""A linear form inside HiGHS: solved as LP or MILP, grown by rows, stopped by Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable

import highspy
import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpOutcome, MilpStatus

_Model = highspy.HighsModelStatus
STATUS_OF_HIGHS = {
    _Model.kOptimal: MilpStatus.OPTIMAL,
    _Model.kInfeasible: MilpStatus.INFEASIBLE,
    # The step time is bounded from below, so the model is infeasible.
    _Model.kUnboundedOrInfeasible: MilpStatus.INFEASIBLE,
    _Model.kTimeLimit: MilpStatus.STOPPED,
    _Model.kIterationLimit: MilpStatus.STOPPED,
    _Model.kSolutionLimit: MilpStatus.STOPPED,
    _Model.kInterrupt: MilpStatus.STOPPED,
    _Model.kHighsInterrupt: MilpStatus.STOPPED,  # type: ignore[attr-defined]  # not in its stubs
}
"""HiGHS's model status as `MilpStatus`; any other one is a failure."""
LEAST_ERROR, USUAL_ERROR = 1e-9, 1e-6
"""Error of a MILP's rows that is allowed at first, and where HiGHS finds its own optimum off by a little more than that
and calls it an error: plans are rounded and checked exactly afterwards. The latter is HiGHS's default."""


class _SilentHighs(highspy.Highs):
    def __init__(self) -> None:
        highspy.Highs.__init__(self)

    def enableCallbacks(self) -> None:  # noqa: N802  # HiGHS's name; called during construction
        self.setOptionValue("log_to_console", False)
        highspy.Highs.enableCallbacks(self)


def silent_highs() -> highspy.Highs:
    """HiGHS without output: 1.16 prints its name when constructed, before an option can be set."""
    return _SilentHighs()


class HighsModel:
    """HiGHS loaded with a linear form.

    Parameters
    ----------
    relaxed : bool
        Drop integrality: every run is an LP, started from the last basis.
    presolve : bool
        Let HiGHS simplify a MILP before it searches; the optimum is the same without.
    """

    def __init__(
        self, form: LinearForm, *, relaxed: bool = False, seed: int = 0, threads: int = 1, presolve: bool = True
    ) -> None:
        self._columns = len(form.names)
        solver = self._solver = silent_highs()
        for option, value in (("random_seed", seed), ("threads", threads)):
            solver.setOptionValue(option, value)
        solver.addVars(self._columns, _finite(form.lower), _finite(form.upper))
        indices = np.arange(self._columns, dtype=np.int32)
        solver.changeColsCost(self._columns, indices, form.cost)
        if relaxed or not presolve:
            # With presolve an LP would not start from the last basis.
            solver.setOptionValue("presolve", "off")
        if not relaxed:
            whole = np.nonzero(form.integer)[0].astype(np.int32)
            solver.changeColsIntegrality(len(whole), whole, np.full(len(whole), highspy.HighsVarType.kInteger))
            solver.setOptionValue("mip_feasibility_tolerance", LEAST_ERROR)
            solver.setOptionValue("mip_abs_gap", 1e-9)
            solver.HandleUserInterrupt = True
        self.add_rows(form.rows)

    def add_rows(self, rows: list[Row]) -> None:
        """Append rows."""
        if not rows:
            return
        starts = np.cumsum([0, *(len(row.columns) for row in rows)])
        self._solver.addRows(
            len(rows),
            _finite(np.array([row.lower for row in rows])),
            _finite(np.array([row.upper for row in rows])),
            int(starts[-1]),
            starts[:-1].astype(np.int32),
            np.array([column for row in rows for column in row.columns], dtype=np.int32),
            np.array([value for row in rows for value in row.coefficients], dtype=np.float64),
        )

    def set_bounds(self, column: int, lower: float, upper: float) -> None:
        """Change the bounds of one column, from the next run on."""
        low, high = _finite(np.array([lower, upper]))
        self._solver.changeColBounds(column, float(low), float(high))

    def set_row_bounds(self, row: int, lower: float, upper: float) -> None:
        """Change the bounds of one row, from the next run on; rows are numbered in order of addition."""
        low, high = _finite(np.array([lower, upper]))
        self._solver.changeRowBounds(row, float(low), float(high))

    def set_costs(self, columns: Sequence[int], cost: float) -> None:
        """Change the cost of columns, from the next run on."""
        for column in columns:
            self._solver.changeColCost(column, cost)

    def solve_lp(self, time_limit: float | None = None) -> MilpOutcome:
        """Solve the relaxed model; `bound` is the optimum."""
        solver = self._solver
        # For LPs HiGHS counts the time of all runs of one object.
        self._limit_time(time_limit, solver.getRunTime())
        solver.run()
        if solver.getModelStatus() not in (_Model.kOptimal, _Model.kInfeasible, _Model.kTimeLimit):
            solver.clearSolver()
            solver.run()
        status = STATUS_OF_HIGHS.get(solver.getModelStatus(), MilpStatus.FAILED)
        if status is MilpStatus.INFEASIBLE:
            return MilpOutcome(status, None, float("inf"))
        if status is not MilpStatus.OPTIMAL:
            return MilpOutcome(status, None, float("-inf"))
        return MilpOutcome(status, self._values(), solver.getInfo().objective_function_value)

    def duals(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Reduced costs and dual values of the last LP, float64 [columns] and [rows]."""
        solution = self._solver.getSolution()
        return np.array(solution.col_dual), np.array(solution.row_dual)

    def solve_milp(
        self,
        *,
        gap: float,
        time_limit: float | None = None,
        node_limit: int | None = None,
        start: NDArray[np.float64] | None = None,
        on_point: Callable[[NDArray[np.float64]], None] | None = None,
        on_bound: Callable[[float], None] | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> MilpOutcome:
        """Solve the model as a MILP; see `MilpSolver`."""
        solver = self._solver
        solver.setOptionValue("mip_rel_gap", gap)
        if node_limit is not None:
            solver.setOptionValue("mip_max_nodes", min(node_limit, 2**31 - 1))
        # For MILPs it counts the present run alone.
        self._limit_time(time_limit, 0.0)
        if start is not None:
            point = highspy.HighsSolution()
            point.col_value = list(start)
            solver.setSolution(point)

        def report(event: highspy.highs.HighsCallbackEvent) -> None:
            if on_point is not None:
                on_point(np.array(event.data_out.mip_solution))

        def report_bound(event: highspy.highs.HighsCallbackEvent) -> None:
            if on_bound is not None and abs(event.data_out.mip_dual_bound) < highspy.kHighsInf:
                on_bound(event.data_out.mip_dual_bound)

        solver.cbMipImprovingSolution += report
        solver.cbMipLogging += report_bound
        began = time.monotonic()
        try:
            interrupted, stopped = self._run_interruptibly(enough)
            if solver.getModelStatus() == _Model.kSolveError:
                # Its own optimum is off by a little more than the error that it is allowed.
                solver.clearSolver()
                solver.setOptionValue("mip_feasibility_tolerance", USUAL_ERROR)
                self._limit_time(None if time_limit is None else time_limit - (time.monotonic() - began), 0.0)
                interrupted, stopped = self._run_interruptibly(enough)
        finally:
            solver.setOptionValue("mip_feasibility_tolerance", LEAST_ERROR)
            solver.cbMipImprovingSolution -= report
            solver.cbMipLogging -= report_bound
        info = solver.getInfo()
        interrupted = interrupted or (not stopped and solver.getModelStatus() == _Model.kInterrupt)
        status = STATUS_OF_HIGHS.get(solver.getModelStatus(), MilpStatus.FAILED)
        if status is MilpStatus.INFEASIBLE:
            return MilpOutcome(status, None, float("inf"))
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        bound = float("-inf") if status is MilpStatus.FAILED else info.mip_dual_bound
        return MilpOutcome(status, self._values() if found else None, bound, interrupted)

    def _run_interruptibly(self, enough: Callable[[], bool] | None) -> tuple[bool, bool]:
        """Run in a separate thread, so that Ctrl-C reaches this one; return whether it did, and whether `enough` ended
        it."""
        interrupted, stopped, done = False, False, False
        self._solver.startSolve()
        while not done:
            try:
                done, _ = self._solver.wait(0.1)
                if not done and not stopped and enough is not None and enough():
                    stopped = True
                    self._solver.cancelSolve()
            except KeyboardInterrupt:
                interrupted = True
                self._solver.cancelSolve()
        return interrupted, stopped

    def _values(self) -> NDArray[np.float64]:
        return np.array(self._solver.getSolution().col_value)

    def _limit_time(self, seconds: float | None, used: float) -> None:
        self._solver.setOptionValue("time_limit", float("inf") if seconds is None else used + max(seconds, 0.0))


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(values, -highspy.kHighsInf, highspy.kHighsInf)
