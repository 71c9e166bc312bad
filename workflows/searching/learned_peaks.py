"""Peaks of a search's strategies with what runs of the plan in the file showed of the memory model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.errors.peak_correction import PeakCorrection
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.alive import ONE_FORWARD_ONE_BACKWARD
from taylor.nd_search.options import PeakEstimate
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import ModelSpec


@dataclass(frozen=True)
class LearnedPeaks:
    """Lower bounds of corrected peaks: a strategy above the limit by them is above it by the correction too.

    The heaviest stage has the least part of any stage, and kept activations count in full where the correction raises
    them. The solve of a strategy that remains has the correction itself.

    Parameters
    ----------
    base : PeakEstimate
        Peaks without the correction.
    correction : PeakCorrection
    """

    base: PeakEstimate
    correction: PeakCorrection

    def __call__(
        self,
        model: ModelSpec,
        rules: TrainingRules,
        table: StrategyTable,
        recompute: str = "best",
        device_limit_mib: float | None = None,
        schedule: ScheduleSpec = ONE_FORWARD_ONE_BACKWARD,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Peak MiB [n] of the heaviest stage, and that stage [n]."""
        learned, factor = self.correction, min(self.correction.kept_factor, 1.0)
        alike = np.equal(table.pp, len(learned.extra_mib))
        more = np.where(alike, min(learned.extra_mib), learned.common_mib)
        limit = device_limit_mib
        if limit is not None:
            # A row is refined unless it is above the limit whatever the correction removes.
            limit = (limit - min(float(more.min(initial=0.0)), 0.0)) / factor
        peak, stage = self.base(model, rules, table, recompute=recompute, device_limit_mib=limit, schedule=schedule)
        return np.maximum(factor * peak + more, 0.0), stage
