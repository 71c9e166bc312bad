"""The options of a solve that every solver understands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable

from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, SolverParams


@dataclass
class Resume:
    """State of an earlier solve for the next one of the same problem; each solver adds fields of its own.

    Parameters
    ----------
    bound : float
        Step time that no plan of the problem beats, in body-layer forward times.
    """

    bound: float = 0.0


@dataclass(frozen=True)
class SolveOptions:
    """Options of a solve.

    Parameters
    ----------
    solver : str
        In any case of letters: ``HIGHS`` (without virtual stages by the busiest stage; what remains open by branch and
        cut over columns, and what stage splits do not close by the compact MILP), ``HIGHS-MILP`` (the compact MILP
        under HiGHS), ``CBC`` (the same under CBC), or any solver that Pyomo finds. See `solvers.SOLVERS`.
    time_limit : float or None
        Seconds for the whole solve; None sets no limit.
    gap : float
        Relative gap at which a plan counts as optimal.
    seed : int
        Without a time limit the result depends on the problem and this alone.
    workers : int
        Processes; the result is the same with any number.
    cutoff : callable or None
        Returns the step time that a plan must beat, in body-layer forward times; called now and then, and never
        increases. Once no plan can beat it, proven, the solve ends: `Status.CUT_OFF`, with the bound.
    memory : Resume or None
        State of an earlier solve of the same problem by branch and cut; this one adds to it. The compact MILP begins
        with its bound.
    params : SolverParams
        Parameters of the solver's methods.

    Raises
    ------
    ValueError
        If the time limit or the gap is negative, or there is no worker.
    """

    solver: str = "HIGHS"
    time_limit: float | None = None
    gap: float = 1e-6
    seed: int = 0
    workers: int = 1
    cutoff: Callable[[], float] | None = None
    memory: Resume | None = None
    params: SolverParams = DEFAULT_PARAMS

    def __post_init__(self) -> None:
        if self.time_limit is not None and not self.time_limit >= 0:
            raise ValueError(f"time_limit must be >= 0 seconds or None, found {self.time_limit}")
        if not self.gap >= 0:
            raise ValueError(f"gap must be >= 0, found {self.gap}")
        if self.workers < 1:
            raise ValueError(f"workers must be >= 1, found {self.workers}")

    def replace(self, **changes: Any) -> SolveOptions:
        """A copy with some fields changed."""
        return replace(self, **changes)


DEFAULT_OPTIONS = SolveOptions()
"""HiGHS in one process, until the optimum is proven."""
