"""Laws through measured points: what is asked for beyond them, how far beyond, and between which bounds it lies.

A time or a memory is a sum of powers of its cause (samples, tokens), none of which can take anything away. So no
coefficient is negative, and errors are relative: a free quadratic through few noisy points bends down, and its value
for a long sequence is far too low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog, nnls

from taylor.base.errors import InputError

NOISE = 0.025
"""Relative error of a measurement either way: half the spread from which on a run counts as disturbed."""
UNKNOWN_ERROR = 0.1
"""Relative error of a measurement where the points do not show it, as two never do: twice the spread from which on a
run counts as disturbed. It falls with more points."""
FAR = 4.0
"""Distance beyond the measured points from which on an answer is warned of."""

PROPORTIONAL, LINE, CURVE = (1,), (1, 0), (2, 1, 0)
"""Powers of laws: through zero, with a start, and with attention's square of the sequence."""


@dataclass(frozen=True)
class MeasuredLaw:
    """A law of one cause.

    Parameters
    ----------
    of : str
        The effect, for messages: ``forward of a body layer``.
    cause : str
        ``tokens`` or ``samples``.
    unit : str
        Of the figure: ``ms``, ``MiB``.
    powers : tuple of int
    coefficients : tuple of float
        One a power, of the cause over `scale`; none is below 0.
    scale : float
        The largest measured cause.
    points : mapping of float to float
        The measured figures by cause.
    """

    of: str
    cause: str
    unit: str
    powers: tuple[int, ...]
    coefficients: tuple[float, ...]
    scale: float
    points: Mapping[float, float]

    @classmethod
    def through(
        cls,
        points: Mapping[float, float] | Mapping[int, float],
        powers: tuple[int, ...],
        *,
        of: str,
        cause: str,
        unit: str,
        source: str,
    ) -> MeasuredLaw:
        """The law that is nearest to some points by relative least squares with no coefficient below 0.

        Parameters
        ----------
        points : mapping of float to float
            One point makes a law through zero.
        powers : tuple of int
            `PROPORTIONAL`, `LINE` or `CURVE`.
        source : str
            The file, for the error.

        Raises
        ------
        InputError
            When there is no point, or none is above 0.
        """
        kept = {float(x): y for x, y in sorted(points.items()) if y > 0}
        if not kept:
            raise InputError("has no measurement above 0", file=source, field=of, cure="profile it")
        scale = max(kept)
        fitted = powers if len(kept) > 1 else PROPORTIONAL
        rows = _powers(np.array(list(kept)) / scale, fitted) / np.array(list(kept.values()))[:, None]
        coefficients, _ = nnls(rows, np.ones(len(kept)))
        return cls(of, cause, unit, fitted, tuple(map(float, coefficients)), scale, kept)

    def at(self, x: float) -> float:
        """The figure at a cause: as it was measured there, else as the law has it."""
        if x in self.points:
            return self.points[x]
        return float(_powers(np.array([x / self.scale]), self.powers)[0] @ self.coefficients)

    def part(self, x: float, power: int) -> float:
        """Part of one power in the law at a cause; 0 where the law lacks it."""
        known = dict(zip(self.powers, self.coefficients, strict=True))
        share: float = (x / self.scale) ** power
        return known.get(power, 0.0) * share

    @property
    def residuals(self) -> dict[float, float]:
        """Relative difference of the law from the measured figure, by cause."""
        fitted = _powers(np.array(list(self.points)) / self.scale, self.powers) @ np.array(self.coefficients)
        return {x: float(own / y - 1) for (x, y), own in zip(self.points.items(), fitted, strict=True)}

    @property
    def noise(self) -> float:
        """Relative error of a point: largest of `NOISE`, `UNKNOWN_ERROR` / √(1 + f), residual; f degrees of freedom."""
        left = max(map(abs, self.residuals.values()))
        informative = max(len(self.points) - sum(each > 0 for each in self.coefficients), 0)
        return max(
            NOISE, UNKNOWN_ERROR / math.sqrt(1 + informative), left * math.sqrt(len(self.points) / max(informative, 1))
        )

    def interval(self, x: float) -> tuple[float, float]:
        """Bounds of a measurement at a cause.

        They hold for every law with a square, a proportional part and a start, none of them negative, that passes
        all points within `noise`; a measurement at `x` may be off by as much again. A `PROPORTIONAL` law through
        one point can be any of these.
        """
        noise = self.noise
        spanned = LINE if self.powers == LINE else CURVE
        rows = (
            _powers(np.array(list(self.points)) / self.scale, spanned) / np.array(list(self.points.values()))[:, None]
        )
        bounds = np.concatenate([np.full(len(rows), 1 + noise), np.full(len(rows), noise - 1)])
        here = _powers(np.array([x / self.scale]), spanned)[0]
        ends = [linprog(sign * here, A_ub=np.vstack([rows, -rows]), b_ub=bounds) for sign in (1, -1)]
        own = self.at(x)
        # No law passes all points where they contradict each other more than `noise` says; the fitted one is used then.
        low, high = (own if end.status else sign * float(end.fun) for sign, end in zip((1, -1), ends, strict=True))
        return min(low, own) * (1 - noise), max(high, own) * (1 + noise)

    def distance(self, x: float) -> float:
        """Factor by which a cause lies outside the measured ones; 1 among them."""
        return max(x / self.scale, min(self.points) / x if x > 0 else 1.0, 1.0)

    def warning(self, x: float) -> str | None:
        """Note on an answer that is beyond the points; None among them, or where it was measured."""
        distance = self.distance(x)
        if distance <= 1:
            return None
        low, high = self.interval(x)
        least, most = f"{min(self.points):g}", f"{self.scale:g}"
        measured = f"{most}" if least == most else f"{least} to {most}"
        far = f"; {distance:.1f} times beyond is far: profile nearer" if distance > FAR else ""
        return (
            f"{self.of}: measured with {measured} {self.cause} and asked for {x:g}, {distance:.3g} times beyond: "
            f"{self.at(x):.4g} {self.unit}, between {low:.4g} and {high:.4g}{far}"
        )


def _powers(x: np.ndarray, powers: tuple[int, ...]) -> np.ndarray:
    return np.stack([x**power for power in powers], axis=-1)
