"""Memory coefficients from measured peaks by non-negative least squares, and how far the data determine them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from taylor.base.kept import read_kept, write_kept
from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.fitting.design import column_scale
from taylor.dryrun.fitting.linear_memory import Floats, LinearMemory
from taylor.pipeline.plan import PipelinePlan, as_grid

RANK_TOLERANCE = 1e-9
"""Singular values below this fraction of the largest belong to directions that the rows do not determine."""
_ROUNDS = 8
PRIOR_SPREAD = 0.3
"""Relative standard deviation of a prior's coefficient: the estimate's usual error."""
USUAL_SCATTER = 0.003
"""Relative error of a peak under the linear model, where too few rows show it."""
CLEAR = 0.05
"""Relative standard error below which a coefficient is determined by its rows alone."""
DOUBT = 0.001
"""Chance that rows of other jobs are rejected although they follow the same coefficients."""
_ROUNDING_MIB = 0.3
CLOSE = 10.0
"""Weight of the stages of a solved plan against designed ones: the fit has to be right where it is used."""


@dataclass(frozen=True)
class Observation:
    """One measured stage of one plan; `weight` says how much its relative error counts."""

    plan: PipelinePlan
    stage: int
    peak_mib: float
    weight: float = 1.0


@dataclass(frozen=True)
class MemoryFit:
    """Coefficients and how far they can be trusted.

    Parameters
    ----------
    unknowns : tuple of str
        ``static.first``, ``layer.moe``, ``activation.moe.full``, ….
    values : float64 [unknowns]
        MiB.
    standard_error : float64 [unknowns]
        Of each value, MiB, by the scatter of the residuals; inf where it is not determined.
    residual : float64 [rows]
        (measured − fitted) / measured.
    scatter : float
        Relative standard deviation of a peak about the fit; inf with no more rows than unknowns.
    condition : float
        Of the system with rows relative to the peak and columns relative to the prior.
    undetermined : tuple of str
        Unknowns that the rows do not determine: they keep the prior's value, as far as the rows allow.
    """

    unknowns: tuple[str, ...]
    values: Floats
    standard_error: Floats
    residual: Floats
    scatter: float
    condition: float
    undetermined: tuple[str, ...]

    @property
    def caution(self) -> float:
        """Factor by which the scatter may exceed the one seen (at 99 %): few residuals may be small by chance."""
        freedom = len(self.residual) - len(self.unknowns)
        from scipy.special import chdtri  # here, as in the others: a job without dry-runs fits nothing

        return float(np.sqrt(freedom / chdtri(freedom, 0.99))) if freedom > 0 else float("inf")

    def describe(self) -> str:
        """One line for the log."""
        rms = float(np.sqrt(np.mean(self.residual**2))) if len(self.residual) else 0.0
        worst = float(np.abs(self.residual).max(initial=0.0))
        text = (
            f"memory fit: {len(self.residual)} stage peaks, {len(self.unknowns)} coefficients, residual "
            f"{100 * rms:.2f} % (largest {100 * worst:.2f} %), condition {self.condition:.0f}"
        )
        return text


def fit_memory(memory: LinearMemory, observations: Sequence[Observation], prior: MemoryProfile) -> MemoryFit:
    """Fit the coefficients to measured peaks.

    Least squares of the relative errors over coefficients >= 0. Columns are scaled by the prior, so
    that small and large coefficients count alike; directions in which the rows say nothing keep the
    prior's value. Where peaks scatter, the prior supports coefficients within the scatter (Bayesian ridge: each weighs
    by its own variance), and no others.

    Parameters
    ----------
    prior : MemoryProfile
        The estimate (or an earlier fit): gives the worst moment of an interleaved stage in the first round, and what
        the rows do not determine.
    """
    guess = memory.coefficients(prior)
    scale = column_scale(guess)
    peaks = np.array([observation.peak_mib for observation in observations], dtype=np.float64)
    weights = np.array([observation.weight for observation in observations], dtype=np.float64)
    values = guess
    matrix = np.zeros((0, len(guess)))
    pull = np.zeros(len(guess))
    for _ in range(_ROUNDS):
        rows = np.concatenate(
            [memory.rows(observation.plan, values, [observation.stage]) for observation in observations]
            or [np.zeros((0, len(guess)))]
        )
        matrix = rows * scale / np.maximum(peaks, 1.0)[:, None]
        before, values = values, _solve(matrix, np.sqrt(weights), guess / scale, pull) * scale
        pull = _pull(matrix, weights, values / scale)
        if np.allclose(before, values, rtol=1e-9, atol=0.0):
            break
    return _report(memory, matrix, weights, values, scale)


def agree(own: MemoryFit, both: MemoryFit, own_rows: Sequence[Observation]) -> bool:
    """Return whether rows of other jobs follow the job's coefficients.

    Chow's predictive test (Chow 1960): the squared residuals that come with the new rows, over the residuals of the
    job's own rows alone, are F-distributed when the coefficients are the same.

    Parameters
    ----------
    own, both : MemoryFit
        To the job's own rows, and to these with the others behind them.
    """
    new, freedom = len(both.residual) - len(own.residual), len(own_rows) - len(own.unknowns)
    if new <= 0 or freedom <= 0:
        return True
    # Logs hold whole MiB, so even exact peaks scatter by a third of one.
    rounding = sum((_ROUNDING_MIB / max(row.peak_mib, 1.0)) ** 2 for row in own_rows)
    alone = max(float((own.residual**2).sum()), rounding) / freedom
    more = float((both.residual**2).sum() - (own.residual**2).sum()) / new
    from scipy.special import fdtrc

    return bool(fdtrc(new, freedom, max(more, 0.0) / alone) >= DOUBT)


def _pull(matrix: Floats, weights: Floats, values: Floats) -> Floats:
    """Weight of the prior for each coefficient [unknowns]; 0 once its own rows determine it better."""
    scatter = _scatter(matrix, weights, values)
    weighted = matrix * np.sqrt(weights)[:, None]
    error = scatter * np.sqrt(np.maximum(np.diag(np.linalg.pinv(weighted.T @ weighted)), 0.0))
    _, open_directions = _open_directions(matrix)
    vague = (error > CLEAR * np.maximum(values, 1e-12)) | (np.abs(open_directions) > 1e-6).any(axis=0)
    result: Floats = np.where(vague, scatter / PRIOR_SPREAD, 0.0)
    return result


def _scatter(matrix: Floats, weights: Floats, values: Floats) -> float:
    """Standard deviation of a peak's relative error, by the residuals; `USUAL_SCATTER` where there are too few."""
    freedom = len(matrix) - matrix.shape[1]
    if freedom <= 0:
        return USUAL_SCATTER
    return float(np.sqrt((weights * (1.0 - matrix @ values) ** 2).sum() / max(weights.mean(), 1e-12) / freedom))


