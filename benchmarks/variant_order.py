"""Order of variants: of the runs of one job that differ in a setting, the pairs whose predicted order is the measured.

`benchmarks.adapters`, `benchmarks.fine_tuning` and `benchmarks.swift_scripts` print it beside their errors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import combinations

from benchmarks.accuracy_orders import EQUAL


@dataclass(frozen=True)
class Variant:
    """One run of a job.

    Parameters
    ----------
    job : hashable
        What the variants share: model and device.
    measured, predicted : float
        Figures of which less is better, in one unit: GPU milliseconds a token, or MiB.
    """

    job: Hashable
    measured: float
    predicted: float


@dataclass(frozen=True)
class VariantOrder:
    """Pairs of variants of one job in the measured order, measured within 1 % of each other, and in the other order."""

    right: int
    tied: int
    wrong: int

    def __str__(self) -> str:
        """The fraction of pairs in the measured order, and their number; without ties."""
        ordered = self.right + self.wrong
        fraction = f"{self.right / ordered:.0%} of {ordered} pairs" if ordered else "no pair"
        return f"{fraction} of variants in the measured order ({self.tied} measured within {EQUAL:.0%})"


def variant_order(variants: Iterable[Variant]) -> VariantOrder:
    """Compare every pair of variants of each job."""
    right = tied = wrong = 0
    for one, other in combinations(list(variants), 2):
        if one.job != other.job:
            continue
        if abs(one.measured / other.measured - 1) < EQUAL:
            tied += 1
        elif (one.measured < other.measured) == (one.predicted < other.predicted) and one.predicted != other.predicted:
            right += 1
        else:
            wrong += 1
    return VariantOrder(right, tied, wrong)
