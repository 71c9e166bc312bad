"""The fit of a device's figures to measured times: robust, drawn towards the register, with its own error estimate.

Least squares on the logarithms of predicted over measured times under a soft L1 loss, and a unit square for every
standard deviation that a figure moves from what the register says: what the runs do not determine stays, and
one run moves all speeds together. Intervals are those of the quadratic model at the fit. The stated error is that of
held-out runs, all runs of one job together; where no fit beats the register by it, the register stays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from taylor.cost_model.errors.known_error import FLAG_WIDTH
from taylor.profiling.calibration.figures import COMMON, FIGURES, Figures
from taylor.register.device import DeviceSpec

NOISE = 0.03
"""Least relative error of a measured time and of the analytical model."""
SINGLE_NOISE = 0.06
"""Assumed scatter of a single job's run around its card's speed: several jobs show it among themselves, one cannot.
Held-out rows of the registered devices are 2.0 to 6.5 % off in the median of a table
(``python -m benchmarks.fidelity``), a deviation of 3 to 10 %."""
CONTRADICTS = 3.0
"""Deviations off from which a run contradicts the others."""
SAME_JOB = 0.05
"""Relative difference between measurements of the same job above which a note reports it."""
_STEP = 0.03
LEARNED = 0.1
"""A figure that is known this much better than before was determined by the runs."""

FEW_JOBS = 6
"""Jobs below which held-out runs only give the stated error."""
CLEARLY = 0.8
"""Multiple of the full fit's mean error on held-out runs below which a smaller fit is taken."""

REGISTER, TOGETHER, ALL = "the register's figures", "all speeds together", "all figures"


@dataclass(frozen=True)
class Measured:
    """One time that was measured.

    Parameters
    ----------
    name : str
        As messages call the run.
    ms : float
    predict : callable
        Gives the cost model's prediction on a device, ms.
    job : hashable
        Equal for runs with the same prediction.
    flags : tuple of str
        Flags of its file that no figure takes into account.
    """

    name: str
    ms: float
    predict: Callable[[DeviceSpec], float]
    job: Hashable
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """One figure from the runs: value, least and largest with 95 %, and whether the runs determine it at all."""

    name: str
    keys: tuple[str, ...]
    before: float
    value: float
    least: float
    largest: float
    from_runs: bool


@dataclass(frozen=True)
class RunError:
    """Relative errors of one run: by the register, by the fit, and by a fit without the runs of its job."""

    name: str
    measured_ms: float
    before: float
    fitted: float
    left_out: float | None
    contradicts: bool


@dataclass(frozen=True)
class Calibration:
    """Result of a fit of a device to measured runs.

    Parameters
    ----------
    device : DeviceSpec
        With the fitted figures.
    moved : str
        Free figures: `REGISTER` (none), `TOGETHER` or `ALL`, whichever predicts held-out runs best.
    notes : tuple of str
        Oddities of the runs, a sentence each.
    """

    device: DeviceSpec
    moved: str
    figures: tuple[Fitted, ...]
    runs: tuple[RunError, ...]
    notes: tuple[str, ...]

    def median_error(self, which: str) -> float | None:
        """Median of the absolute relative errors ``before``, ``fitted`` or ``left_out``; None without any."""
        errors = [abs(value) for run in self.runs if (value := getattr(run, which)) is not None]
        return median(errors) if errors else None


