"""Interface between the compact MILP and a MILP solver."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Callable, Protocol

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.milp.linear_form import Row


class MilpStatus(Enum):
    """Status of one run of a MILP or LP solver."""

    OPTIMAL = "optimal"
    """Optimal within the requested gap."""
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"
    """A limit of time or nodes, or Ctrl-C, ended the run."""
    FAILED = "failed"
    """The solver reported an error."""


@dataclass(frozen=True)
class MilpOutcome:
    """Outcome of one run of a MILP solver.

    Parameters
    ----------
    status : MilpStatus
    values : float64 [n] or None
        Best point found.
    bound : float
        Lower bound, −inf when none.
    interrupted : bool
        Ctrl-C stopped it.
    """

    status: MilpStatus
    values: NDArray[np.float64] | None
    bound: float
    interrupted: bool = False


class MilpSolver(Protocol):
    """A MILP solver that has the model and accepts further cuts."""

    def add_rows(self, rows: list[Row]) -> None:
        """Add path cuts."""

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
        """Solve the present model.

        Parameters
        ----------
        gap : float
            Relative gap at which to stop.
        time_limit : float, optional
            Seconds.
        node_limit : int, optional
            Nodes of the search tree after which to stop.
        start : float64 [n], optional
            A feasible point.
        on_point : callable, optional
            Called with every better point.
        on_bound : callable, optional
            Called with the lower bound now and then.
        enough : callable, optional
            Called now and then; True stops the run.
        """
