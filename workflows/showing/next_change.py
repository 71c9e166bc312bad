"""A change of a solved job with its gain: in words and as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NextChange:
    """A change of a job, and its best plan found.

    Parameters
    ----------
    name : str
        The change in words.
    step_ms : float or None
        Step of the plan; None where no real time is known.
    gain : float
        Of tokens a second, as a fraction of those of the job.
    gain_per_device : float
        Likewise of a device.
    proven : bool
        No plan of the changed job is faster.
    """

    name: str
    step_ms: float | None
    gain: float
    gain_per_device: float
    proven: bool

    @property
    def sentence(self) -> str:
        """The change with its gain."""
        step = "" if self.step_ms is None else f", {self.step_ms:,.4g} ms a step"
        if self.step_ms is not None and self.step_ms >= 1000:
            step = f", {self.step_ms:,.0f} ms a step"
        each = ""
        if abs(self.gain - self.gain_per_device) > 1e-9:
            each = f", each device keeps {100 * (1 + self.gain_per_device):.0f} % of its speed"
        least = "" if self.proven else ", at least: the search ended early"
        return f"{self.name}: {100 * self.gain:+.1f} % tokens/s{step}{each}{least}"

    def to_dict(self) -> dict[str, Any]:
        """The change as plain data."""
        return {
            "change": self.name, "step_ms": self.step_ms, "gain": self.gain, "gain_per_device": self.gain_per_device,
            "proven": self.proven,
        }  # fmt: skip
