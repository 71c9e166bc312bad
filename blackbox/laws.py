"""Law of a size by the settings of a run: ``c · tp^a · cp^b · ep^c · mbs^d · seq^e · experts^f``, fitted exactly.

A dimension of a tensor is split by some degrees and by no others. Over runs that vary one thing at a time only few
products of powers match every value exactly, mostly one. Where several do, a further run distinguishes them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.small_run import RunSetting

FACTORS = ("tp", "cp", "ep", "mbs", "seq", "experts")
"""Factors that a size may follow. Experts a rank are experts / EP, a product of two of them."""
EXPONENTS: Mapping[str, tuple[int, ...]] = {
    "tp": (-1, 0, 1),
    "cp": (-1, 0, 1),
    "ep": (-1, 0, 1),
    "mbs": (0, 1),
    "seq": (-1, 0, 1, 2),
    "experts": (-1, 0, 1),
}
"""The powers of each. No dimension shrinks as the micro-batch grows; tensors of scores grow with the square of the
sequence, as a product of two dimensions."""
LARGEST_UNIT = 1024
"""Sizes are padded to powers of two up to this one."""
LEAST_ROWS = 8
"""Rows of the largest shard of TP below which rounding up explains anything: of 8 rows in units of one, a law is off by
at most an eighth."""
NEAR_SPREAD = 0.25
"""Sizes that depend on the data (tokens an expert) may deviate from their law by this fraction, and are reported."""

_CLOSE = 1e-9


@dataclass(frozen=True)
class Law:
    """One way in which a size follows its factors: ``unit · ceil(coefficient · Π factor^exponent / unit)``.

    Parameters
    ----------
    coefficient : Fraction
        The size where every factor is 1. Of a rounded law the largest one that meets every run.
    exponents : int [6]
        Powers of `FACTORS`.
    unit : int
        Multiple to which sizes are rounded up; 1 for whole numbers.
    rows : Fraction
        Not 0 where TP's shard is rounded up before it is multiplied by the rest:
        ``rows · ceil(coefficient / tp) · Π others``. A vocabulary is padded so, and each tensor that has it.
    """

    coefficient: Fraction
    exponents: tuple[int, ...]
    unit: int = 1
    rows: Fraction = Fraction(0)

    @cached_property
    def _powers(self) -> tuple[tuple[str, int], ...]:
        """The factors that count."""
        return tuple((name, power) for name, power in zip(FACTORS, self.exponents, strict=True) if power)

    def at(self, setting: RunSetting) -> int:
        """The size in a run."""
        top = bottom = 1
        for name, power in self._powers:
            factor = getattr(setting, name)
            top, bottom = top * factor ** max(power, 0), bottom * factor ** max(-power, 0)
        if self.rows:
            shard = -(-self.coefficient // setting.tp)
            return math.ceil(self.rows * shard * setting.tp * Fraction(top, bottom))
        top *= self.coefficient.numerator
        bottom *= self.coefficient.denominator * self.unit
        return -(-top // bottom) * self.unit

    def __str__(self) -> str:
        powers = (
            name if power == 1 else f"{name}^{power}"
            for name, power in zip(FACTORS, self.exponents, strict=True)
            if power
        )
        if self.rows:
            others = [one for one in powers if not one.startswith("tp")]
            return " · ".join((f"{self.rows} · ceil({self.coefficient} / tp)", *others))
        text = " · ".join((str(self.coefficient), *powers))
        return text if self.unit == 1 else f"{text}, up to a multiple of {self.unit}"


@dataclass(frozen=True)
class SizeFit:
    """The laws that meet every run, the simplest first.

    Parameters
    ----------
    laws : tuple of Law
        Empty where none does.
    spread : float
        0 where the laws meet every run to the unit; else the fraction by which runs deviate from the nearest law.
    """

    laws: tuple[Law, ...]
    spread: float = 0.0

    @property
    def settled(self) -> bool:
        """Return whether there is one law, and it is exact."""
        return len(self.laws) == 1 and self.spread == 0

    def with_first(self, law: Law | None) -> SizeFit:
        """The same with a law in front where there are several: the one that is taken as long as no run decides."""
        if law is None or len(self.laws) < 2:
            return self
        return replace(self, laws=(law, *(one for one in self.laws if one != law)))

    def at(self, setting: RunSetting) -> int | None:
        """The size in a run; None where the laws do not agree on it, or there is none."""
        if len(self.laws) == 1:
            return self.laws[0].at(setting)
        sizes = {law.at(setting) for law in self.laws}
        return sizes.pop() if len(sizes) == 1 else None


class Fitter:
    """Fits laws to sizes seen in given runs.

    Parameters
    ----------
    settings : sequence of RunSetting
        Settings of each run.
    """

    def __init__(self, settings: Sequence[RunSetting]) -> None:
        if not settings:
            raise ValueError("a law is fitted to one run at least")
        self.settings = tuple(settings)
        self._known: dict[tuple[int, ...], SizeFit] = {}
        factors = np.array([[getattr(one, name) for name in FACTORS] for one in settings], dtype=np.float64)
        # A network without experts knows nothing of EP.
        self._powers = _POWERS if any(one.experts > 1 for one in settings) else _DENSE_POWERS
        # float [laws, runs]: the product of powers.
        self._scale: NDArray[np.float64] = np.exp(np.array(self._powers, dtype=np.float64) @ np.log(factors).T)

    def fit(self, sizes: Sequence[int]) -> SizeFit:
        """The laws that give these sizes, one a run.

        Exact ones where there are any; else those that round up; else the nearest, where it is near.

        Raises
        ------
        ValueError
            When there is not one size of at least 0 for each run.
        """
        key = tuple(sizes)
        if len(key) != len(self.settings) or min(key) < 0:
            raise ValueError("one size of at least 0 for each run")
        if key not in self._known:
            self._known[key] = self._fit(key)
        return self._known[key]

    def _fit(self, sizes: tuple[int, ...]) -> SizeFit:
        if not any(sizes):
            return SizeFit((Law(Fraction(0), (0,) * len(FACTORS)),))
        if not all(sizes):
            return SizeFit(())
        ratios = np.array(sizes, dtype=np.float64) / self._scale
        spread = ratios.max(axis=1) / ratios.min(axis=1) - 1
        exact = [law for at in np.flatnonzero(spread < _CLOSE) if (law := self._exact(int(at), sizes)) is not None]
        if exact:
            return SizeFit(tuple(exact))
        unit, common = 1, math.gcd(*sizes)
        while unit <= LARGEST_UNIT and common % unit == 0 and (unit == 1 or 8 * unit <= max(sizes)):
            low = (ratios - unit / self._scale).max(axis=1)
            high = ratios.min(axis=1)
            places = np.flatnonzero(low <= high * (1 + _CLOSE))
            rounded = [law for at in places if (law := self._rounded(int(at), sizes, unit)) is not None]
            if rounded:
                return SizeFit(tuple(rounded))
            unit *= 2
        padded = self._padded(sizes, ratios)
        if padded is not None:
            return SizeFit((padded,))
        nearest = int(np.argmin(spread))
        if spread[nearest] > NEAR_SPREAD or len(set(self.settings)) < 2:
            return SizeFit(())
        middle = Fraction(float(np.median(ratios[nearest]))).limit_denominator(1 << 20)
        return SizeFit((Law(middle, self._powers[nearest]),), float(spread[nearest]))

    def _padded(self, sizes: tuple[int, ...], ratios: NDArray[np.float64]) -> Law | None:
        """The simplest law whose shard of TP is rounded up before the other factors; None where none meets all runs.

        `ratios` are the sizes over each product of powers, float [laws, runs].
        """
        tps = [one.tp for one in self.settings]
        if len(set(tps)) < 3:
            return None
        # Runs of one TP have one shard.
        same = np.array([powers[0] == -1 for powers in self._powers])
        for tp in set(tps):
            those = ratios[:, [each == tp for each in tps]]
            same &= those.max(axis=1) <= those.min(axis=1) * (1 + _CLOSE)
        for powers in (self._powers[at] for at in np.flatnonzero(same)):
            shards = [Fraction(size) / (tp * Fraction(*_product(powers, one)))
                      for size, tp, one in zip(sizes, tps, self.settings, strict=True)]  # fmt: skip
            by_tp = dict(zip(tps, shards, strict=True))
            if any(by_tp[tp] != shard for tp, shard in zip(tps, shards, strict=True)):
                continue
            whole = math.lcm(*(one.denominator for one in by_tp.values()))
            rows = Fraction(math.gcd(*(int(one * whole) for one in by_tp.values())), whole)
            counts = {tp: int(shard / rows) for tp, shard in by_tp.items()}
            most = min(count * tp for tp, count in counts.items())
            if max(counts.values()) >= LEAST_ROWS and all(-(-most // tp) == count for tp, count in counts.items()):
                return Law(Fraction(most), powers, 1, rows)
        return None

    def _coefficients(self, at: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
        """Exact coefficient that each run requires: (numerator, denominator)."""
        products = (_product(self._powers[at], setting) for setting in self.settings)
        return [(size * bottom, top) for size, (top, bottom) in zip(sizes, products, strict=True)]

    def _exact(self, at: int, sizes: tuple[int, ...]) -> Law | None:
        (top, bottom), *others = self._coefficients(at, sizes)
        if any(top * below != above * bottom for above, below in others):
            return None
        return Law(Fraction(top, bottom), self._powers[at])

    def _rounded(self, at: int, sizes: tuple[int, ...], unit: int) -> Law | None:
        law = Law(min(Fraction(*each) for each in self._coefficients(at, sizes)), self._powers[at], unit)
        return law if all(law.at(one) == size for one, size in zip(self.settings, sizes, strict=True)) else None


def _product(exponents: tuple[int, ...], setting: RunSetting) -> tuple[int, int]:
    """The product of the powers in a run, as numerator and denominator."""
    top = bottom = 1
    for name, power in zip(FACTORS, exponents, strict=True):
        factor = getattr(setting, name)
        top, bottom = top * factor ** max(power, 0), bottom * factor ** max(-power, 0)
    return top, bottom


def _complexity(powers: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
    """Few powers first; experts, which shrink in small runs, as late as may be."""
    return sum(map(abs, powers)), abs(powers[-1]), tuple(-abs(power) for power in powers)


_POWERS = tuple(sorted(itertools.product(*(EXPONENTS[name] for name in FACTORS)), key=_complexity))
_DENSE_POWERS = tuple(each for each in _POWERS if not each[FACTORS.index("ep")] and not each[FACTORS.index("experts")])


@dataclass(frozen=True)
class Deciding:
    """A run that distinguishes laws.

    Parameters
    ----------
    setting : RunSetting
        Its settings.
    fits : tuple of int
        Ambiguous sizes that it decides or narrows, by their place.
    """

    setting: RunSetting
    fits: tuple[int, ...]


def deciding_runs(fits: Sequence[SizeFit], candidates: Sequence[RunSetting]) -> tuple[Deciding, ...]:
    """Runs that distinguish the laws of ambiguous sizes, the one that distinguishes most first.

    Parameters
    ----------
    candidates : sequence of RunSetting
        Runs that the available cards allow, the cheapest first.

    Returns
    -------
    tuple of Deciding
        The number that the worst outcome of every ambiguity needs. Laws that give the same sizes in
        every candidate stay undecided, and are not named.
    """
    open_laws = {place: fit.laws for place, fit in enumerate(fits) if fit.laws}
    left, chosen = list(dict.fromkeys(candidates)), list[Deciding]()
    while left:
        kept = [{place: _largest_group(laws, one) for place, laws in open_laws.items()} for one in left]
        gains = [sum(len(open_laws[place]) - len(laws) for place, laws in groups.items()) for groups in kept]
        best = max(range(len(left)), key=lambda at: (gains[at], -at))
        if gains[best] == 0:
            break
        narrowed = tuple(place for place, laws in kept[best].items() if len(laws) < len(open_laws[place]))
        chosen.append(Deciding(left[best], narrowed))
        open_laws = kept[best]
        left.pop(best)
    return tuple(chosen)


def _largest_group(laws: tuple[Law, ...], setting: RunSetting) -> tuple[Law, ...]:
    """The laws that remain possible after a run, in the worst outcome."""
    groups: dict[int, list[Law]] = {}
    for law in laws:
        groups.setdefault(law.at(setting), []).append(law)
    most = max(map(len, groups.values()))
    return tuple(next(group for group in groups.values() if len(group) == most))
