"""Stages that a dry-run found over their limits, and the next solve's margin below them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.fitting.linear_memory import Floats, LinearMemory
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRunResult
from taylor.pipeline.plan import PipelinePlan

BEYOND = 0.02
"""Assumed excess of a stage that ran out of memory, as a fraction of the limit, for its peak is unknown."""
WIDER = 1.5
"""Growth of the margin from one late round to the next."""
ALL_STAGES_FROM = 2
"""Round from which every stage keeps the largest margin of any stage."""
WIDER_FROM = 3
"""Round from which the margin grows by `WIDER`."""
LARGEST_MARGIN = 0.5
"""Largest fraction of a limit that its margin takes."""


def fitted_peaks(linear: LinearMemory, memory: MemoryProfile) -> Callable[[PipelinePlan], Floats]:
    """A function from a plan to its peaks by the fitted coefficients, MiB [stages]."""
    values = linear.coefficients(memory)

    def peaks(plan: PipelinePlan) -> Floats:
        fitted: Floats = linear.rows(plan, values) @ values
        return fitted

    return peaks


def stages_over(result: DryRunResult, limits: Floats) -> dict[int, str]:
    """The stages whose dry-run is over its limit (MiB [stages]), each with a sentence that says by how much."""
    over = {}
    for peak in result.stages:
        limit = float(limits[peak.stage])
        if peak.peak_mib is not None and peak.peak_mib > limit:
            over[peak.stage] = f"stage {peak.stage} needs {peak.peak_mib:.0f} of {limit:.0f} MiB"
        elif peak.failure == OUT_OF_MEMORY:
            over[peak.stage] = f"stage {peak.stage} ran out of memory"
    return over


def next_margins(fitted: Floats, result: DryRunResult, limits: Floats, margin: Floats, round_: int) -> Floats:
    """Margin of each stage's limit in the next solve, MiB [stages]; never less than before.

    Parameters
    ----------
    fitted : float64 [stages]
        Peaks of the dry-run's plan by the fitted coefficients, MiB.
    result : DryRunResult
        The dry-run of the last plan.
    margin : float64 [stages]
        Margins so far, MiB.
    round_ : int
        Number of rounds run, from 1. From `ALL_STAGES_FROM` on every stage keeps the largest margin, and from
        `WIDER_FROM` on the margins grow, so that the rounds end.
    """
    excess = np.zeros_like(fitted)
    for peak in result.stages:
        if peak.peak_mib is not None:
            excess[peak.stage] = max(0.0, peak.peak_mib - fitted[peak.stage])
        elif peak.failure == OUT_OF_MEMORY:
            reached = max(float(fitted[peak.stage]), float(limits[peak.stage] - margin[peak.stage]))
            excess[peak.stage] = (1.0 + BEYOND) * limits[peak.stage] - min(reached, float(limits[peak.stage]))
            excess[peak.stage] += margin[peak.stage]
    wanted = np.maximum(margin, excess)
    if round_ >= ALL_STAGES_FROM:
        # The excess scatters from plan to plan: a stage within its limit may be the next one.
        wanted = np.maximum(wanted, wanted.max(initial=0.0))
    if round_ >= WIDER_FROM:
        wanted = WIDER * wanted
    margins: Floats = np.minimum(wanted, LARGEST_MARGIN * limits)
    return margins
