"""Plans worth a dry-run in addition to the best one, whose dry-run may fail by chance where peaks scatter."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from taylor.base.errors import InfeasibleError, NoSolutionError
from taylor.dryrun.fitting.linear_memory import Floats, LinearMemory
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRunResult
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution

SOLVES = 24
"""Problems solved in one round in search of such plans."""
PATIENCE_S = 60.0
"""Seconds of one round's search."""
LEAST_GAIN = 0.002
"""Expected saving, as a fraction of the step time, below which a plan is not worth its dry-runs."""
SAFE = 2.0
"""Standard deviations of scatter below its limits at which a plan is almost sure to fit."""
REACH = 2.0
"""Standard deviations within which a stage may be on either side of its limit."""
_SAME_MIB = 1.5


@dataclass(frozen=True)
class NearPlan:
    """A plan, the problem it solves, and each stage's probability to be within its limit [stages]."""

    problem: PipelineProblem
    solution: Solution
    chances: Floats

    @property
    def plan(self) -> PipelinePlan:
        """Its layers and recompute."""
        assert self.solution.plan is not None
        return self.solution.plan

    @property
    def time(self) -> float:
        """Its step time."""
        assert self.solution.objective is not None
        return self.solution.objective

    @property
    def chance(self) -> float:
        """Probability that it stays within all limits."""
        return float(np.prod(self.chances))


@dataclass
class StageRecord:
    """Measurements of a stage assignment: the same layers and recompute may come again in another plan.

    Where a stage assignment gave the same peak in every plan, as a deterministic program does, a stage
    that was over its limit once is not tried again. Where every run scatters, one excess says little.
    """

    linear: LinearMemory
    peaks: dict[tuple[int, bytes], list[float]] = field(default_factory=dict)

    def add(self, result: DryRunResult) -> None:
        """Record a plan's peaks."""
        assert result.run.plan is not None
        for peak in result.stages:
            if peak.peak_mib is not None or peak.failure == OUT_OF_MEMORY:
                key = self._key(result.run.plan, peak.stage)
                self.peaks.setdefault(key, []).append(math.inf if peak.peak_mib is None else peak.peak_mib)

    @property
    def changed_law(self) -> bool:
        """Return whether a stage assignment gave different peaks in different plans."""
        return any(max(known) - min(known) > _SAME_MIB for known in self.peaks.values())

    def chances(self, plan: PipelinePlan, fitted: Floats, limits: Floats, scatter: float) -> Floats:
        """Probability that each stage is within its limit: as it was measured, else by the fit and its scatter."""
        chances = np.empty(len(fitted))
        for stage, (peak, limit) in enumerate(zip(fitted.tolist(), limits.tolist(), strict=True)):
            known = self.peaks.get(self._key(plan, stage), [])
            if known and not self.changed_law:
                chances[stage] = float(max(known) <= limit)
            else:
                chances[stage] = 0.5 * (1.0 + math.erf((limit / peak - 1.0) / scatter / math.sqrt(2.0)))
        return chances

    def _key(self, plan: PipelinePlan, stage: int) -> tuple[int, bytes]:
        ones = np.ones(len(self.linear.unknowns))
        return stage, self.linear.rows(plan, ones, [stage])[0].tobytes()


