"""A memory profile by dry-runs: design, run, fit, and more runs where they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from taylor.base.console import log
from taylor.base.errors import OutsideProgramError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.fitting.design import RUNS_PER_UNKNOWN, Cell, design_runs
from taylor.dryrun.fitting.fit import MemoryFit, Observation, agree, fit_memory
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.fitting.probes import is_probe, job_of, probe_cells
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunBackend, DryRunResult
from taylor.pipeline.plan import PipelinePlan

SURE = 0.0115
"""Relative standard error, with `MemoryFit.caution`, at which a coefficient counts as known: 2.6 times it is 3 %."""
MAX_RUNS = 60
"""Dry-runs of a configuration's own stages at most, where peaks scatter."""
MAX_PROBES = 100
"""Dry-runs of other jobs' stages at most, for the same reason."""
PROBE_STAGES = (64, 128, 256)
"""Most stages of a probe, tried in this order until `MAX_PROBES` suffice: larger jobs take longer to compile."""
_ROUNDS = 8
_STEP = 40
"""Probes run between two looks at the scatter."""
_CAUTION = 1.2
"""`MemoryFit.caution` after some 80 runs."""


@dataclass(frozen=True)
class MeasuredProfile:
    """A fitted profile and the peaks behind it."""

    profile: MemoryProfile
    fit: MemoryFit
    observations: tuple[Observation, ...]
    failures: tuple[DryRunResult, ...]


def measure_profile(
    memory: LinearMemory,
    prior: MemoryProfile,
    backend: DryRunBackend,
    *,
    known: Sequence[Observation] = (),
    probes: bool = False,
    max_runs: int = MAX_RUNS,
    source: MemorySource = MemorySource.DRY_RUN,
) -> MeasuredProfile:
    """Measure a configuration's memory profile.

    A designed set of about two runs an unknown comes first. Failed runs are replaced by others. Where scatter makes a
    coefficient uncertain, further runs follow: probes where they are allowed and follow the same coefficients, else
    more of the job's own stages, up to `max_runs`.

    Parameters
    ----------
    probes : bool
        The backend can run other jobs (`dryrun.fitting.probes`) of the same training file.

    Raises
    ------
    OutsideProgramError
        When no run gave a peak: says why the first one failed.
    """
    survey = _Survey(memory, prior, backend, source, prior.device_limit_mib)
    survey.keep(known)
    wanted, spent = RUNS_PER_UNKNOWN * len(memory.unknowns), 0
    for attempt in range(_ROUNDS):
        if probes and attempt and survey.fit is not None and not survey.apart and not survey.fit.undetermined:
            probes = survey.probe(attempt)
            if probes:
                if survey.sure:
                    break
                continue
        cells = survey.design(min(wanted, max_runs - spent), attempt)
        spent += len(cells)
        missed = survey.run(cells)
        if not cells or survey.hopeless or survey.sure:
            break
        wanted = max(missed, len(memory.unknowns))
    if survey.fit is None:
        raise OutsideProgramError(_nothing_ran(survey.failures))
    fit = survey.fit
    log.info("%s", fit.describe())
    if fit.undetermined:
        log.warning("memory fit: not determined by the dry-runs, estimated instead: %s", ", ".join(fit.undetermined))
    loose = [name for name in survey.unsure if name not in fit.undetermined]
    # An exact backend's residual is how far memory is from linear in the plan, which the check corrects: no scatter.
    if loose and not backend.exact:
        error = dict(zip(fit.unknowns, fit.standard_error, strict=True))
        value = dict(zip(fit.unknowns, fit.values, strict=True))
        uncertain = ", ".join(f"{name} {value[name]:.0f} +- {error[name]:.0f} MiB" for name in loose)
        log.warning("memory fit: peaks scatter, so these are less sure than 3 %%: %s", uncertain)
    if survey.apart:
        log.warning("memory fit: jobs of other shapes need another memory, so only the job's own stages count")
    return MeasuredProfile(survey.guess, fit, tuple(survey.believed), tuple(survey.failures))


