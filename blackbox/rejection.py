"""Samples of operators that do not show their speed, rejected by rule and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from taylor.parsers.profiles.operators import Operator, OperatorSample

NO_TIME, WARM_UP, FIRST_LAUNCH, STRAGGLER = "no time", "warm-up step", "first launch", "straggler"
WARM_STEP = 1.2
"""A first step above this multiple of the middle one of the others is warm-up (of three steps or more)."""
FIRST_LAUNCH_FACTOR = 3.0
"""A first launch takes compilation along: above this multiple of the middle of the later ones."""
STRAGGLER_DEVIATIONS, STRAGGLER_LEAST = 6.0, 0.5
"""Stragglers lie this number of (robust) standard deviations above the middle, and at least this fraction of it."""
LEAST_FOR_STRAGGLERS = 4
"""Samples of an operator below which none is called a straggler."""
ROBUST = 1.4826
"""Standard deviations in a median absolute deviation of normal noise."""


@dataclass(frozen=True)
class Cleaned:
    """Durations by operator in ns, and the number of samples that each rule rejected."""

    durations: Mapping[Operator, tuple[int, ...]]
    rejected: Mapping[str, int]

    @property
    def count(self) -> int:
        """Remaining samples."""
        return sum(map(len, self.durations.values()))


def clean(samples: Sequence[OperatorSample]) -> Cleaned:
    """Sort the samples of one profile of one rank by operator, without those that rules leave out.

    Parameters
    ----------
    samples : sequence of OperatorSample
        In the order of their starts.
    """
    rejected: Counter[str] = Counter()
    warm = _warm_step(samples)
    by_operator: dict[Operator, list[int]] = {}
    for sample in samples:
        if sample.duration_ns <= 0:
            rejected[NO_TIME] += 1
        elif warm is not None and sample.step == warm:
            rejected[WARM_UP] += 1
        else:
            by_operator.setdefault(sample.operator, []).append(sample.duration_ns)
    kept: dict[Operator, tuple[int, ...]] = {}
    for operator, durations in by_operator.items():
        if len(durations) > 1 and durations[0] > FIRST_LAUNCH_FACTOR * median(durations[1:]):
            rejected[FIRST_LAUNCH] += 1
            durations = durations[1:]
        limit = _straggler_limit(durations)
        kept[operator] = tuple(each for each in durations if each <= limit)
        rejected[STRAGGLER] += len(durations) - len(kept[operator])
    return Cleaned(kept, {reason: count for reason, count in rejected.items() if count})


def spread_of(durations: Sequence[float]) -> float:
    """Robust standard deviation over the middle."""
    middle = median(durations)
    return ROBUST * median(abs(each - middle) for each in durations) / middle if middle else 0.0


def _straggler_limit(durations: Sequence[int]) -> float:
    if len(durations) < LEAST_FOR_STRAGGLERS:
        return float("inf")
    middle = median(durations)
    return middle * (1 + max(STRAGGLER_DEVIATIONS * spread_of(durations), STRAGGLER_LEAST))


def _warm_step(samples: Sequence[OperatorSample]) -> int | None:
    """The first step, where it took longer than the others."""
    totals: dict[int, int] = {}
    for sample in samples:
        totals[sample.step] = totals.get(sample.step, 0) + sample.duration_ns
    if len(totals) < 3:
        return None
    first = min(totals)
    others = [total for step, total in totals.items() if step != first]
    return first if totals[first] > WARM_STEP * median(others) else None
