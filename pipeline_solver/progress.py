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
    """

    seconds: float
    objective: float | None = None
    bound: float | None = None
    note: str = ""


OnProgress = Callable[[Progress], None]
