"""Any MILP solver that Pyomo finds, CBC among them, behind the compact MILP."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray
from pyomo.common.errors import ApplicationError
from pyomo.common.log import LoggingIntercept

from taylor.base.errors import InputError, OutsideProgramError
from taylor.base.near import near_names
from taylor.pipeline_solver.milp.cbc import cbc_path
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpOutcome, MilpSolver, MilpStatus

if TYPE_CHECKING:
    from taylor.pipeline_solver.milp.compact_model import CompactModel

GAP_OPTIONS = {
    "cbc": "ratio",
    "glpk": "mipgap",
    "gurobi": "MIPGap",
    "cplex": "mip_tolerances_mipgap",
    "scip": "limits/gap",
    "xpress": "miprelstop",
    "appsi_highs": "mip_rel_gap",
}
"""Option name of the relative gap, by solver. A solver that is not listed runs with its default."""

_Ended = pyo.TerminationCondition
STATUS_OF_PYOMO = {
    _Ended.optimal: MilpStatus.OPTIMAL,
    _Ended.infeasible: MilpStatus.INFEASIBLE,
    # The step time is bounded from below, so the model is infeasible.
    _Ended.infeasibleOrUnbounded: MilpStatus.INFEASIBLE,
    _Ended.error: MilpStatus.FAILED,
    _Ended.internalSolverError: MilpStatus.FAILED,
    _Ended.solverFailure: MilpStatus.FAILED,
    _Ended.licensingProblems: MilpStatus.FAILED,
    _Ended.invalidProblem: MilpStatus.FAILED,
}
"""Pyomo's termination condition as `MilpStatus`; any other one is a limit that stopped the solver."""

ALWAYS_THERE = ("HIGHS", "HIGHS-MILP")

KNOWN_SOLVERS = ("glpk", "gurobi", "cplex", "scip", "xpress", "mosek", "appsi_highs")
"""Solvers to suggest when the requested one is missing."""


def pyomo_solver_maker(name: str) -> Callable[[CompactModel], MilpSolver]:
    """A maker of solvers for the compact MILP.

    Raises
    ------
    InputError
        If Pyomo has no such solver, or cannot run it here; the message names those that it can.
    """
    factory = _factory(name)
    return lambda model: PyomoSolver(name.strip().lower(), factory, model)


class PyomoSolver:
    """A Pyomo solver, which reads the model again at every run."""

    def __init__(self, name: str, factory: Any, model: CompactModel) -> None:
        self._name, self._factory, self._model, self._pyomo = name, factory, model, _stated(model.form)
        self.add_rows(model.form.rows)

    def add_rows(self, rows: list[Row]) -> None:
        """Add rows to the Pyomo model."""
        x = self._pyomo.x
        for row in rows:
            body = pyo.quicksum(weight * x[c] for c, weight in zip(row.columns, row.coefficients, strict=True))
            if row.lower == row.upper:
                self._pyomo.rows.add(body == row.lower)
                continue
            if row.lower > -math.inf:
                self._pyomo.rows.add(body >= row.lower)
            if row.upper < math.inf:
                self._pyomo.rows.add(body <= row.upper)

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
        """Solve the present model; `node_limit`, `start` and the callbacks are ignored."""
        arguments: dict[str, Any] = {"load_solutions": False}
        if time_limit is not None:
            arguments["timelimit"] = max(1, math.ceil(time_limit))
        if self._name in GAP_OPTIONS:
            arguments["options"] = {GAP_OPTIONS[self._name]: gap}
        model = self._pyomo
        try:
            results = self._factory.solve(model, **arguments)
        except KeyboardInterrupt:
            return MilpOutcome(MilpStatus.STOPPED, None, -math.inf, interrupted=True)
        except (ApplicationError, RuntimeError, ValueError, OSError) as error:
            raise OutsideProgramError(f"solver {self._name} failed: {error}") from error
        status = STATUS_OF_PYOMO.get(results.solver.termination_condition, MilpStatus.STOPPED)
        if status is MilpStatus.INFEASIBLE:
            return MilpOutcome(status, None, math.inf)
        values = None
        if len(results.solution):
            model.solutions.load_from(results)
            values = np.array([entry.value or 0.0 for entry in model.x.values()])
        bound = self._bound(results, status is MilpStatus.OPTIMAL, values, gap)
        return MilpOutcome(status, values, -math.inf if status is MilpStatus.FAILED else bound)

    def _bound(self, results: Any, optimal: bool, values: NDArray[np.float64] | None, gap: float) -> float:
        value = math.inf if values is None else float(values[self._model.step_time])
        reported = results.problem.lower_bound
        # Pyomo reports CBC's objective as its bound where the log has none.
        if self._name != "cbc" and reported is not None and math.isfinite(float(reported)):
            return min(float(reported), value)
        return value - gap * abs(value) if optimal and values is not None else -math.inf


def _stated(form: LinearForm) -> Any:
    """Return a Pyomo model with a linear form's columns and objective, without rows."""
    model = pyo.ConcreteModel()
    kinds = [pyo.Integers if whole else pyo.Reals for whole in form.integer.tolist()]
    bounds = [
        (None if low == -math.inf else low, None if high == math.inf else high)
        for low, high in zip(form.lower.tolist(), form.upper.tolist(), strict=True)
    ]
    model.x = pyo.Var(range(len(kinds)), domain=lambda _, c: kinds[c], bounds=lambda _, c: bounds[c])
    model.step = pyo.Objective(
        expr=pyo.quicksum(weight * model.x[c] for c, weight in enumerate(form.cost.tolist()) if weight)
    )
    model.rows = pyo.ConstraintList()
    return model


def _factory(name: str) -> Any:
    wanted = name.strip().lower()
    executable = cbc_path() if wanted == "cbc" else None
    with LoggingIntercept(io.StringIO(), "pyomo"):  # Pyomo logs a traceback for every unknown name
        factory = pyo.SolverFactory(wanted, executable=executable) if executable else pyo.SolverFactory(wanted)
        found = _available(factory)
        usable = [] if found else [known for known in KNOWN_SOLVERS if _available(pyo.SolverFactory(known))]
    if not found and cbc_path():
        usable.insert(0, "CBC")
    with_cbc = " (pip install 'pulp[cbc]')" if wanted == "cbc" else ""
    if not found:
        raise InputError(
            "no such solver here",
            field="solver_name",
            value=name,
            cure=f"{_meant(name)}use one of {', '.join([*ALWAYS_THERE, *usable])}, or install it{with_cbc}",
        )
    return factory


def _meant(name: str) -> str:
    near = near_names(name, (*ALWAYS_THERE, "CBC", *KNOWN_SOLVERS), at_most=1)
    return f"did you mean {near[0]}? " if near else ""


def _available(factory: Any) -> bool:
    try:
        return bool(factory.available(exception_flag=False))
    except Exception:  # noqa: BLE001  (a Pyomo plug-in that fails on this call is not available)
        return False
