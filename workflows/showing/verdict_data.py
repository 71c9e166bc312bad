"""Verdict of a result as plain data: the object of `schemas.verdict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from taylor.cost_model.errors.known_error import NEIGHBOUR_ERROR, KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB
from taylor.pipeline_solver.model.solution import Solution, Status
from taylor.register.device import DeviceSpec
from taylor.workflows.showing.fit import Fit, FitVerdict, fit_verdict, is_tight, risk_of
from taylor.workflows.showing.memory_levers import Lever
from taylor.workflows.statement.options import Origin

EQUAL_SHARE = 5e-4
"""Relative difference below which two step times are reported as equal."""


@dataclass(frozen=True)
class Rival:
    """Another plan of the job, under the same memory and times.

    Parameters
    ----------
    step_ms : float
        Its step; of the same unit as that of the plan that it is compared with.
    """

    name: str
    step_ms: float


@dataclass(frozen=True)
class VerdictFacts:
    """What the verdict on a plan rests on.

    Parameters
    ----------
    config : TrainingConfig or None
        The job; None where only tables of costs state it.
    device : DeviceSpec or None
    known : KnownError or None
        Of the peaks.
    step_ms : float or None
        Step of the plan.
    estimated : bool
        Whether the times are estimated, so that steps within the model's error are a tie.
    cure : Lever or None
        Smallest change that makes the job fit.
    baseline, runner_up : Rival or None
        The plan in the file, and the next best that was solved.
    framework : str or None
        Framework whose files have the plan, where there is no configuration.
    """

    config: TrainingConfig | None
    device: DeviceSpec | None
    fit: FitVerdict
    solution: Solution
    known: KnownError | None
    step_ms: float | None
    estimated: bool
    cure: Lever | None = None
    baseline: Rival | None = None
    runner_up: Rival | None = None
    origin: Origin = Origin()
    framework: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The verdict's object."""
        config = self.config
        margin = MemoryMargin() if config is None else config.margin
        return self.fit.to_dict() | {
            "tight_stages": tight_stages(self.solution, self.known, margin),
            "smallest_change": None if self.cure is None else _change(self.cure),
            "baseline": self._against(self.baseline),
            "runner_up": self._against(self.runner_up),
            "software": {
                "framework": self.framework if config is None else config.rules.framework.name,
                "stack": None if self.device is None else self.device.stack or None,
                "assumed": list(self.origin.software),
            },
            "unmodelled": [] if config is None else unmodelled_entries(config),
            "version": str(import_module("taylor").__version__),
            "command": self.origin.command or None,
        }

    def _against(self, rival: Rival | None) -> dict[str, Any] | None:
        if rival is None or not self.step_ms:
            return None
        gain = rival.step_ms / self.step_ms - 1.0
        most = NEIGHBOUR_ERROR if self.estimated else EQUAL_SHARE
        tie = max(rival.step_ms, self.step_ms) <= (1.0 + most) * min(rival.step_ms, self.step_ms)
        return {"name": rival.name, "step_ms": rival.step_ms, "gain": gain, "tie": tie}


def tight_stages(solution: Solution, known: KnownError | None, margin: MemoryMargin) -> list[dict[str, Any]]:
    """Stages whose peak is above their limit, or tight (`fit.is_tight`), the fullest first."""
    found = []
    for stage, (peak, limit) in enumerate(zip(solution.peak_memory_mib, solution.memory_limit_mib, strict=True)):
        whole = margin.within(limit, known)
        if peak > limit + MEMORY_TOLERANCE_MIB or is_tight(known, margin, peak, limit):
            risk = risk_of(known, peak, margin.around(limit, known))
            free = whole - peak
            found.append((free, stage, peak, whole, risk))
    return [
        {
            "stage": stage,
            "peak_mib": round(peak, 3),
            "limit_mib": round(whole, 3),
            "free_mib": round(free, 3),
            "risk": risk,
        }
        for free, stage, peak, whole, risk in sorted(found)
    ]


def unmodelled_entries(config: TrainingConfig) -> Sequence[dict[str, Any]]:
    """Entry for each flag of the configuration whose effect is in none of the figures."""
    return [
        {
            "name": flag.name,
            "value": flag.value,
            "known": flag.known,
            "memory": flag.memory,
            "time": flag.time,
            "sentence": flag.sentence,
        }
        for flag in config.unmodelled
    ]


def _change(lever: Lever) -> dict[str, Any]:
    return {
        "name": lever.name,
        "saved_mib": round(lever.saved_mib, 3),
        "largest_mib": round(lever.largest_mib, 3),
    }


def figures_fit(
    peaks_mib: Sequence[float],
    limits_mib: Sequence[float],
    config: TrainingConfig | None = None,
    known: KnownError | None = None,
) -> tuple[Solution, FitVerdict]:
    """Fit of peaks that a table states, and the solution that stands for them.

    Parameters
    ----------
    config : TrainingConfig, optional
        The job: its margin, and its flags that are in no figure.
    known : KnownError, optional
        Of the peaks.
    """
    solution = Solution(
        Status.FEASIBLE, peak_memory_mib=tuple(peaks_mib), memory_limit_mib=tuple(limits_mib), message="not known"
    )
    margin, flags = (MemoryMargin(), ()) if config is None else (config.margin, config.unmodelled)
    return solution, fit_verdict(solution, flags, None, known, margin)


def no_plan(reason: str, *, proven: bool) -> tuple[Solution, FitVerdict]:
    """Fit of a job without a plan: it does not fit where that is proven, else that is unknown."""
    fit = Fit.DOES_NOT_FIT if proven else Fit.UNKNOWN
    return Solution(Status.NO_SOLUTION), FitVerdict(fit, reason=reason)
