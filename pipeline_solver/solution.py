"""What a solve gives back: the plan, how good it is, and how good any plan could be."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Mapping

from taylor.pipeline.plan import PipelinePlan

OPTIMAL, FEASIBLE, INFEASIBLE, NO_SOLUTION = "optimal", "feasible", "infeasible", "no_solution"


@dataclass(frozen=True)
class BubbleShares:
    """Parts of the step in which an average stage does no first-time forward or backward work.

    `total` = `ideal` + `imbalance` + `recompute` + `communication`, each a share of the step.
    """

    total: float
    ideal: float
    imbalance: float
    recompute: float
    communication: float


@dataclass(frozen=True)
class Solution:
    """The outcome of one solve.

    Parameters
    ----------
    status : str
        `OPTIMAL` (gap within the tolerance, proven), `FEASIBLE` (a limit stopped the proof),
        `INFEASIBLE` (proven), `NO_SOLUTION` (a limit stopped the search before a plan was found).
    plan : PipelinePlan or None
    objective, bound : float or None
        Step time of the plan and proven lower bound, in body-layer forward times.
    solver : str
        Who found it.
    seconds : float
        Wall time of the solve.
    peak_memory_mib, memory_limit_mib : tuple of float [S]
    bubble : BubbleShares or None
    statistics : mapping
        Counts for the log: nodes, cuts, rounds, ….
    cuts : tuple of tuple of float
        Path cuts found, for the model file: count of each duration class on a critical path [R] (see
        `event_graph`), then the path's total lag.
    message : str
        Why there is no plan, or why the proof stopped.
    """

    status: str
    plan: PipelinePlan | None = None
    objective: float | None = None
    bound: float | None = None
    solver: str = ""
    seconds: float = 0.0
    peak_memory_mib: tuple[float, ...] = ()
    memory_limit_mib: tuple[float, ...] = ()
    bubble: BubbleShares | None = None
    statistics: Mapping[str, float] = field(default_factory=dict)
    cuts: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    message: str = ""

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective, at least 0; None when either is unknown."""
        if self.objective is None or self.bound is None:
            return None
        return max(0.0, (self.objective - self.bound) / self.objective) if self.objective else 0.0

    def replace(self, **changes: Any) -> Solution:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def bubble_dict(self) -> dict[str, float] | None:
        """The bubble shares as plain data."""
        return None if self.bubble is None else asdict(self.bubble)
