"""From measured windows to times: robust centres, and the linear system that they form for the unknown pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taylor.profiling.pattern import Piece

OUTLIER = 3.0
"""Samples further from the median than this many standard deviations (by the median deviation) are omitted."""
UNSEEN_SCATTER = 0.05
"""Relative scatter assumed of a window that was measured less than three times."""
LEAST_SIGMA = 1e-4
"""No equation counts as more exact than this fraction of the least exact one."""


@dataclass(frozen=True)
class Centre:
    """Centre of repeated measurements: the mean without outliers, the scatter of one sample, and their number."""

    value: float
    scatter: float
    count: int


def centre(samples: NDArray[np.float64]) -> Centre:
    """Robust centre: the mean of the samples within three deviations of the median."""
    middle = float(np.median(samples))
    deviation = 1.4826 * float(np.median(np.abs(samples - middle)))
    kept = samples[np.abs(samples - middle) <= OUTLIER * deviation + 1e-5 * abs(middle)]
    scatter = float(kept.std(ddof=1)) if len(kept) > 2 else UNSEEN_SCATTER * abs(middle)
    return Centre(float(kept.mean()), scatter, len(kept))


@dataclass(frozen=True)
class TimeEstimate:
    """A time in ms, the scatter of one sample of it, and how many samples it rests on."""

    value: float
    scatter: float
    count: int


@dataclass
class LinearFit:
    """Weighted least squares over the unknown pieces; a sum of pieces is known when the equations determine it."""

    rows: list[dict[Piece, float]] = field(default_factory=list)
    centres: list[Centre] = field(default_factory=list)
    trust: list[float] = field(default_factory=list)

    def add(self, pieces: Mapping[Piece, float], measured: Centre, trust: float) -> None:
        """Add one equation; `trust` is the relative error to expect of its kind of measurement."""
        self.rows.append(dict(pieces))
        self.centres.append(measured)
        self.trust.append(trust)

    def solve(self) -> SolvedFit:
        """Solve once every equation is in."""
        unknown = sorted({piece for row in self.rows for piece in row})
        index = {piece: i for i, piece in enumerate(unknown)}
        matrix = np.zeros((len(self.rows), len(unknown)))
        for i, row in enumerate(self.rows):
            for piece, count in row.items():
                matrix[i, index[piece]] = count
        values = np.array([each.value for each in self.centres])
        scatter = np.array([each.scatter for each in self.centres])
        counts = np.array([each.count for each in self.centres])
        sigma = np.sqrt(scatter**2 / np.maximum(counts, 1) + (np.array(self.trust) * values) ** 2)
        # A window of nothing but zeros would outweigh the others until the inverse drops them.
        sigma = np.maximum(sigma, LEAST_SIGMA * sigma.max(initial=0.0)) if sigma.any() else np.ones_like(sigma)
        pseudo = np.linalg.pinv(matrix / sigma[:, None], rcond=1e-9) / sigma[None, :]
        return SolvedFit(index, matrix, pseudo, values, scatter, counts)


@dataclass(frozen=True)
class SolvedFit:
    """Solution of a `LinearFit`; `pseudo` float64 [unknowns, rows] maps measurements to pieces."""

    index: dict[Piece, int]
    matrix: NDArray[np.float64]
    pseudo: NDArray[np.float64]
    values: NDArray[np.float64]
    scatter: NDArray[np.float64]
    counts: NDArray[np.int64]

    def sum_of(self, pieces: Sequence[Piece]) -> TimeEstimate | None:
        """Time of some pieces together; None when the measurements do not determine it."""
        target = np.zeros(len(self.index))
        for piece in pieces:
            if piece not in self.index:
                return None
            target[self.index[piece]] += 1.0
        weights = target @ self.pseudo
        if not len(weights) or np.abs(weights @ self.matrix - target).max() > 1e-6:
            return None
        matters = np.abs(weights) > 0.05 * np.abs(weights).max()
        return TimeEstimate(
            float(weights @ self.values),
            float(np.sqrt(((weights * self.scatter) ** 2).sum())),
            int(self.counts[matters].min()),
        )

    def worst_residual(self) -> float:
        """Largest relative difference between the pieces and a measurement."""
        fitted = self.matrix @ (self.pseudo @ self.values)
        return float((np.abs(fitted - self.values) / np.maximum(np.abs(self.values), 1e-9)).max(initial=0.0))
