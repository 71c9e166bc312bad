"""Measured speed of an engine that generates samples: one figure, or a CSV of ``concurrent,tokens_per_s``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taylor.base.errors import InputError
from taylor.parsers.tables.csv_rows import csv_rows

HEADER = ("concurrent", "tokens_per_s")


@dataclass(frozen=True)
class GenerationSpeed:
    """Tokens that one engine generates a second, by the samples that it generates at once.

    Parameters
    ----------
    concurrent : tuple of int
        Samples at once, rising.
    tokens_per_s : tuple of float
        Tokens a second of all of them together. Between two entries it is interpolated, beyond the last one it is the
        last one's.
    """

    concurrent: tuple[int, ...]
    tokens_per_s: tuple[float, ...]

    @classmethod
    def of(cls, tokens_per_s: float, alone: float | None = None) -> GenerationSpeed:
        """One speed for all numbers of samples.

        Parameters
        ----------
        alone : float, optional
            Tokens a second of a single sample: an iteration then takes no less than its longest sample.
        """
        return cls((0,), (tokens_per_s,)) if alone is None else cls((1, 2), (alone, tokens_per_s))

    def at(self, concurrent: float) -> float:
        """Tokens a second with a number of samples at once."""
        return float(np.interp(concurrent, self.concurrent, self.tokens_per_s))

    @property
    def alone(self) -> float | None:
        """Tokens a second of a single sample; None where it is not known."""
        return self.tokens_per_s[0] if self.concurrent[0] == 1 else None

    def seconds(self, samples: int, mean_tokens: float, longest: int, concurrent: int) -> float:
        """Time in which one engine generates its samples, s.

        Parameters
        ----------
        samples : int
            Samples of this engine.
        mean_tokens, longest : float, int
            Generated tokens of a sample.
        concurrent : int
            Most samples at once.
        """
        all_of_them = samples * mean_tokens / self.at(min(samples, concurrent))
        return max(all_of_them, 0.0 if self.alone is None else longest / self.alone)


def read_generation(file: Path) -> GenerationSpeed:
    """Read a CSV with the columns ``concurrent`` (samples at once) and ``tokens_per_s`` (of one engine).

    Raises
    ------
    InputError
        With the row and column, and the value found there.
    """
    found: dict[int, float] = {}
    for place, given in csv_rows(file, HEADER, f"begin the file with the line {','.join(HEADER)}"):
        at = checked_speed(given["concurrent"], file, f"{place}, column concurrent", whole=True)
        if int(at) in found:
            raise InputError("is stated twice", file=file, field=f"{place}, column concurrent", value=int(at))
        found[int(at)] = checked_speed(given["tokens_per_s"], file, f"{place}, column tokens_per_s")
    if not found:
        raise InputError("contains no speeds", file=file, cure="write lines of concurrent,tokens_per_s")
    order = sorted(found)
    return GenerationSpeed(tuple(order), tuple(found[at] for at in order))


def checked_speed(text: str, file: Path | None, field: str, *, whole: bool = False) -> float:
    """A number above 0.

    Raises
    ------
    InputError
        When it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0 or value > 1e12 or (whole and value != int(value)):
        raise InputError(f"must be a {'whole ' if whole else ''}number above 0", file=file, field=field, value=text)
    return value
