"""Linear programs as plain arrays, for HiGHS in memory and for MPS files with the names kept; and their building."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator, Sequence, TypeVar

import numpy as np
from numpy.typing import NDArray

from taylor.base.files import write_atomic
from taylor.pipeline_solver.model.stopping import Stopper

INFINITY = float("inf")
Index = TypeVar("Index", bound=tuple[object, ...])


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
    """

    names: tuple[str, ...]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    cost: NDArray[np.float64]
    integer: NDArray[np.bool_]
    rows: list[Row]


Term = tuple[float, int]
"""A coefficient and its column."""


class RowGroup:
    """Rows of one name, each with an index of its own."""

    def __init__(self, name: str, stopper: Stopper) -> None:
        self.name, self.rows, self._stopper = name, list[Row](), stopper

    def add(
        self, index: tuple[object, ...], terms: Iterable[Term], *, lower: float = -INFINITY, upper: float = INFINITY
    ) -> None:
        """Add lower <= the sum of the terms <= upper; terms of one column are added up, and those of 0 dropped.

        Raises
        ------
        OutOfTime
            If the stopper's deadline has passed.
        """
        self._stopper.check()
        weights: dict[int, float] = {}
        for weight, column in terms:
            weights[column] = weights.get(column, 0.0) + weight
        found = {column: weight for column, weight in weights.items() if weight}
        name = _indexed(self.name, index)
        self.rows.append(Row(name, tuple(found), tuple(map(float, found.values())), float(lower), float(upper)))


class LinearModel:
    """A linear program while it is built: columns in the order of their making, rows by the order of their groups."""

    def __init__(self, stopper: Stopper | None = None) -> None:
        self._stopper = stopper or Stopper(None)
        self._names: list[str] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._groups: dict[str, RowGroup] = {}
        self._nothing: int | None = None

    def variable(
        self, name: str, index: tuple[object, ...] = (), *, upper: float = INFINITY, integer: bool = False
    ) -> int:
        """Make a variable of at least 0; return its column."""
        self._names.append(_indexed(name, index))
        self._lower.append(0.0)
        self._upper.append(float(upper))
        self._integer.append(integer)
        return len(self._names) - 1

    def switches(self, name: str, indices: Iterable[Index]) -> dict[Index, int]:
        """Make a variable of 0 or 1 for every index; return their columns."""
        return {index: self.variable(name, index, upper=1, integer=True) for index in indices}

    def group(self, name: str) -> RowGroup:
        """Return the rows of a name; the first call decides their place."""
        return self._groups.setdefault(name, RowGroup(name, self._stopper))

    def sum_of(self, columns: Iterable[int]) -> list[Term]:
        """Terms of a sum of variables; without any, of a variable fixed at 0, so that the row can be infeasible."""
        return [(1.0, column) for column in columns] or [(1.0, self._zero())]

    def form(self, objective: int) -> LinearForm:
        """Return the program that minimises one variable."""
        cost = np.zeros(len(self._names))
        cost[objective] = 1.0
        return LinearForm(
            tuple(self._names),
            np.array(self._lower),
            np.array(self._upper),
            cost,
            np.array(self._integer),
            [row for group in self._groups.values() for row in group.rows],
        )

    def _zero(self) -> int:
        if self._nothing is None:
            self._nothing = self.variable("nothing", upper=0)
        return self._nothing


def times(weight: float, terms: Iterable[Term]) -> list[Term]:
    """Return the terms with their coefficients multiplied by one number."""
    return [(weight * coefficient, column) for coefficient, column in terms]


def _indexed(name: str, index: tuple[object, ...]) -> str:
    return f"{name}[{','.join(map(str, index))}]" if index else name


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