def calibrate(measured: Sequence[Measured], device: DeviceSpec) -> Calibration:
    """Fit a device's figures to measured times.

    Raises
    ------
    ValueError
        When nothing was measured.
    """
    if not measured:
        raise ValueError("at least one measured run is needed")
    fit = _Fit(measured, Figures(device))
    before = np.array([run.predict(device) for run in measured]) / fit.ms - 1
    found = {TOGETHER: fit.solve([0]), ALL: fit.solve(range(fit.figures.size))}
    left_out = {REGISTER: before, **{name: fit.left_out(point, name == TOGETHER) for name, point in found.items()}}
    # Few jobs cannot choose among fits; they count as far as the priors allow.
    few = len({run.job for run in measured}) < FEW_JOBS
    moved = ALL if few else _simplest({name: float(np.mean(np.abs(errors))) for name, errors in left_out.items()})
    point = np.zeros(fit.figures.size) if moved == REGISTER else found[moved]
    fitted = before if moved == REGISTER else fit.ratios(point) - 1
    odd = np.abs(np.log1p(fitted)) > CONTRADICTS * np.maximum(fit.noise, fit.seen_noise(fitted))
    alone = len({run.job for run in measured}) == 1
    runs = tuple(
        RunError(run.name, run.ms, float(before[i]), float(fitted[i]), None if alone else float(left_out[moved][i]),
                 bool(odd[i]))
        for i, run in enumerate(measured)
    )  # fmt: skip
    card = device if moved == REGISTER else fit.figures.at(point)
    return Calibration(card, moved, fit.fitted_figures(point, moved), runs, tuple(fit.notes(runs)))


def _simplest(errors: Mapping[str, float]) -> str:
    """The fit of all figures, unless one with fewer free figures predicts held-out runs clearly better."""
    best = min(errors, key=lambda name: errors[name])
    return best if errors[best] < CLEARLY * errors[ALL] else ALL


