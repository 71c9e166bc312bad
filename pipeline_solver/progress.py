"""Progress reports of a solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Progress:
    """The state of a solve at one moment.

    Parameters
    ----------
    seconds : float
        Wall time since the solve began.
    objective, bound : float or None
        Best step time and proven lower bound so far, in body-layer forward times.
    note : str
        What the solver is doing.
    unit_ms : float or None
        Real time of one body layer's forward, where whoever passes the report on knows it.
    """

    seconds: float
    objective: float | None = None
    bound: float | None = None
    note: str = ""
    unit_ms: float | None = None


OnProgress = Callable[[Progress], None]