@dataclass
class _Survey:
    """Measurements so far, and the next ones.

    `own` holds peaks of the job's own stages, `others` those of probes; these are `apart` when they do
    not follow the same coefficients, and then are ignored.
    """

    memory: LinearMemory
    prior: MemoryProfile
    backend: DryRunBackend
    source: MemorySource
    free_mib: float
    own: list[Observation] = field(default_factory=list)
    others: list[Observation] = field(default_factory=list)
    failures: list[DryRunResult] = field(default_factory=list)
    failed: list[Cell] = field(default_factory=list)
    fit: MemoryFit | None = None
    apart: bool = False
    too_large: bool = False
    seconds: float = 0.0
    probed: int = 0
    probe_stages: int = 0

    @property
    def believed(self) -> list[Observation]:
        """The peaks that count."""
        return self.own if self.apart else [*self.own, *self.others]

    @property
    def guess(self) -> MemoryProfile:
        """The coefficients as far as they are known."""
        return self.prior if self.fit is None else self.memory.profile(self.fit.values, self.prior, self.source)

    @property
    def unsure(self) -> tuple[str, ...]:
        """Coefficients that are less sure than `SURE`."""
        if self.fit is None:
            return self.memory.unknowns
        doubtful = self.fit.caution * self.fit.standard_error > SURE * np.maximum(self.fit.values, 1.0)
        return tuple(name for name, doubt in zip(self.fit.unknowns, doubtful.tolist(), strict=True) if doubt)

    @property
    def sure(self) -> bool:
        """Return whether all coefficients are known."""
        return not self.unsure and len(self.believed) >= len(self.memory.unknowns)

    @property
    def hopeless(self) -> bool:
        """Return whether nothing ran, for other reasons than the device's memory."""
        return self.fit is None and not self.too_large

    def keep(self, observations: Sequence[Observation]) -> None:
        """Record peaks and fit again."""
        for each in observations:
            (self.others if is_probe(self.memory, each.plan) else self.own).append(each)
        if not self.own:
            return
        alone = fit_memory(self.memory, self.own, self.prior)
        self.fit, self.apart = alone, False
        if self.others:
            joined = fit_memory(self.memory, [*self.own, *self.others], self.prior)
            self.apart = not agree(alone, joined, self.own)
            self.fit = alone if self.apart else joined

    def design(self, number: int, seed: int, pool: Iterator[Cell] | None = None, goal: float = 0.0) -> list[Cell]:
        """Further stages to measure."""
        known = [Cell(each.plan, each.stage) for each in self.believed]
        return design_runs(
            self.memory,
            self.guess,
            self.free_mib,
            number,
            known=known,
            avoid=self.failed,
            seed=seed,
            pool=pool,
            goal=goal,
        )

    def run(self, cells: Sequence[Cell]) -> int:
        """Measure stages; gives how many failed."""
        results = self.backend.measure(as_runs(self.memory, cells)) if cells else []
        peaks = [peak for result in results for peak in result.stages]
        self.seconds = max([self.seconds, *(peak.seconds for peak in peaks)])
        self.failures += [result for result in results if result.failures]
        missed = [Cell(_plan(result), peak.stage) for result in results for peak in result.failures]
        self.failed += missed
        self.too_large = any(peak.failure == OUT_OF_MEMORY for peak in peaks)
        if self.too_large:
            # The prior was too low: keep to smaller stages from now on.
            self.free_mib = 0.8 * self.free_mib
        self.keep(observations_of(results))
        return len(missed)

    def probe(self, seed: int) -> bool:
        """Measure some stages of other jobs; False where most of them cannot be run."""
        assert self.fit is not None
        scatter = max(self.fit.scatter, 1e-9)
        budget = MAX_PROBES - self.probed
        enough = SURE / (_CAUTION * scatter)
        for most in (each for each in PROBE_STAGES if each >= self.probe_stages):
            self.probe_stages = most
            if len(self.design(budget, seed, probe_cells(self.memory, most, seed), enough)) < budget:
                break
        pool = probe_cells(self.memory, self.probe_stages, seed)
        cells = self.design(min(budget, _STEP), seed, pool, SURE / (self.fit.caution * scatter))
        if cells:
            log.info(
                "memory fit: peaks scatter by %.2f %%, so %d more dry-runs follow, of jobs with up to %d stages "
                "(so far one took %.0f s at most)",
                100 * scatter,
                len(cells),
                max(cell.plan.stages for cell in cells),
                self.seconds,
            )
        failed = self.run(cells)
        self.probed += len(cells)
        if 2 * failed > len(cells):
            log.warning("memory fit: %d of %d dry-runs of other jobs failed, so no more are run", failed, len(cells))
            return False
        return True


def as_runs(memory: LinearMemory, cells: Sequence[Cell]) -> list[DryRun]:
    """Runs that measure the cells: those of one plan are one run, with one file."""
    stages: dict[int, list[int]] = {}
    plans: dict[int, PipelinePlan] = {}
    for cell in cells:
        plans[id(cell.plan)] = cell.plan
        stages.setdefault(id(cell.plan), []).append(cell.stage)
    runs = []
    for key, where in stages.items():
        job = job_of(memory, plans[key])
        runs.append(DryRun(job, job.strategy, plans[key], tuple(sorted(where))))
    return runs


def observations_of(results: Sequence[DryRunResult], weight: float = 1.0) -> list[Observation]:
    """The peaks that runs gave, without failures."""
    return [
        Observation(_plan(result), peak.stage, peak.peak_mib, weight)
        for result in results
        for peak in result.stages
        if peak.peak_mib is not None and peak.peak_mib > 0
    ]


def _plan(result: DryRunResult) -> PipelinePlan:
    assert result.run.plan is not None
    return result.run.plan


def _nothing_ran(failures: Sequence[DryRunResult]) -> str:
    if not failures:
        return "no dry-run fits the device's memory by the estimate, so none was started"
    return f"every dry-run failed; the first: {failures[0].describe_failure()}"
