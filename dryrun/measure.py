"""A memory profile by dry-runs: design, run, fit, and more runs where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from base.console import log
from base.errors import OutsideProgramError
from cost_model.profile import MemoryProfile
from dryrun.design import Cell, design_runs
from dryrun.fit import Fit, Observation, fit_memory
from dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunBackend, DryRunResult
from dryrun.linear_memory import LinearMemory
from pipeline.plan import PipelinePlan

SURE = 0.015
"""Relative standard error at which a coefficient counts as known: twice that is 3 %."""
MAX_RUNS = 60
"""Dry-runs spent on one configuration at most, where peaks scatter."""
_ROUNDS = 6


@dataclass(frozen=True)
class Measured:
    """A fitted profile and the peaks behind it."""

    profile: MemoryProfile
    fit: Fit
    observations: tuple[Observation, ...]
    failures: tuple[DryRunResult, ...]


def measure_profile(
    memory: LinearMemory,
    prior: MemoryProfile,
    backend: DryRunBackend,
    *,
    known: Sequence[Observation] = (),
    max_runs: int = MAX_RUNS,
    source: str = "dry-run",
) -> Measured:
    """Measure a configuration's memory profile.

    A designed set of about two runs an unknown comes first. Failed runs are replaced by others; where
    peaks scatter so that a coefficient is not sure, further runs follow, up to `max_runs`.

    Raises
    ------
    OutsideProgramError
        When no run gave a peak: says why the first one failed.
    """
    observations = list(known)
    failed: list[Cell] = []
    failures: list[DryRunResult] = []
    guess = prior
    room = prior.device_limit_mib
    fit: Fit | None = None
    wanted: int | None = None
    spent = 0
    for attempt in range(_ROUNDS):
        cells = design_runs(
            memory, guess, room, wanted,
            known=[Cell(each.plan, each.stage) for each in observations], avoid=failed, seed=attempt,
        )[: max(0, max_runs - spent)]
        if not cells:
            break
        results = backend.measure(as_runs(memory, cells))
        spent += len(cells)
        fresh = observations_of(results)
        observations += fresh
        failures += [result for result in results if result.failures]
        missed = [Cell(_plan(result), peak.stage) for result in results for peak in result.failures]
        failed += missed
        too_large = any(peak.failure == OUT_OF_MEMORY for result in results for peak in result.failures)
        if not observations and not too_large:
            break
        if too_large:
            # The prior was too low: keep to smaller stages from now on.
            room = 0.8 * room
        if observations:
            fit = fit_memory(memory, observations, prior)
            guess = memory.profile(fit.values, prior, source)
        unsure = _unsure(fit)
        if not unsure and len(observations) >= len(memory.unknowns):
            break
        wanted = max(len(missed), len(memory.unknowns))
    if fit is None:
        raise OutsideProgramError(_nothing_ran(failures))
    log.info("%s", fit.describe())
    if fit.undetermined:
        log.warning("memory fit: not determined by the dry-runs, estimated instead: %s", ", ".join(fit.undetermined))
    loose = [name for name in _unsure(fit) if name not in fit.undetermined]
    if loose:
        error = dict(zip(fit.unknowns, fit.standard_error, strict=True))
        value = dict(zip(fit.unknowns, fit.values, strict=True))
        told = ", ".join(f"{name} {value[name]:.0f} +- {error[name]:.0f} MiB" for name in loose)
        log.warning("memory fit: peaks scatter, so these are less sure than 3 %%: %s", told)
    return Measured(memory.profile(fit.values, prior, source), fit, tuple(observations), tuple(failures))


def as_runs(memory: LinearMemory, cells: Sequence[Cell]) -> list[DryRun]:
    """Runs that measure the cells: those of one plan share a run, hence a file."""
    stages: dict[int, list[int]] = {}
    plans: dict[int, PipelinePlan] = {}
    for cell in cells:
        plans[id(cell.plan)] = cell.plan
        stages.setdefault(id(cell.plan), []).append(cell.stage)
    config = memory.config
    return [
        DryRun(config.replace(schedule=memory.schedule.spec), config.strategy, plans[key], tuple(sorted(where)))
        for key, where in stages.items()
    ]


def observations_of(results: Sequence[DryRunResult], weight: float = 1.0) -> list[Observation]:
    """What the runs that went well tell."""
    return [
        Observation(_plan(result), peak.stage, peak.peak_mib, weight)
        for result in results
        for peak in result.stages
        if peak.peak_mib is not None and peak.peak_mib > 0
    ]


def _plan(result: DryRunResult) -> PipelinePlan:
    assert result.run.plan is not None
    return result.run.plan


def _unsure(fit: Fit | None) -> tuple[str, ...]:
    if fit is None:
        return ()
    doubtful = fit.standard_error > SURE * np.maximum(fit.values, 1.0)
    return tuple(name for name, doubt in zip(fit.unknowns, doubtful.tolist(), strict=True) if doubt)


def _nothing_ran(failures: Sequence[DryRunResult]) -> str:
    if not failures:
        return "no dry-run fits the device's memory by the estimate, so none was started"
    return f"every dry-run failed; the first: {failures[0].describe_failure()}"
