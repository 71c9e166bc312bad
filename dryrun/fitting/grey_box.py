"""Correction of a whole space's estimates by a few measured strategies: a stage's memory is linear in 1/EP."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import ModelSpec

ESTIMATE, SCALED, FITTED = "estimate", "scaled estimate", "fit"
"""Source of the peak of a strategy that was not measured: the analytical model; that times the median ratio of all
measurements; or its family's measurements."""

FAMILY = ("dp", "tp", "pp", "cp", "sp", "vpp", "mbs", "micro_batches")
"""Dimensions in which two strategies must agree for their memory to lie on one line in 1/EP."""


@dataclass(frozen=True)
class Measurement:
    """One measured stage of one strategy under the even plan.

    Parameters
    ----------
    estimate_mib : float or None
        Estimate of the analytical model for the same stage and plan; None where the plan is not known (replayed
        logs), and the measured peak is then the strategy's.
    """

    strategy: Strategy
    stage: int
    peak_mib: float
    estimate_mib: float | None = None


@dataclass(frozen=True)
class _Line:
    """peak(EP) = constant + slope / EP of one family, MiB; `only` when one EP alone was measured."""

    constant: float
    slope: float
    only: int | None
    measured: dict[int, Measurement]

    def at(self, ep: int) -> float | None:
        if ep in self.measured:
            return self.measured[ep].peak_mib
        return None if self.only is not None else max(0.0, self.constant + self.slope / ep)


def family_of(strategy: Strategy) -> tuple[int, ...]:
    """The key of a strategy's family: everything that the line in 1/EP depends on."""
    return tuple(int(getattr(strategy, name)) for name in FAMILY)


@dataclass
class CorrectedPeaks:
    """`PeakEstimate` of the search: the analytical model, corrected by measurements.

    The expert part of a stage's memory scales with 1/EP, the rest does not, so two measured EP values
    give all others. Measured under the even plan, a family's ratio of measured to estimated memory is
    carried over to its best plan. Families without a measurement take the median ratio.

    Parameters
    ----------
    base : callable
        The analytical model (`cost_model.memory.breakdown.best_case_peak_mib`).
    mode : str
        Recompute of all layers in the measured plans: ``full`` or ``none``.
    source : str
        Source of the measurements: ``replay``, ``torch``, ….
    """

    base: object
    config: TrainingConfig
    measurements: Sequence[Measurement]
    mode: str = FULL
    source: str = "dry-run"
    _lines: dict[tuple[int, ...], _Line] = field(default_factory=dict)
    _median: float = 1.0

    def __post_init__(self) -> None:
        families: dict[tuple[int, ...], dict[int, Measurement]] = {}
        for each in self.measurements:
            families.setdefault(family_of(each.strategy), {})[each.strategy.ep] = each
        self._lines = {key: _line(known) for key, known in families.items()}
        ratios = [each.peak_mib / each.estimate_mib for each in self.measurements if each.estimate_mib]
        self._median = float(np.median(ratios)) if ratios else 1.0

    def __call__(
        self,
        model: ModelSpec,
        rules: TrainingRules,
        table: StrategyTable,
        recompute: str = "best",
        device_limit_mib: float | None = None,
        schedule: ScheduleSpec = ScheduleSpec(),  # noqa: B008 - frozen
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Peak MiB [n] of the heaviest stage, and that stage [n]."""
        assert callable(self.base)
        # No limit is passed: a lower bound above it, which the analytical model may give, could be corrected below it.
        peak, stage = self.base(model, rules, table, recompute=recompute, device_limit_mib=None, schedule=schedule)
        peak, stage = np.array(peak, dtype=np.float64), np.array(stage, dtype=np.int64)
        known = np.zeros(len(table), dtype=bool)
        for line, some, ep, these in self._known_cells(table, recompute):
            known |= these
            if some.estimate_mib is None:
                peak[these] = line.at(ep)
                stage[these] = line.measured[ep].stage if ep in line.measured else some.stage
            else:
                peak[these] *= self._ratio(line, some, ep)
        peak[~known] *= self._median
        return peak, stage

    def sources(self, table: StrategyTable, recompute: str = "best") -> tuple[str, ...]:
        """Source of each strategy's peak [n]: `source` where it was itself measured, else a name above."""
        scaled = any(each.estimate_mib for each in self.measurements)
        result = np.full(len(table), SCALED if scaled else ESTIMATE, dtype=object)
        for line, _, ep, these in self._known_cells(table, recompute):
            result[these] = self.source if ep in line.measured else FITTED
        return tuple(result.tolist())

    def _known_cells(
        self, table: StrategyTable, recompute: str
    ) -> Iterator[tuple[_Line, Measurement, int, NDArray[np.bool_]]]:
        """The rows from a family's measurements, by family and EP: its line, one of its measurements, EP, rows."""
        for line in self._lines.values():
            some = next(iter(line.measured.values()))
            rows = np.ones(len(table), dtype=bool)
            for name in FAMILY:
                rows &= getattr(table, name) == getattr(some.strategy, name)
            for ep in np.unique(table.ep[rows]).tolist():
                is_known = line.at(ep) is not None and (recompute != "none" or ep in line.measured)
                if is_known or some.estimate_mib is not None:
                    yield line, some, int(ep), rows & (table.ep == ep)

    def _ratio(self, line: _Line, some: Measurement, ep: int) -> float:
        if ep in line.measured:
            exact = line.measured[ep]
            assert exact.estimate_mib is not None
            return exact.peak_mib / exact.estimate_mib
        value = line.at(ep)
        if value is None:
            assert some.estimate_mib is not None
            return some.peak_mib / some.estimate_mib
        strategy = some.strategy.replace(ep=ep)
        return value / estimate_of(self.config, strategy, plan_to_measure(self.config, strategy, self.mode), some.stage)


def plan_to_measure(config: TrainingConfig, strategy: Strategy, mode: str) -> PipelinePlan:
    """An even split, every layer in one recompute mode (``full`` or ``none``)."""
    return config.even_plan(strategy, mode)


def estimate_of(config: TrainingConfig, strategy: Strategy, plan: PipelinePlan, stage: int) -> float:
    """The analytical model's peak of one stage of a plan, MiB."""
    return stage_breakdown(config.model, strategy, config.rules, plan, config.schedule_for(strategy.vpp))[stage].total


def _line(known: dict[int, Measurement]) -> _Line:
    if len(known) == 1:
        return _Line(0.0, 0.0, next(iter(known)), known)
    inverse = np.array([1.0 / ep for ep in known])
    peaks = np.array([each.peak_mib for each in known.values()])
    slope, constant = np.polyfit(inverse, peaks, 1)
    return _Line(float(constant), float(slope), None, known)
