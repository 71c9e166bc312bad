"""The least memory with which a problem has a plan, and the shortage of one without a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from taylor.base.errors import OutsideProgramError
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import EXACT_TOLERANCE_MIB, exact_peak_memory
from taylor.pipeline_solver.model.places import has_places, placements
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem


@dataclass(frozen=True)
class LeastMemory:
    """The least uniform raise of all stages' limits with which a problem has a plan.

    Parameters
    ----------
    device_mib : float
        The largest stage limit after the raise, MiB: the least memory a device must have.
    stage : int
        The stage that needs the raise in the most frugal plan (the first one, where several do).
    short_by_mib : float
        The raise, MiB; 0 when the limits suffice.
    """

    device_mib: float
    stage: int
    short_by_mib: float


def least_device_memory(problem: PipelineProblem, frugal: PipelinePlan | None = None) -> LeastMemory | None:
    """Find the least device memory with which a problem is feasible.

    Parameters
    ----------
    frugal : PipelinePlan, optional
        Result of `most_frugal_plan`, where known.

    Returns
    -------
    LeastMemory or None
        None when no amount of memory helps, because layers and chunks do not fit together.
    """
    if frugal is None and has_places(problem):
        found = [one for one in map(least_device_memory, placements(problem)) if one is not None]
        return min(found, key=lambda one: one.short_by_mib, default=None)
    frugal = frugal or most_frugal_plan(problem)
    if frugal is None:
        return None
    peaks = exact_peak_memory(problem, frugal)
    short = [peak - Fraction(limit) for peak, limit in zip(peaks, problem.limit_mib, strict=True)]
    worst = max(short)
    raised = worst if worst > EXACT_TOLERANCE_MIB else Fraction(0)
    return LeastMemory(float(Fraction(max(problem.limit_mib)) + raised), short.index(worst), float(raised))


def most_frugal_plan(problem: PipelineProblem, time_limit: float | None = None) -> PipelinePlan | None:
    """The plan that needs the least uniform raise of the limits; it fits them when any plan does.

    A small MILP over the same plans as the solver's, without times.

    Parameters
    ----------
    time_limit : float, optional
        Seconds.

    Returns
    -------
    PipelinePlan or None
        None when no plan has the given layer and recompute counts, whatever the memory.

    Raises
    ------
    TimeoutError
        If the time limit ends the search.
    KeyboardInterrupt
        If Ctrl-C ends it.
    OutsideProgramError
        If HiGHS fails.
    """
    from taylor.pipeline_solver.milp.highs_model import HighsModel
    from taylor.pipeline_solver.milp.linear_form import Row
    from taylor.pipeline_solver.milp.milp import MilpStatus
    from taylor.pipeline_solver.milp.plan_model import plan_model

    plans = plan_model(problem)
    short_by = plans.model.variable("short_by")
    form = plans.model.form(short_by)
    rows = []
    for row in form.rows:
        if row.name.startswith("memory["):
            row = Row(row.name, (*row.columns, short_by), (*row.coefficients, -1.0), row.lower, row.upper)
        if not row.name.startswith("duration["):
            rows.append(row)
    form.rows[:] = rows
    outcome = HighsModel(form).solve_milp(gap=0.0, time_limit=time_limit)
    if outcome.status is MilpStatus.INFEASIBLE:
        return None
    if outcome.interrupted:
        raise KeyboardInterrupt
    if outcome.status is MilpStatus.FAILED:
        raise OutsideProgramError("HiGHS failed in the search for the least memory")
    if outcome.status is MilpStatus.STOPPED or outcome.values is None:
        raise TimeoutError("the search for the least memory was not finished")
    return plans.plan(outcome.values)


def over_limit(problem: PipelineProblem, plan: PipelinePlan) -> bool:
    """Return whether a plan exceeds the memory of some stage."""
    peaks = exact_peak_memory(problem, plan)
    return any(
        peak - Fraction(limit) > EXACT_TOLERANCE_MIB for peak, limit in zip(peaks, problem.limit_mib, strict=True)
    )


def explain_infeasible(problem: PipelineProblem, frugal: PipelinePlan | None = None) -> str | None:
    """Explain why a problem has no plan: the shortage, its size, and what would suffice.

    Parameters
    ----------
    frugal : PipelinePlan, optional
        Result of `most_frugal_plan`, where known.

    Returns
    -------
    str or None
        A sentence or two; None when the problem does have a plan.
    """
    fault = _counting_fault(problem)
    if fault:
        return fault
    least = least_device_memory(problem, frugal)
    if least is None:
        return (
            "no plan has the given layer and recompute counts: the layers fixed or capped by chunk, the least "
            "layers a chunk and the order of kinds contradict each other; loosen them"
        )
    if not least.short_by_mib:
        return None
    limit = problem.limit_mib[least.stage]
    return (
        f"no plan fits the memory: at best stage {least.stage} is short by {_mib(least.short_by_mib)} MiB of its "
        f"limit of {_mib(limit)} MiB; the least device memory with which a plan exists is "
        f"{_mib(least.device_mib)} MiB"
    )


def _counting_fault(problem: PipelineProblem) -> str:
    """The contradiction in the counts of layers and chunks; empty without one."""
    at = problem.placement.positions
    if problem.layers < sum(problem.least_layers):
        return (
            f"{problem.layers} layers cannot fill {problem.stages} stages x {problem.interleaves} virtual stages with "
            f"at least {problem.min_layers} a chunk; use fewer stages or virtual stages, or allow fewer layers a chunk"
        )
    least = most = 0
    for v in range(problem.interleaves):
        for s in range(problem.stages):
            fixed = problem.fixed_layers.get((v, s))
            cap = min(problem.max_layers.get((v, s), problem.layers), problem.layers)
            low = problem.least_layers[at[v, s]]
            if fixed is not None and not low <= fixed <= cap:
                return (
                    f"chunk [{v}][{s}] is given {fixed} layers, outside the allowed {low} to "
                    f"{cap}; correct the given number or the bounds"
                )
            least += low if fixed is None else fixed
            most += cap if fixed is None else fixed
    if not least <= problem.layers <= most:
        return (
            f"the given and bounded layers of the chunks allow {least} to {most} layers in all, the model has "
            f"{problem.layers}; correct the given numbers"
        )
    return ""


def _mib(value: float) -> str:
    """Whole MiB, rounded up, so that the reported memory suffices."""
    return str(math.ceil(value - MEMORY_TOLERANCE_MIB))