class _Fit:
    """The measured runs beside the figures: predictions, their slopes, and what follows from them."""

    def __init__(self, measured: Sequence[Measured], figures: Figures) -> None:
        self.measured, self.figures = measured, figures
        self.ms = np.array([run.ms for run in measured], dtype=np.float64)
        self.noise = _noise(measured)

    def ratios(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predicted over measured, [runs]; runs of one job are predicted once."""
        card, known = self.figures.at(point), {}
        for run in self.measured:
            if run.job not in known:
                known[run.job] = run.predict(card)
        return np.array([known[run.job] for run in self.measured]) / self.ms

    def solve(self, free: Sequence[int]) -> NDArray[np.float64]:
        """The best point when only the entries `free` move."""
        least, largest = self.figures.bounds()
        places, whole = list(free), np.clip(np.zeros(self.figures.size), least, largest)
        start = self.figures.start()[places]

        def place(values: NDArray[np.float64]) -> NDArray[np.float64]:
            point: NDArray[np.float64] = np.array(whole)
            point[places] = values
            return point

        def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
            errors = np.log(self.ratios(place(values))) / self.noise
            # Soft L1 by hand, so that the priors keep their plain square.
            soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
            return np.concatenate([soft, values])

        def slopes(values: NDArray[np.float64]) -> NDArray[np.float64]:
            here, columns = residuals(values), []
            for at, entry in enumerate(places):
                step = -_STEP if values[at] - _STEP >= least[entry] else _STEP
                moved = values.copy()
                moved[at] += step
                columns.append((residuals(moved) - here) / step)
            return np.stack(columns, axis=1)

        found = least_squares(
            residuals, start, jac=slopes, bounds=(least[places], largest[places]), xtol=1e-4, ftol=1e-5, max_nfev=40
        )
        result: NDArray[np.float64] = place(np.asarray(found.x, dtype=np.float64))
        return result

    def slopes(self, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Derivative of the logarithm of every prediction, [runs, size]."""
        least, _ = self.figures.bounds()
        here, columns = np.log(self.ratios(point)), []
        for at in range(self.figures.size):
            moved, step = point.copy(), -_STEP if point[at] - _STEP >= least[at] else _STEP
            moved[at] += step
            columns.append((np.log(self.ratios(moved)) - here) / step)
        return np.stack(columns, axis=1)

    def left_out(self, point: NDArray[np.float64], together: bool) -> NDArray[np.float64]:
        """Relative error of every run by the fit without the runs of its job, [runs].

        One step of the linear model away from the whole fit, where the loss keeps its weights there.
        """
        rows, errors = self.slopes(point), np.log(self.ratios(point))
        if together:
            rows[:, 1:] = 0.0
        weights = self._weights(errors)
        result = np.zeros(len(self.measured))
        for job in dict.fromkeys(run.job for run in self.measured):
            mine = np.array([run.job == job for run in self.measured])
            kept = ~mine
            scaled = rows[kept] * weights[kept, None]
            matrix = rows[kept].T @ scaled + np.eye(self.figures.size)
            # The minimum of the others' errors and of the priors, seen from the whole fit's point.
            step = -np.linalg.solve(matrix, scaled.T @ errors[kept] + point)
            least, largest = self.figures.bounds()
            moved = np.clip(point + step, least, largest)
            predicted = np.array([run.predict(self.figures.at(moved)) for run in self._one_of(job)])
            result[mine] = predicted[0] / self.ms[mine] - 1
        return result

    def fitted_figures(self, point: NDArray[np.float64], moved: str) -> tuple[Fitted, ...]:
        """Every figure with its interval."""
        rows, errors = self.slopes(point), np.log(self.ratios(point))
        if moved != ALL:
            rows[:, 1:] = 0.0
        matrix = rows.T @ (rows * self._weights(errors)[:, None]) + np.eye(self.figures.size)
        spread = np.linalg.inv(matrix)
        result = []
        for at, figure in enumerate(FIGURES, 1):
            value, least, largest, learned = self.figures.interval(point, spread, at)
            before = self.figures.known[figure.keys[0]]
            from_runs = moved != REGISTER and learned > LEARNED
            result.append(Fitted(figure.name, figure.keys, before, value, least, largest, from_runs))
        return tuple(result)

    def seen_noise(self, errors: NDArray[np.float64]) -> float:
        """Deviation of the errors, from their median."""
        return float(1.4826 * np.median(np.abs(np.log1p(errors)))) if len(errors) > 2 else 0.0

    def notes(self, runs: Sequence[RunError]) -> list[str]:
        """Notes on oddities in the runs."""
        jobs: dict[Hashable, list[Measured]] = {}
        for run in self.measured:
            jobs.setdefault(run.job, []).append(run)
        notes = []
        if len(jobs) < 3:
            many = "one job determines" if len(jobs) == 1 else "two jobs determine"
            notes.append(f"{many} little more than {COMMON}; measure jobs of other shapes and strategies too")
        for alike in jobs.values():
            low, high = min(alike, key=lambda run: run.ms), max(alike, key=lambda run: run.ms)
            if high.ms > (1 + SAME_JOB) * low.ms:
                notes.append(
                    f"{low.name} and {high.name} are the same job to the model and took {low.ms:,.0f} and "
                    f"{high.ms:,.0f} ms"
                )
        for run, error in zip(self.measured, runs, strict=True):
            if error.contradicts:
                why = f"; not modelled of it: {', '.join(run.flags)}" if run.flags else ""
                notes.append(f"{run.name} contradicts the others: the fit is {100 * error.fitted:+.0f} % off{why}")
        return notes

    def _weights(self, errors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weight of every run under the soft L1 loss."""
        weights: NDArray[np.float64] = 1 / (self.noise**2 * np.sqrt(1 + (errors / self.noise) ** 2))
        return weights

    def _one_of(self, job: Hashable) -> list[Measured]:
        return [next(run for run in self.measured if run.job == job)]


def _noise(measured: Sequence[Measured]) -> NDArray[np.float64]:
    """Deviation of every run, [runs]: larger by each flag that is not modelled and that few of the others have."""
    flags = [set(run.flags) for run in measured]
    rare = [sum(2 * sum(flag in other for other in flags) <= len(flags) for flag in mine) for mine in flags]
    few = np.array(rare if len(flags) > 2 else [0] * len(flags), dtype=np.float64)
    least = SINGLE_NOISE if len({run.job for run in measured}) == 1 else NOISE
    noise: NDArray[np.float64] = np.sqrt(least**2 + few * FLAG_WIDTH**2)
    return noise
