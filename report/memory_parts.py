"""Parts of a stage's peak memory, for a chart: by category where a source has them, else as the solver sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.dryrun.stage_memory import StageMemory
from taylor.pipeline.plan import PipelinePlan, kind_of
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.evaluate import shared_states_mib

AGREE_MIB = 1.0
"""Difference up to which the totals of the analytical model agree with the planned peaks and are their parts."""


@dataclass(frozen=True)
class MemoryParts:
    """Parts of every stage's peak.

    Parameters
    ----------
    source : str
        Source of the parts.
    mib : mapping of str to sequence of float [S]
        By category, in the order of a table.
    """

    source: str
    mib: Mapping[str, Sequence[float]]

    @property
    def totals(self) -> list[float]:
        """Sum of each stage, MiB."""
        return [sum(stage) for stage in zip(*self.mib.values(), strict=True)]


def from_breakdown(stages: Sequence[StageBreakdown], peaks: Sequence[float]) -> MemoryParts | None:
    """Parts by the analytical model; None where they do not sum up to the planned peaks, which rest on other
    figures.
    """
    by_name = _by_name([stage.categories() for stage in stages])
    parts = MemoryParts("estimated by the analytical model", by_name)
    return parts if np.allclose(parts.totals, peaks, rtol=0, atol=AGREE_MIB) else None


def from_dryrun(stages: Sequence[StageMemory], count: int) -> MemoryParts | None:
    """Parts at the peak of each stage in a dry-run; None where it did not run all stages by category."""
    seen = {stage.stage: stage for stage in stages if stage.categories}
    if len(seen) < count:
        return None
    return MemoryParts("by dry-run", _by_name([seen[stage].categories for stage in range(count)]))


def from_problem(problem: PipelineProblem, plan: PipelinePlan, peaks: Sequence[float]) -> MemoryParts:
    """Parts as the solver knows them: states beside the layers and of each kind of them, activations (the rest)."""
    beside = problem.static_mib + shared_states_mib(problem, plan)
    parts: dict[str, list[float]] = {"beside the layers": beside.tolist()}
    for kind in problem.kinds:
        grid = plan.layers.get(kind.name, ())
        states = [kind.layer_mib * sum(row[stage] for row in grid) for stage in range(plan.stages)]
        name = f"{kind_of(kind.name)} layers"
        parts[name] = [a + b for a, b in zip(parts.get(name, [0.0] * plan.stages), states, strict=True)]
    summed = [sum(stage) for stage in zip(*parts.values(), strict=True)]
    parts["activations"] = [max(0.0, peak - others) for peak, others in zip(peaks, summed, strict=True)]
    return MemoryParts("as planned", _without_zeros(parts))


def _by_name(stages: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    names = list(dict.fromkeys(name for stage in stages for name in stage))
    return _without_zeros({name: [stage.get(name, 0.0) for stage in stages] for name in names})


def _without_zeros(parts: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: list(values) for name, values in parts.items() if any(values)}