def _open_directions(matrix: Floats) -> tuple[Floats, Floats]:
    """Singular values [unknowns] and an orthonormal basis of the undetermined directions [open, unknowns]."""
    unknowns = matrix.shape[1]
    if not len(matrix):
        return np.zeros(unknowns), np.eye(unknowns)
    _, singular, directions = np.linalg.svd(matrix, full_matrices=True)
    singular = np.concatenate([singular, np.zeros(unknowns - len(singular))])
    return singular, directions[singular <= RANK_TOLERANCE * singular[0]]


def _solve(matrix: Floats, weights: Floats, guess: Floats, pull: Floats) -> Floats:
    _, open_directions = _open_directions(matrix)
    system = np.concatenate([matrix * weights[:, None], open_directions, np.diag(pull)])
    right = np.concatenate([weights, open_directions @ guess, pull * guess])
    from scipy.optimize import nnls

    solution: Floats = nnls(system, right)[0]
    return solution


def _report(memory: LinearMemory, matrix: Floats, weights: Floats, values: Floats, scale: Floats) -> MemoryFit:
    singular, open_directions = _open_directions(matrix)
    left_open = np.atleast_1d((np.abs(open_directions) > 1e-6).any(axis=0))
    known = singular[singular > RANK_TOLERANCE * max(float(singular[0]), 1e-300)]
    residual = 1.0 - matrix @ (values / scale)
    freedom = len(matrix) - len(known)
    weighted = matrix * np.sqrt(weights)[:, None]
    spread = np.sqrt(np.maximum(np.diag(np.linalg.pinv(weighted.T @ weighted)), 0.0)) * scale
    scatter = float(np.sqrt((weights * residual**2).sum() / freedom)) if freedom > 0 else float("inf")
    error = np.where(spread > 0, scatter, 0.0) * np.maximum(spread, 1e-300)
    return MemoryFit(
        unknowns=memory.unknowns,
        values=values,
        standard_error=np.where(left_open, np.inf, error),
        residual=residual,
        scatter=float(np.sqrt((residual**2).sum() / freedom)) if freedom > 0 else float("inf"),
        condition=float(known[0] / known[-1]) if len(known) else float("inf"),
        undetermined=tuple(name for name, open_ in zip(memory.unknowns, left_open.tolist(), strict=True) if open_),
    )


def write_observations(observations: Sequence[Observation], path: Path) -> Path:
    """Save measured peaks, so that a later check can continue from them."""
    data = [
        {
            "layers": observation.plan.layers,
            "recompute": observation.plan.recompute,
            "stage": observation.stage,
            "peak_mib": observation.peak_mib,
            "weight": observation.weight,
        }
        for observation in observations
    ]
    return write_kept(path, data)


def read_observations(path: Path) -> list[Observation]:
    """Rows of `write_observations`; none when the file is missing or has been changed since."""
    return [
        Observation(
            PipelinePlan(_grids(entry["layers"]), _grids(entry["recompute"])),
            entry["stage"], entry["peak_mib"], entry["weight"],
        )
        for entry in read_kept(path) or []
    ]  # fmt: skip


def _grids(data: Mapping[str, list[list[int]]]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {name: as_grid(rows) for name, rows in data.items()}
