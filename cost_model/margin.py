"""Memory kept free on every device below its limit, as a job asks for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from taylor.base.errors import InputError


@dataclass(frozen=True)
class MemoryMargin:
    """A part of the device's memory that a plan leaves free.

    Parameters
    ----------
    mib : float
        MiB of every device.
    share : float
        Share of every device's limit, taken beside `mib`.

    Raises
    ------
    ValueError
        When one is negative or no number, or the share leaves nothing.
    """

    mib: float = 0.0
    share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.mib < math.inf:
            raise ValueError(f"a margin must be a finite number of MiB >= 0, found {self.mib}")
        if not 0 <= self.share < 1:
            raise ValueError(f"a margin must be a share from 0 to below 1, found {self.share}")

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

    def below(self, limit_mib: float) -> float:
        """What is left of a limit, MiB.

        Raises
        ------
        InputError
            When nothing is.
        """
        left = limit_mib * (1.0 - self.share) - self.mib
        if left <= 0:
            raise InputError(
                f"leaves nothing of a device's {limit_mib:,.0f} MiB",
                field="--margin",
                value=str(self),
                cure="name a smaller one, in MiB or as per cent of the limit (5%)",
            )
        return left

    def around(self, left_mib: float) -> float:
        """The limit of which `left_mib` is left; the inverse of `below`."""
        return (left_mib + self.mib) / (1.0 - self.share)

    def __bool__(self) -> bool:
        return bool(self.mib or self.share)

    def __str__(self) -> str:
        parts = [f"{100 * self.share:g} %"] if self.share else []
        parts += [f"{self.mib:,.0f} MiB"] if self.mib or not self.share else []
        return " and ".join(parts)
