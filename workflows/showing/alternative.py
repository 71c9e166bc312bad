"""Outcome and name of one variant of a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taylor.pipeline.schedule import ScheduleSpec

IMPOSSIBLE = "impossible"
"""Status of a variant that cannot run."""


@dataclass(frozen=True)
class Alternative:
    """Outcome of one variant.

    Parameters
    ----------
    status : str
        Status of the solve (``cut_off``: its bound passed the best plan of another variant) or `IMPOSSIBLE` (the
        schedule does not exist for these numbers, or a rule forbids it; `note` has the reason).
    objective, bound : float or None
        In body-layer forward times, comparable between variants.
    label : str
        Name of the variant where it is not virtual stages and schedule alone.
    """

    interleaves: int
    schedule: ScheduleSpec
    status: str
    objective: float | None = None
    bound: float | None = None
    seconds: float = 0.0
    note: str = ""
    label: str = ""

    @property
    def name(self) -> str:
        """Name of the variant for a reader: schedule and virtual stages unless it has a label."""
        return self.label or choice_name(self.interleaves, self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """Alternative as plain data."""
        return {
            "name": self.name,
            "interleaves": self.interleaves,
            "schedule": self.schedule.name,
            "status": self.status,
            "objective": self.objective,
            "bound": self.bound,
            "note": self.note,
        }

    @property
    def outcome(self) -> str:
        """Status and figure in a few words."""
        if self.objective is not None:
            return f"{self.status}, step {self.objective:,.2f}"
        if self.bound is not None:
            return f"{self.status}, bound {self.bound:,.2f}"
        return f"{self.status}, {self.note}" if self.note else self.status


def choice_name(interleaves: int, schedule: ScheduleSpec) -> str:
    """Schedule and virtual stages as a person writes them."""
    switch = f", low memory {'on' if schedule.low_memory else 'off'}"
    memory = switch if schedule.traits.low_memory_switch else ""
    return f"{schedule.name} vpp {interleaves}{memory}"