def near_plans(
    problem: PipelineProblem,
    record: StageRecord,
    fitted: Callable[[PipelinePlan], Floats],
    limits: Floats,
    scatter: float,
    solve: Callable[[PipelineProblem], Solution],
    *,
    tried: Sequence[PipelinePlan],
    to_beat: float,
    number: int,
) -> list[NearPlan]:
    """Plans not tried yet, ordered by the step time that each can be expected to save.

    A best-first search: from the optimum with limits as they are, and with limits that a stage may keep, to the optima
    with one stage's limit lowered below what the plan needs there.

    Parameters
    ----------
    problem : PipelineProblem
        With the fitted memory.
    fitted : callable
        Plan to fitted peaks, MiB [stages].
    limits : float64 [stages]
        Limits for dry-runs, MiB.
    scatter : float
        Relative standard deviation of a peak about the fit.
    to_beat : float
        Step time of the best plan that was, or surely is, within its limits.

    Returns
    -------
    list of NearPlan
        At most `number`, best first; none where nothing is worth it.
    """
    until = time.monotonic() + PATIENCE_S
    known: dict[str, NearPlan] = {}
    queue: list[tuple[float, int, tuple[float, ...]]] = []
    seen: set[tuple[int, ...]] = set()
    done = {_content(plan) for plan in tried}

    def push(worth: float, allowed: Floats) -> None:
        key = tuple(map(round, allowed.tolist()))
        if key not in seen:
            seen.add(key)
            heapq.heappush(queue, (-worth, len(seen), tuple(map(float, allowed))))

    push(math.inf, limits)
    push(math.inf, limits * (1.0 + 0.5 * scatter))
    solves = 0
    while queue and solves < SOLVES and time.monotonic() < until:
        allowed = np.array(heapq.heappop(queue)[2])
        solves += 1
        try:
            solved = problem.replace(limit_mib=tuple(map(float, allowed)))
            solution = solve(solved)
        except (InfeasibleError, NoSolutionError):
            continue
        if solution.plan is None or solution.objective is None or solution.objective >= to_beat:
            continue
        peaks = fitted(solution.plan)
        near = NearPlan(solved, solution, record.chances(solution.plan, peaks, limits, scatter))
        known.setdefault(_content(solution.plan), near)
        worth = near.chance * (to_beat - near.time)
        # The neighbours of a tried plan may differ on any stage, those of another only where its memory is tight.
        tight = peaks > (1.0 - REACH * scatter) * limits
        around = np.ones_like(tight) if _content(solution.plan) in done else tight
        for stage in np.flatnonzero(around).tolist():
            lower = allowed.copy()
            lower[stage] = min(lower[stage], peaks[stage] - 1.0)
            push(worth, lower)
    fresh = [near for key, near in known.items() if key not in done]
    fresh.sort(key=lambda near: -near.chance * (to_beat - near.time))
    return [near for near in fresh if near.chance * (to_beat - near.time) > LEAST_GAIN * to_beat][:number]


def _content(plan: PipelinePlan) -> str:
    """A key that is the same for equal plans."""
    return repr((sorted(plan.layers.items()), sorted(plan.recompute.items())))


@dataclass
class PlanSearch:
    """The search for better plans over the rounds of a check, where peaks scatter.

    Parameters
    ----------
    limits : float64 [stages]
        Limits for dry-runs, MiB.
    scatter : float
        Relative standard deviation of a peak about the fit.
    solve : callable
        Problem to solution; raises when there is none.
    plans : int
        Plans dry-run in one round.
    """

    record: StageRecord
    limits: Floats
    scatter: float
    solve: Callable[[PipelineProblem], Solution]
    plans: int
    tried: list[PipelinePlan] = field(default_factory=list)

    def more(
        self,
        problem: PipelineProblem,
        fitted: Callable[[PipelinePlan], Floats],
        best: NearPlan | None,
        chosen: Sequence[NearPlan],
    ) -> list[NearPlan]:
        """Further plans for a round, in addition to those `chosen` already; all of them count as tried from now on.

        Parameters
        ----------
        problem : PipelineProblem
            With the fitted memory.
        fitted : callable
            Plan to fitted peaks, MiB [stages].
        best : NearPlan or None
            The best plan within its limits so far.
        """
        self.tried += [near.plan for near in chosen]
        found = near_plans(
            problem,
            self.record,
            fitted,
            self.limits,
            self.scatter,
            self.solve,
            tried=self.tried,
            to_beat=best.time if best is not None else self._time_of_safe_plan(problem),
            number=self.plans - len(chosen),
        )
        self.tried += [near.plan for near in found]
        return found

    def _time_of_safe_plan(self, problem: PipelineProblem) -> float:
        """Step time of a plan that is almost sure to fit; infinite when there is none."""
        safe = tuple(map(float, (1.0 - SAFE * self.scatter) * self.limits))
        try:
            return self.solve(problem.replace(limit_mib=safe)).objective or math.inf
        except (InfeasibleError, NoSolutionError):
            return math.inf
