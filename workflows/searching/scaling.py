"""A job's speed on numbers of devices: the points of a curve, what each doubling keeps, where it bends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taylor.cost_model.job.strategy import Strategy

KNEE = 0.9
"""Fraction of a device's speed that a doubling keeps before the knee of a curve: below it, at most 80 % more speed is
bought for twice the devices."""

Interval = tuple[float, float]

MEMORY, RULES, TIME = "memory", "rules", "time"
LACKS = (MEMORY, RULES, TIME)
"""What a number of devices may lack: memory, a strategy that the rules allow, time to find its plan."""


@dataclass(frozen=True)
class SizePoint:
    """The fastest strategy found on a number of devices.

    Parameters
    ----------
    devices : int
        Number of devices.
    strategy : Strategy or None
        None where no strategy has a plan.
    step_ms : float or None
        Step of its first plan, ms.
    step_interval_ms : (float, float) or None
        90 % interval of the step, ms.
    tokens_per_second : float or None
        Of the whole job.
    lacks : str
        What is missing where there is no strategy, one of `LACKS`; empty where there is one.
    reason : str
        Reason of that in words.
    peaks_mib, limits_mib : tuple of float [pp]
        Peak of each stage, and what the plan may take there, MiB.
    """

    devices: int
    strategy: Strategy | None = None
    step_ms: float | None = None
    step_interval_ms: Interval | None = None
    tokens_per_second: float | None = None
    lacks: str = ""
    reason: str = ""
    peaks_mib: tuple[float, ...] = ()
    limits_mib: tuple[float, ...] = ()

    @property
    def speed(self) -> float | None:
        """Tokens a second of one device."""
        return None if self.tokens_per_second is None else self.tokens_per_second / self.devices

    def seconds(self, tokens: float) -> float | None:
        """Time of a training of a number of tokens, s."""
        return None if self.tokens_per_second is None else tokens / self.tokens_per_second

    def seconds_interval(self, tokens: float) -> Interval | None:
        """90 % interval of that time, s."""
        seconds = self.seconds(tokens)
        if seconds is None or self.step_interval_ms is None or self.step_ms is None:
            return None
        low, high = self.step_interval_ms
        return seconds * low / self.step_ms, seconds * high / self.step_ms


@dataclass(frozen=True)
class Knee:
    """Number of devices beyond which every doubling keeps less than `KNEE` of a device's speed.

    Parameters
    ----------
    devices : int
        That number; the largest one of the curve where no such doubling is seen.
    kept_before : float or None
        Least fraction that a doubling up to there keeps; None where there is none.
    kept_beyond : float or None
        Fraction that a doubling beyond keeps, their geometric mean; None where there is none.
    """

    devices: int
    kept_before: float | None
    kept_beyond: float | None

    @property
    def sentence(self) -> str:
        """The knee in words."""
        if self.kept_beyond is None:
            least = f" keeps at least {self.kept_before:.0%}" if self.kept_before is not None else " is not seen"
            return f"no knee: each doubling up to {self.devices:,} devices{least} of a device's speed"
        return f"beyond {self.devices:,} devices each doubling keeps {self.kept_beyond:.0%} of a device's speed"

    def to_dict(self) -> dict[str, Any]:
        """The knee as plain data."""
        return {
            "devices": self.devices, "kept_before": self.kept_before, "kept_beyond": self.kept_beyond,
            "sentence": self.sentence,
        }  # fmt: skip


def kept_of(curve: Sequence[SizePoint]) -> dict[int, float]:
    """Fraction of a device's speed that the doubling to each number of devices keeps, where both ends have a plan."""
    speeds = {point.devices: point.speed for point in curve if point.speed is not None}
    return {
        devices: speed / half
        for devices, speed in speeds.items()
        if not devices % 2 and (half := speeds.get(devices // 2)) is not None
    }


def knee_of(curve: Sequence[SizePoint]) -> Knee | None:
    """Knee of a curve whose numbers of devices double; None without any doubling."""
    kept = kept_of(curve)
    if not kept:
        return None
    sizes = sorted(kept)
    beyond: list[float] = []
    while sizes and kept[sizes[-1]] < KNEE:
        beyond.append(kept[sizes.pop()])
    before = min((kept[size] for size in sizes), default=None)
    if not beyond:
        return Knee(max(kept), before, None)
    first = min(set(kept) - set(sizes)) // 2
    return Knee(first, before, math.prod(beyond) ** (1 / len(beyond)))


def efficiency_of(curve: Sequence[SizePoint]) -> dict[int, float]:
    """Speed of a device on each number of devices, as a fraction of the highest of the curve."""
    speeds = {point.devices: point.speed for point in curve if point.speed is not None}
    best = max(speeds.values(), default=0.0)
    return {devices: speed / best for devices, speed in speeds.items()}
