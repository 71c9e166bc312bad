"""Memory kept free on every device below its limit, as a job asks for it: an amount, or what a known error needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.cost_model.errors.known_error import DEFAULT_RISK, KnownError

HALF = 0.5
"""Largest risk: that of a predicted peak that reaches the limit."""


@dataclass(frozen=True)
class MemoryMargin:
    """A part of the device's memory that a plan leaves free.

    Parameters
    ----------
    mib : float
        MiB of every device.
    share : float
        Fraction of every device's limit, in addition to `mib`.
    risk : float or None
        Probability that the real peak is over the remaining memory; 0 lets the predicted peak reach it. None:
        `DEFAULT_RISK` for estimated peaks, 0 for measured ones (`KnownError.planned`).

    Raises
    ------
    ValueError
        When one is negative or no number, the fraction is the whole limit, or the risk is not from 0 to one half.
    """

    mib: float = 0.0
    share: float = 0.0
    risk: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.mib < math.inf:
            raise ValueError(f"a margin must be a finite number of MiB >= 0, found {self.mib}")
        if not 0 <= self.share < 1:
            raise ValueError(f"a margin must be a share from 0 to below 1, found {self.share}")
        if self.risk is not None and not 0 <= self.risk <= HALF:
            raise ValueError(f"a risk must lie from 0 to {HALF:g}, found {self.risk}")

    @property
    def stated_risk(self) -> float:
        """The risk at the ends of reported intervals."""
        return self.risk or DEFAULT_RISK

    def planned_risk(self, known: KnownError | None) -> float:
        """The risk that a plan may have; 0 where the predicted peak may reach the limit."""
        if known is None:
            return 0.0
        if self.risk is None:
            return DEFAULT_RISK if known.planned else 0.0
        return self.risk

    @classmethod
    def parse(cls, text: str) -> MemoryMargin:
        """The margin that a person writes: ``2048`` (MiB) or ``5%``.

        Raises
        ------
        ValueError
            When the text is neither.
        """
        stripped = text.strip()
        if stripped.endswith("%"):
            return cls(share=float(stripped[:-1]) / 100.0)
        return cls(mib=float(stripped))

    def below(self, limit_mib: float, known: KnownError | None = None) -> float:
        """Part of a limit that predicted peaks may take, MiB.

        Parameters
        ----------
        known : KnownError, optional
            Of the predicted peaks; None where nothing is known.

        Raises
        ------
        InputError
            When nothing is.
        """
        left = (limit_mib * (1.0 - self.share) - self.mib) / self._reserve(known)
        if left <= 0:
            raise InputError(
                f"uses up all {limit_mib:,.0f} MiB of a device",
                field="--margin",
                value=str(self),
                cure="name a smaller one, in MiB or as per cent of the limit (5%)",
            )
        return left

    def around(self, left_mib: float, known: KnownError | None = None) -> float:
        """The limit of which `left_mib` remains; the inverse of `below`."""
        return (left_mib * self._reserve(known) + self.mib) / (1.0 - self.share)

    def within(self, limit_mib: float, known: KnownError | None) -> float:
        """Memory that a real peak may take where `limit_mib` remains for a predicted one, MiB."""
        return limit_mib * self._reserve(known)

    def described(self, known: KnownError | None) -> str:
        """All that is kept free for peaks with a known error, in words; empty where nothing is."""
        parts = [str(replace(self, risk=None))] if self.share or self.mib else []
        risk = self.planned_risk(known)
        return " and ".join([*parts, *([f"free memory for {100 * risk:g} % risk"] if risk else [])])

    def _reserve(self, known: KnownError | None) -> float:
        risk = self.planned_risk(known)
        return known.upper(risk) if known is not None and risk else 1.0

    def __bool__(self) -> bool:
        return bool(self.mib or self.share or self.risk)

    def __str__(self) -> str:
        parts = [f"{100 * self.share:g} %"] if self.share else []
        parts += [f"{self.mib:,.0f} MiB"] if self.mib else []
        parts += [f"free memory for {100 * self.risk:g} % risk"] if self.risk else []
        return " and ".join(parts) or "0 MiB"
