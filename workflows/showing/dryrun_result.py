"""The dry-run of a plan as data: peaks and categories of every stage, beside the analytical model's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.dryrun.interface import DryRun, DryRunResult
from taylor.dryrun.stage_memory import StageMemory


def stage_memories(result: DryRunResult | None) -> tuple[StageMemory, ...]:
    """Facts of a plan's dry-run beyond peaks; none from a backend that sees no more."""
    return () if result is None else tuple(peak.memory for peak in result.stages if peak.memory is not None)


def closed_forms(run: DryRun) -> list[StageBreakdown]:
    """Breakdown by the analytical model of the plan that was dry-run, one entry a stage."""
    return stage_breakdown(run.config.model, run.strategy, run.config.rules, run.plan, run.config.schedule)


def dryrun_dict(result: DryRunResult) -> list[dict[str, Any]]:
    """Dry-run of the plan as plain data, stage by stage: peaks, and categories beside the analytical model's."""
    closed = closed_forms(result.run)

    def rounded(parts: Mapping[str, float]) -> dict[str, float]:
        return {name: round(value, 3) for name, value in parts.items()}

    return [
        {
            "stage": peak.stage,
            "source": peak.source,
            "peak_mib": peak.peak_mib,
            "failure": peak.failure,
            "categories": {} if peak.memory is None else rounded(peak.memory.categories),
            "estimate": rounded(closed[peak.stage].categories()),
        }
        for peak in result.stages
    ]
