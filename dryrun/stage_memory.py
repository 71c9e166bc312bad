"""Memory of one pipeline stage as its tasks run: the peak, its parts, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """Memory around one task of a stage's order.

    Parameters
    ----------
    direction : int
        `pipeline.schedule.FORWARD`, `BACKWARD` or `WEIGHT_GRADIENT`.
    live_mib : float
        Live when the task has ended, MiB.
    peak_mib : float
        Most that was live at once while it ran, MiB.
    """

    direction: int
    interleave: int
    micro_batch: int
    live_mib: float
    peak_mib: float


@dataclass(frozen=True)
class StageMemory:
    """Figures of one stage from a stage-by-stage dry-run.

    Parameters
    ----------
    peak_mib : float
        Peak of the whole step, MiB, with the overhead that no dry-run sees.
    categories : mapping of str to float
        The peak moment by category, MiB, under the names of `cost_model.memory.breakdown.StageBreakdown.categories`;
        they sum to `peak_mib`.
    moments : tuple of Moment
        In the order of the tasks.
    seconds : float
        Wall time of the dry-run.
    max_rss_mib : float
        Largest host memory of the process, MiB.
    """

    stage: int
    peak_mib: float
    categories: Mapping[str, float]
    moments: tuple[Moment, ...] = ()
    seconds: float = 0.0
    max_rss_mib: float = 0.0
