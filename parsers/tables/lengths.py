"""Tables of sample lengths: a CSV of ``length,count``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.parsers.tables.csv_rows import csv_rows

MAX_BYTES = 4 * 2**20
MAX_VALUE = 2**40
HEADER = ("length", "count")


@dataclass(frozen=True)
class SampleLengths:
    """Distribution of the samples' lengths of a data set.

    Parameters
    ----------
    lengths : int64 [n]
        Tokens, rising.
    counts : int64 [n]
        Samples of each length.
    """

    lengths: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def samples(self) -> int:
        """All samples."""
        return int(self.counts.sum())

    def cut_to(self, longest: int) -> SampleLengths:
        """The samples as a training with a longest sequence takes them: longer ones are cut."""
        lengths = np.minimum(self.lengths, longest)
        values, place = np.unique(lengths, return_inverse=True)
        return SampleLengths(values, np.bincount(place, weights=self.counts).astype(np.int64))

    def longer_than(self, longest: int) -> int:
        """Samples that `cut_to` cuts."""
        return int(self.counts[self.lengths > longest].sum())

    def draw(self, rng: np.random.Generator, number: int) -> NDArray[np.int64]:
        """Lengths of samples drawn at random, int64 [number]."""
        return rng.choice(self.lengths, size=number, p=self.counts / self.counts.sum())


def read_lengths(file: Path) -> SampleLengths:
    """Read a CSV with the columns ``length`` (tokens) and ``count`` (samples); a length may come several times.

    Raises
    ------
    InputError
        With the row and column, and the value found there.
    """
    found: dict[int, int] = {}
    for place, cells in csv_rows(file, HEADER, "begin the file with the line length,count", limit_bytes=MAX_BYTES):
        given = {name: _whole(cell, file, place, name) for name, cell in cells.items()}
        found[given["length"]] = found.get(given["length"], 0) + given["count"]
    if not found:
        raise InputError("contains no lengths", file=file, cure="write one line a length: tokens,samples")
    lengths = np.array(sorted(found), dtype=np.int64)
    return SampleLengths(lengths, np.array([found[length] for length in lengths.tolist()], dtype=np.int64))


def _whole(text: str, file: Path, place: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 13 and 1 <= int(text) <= MAX_VALUE):
        field = f"{place}, column {name}"
        raise InputError(f"must be a whole number from 1 to {MAX_VALUE}", file=file, field=field, value=text)
    return int(text)
