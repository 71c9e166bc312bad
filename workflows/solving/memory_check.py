"""Check of a plan by dry-runs: a plan over a limit is solved again with the measured memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError, OutsideProgramError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.fitting.fit import CLOSE, Observation, fit_memory
from taylor.dryrun.fitting.linear_memory import Floats, LinearMemory
from taylor.dryrun.fitting.margins import fitted_peaks, next_margins, stages_over
from taylor.dryrun.fitting.near_plans import SAFE, NearPlan, PlanSearch, StageRecord
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunBackend, DryRunResult
from taylor.dryrun.measure import observations_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.workflows.statement.memory_source import keep_measured, known_observations

MAX_ROUNDS = 8
BEST_OF_ROUNDS = 4
"""Rounds that look for a better plan than the one that passed, where peaks scatter."""
PLANS = 5
"""Plans dry-run in one of these rounds."""
CALM = 0.004
"""Relative scatter of peaks about the fit up to which a program counts as repeatable."""
SURE = 0.98
"""Probability of a stage within its limit from which on it is dry-run after the doubtful stages of its plan."""


class CheckStopped(Exception):
    """Early end of the check: Ctrl-C, or dry-runs that failed; its cause is the error, where there is one.

    Parameters
    ----------
    problem, solution : PipelineProblem, Solution
        The best plan so far.
    passed : bool
        Whether that plan passed its dry-run.
    """

    def __init__(self, problem: PipelineProblem, solution: Solution, *, passed: bool = False) -> None:
        super().__init__()
        self.problem, self.solution, self.passed = problem, solution, passed


@dataclass(frozen=True)
class Checked:
    """Best plan that passed.

    Parameters
    ----------
    problem : PipelineProblem
        Problem of the plan; its limits differ from the device's by the peaks of dry-runs beyond the fitted memory.
    memory : MemoryProfile
        The refitted memory.
    rounds : int
        Rounds of dry-runs, of one plan each, or of several where peaks scatter.
    dryrun : DryRunResult
        Dry-run of this plan.
    """

    problem: PipelineProblem
    solution: Solution
    memory: MemoryProfile
    rounds: int
    dryrun: DryRunResult


def solve_checked(
    config: TrainingConfig,
    memory: MemoryProfile,
    backend: DryRunBackend,
    output: Path,
    modes: Sequence[str],
    state: Callable[[MemoryProfile], PipelineProblem],
    solve: Callable[[PipelineProblem], Solution],
) -> Checked:
    """Solve, dry-run the plan, and where a stage is over its limit refit the memory and solve again.

    The refit weighs the plan's own stages more than the designed runs. An excess that remains is taken off that stage's
    limit. From the third round on, every stage keeps a margin of the largest excess seen, and the margin widens: so the
    loop ends.

    Where peaks scatter about the fit, it is a matter of chance whether the best plan passes. So each of
    `BEST_OF_ROUNDS` rounds also dry-runs some near it (`near_plans`), and the best that passed is taken.

    Parameters
    ----------
    config : TrainingConfig
        With the virtual stages and the schedule that are solved for.
    state : callable
        Memory to problem.
    solve : callable
        Problem to solution; raises when there is none, `CheckStopped` when Ctrl-C ended it at a plan.

    Raises
    ------
    InfeasibleError
        When nothing fits according to the dry-runs.
    NoSolutionError
        When no plan passed within `MAX_ROUNDS`.
    CheckStopped
        When Ctrl-C came, or a plan cannot be checked: every dry-run of a round failed, or that of a stage whose peak
        no other stage bounds; with the best plan so far.
    """
    rounds = _Rounds(config, memory, backend, output, modes, state, solve)
    for number in range(1, MAX_ROUNDS + 1):
        if rounds.run(number):
            break
    return rounds.checked()


class _Rounds:
    """Rounds of dry-runs of solved plans, until one passes; parameters as in `solve_checked`."""

    def __init__(
        self,
        config: TrainingConfig,
        memory: MemoryProfile,
        backend: DryRunBackend,
        output: Path,
        modes: Sequence[str],
        state: Callable[[MemoryProfile], PipelineProblem],
        solve: Callable[[PipelineProblem], Solution],
    ) -> None:
        self.config, self.backend, self.output = config, backend, output
        self.state, self.solve = state, solve
        self.prior, self.memory, self.problem = memory, memory, state(memory)
        self.linear = linear = LinearMemory(config, modes)
        known = memory.source in (MemorySource.DRY_RUN, MemorySource.SAVED)
        self.observations = known_observations(config, output) if known else []
        enough = len(self.observations) > len(linear.unknowns)
        self.scatter = fit_memory(linear, self.observations, memory).scatter if enough else 0.0
        self.limits = np.full(linear.stages, memory.device_limit_mib)
        self.margin = np.zeros(linear.stages)
        # An exact backend's residual of a fit is no scatter: the same plan has the same peaks.
        calm = backend.exact or self.scatter <= CALM
        record = StageRecord(linear)
        self.search = None if calm else PlanSearch(record, self.limits, self.scatter, solve, PLANS)
        self.best: tuple[NearPlan, DryRunResult] | None = None
        self.rounds = 0
        self.over: dict[int, str] = {}

    def run(self, number: int) -> bool:
        """Solve, dry-run and learn once; returns whether the check is finished."""
        batch = [] if self.best is not None else [self._solved(number)]
        results = self._measured(number, batch)
        if not batch:
            return True
        self.rounds = number
        unknown = self._judge(batch, results)
        if self.observations:
            fitted = _refit(self.linear, self.observations, self.prior)
            self.memory = replace(fitted, every_flag=self.backend.every_flag)
            keep_measured(self.config, self.output, self.memory, self.observations)
        if self.best is not None:
            return self.search is None or number == BEST_OF_ROUNDS
        if unknown is not None:
            raise CheckStopped(unknown[0].problem, unknown[0].solution) from unknown[1]
        log.info("check: round %d, over the limit: %s", number, "; ".join(self.over.values()))
        self._tighten(number, batch[0], results[0])
        return False

    def checked(self) -> Checked:
        """Best plan that passed.

        Raises
        ------
        NoSolutionError
            When there is none.
        """
        if self.best is None:
            raise NoSolutionError(
                f"{self.config.path}: no plan passed its dry-run in {MAX_ROUNDS} rounds; the last one is over the "
                f"limit: {'; '.join(self.over.values())}"
            )
        near, result = self.best
        log.info("check: %s (round %d)", _verdict(result), self.rounds)
        return Checked(near.problem, near.solution, self.memory, self.rounds, result)

    def _solved(self, number: int) -> NearPlan:
        try:
            solution = self.solve(self.problem)
        except InfeasibleError as error:
            if number == 1:
                raise
            raise InfeasibleError(f"after {number - 1} dry-runs of solved plans nothing fits: {error}") from error
        return NearPlan(self.problem, solution, np.zeros(self.linear.stages))

    def _measured(self, number: int, batch: list[NearPlan]) -> list[DryRunResult]:
        """Dry-runs of the plans of a batch, to which near ones are added."""
        best = None if self.best is None else self.best[0]
        try:
            if self.search is not None and number <= BEST_OF_ROUNDS:
                fitted = fitted_peaks(self.linear, self.memory)
                batch += self.search.more(self.state(self.memory), fitted, best, batch)
            if not batch:
                return []
            results = _dry_run(self.config, self.backend, batch, self.limits)
            if all(result.says_nothing for result in results):
                raise _unchecked(results[0])
        except (KeyboardInterrupt, InterruptedSolve, CheckStopped, OutsideProgramError) as error:
            near = best or batch[0]
            raise CheckStopped(near.problem, near.solution, passed=best is not None) from error
        return results

    def _judge(
        self, batch: Sequence[NearPlan], results: Sequence[DryRunResult]
    ) -> tuple[NearPlan, OutsideProgramError] | None:
        """Record the peaks and keep the best plan that passed; returns the first one that cannot be checked."""
        unknown: tuple[NearPlan, OutsideProgramError] | None = None
        self.over = {}
        for near, result in zip(batch, results, strict=True):
            self.observations += observations_of([result], 1.0 if self.search is not None else CLOSE)
            exceeded = stages_over(result, self.limits)
            self.over = self.over or exceeded
            if self.search is not None:
                self.search.record.add(result)
            for peak in result.failures:
                if peak.failure != OUT_OF_MEMORY:
                    log.warning("check: stage %d could not be checked: %s", peak.stage, peak.failure)
            if exceeded or result.says_nothing:
                continue
            if missing := _unbounded(result, near.plan, fitted_peaks(self.linear, self.memory)(near.plan)):
                unknown = unknown or (near, _unchecked(result, missing))
            elif self.best is None or near.time < self.best[0].time:
                self.best = (near, result)
        return unknown

    def _tighten(self, number: int, near: NearPlan, result: DryRunResult) -> None:
        """State the problem of the next round: the refitted memory, and limits with a margin."""
        fitted = fitted_peaks(self.linear, self.memory)(near.plan)
        self.margin = next_margins(fitted, result, self.limits, self.margin, number)
        if self.search is not None:
            self.margin = np.maximum(self.margin, SAFE * self.scatter * self.limits)
        self.problem = self.state(self.memory).replace(limit_mib=tuple(map(float, self.limits - self.margin)))


def _dry_run(
    config: TrainingConfig, backend: DryRunBackend, batch: Sequence[NearPlan], limits: Floats
) -> list[DryRunResult]:
    """Dry-run plans: the stages that may fail first, and the others only where these pass."""

    def run(near: NearPlan, stages: Sequence[int]) -> DryRun:
        return DryRun(config.replace(schedule=near.problem.schedule), config.strategy, near.plan, tuple(stages))

    doubtful = [np.flatnonzero(near.chances < SURE).tolist() for near in batch]
    results = backend.measure([run(near, stages) for near, stages in zip(batch, doubtful, strict=True)])
    passed = [index for index, result in enumerate(results) if not stages_over(result, limits)]
    rest = [[stage for stage in range(len(limits)) if stage not in doubtful[index]] for index in passed]
    later = [(index, stages) for index, stages in zip(passed, rest, strict=True) if stages]
    if later:
        more = backend.measure([run(batch[index], stages) for index, stages in later])
        for (index, _), result in zip(later, more, strict=True):
            stages = sorted((*results[index].stages, *result.stages), key=lambda peak: peak.stage)
            results[index] = DryRunResult(run(batch[index], [peak.stage for peak in stages]), tuple(stages))
    return results


def check_plan(
    config: TrainingConfig,
    plan: PipelinePlan,
    backend: DryRunBackend,
    memory: MemoryProfile,
    modes: Sequence[str],
) -> DryRunResult:
    """Dry-run one plan and log whether it passes; nothing is solved.

    Parameters
    ----------
    memory : MemoryProfile
        With the limit of a device, and the plan's memory as known before the dry-run.

    Raises
    ------
    OutsideProgramError
        When the dry-run of every stage failed, or that of a stage whose peak no other stage bounds.
    """
    result = backend.measure([DryRun(config, config.strategy, plan)])[0]
    if result.says_nothing:
        raise _unchecked(result)
    over = stages_over(result, np.full(config.strategy.pp, memory.device_limit_mib))
    if over:
        log.warning("check: over the limit: %s", "; ".join(over.values()))
        return result
    linear = LinearMemory(config, modes)
    if missing := _unbounded(result, plan, fitted_peaks(linear, memory)(plan)):
        raise _unchecked(result, missing)
    log.info("check: %s", _verdict(result))
    return result


def _unbounded(result: DryRunResult, plan: PipelinePlan, fitted: Floats) -> list[int]:
    """Stages without a peak whose memory no measured stage bounds.

    A stage between the first and the last is bounded by another one there with the same layers and recompute that
    needs as much by the fitted memory: under 1F1B, one before it.

    Parameters
    ----------
    fitted : float64 [stages]
        Peaks of the plan by the fitted coefficients, MiB.
    """

    def content(stage: int) -> list[tuple[int, ...]]:
        grids = [*plan.layers.values(), *(plan.recomputed(mode) for mode in (FULL, SELECT))]
        return [tuple(row[stage] for row in grid) for grid in grids]

    inner = [peak.stage for peak in result.stages if peak.peak_mib is not None and 0 < peak.stage < plan.stages - 1]
    return [
        missing.stage
        for missing in result.failures
        if not 0 < missing.stage < plan.stages - 1
        or not any(content(twin) == content(missing.stage) and fitted[twin] >= fitted[missing.stage] for twin in inner)
    ]


def _verdict(result: DryRunResult) -> str:
    """Number of stages on which a plan passes, and the bound of the others."""
    measured = len(result.stages) - len(result.failures)
    text = f"the plan passes on {measured} of {len(result.stages)} stages"
    if not result.failures:
        return text
    missing = ", ".join(str(peak.stage) for peak in result.failures)
    return f"{text}; stage {missing} gave no peak, and a measured stage of the same layers needs as much"


def _unchecked(result: DryRunResult, missing: Sequence[int] = ()) -> OutsideProgramError:
    """Error of a plan that is not known to pass, with the message of its first failed dry-run."""
    if missing:
        passed = f"the plan passes on {len(result.stages) - len(result.failures)} of {len(result.stages)} stages, but "
        which = f"{passed}stage {', '.join(map(str, missing))} gave no peak and no measured stage bounds it"
    else:
        which = f"none of {len(result.stages)} dry-runs of the plan gave a peak"
    return OutsideProgramError(
        f"check: {which}, so it is not known whether it passes: {result.describe_failure()}; mend the dry-run, or take "
        "the plan unchecked with -check n"
    )


def _refit(linear: LinearMemory, observations: Sequence[Observation], prior: MemoryProfile) -> MemoryProfile:
    fit = fit_memory(linear, observations, prior)
    log.debug("%s", fit.describe())
    return linear.profile(fit.values, prior, MemorySource.DRY_RUN)
