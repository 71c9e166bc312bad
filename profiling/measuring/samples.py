"""One measurement: samples until they agree, a median with its spread, and what disturbed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from taylor.base.kept import read_kept, write_kept

MOST_SPREAD = 0.05
"""Spread above which a measurement is disturbed."""
WHOLE_MEMORY = 0.9
"""Fraction of a device's memory that must be free before it is measured."""


@dataclass(frozen=True)
class TimedSample:
    """One measurement's result.

    Parameters
    ----------
    value : float
        Median, in the measurement's own unit.
    spread : float
        Middle half of the samples over the median.
    attempts : int
        Number of tries.
    disturbed : str
        Why it is not to be trusted; empty where it is. Tried again when the profile is run again.
    """

    value: float
    spread: float
    attempts: int
    disturbed: str = ""


def spread_of(samples: list[float]) -> float:
    """Middle half of the samples over their median; 0 of fewer than two."""
    if len(samples) < 2 or (middle := median(samples)) <= 0:
        return 0.0
    low, _, high = quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


def settle(
    once: Callable[[], float], repeats: int, attempts: int, memory_free: float = 1.0, warm: int = 2
) -> TimedSample:
    """Measure until the samples agree, else keep the attempt that agrees best, marked.

    Parameters
    ----------
    once : callable
        Gives one sample; the same number on every rank that takes part.
    memory_free : float
        Fraction of the device's memory that no other process uses.
    warm : int
        Samples thrown away first.
    """
    best: tuple[float, float] | None = None
    tried = 0
    while tried < attempts and (best is None or best[0] > MOST_SPREAD):
        tried += 1
        for _ in range(warm):
            once()
        samples = [once() for _ in range(repeats)]
        found = spread_of(samples), median(samples)
        best = found if best is None else min(best, found)
    assert best is not None
    reasons = [f"spread {100 * best[0]:.0f} %"] if best[0] > MOST_SPREAD else []
    if memory_free < WHOLE_MEMORY:
        reasons.append(f"{100 * (1 - memory_free):.0f} % of the memory was taken before")
    return TimedSample(best[1], best[0], tried, "; ".join(reasons))


class Kept:
    """Measurements by name in one file, written again after each.

    Parameters
    ----------
    facts : mapping
        Of the machine and the software: measurements of another one are not taken over.
    """

    def __init__(self, file: Path, facts: Mapping[str, Any]) -> None:
        self.file, self.facts = file, dict(facts)
        self.samples: dict[str, TimedSample] = {}
        self.read()

    def read(self) -> None:
        """Take over what another process has kept since."""
        stored = read_kept(self.file)
        same = isinstance(stored, dict) and stored.get("facts") == self.facts
        self.samples = _samples(stored["samples"]) if same else {}

    def settled(self, key: str) -> bool:
        """Return whether a measurement exists and was not disturbed."""
        return key in self.samples and not self.samples[key].disturbed

    def keep(self, key: str, sample: TimedSample) -> None:
        """Add a measurement, or put a better one in its place."""
        self.keep_all({key: sample})

    def keep_all(self, found: Mapping[str, TimedSample]) -> None:
        """Add measurements that are kept together or not at all."""
        for key, sample in found.items():
            old = self.samples.get(key)
            if old is None or sample.spread <= old.spread or not sample.disturbed:
                self.samples[key] = sample
        write_kept(self.file, {"facts": self.facts, "samples": {k: asdict(one) for k, one in self.samples.items()}})


def read_samples(file: Path) -> dict[str, TimedSample]:
    """The measurements of a file, by name; none where it is missing or was changed."""
    stored = read_kept(file)
    return _samples(stored["samples"]) if isinstance(stored, dict) and "samples" in stored else {}


def _samples(data: Mapping[str, Any]) -> dict[str, TimedSample]:
    return {str(key): TimedSample(**one) for key, one in data.items()}
