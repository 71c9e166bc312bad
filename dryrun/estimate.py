"""A dry-run without a run: the analytical model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from taylor.cost_model.memory.breakdown import memory_profile, stage_breakdown
from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.interface import DryRun, DryRunResult, StagePeak
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec


def estimate_memory(config: TrainingConfig, device: DeviceSpec) -> MemoryProfile:
    """The memory profile of a configuration's strategy by the analytical model, and the measured peaks of the device's
    file.
    """
    limit = config.memory_limit_mib(device)
    profile = memory_profile(config.model, config.strategy, config.rules, limit, schedule=config.schedule)
    extra, factor = device.memory_extra_mib, device.kept_factor
    if not extra and factor == 1.0:
        return profile
    kept = {kind: {mode: factor * mib for mode, mib in modes.items()} for kind, modes in profile.activation_mib.items()}
    return replace(
        profile,
        static_first_mib=max(0.0, profile.static_first_mib + extra),
        static_middle_mib=max(0.0, profile.static_middle_mib + extra),
        static_last_mib=max(0.0, profile.static_last_mib + extra),
        activation_mib=kept,
    )


class EstimateBackend:
    """Peaks by the analytical model, behind the same interface as real dry-runs."""

    name = "estimate"
    exact = True
    every_flag = False

    def __enter__(self) -> EstimateBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        """One breakdown a run."""
        results = []
        for run in runs:
            config, plan = run.config, run.plan or run.config.even_plan(run.strategy)
            stages = stage_breakdown(config.model, run.strategy, config.rules, plan, config.schedule)
            peaks = tuple(StagePeak(stage, stages[stage].total, self.name) for stage in run.asked)
            results.append(DryRunResult(run, peaks))
        return results
