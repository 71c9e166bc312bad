"""The double check: the solved plan is dry-run, and solved again with what that taught until it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from base.console import log
from base.errors import InfeasibleError, NoSolutionError
from cost_model.profile import MemoryProfile
from dryrun.fit import CLOSE, Observation, fit_memory
from dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunBackend, DryRunResult
from dryrun.linear_memory import Floats, LinearMemory
from dryrun.measure import observations_of
from parsers.training_config import TrainingConfig
from pipeline.plan import PipelinePlan
from pipeline_solver.problem import PipelineProblem
from pipeline_solver.solution import Solution
from workflows.memory_source import keep_measured, known_observations

MAX_ROUNDS = 8
BEYOND = 0.02
"""Share of the limit by which a stage that ran out of memory is taken to be over it, for its peak is unknown."""
WIDER = 1.5
"""Growth of the safety margin from one late round to the next."""


@dataclass(frozen=True)
class Checked:
    """A plan that held.

    Parameters
    ----------
    problem : PipelineProblem
        What was solved last; its limits are lowered by what dry-runs showed beyond the fitted memory.
    memory : MemoryProfile
        As refitted.
    rounds : int
        Dry-runs of whole plans.
    dryrun : DryRunResult
        The last one, of this plan.
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

    The refit counts the plan's own stages more than the designed runs. What it still leaves of a
    stage's excess is taken off that stage's limit; from the third round on, every stage keeps a margin
    of the largest excess seen, and the margin widens: so the loop ends.

    Parameters
    ----------
    config : TrainingConfig
        With the interleaves and the schedule that are solved for.
    state : callable
        Memory to problem.
    solve : callable
        Problem to solution; raises when there is none.

    Raises
    ------
    InfeasibleError
        When, by what the dry-runs showed, nothing fits.
    NoSolutionError
        When no plan held within `MAX_ROUNDS`.
    """
    linear = LinearMemory(config, modes)
    observations = known_observations(config, output) if memory.source in ("dry-run", "saved") else []
    limits = np.full(linear.stages, memory.device_limit_mib)
    margin = np.zeros(linear.stages)
    prior, problem = memory, state(memory)
    for round_ in range(1, MAX_ROUNDS + 1):
        try:
            solution = solve(problem)
        except InfeasibleError as error:
            if round_ == 1:
                raise
            raise InfeasibleError(f"after {round_ - 1} dry-runs of solved plans nothing fits: {error}") from error
        assert solution.plan is not None
        result = backend.measure([DryRun(config.replace(schedule=problem.schedule), config.strategy, solution.plan)])[0]
        observations += observations_of([result], CLOSE)
        over = _over(result, limits)
        for peak in result.failures:
            if peak.failure != OUT_OF_MEMORY:
                log.warning("check: stage %d could not be checked: %s", peak.stage, peak.failure)
        if observations:
            memory = _refit(linear, observations, prior)
            keep_measured(config, output, memory, observations)
        if not over:
            measured = len(result.stages) - len(result.failures)
            log.info("check: the plan holds on %d of %d stages (round %d)", measured, len(result.stages), round_)
            return Checked(problem, solution, memory, round_, result)
        log.info("check: round %d, over the limit: %s", round_, "; ".join(over.values()))
        margin = _margins(linear, result, memory, limits, margin, round_)
        problem = state(memory).replace(limit_mib=tuple(map(float, limits - margin)))
    raise NoSolutionError(
        f"{config.path}: no plan held in {MAX_ROUNDS} dry-runs; of the last one {'; '.join(over.values())}"
    )


def check_plan(config: TrainingConfig, plan: PipelinePlan, backend: DryRunBackend, limit_mib: float) -> DryRunResult:
    """Dry-run one plan and say whether it holds; nothing is solved."""
    result = backend.measure([DryRun(config, config.strategy, plan)])[0]
    over = _over(result, np.full(config.strategy.pp, limit_mib))
    if over:
        log.warning("check: over the limit: %s", "; ".join(over.values()))
    else:
        measured = len(result.stages) - len(result.failures)
        log.info("check: the plan holds on %d of %d stages", measured, len(result.stages))
    return result


def _over(result: DryRunResult, limits: Floats) -> dict[int, str]:
    over = {}
    for peak in result.stages:
        limit = float(limits[peak.stage])
        if peak.peak_mib is not None and peak.peak_mib > limit:
            over[peak.stage] = f"stage {peak.stage} needs {peak.peak_mib:.0f} of {limit:.0f} MiB"
        elif peak.failure == OUT_OF_MEMORY:
            over[peak.stage] = f"stage {peak.stage} ran out of memory"
    return over


def _refit(linear: LinearMemory, observations: Sequence[Observation], prior: MemoryProfile) -> MemoryProfile:
    fit = fit_memory(linear, observations, prior)
    log.debug("%s", fit.describe())
    return linear.profile(fit.values, prior, "dry-run")


def _margins(
    linear: LinearMemory, result: DryRunResult, memory: MemoryProfile, limits: Floats, margin: Floats, round_: int
) -> Floats:
    """What to take off each stage's limit, MiB [stages]: never less than before."""
    assert result.run.plan is not None
    values = linear.coefficients(memory)
    fitted = linear.rows(result.run.plan, values) @ values
    excess = np.zeros_like(fitted)
    for peak in result.stages:
        if peak.peak_mib is not None:
            excess[peak.stage] = max(0.0, peak.peak_mib - fitted[peak.stage])
        elif peak.failure == OUT_OF_MEMORY:
            reached = max(float(fitted[peak.stage]), float(limits[peak.stage] - margin[peak.stage]))
            excess[peak.stage] = (1.0 + BEYOND) * limits[peak.stage] - min(reached, float(limits[peak.stage]))
            excess[peak.stage] += margin[peak.stage]
    wanted = np.maximum(margin, excess)
    if round_ >= 2:
        # The excess scatters from plan to plan: a stage that was spared may be the next one.
        wanted = np.maximum(wanted, wanted.max(initial=0.0))
    if round_ >= 3:
        wanted = WIDER * wanted
    result_margin: Floats = np.minimum(wanted, 0.5 * limits)
    return result_margin
