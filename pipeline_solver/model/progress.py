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
        Best step time and lower bound so far, in body-layer forward times.
    note : str
        Present activity of the solver.
    unit_ms : float or None
        Real time of one body layer's forward, ms, where known.
    """

    seconds: float
    objective: float | None = None
    bound: float | None = None
    note: str = ""
    unit_ms: float | None = None


OnProgress = Callable[[Progress], None]


def going_on(
    on_progress: OnProgress | None, seconds: float, objective: float | None, bound: float | None
) -> OnProgress | None:
    """Pass the progress of a second search on as that of the whole: with the first one's seconds, plan and bound."""
    if on_progress is None:
        return None

    def passed_on(progress: Progress) -> None:
        objectives = [value for value in (progress.objective, objective) if value is not None]
        bounds = [value for value in (progress.bound, bound) if value is not None]
        on_progress(
            Progress(
                seconds + progress.seconds,
                min(objectives, default=None),
                min([max(bounds), *objectives]) if bounds else None,
                progress.note,
            )
        )

    return passed_on
