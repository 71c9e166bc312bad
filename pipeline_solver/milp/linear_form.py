"""A Pyomo model as plain arrays, for HiGHS in memory and for MPS files with the names kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.base.files import write_atomic
from taylor.pipeline_solver.model.stopping import Stopper

INFINITY = float("inf")


@dataclass(frozen=True)
class Row:
    """One linear row, lower <= Σ coefficient · column <= upper."""

    name: str
    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    lower: float = -INFINITY
    upper: float = INFINITY


@dataclass(frozen=True)
class LinearForm:
    """A mixed-integer linear program to minimise.

    Parameters
    ----------
    names : tuple of str [n]
    lower, upper, cost : float64 [n]
    integer : bool [n]
    rows : list of Row
    variables : tuple of pyomo variable [n]
        The variable behind each column.
    """

    names: tuple[str, ...]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    cost: NDArray[np.float64]
    integer: NDArray[np.bool_]
    rows: list[Row]
    variables: tuple[Any, ...] = field(default=(), repr=False)

    def column(self, variable: Any) -> int:
        """The column of a Pyomo variable."""
        return self._columns[id(variable)]

    @cached_property
    def _columns(self) -> dict[int, int]:
        return {id(variable): index for index, variable in enumerate(self.variables)}

    def load(self, values: NDArray[np.float64]) -> None:
        """Set the Pyomo variables to the columns' values."""
        for variable, value in zip(self.variables, values.tolist(), strict=True):
            variable.set_value(value, skip_validation=True)

    def values(self) -> NDArray[np.float64]:
        """The Pyomo variables' present values, float64 [n]; 0 where a variable has none."""
        return np.array([variable.value or 0.0 for variable in self.variables])


def linear_form(model: Any, objective: Any, stopper: Stopper | None = None) -> LinearForm:
    """Read a linear Pyomo model.

    Parameters
    ----------
    model : pyomo ConcreteModel
    objective : pyomo variable
        The variable to minimise.
    stopper : Stopper, optional
        Checked at every row.
    """
    import pyomo.environ as pyo
    from pyomo.repn import generate_standard_repn

    variables = tuple(model.component_data_objects(pyo.Var, active=True))
    column = {id(variable): index for index, variable in enumerate(variables)}
    rows = []
    for constraint in model.component_data_objects(pyo.Constraint, active=True):
        if stopper is not None:
            stopper.check()
        found = generate_standard_repn(constraint.body, compute_values=True)
        lower = pyo.value(constraint.lower) if constraint.has_lb() else -INFINITY
        upper = pyo.value(constraint.upper) if constraint.has_ub() else INFINITY
        rows.append(
            Row(
                constraint.name,
                tuple(column[id(variable)] for variable in found.linear_vars),
                tuple(map(float, found.linear_coefs)),
                float(lower) - float(found.constant),
                float(upper) - float(found.constant),
            )
        )
    cost = np.zeros(len(variables))
    cost[column[id(objective)]] = 1.0
    return LinearForm(
        tuple(variable.name for variable in variables),
        np.array([-INFINITY if variable.lb is None else variable.lb for variable in variables], dtype=float),
        np.array([INFINITY if variable.ub is None else variable.ub for variable in variables], dtype=float),
        cost,
        np.array([not variable.is_continuous() for variable in variables]),
        rows,
        variables,
    )


def write_mps_file(form: LinearForm, path: str | Path, comments: Sequence[str] = ()) -> Path:
    """Write a linear form as free-format MPS that every common reader accepts.

    No RANGES, no OBJSENSE, no constant in the objective, every integer column with both bounds: features on which
    readers disagree are avoided. Numbers are written in full (`repr`), so the optimum is that of the model in memory.

    Raises
    ------
    ValueError
        When a row has two different finite bounds.
    InputError
        When the file cannot be written.
    """
    by_column: list[list[tuple[str, float]]] = [[] for _ in form.names]
    for index, weight in enumerate(form.cost):
        if weight:
            by_column[index].append(("objective", float(weight)))
    row_lines, right_sides = [" N objective"], []
    for row in form.rows:
        sense, side = _sense(row)
        row_lines.append(f" {sense} {row.name}")
        if side:
            right_sides.append(f" RHS {row.name} {side!r}")
        for index, coefficient in zip(row.columns, row.coefficients, strict=True):
            by_column[index].append((row.name, coefficient))
    lines = [f"* {' '.join(comment.split())}" for comment in comments]
    lines += ["NAME pipeline", "ROWS", *row_lines, "COLUMNS", *_column_lines(form, by_column), "RHS", *right_sides]
    lines += ["BOUNDS", *_bound_lines(form), "ENDATA", ""]
    return write_atomic(path, "\n".join(lines))


def _sense(row: Row) -> tuple[str, float]:
    """Sense of a row, E, L or G, and its right-hand side."""
    if row.lower == row.upper:
        return "E", row.lower
    if row.lower == -INFINITY:
        return "L", row.upper
    if row.upper == INFINITY:
        return "G", row.lower
    raise ValueError(f"row {row.name} has two bounds, {row.lower} and {row.upper}")


def _column_lines(form: LinearForm, by_column: list[list[tuple[str, float]]]) -> Iterator[str]:
    """The COLUMNS section, with markers where integer columns begin and end."""
    integer_now, markers = False, 0
    for index, name in enumerate(form.names):
        if bool(form.integer[index]) != integer_now:
            integer_now = not integer_now
            yield f" MARKER{markers} 'MARKER' '{'INTORG' if integer_now else 'INTEND'}'"
            markers += 1
        # The BOUNDS section needs every column to have an entry.
        yield from (f" {name} {row} {value!r}" for row, value in by_column[index] or [("objective", 0.0)])
    if integer_now:
        yield f" MARKER{markers} 'MARKER' 'INTEND'"


def _bound_lines(form: LinearForm) -> Iterator[str]:
    """The BOUNDS section."""
    for index, name in enumerate(form.names):
        lower, upper = float(form.lower[index]), float(form.upper[index])
        if lower == -INFINITY and upper == INFINITY:
            yield f" FR BOUND {name}"
            continue
        if lower == -INFINITY:
            yield f" MI BOUND {name}"
        elif lower or form.integer[index]:
            yield f" LO BOUND {name} {lower!r}"
        if upper != INFINITY:
            yield f" UP BOUND {name} {upper!r}"
