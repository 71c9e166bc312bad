"""Learns from a run of the file's plan: measured peaks and stages out of memory correct the memory model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError, WriteError
from taylor.base.kept import read_kept, write_kept
from taylor.cost_model.errors.peak_correction import PeakCorrection, SeenPeak, correction_of
from taylor.cost_model.memory.statics import overhead_mib
from taylor.cost_model.memory.workspaces import workspaces_mib
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.measured_run import (
    ALLOCATED,
    OUT_FLAG,
    PEAK_FLAG,
    LearnedMemory,
    StageMeasurement,
    scaled_activations,
)
from taylor.workflows.statement.memory_source import MEMORY_INFO
from taylor.workflows.statement.module_choices import own_plan
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.problem import plan_in_terms_of
from taylor.workflows.statement.stated_file import StatedFile

MOST_KEPT = 1000
"""Most measurements of one job that are kept; of more, the newest."""


def with_measured(file: StatedFile, memory: MemoryProfile, folder: Path | None = None) -> StatedFile:
    """File whose memory is corrected by what was measured of the job.

    Parameters
    ----------
    memory : MemoryProfile
        Memory of the job before the correction.
    folder : Path, optional
        Folder of the results: measurements are kept in it, and those of earlier plans of the same job are read. They
        correct an estimate even where no new ones are given.

    Raises
    ------
    InputError
        When a measurement contradicts the job, or the file has no plan that can have run.
    """
    run = file.job.measured
    run.refuse(file.config, file.cards)
    path = None if folder is None else kept_path(file.config, folder)
    kept = [] if path is None else _read(path)
    if not run and (not kept or memory.source != MemorySource.ESTIMATE):
        return file
    statement = _Statement(file, memory)
    new = _of_run(statement, memory)
    earlier = [one for one in (*kept, *run.earlier) if not any(_same(one, other) for other in new)]
    seen = [(one, row) for one in (*earlier, *new) if (row := statement.seen_peak(one)) is not None]
    if not seen:
        return file
    rows = [row for _, row in seen]
    _refuse_too_little(rows, statement)
    correction = correction_of(rows, file.config.strategy.pp, file.config.memory_error(memory.source))
    if path is not None and new:
        try:
            _keep(path, [*earlier, *new])
            log.info("memory: what was measured of this job is kept in %s; delete that file to forget it", path)
        except WriteError as error:
            log.warning("memory: what was measured of this job is not kept: %s", error)
    learned = LearnedMemory(correction, tuple(_sentences(rows, correction)), tuple(one for one, _ in seen))
    for sentence in learned.sentences:
        log.info("memory: %s", sentence)
    return replace(file, learned=learned)


def learned_for_candidates(
    job: FileJob, config: TrainingConfig, chosen: ChosenDevice, folder: Path
) -> LearnedMemory | None:
    """Correction of the memory of candidates by runs of the plan in the file that they come from.

    Parameters
    ----------
    job : FileJob
        With the new measurements.
    config : TrainingConfig
        Of that file.
    folder : Path
        Folder of the results: measurements are kept in it, and earlier ones are read.

    Raises
    ------
    InputError
        As `with_measured`, or when the job of the file cannot be stated.
    """
    if not job.measured and not kept_path(config, folder).is_file():
        return None
    file = StatedFile.of(job, config, chosen)
    return with_measured(file, estimate_memory(file.running, file.device), folder).learned


def kept_path(config: TrainingConfig, folder: Path) -> Path:
    """Path of the measurements of a job under any name, with any plan, virtual stages and schedule."""
    strategy = config.strategy.replace(vpp=1)
    facts = [asdict(config.model.replace(name="")), strategy.degrees(), asdict(config.rules)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return folder / MEMORY_INFO / f"measured-{key}.json"


class _Statement:
    """The file's job without a correction, as its problem under the shape of any run.

    Parameters
    ----------
    file : StatedFile
    memory : MemoryProfile
        Memory of the job as the file states it.
    """

    def __init__(self, file: StatedFile, memory: MemoryProfile) -> None:
        # Limits play no part in a peak.
        plain = replace(file, learned=None, job=replace(file.job, stage_limits=()))
        self.file = plain.as_in_the_file()
        self.memory = memory
        self._problems: dict[tuple[int, ScheduleSpec], PipelineProblem | None] = {}

    def problem(self, interleaves: int, schedule: ScheduleSpec) -> PipelineProblem | None:
        """Problem of a run with these virtual stages and this schedule; None where it cannot be stated."""
        key = interleaves, schedule
        if key not in self._problems:
            file, running = self.file, self.file.running
            if (running.strategy.vpp, running.schedule) != key:
                file = file.running_as(interleaves, schedule)
            try:
                self._problems[key] = file.problem(file.memory_like(self.memory))
            except (InputError, ValueError):
                self._problems[key] = None
        return self._problems[key]

    def seen_peak(self, one: StageMeasurement) -> SeenPeak | None:
        """Measurement beside the predicted peak of its plan; None where the job's costs do not cover that."""
        problem, plan = self.problem(one.plan.interleaves, one.schedule), one.plan
        if problem is None or plan.stages != problem.stages or not 0 <= one.stage < problem.stages:
            return None
        if any(mode not in (*problem.recompute_ratio, *problem.choices) for mode in plan.recompute if plan.uses(mode)):
            return None
        of_problem = plan_in_terms_of(problem, plan)
        whole = peak_memory_mib(problem, of_problem)[one.stage]
        fixed = peak_memory_mib(scaled_activations(problem, 0.0), of_problem)[one.stage]
        return SeenPeak(one.stage, fixed, whole - fixed, one.mib, one.at_least)

    def static_mib(self, stage: int) -> float:
        """Predicted static memory of a stage of the plan in the file."""
        return 0.0 if (problem := self._own()) is None else problem.static_mib[stage]

    def whole_mib(self, stage: int) -> float:
        """Memory that a job can take of a stage's card, before the margin."""
        problem, config = self._own(), self.file.config
        assert problem is not None  # a plan of its shape was priced
        return float(config.margin.around(problem.limit_mib[stage], config.memory_error(self.memory.source)))

    def _own(self) -> PipelineProblem | None:
        running = self.file.running
        return self.problem(running.strategy.vpp, running.schedule)


def _of_run(statement: _Statement, memory: MemoryProfile) -> list[StageMeasurement]:
    """Measurements of the plan in the file, as all that the job takes of a card."""
    base = statement.file
    run = base.job.measured
    if not (run.peaks or run.out_of_memory):
        return []
    flag = PEAK_FLAG if run.peaks else OUT_FLAG
    plan, schedule = own_plan(base.config.as_it_recomputes()), base.running.schedule
    if plan is None:
        raise InputError(
            "is of a run of the plan in the file, which has none", file=base.config.path, field=flag,
            cure="name the file that ran",
        )  # fmt: skip
    stages = [*(stage for stage, _ in run.peaks), *run.out_of_memory]
    if statement.seen_peak(StageMeasurement(plan, schedule, stages[0], 1.0)) is None:
        raise InputError(
            "is of a run of the plan in the file, whose memory is not known", file=base.config.path, field=flag,
            cure="allow its recompute with -select y, or name the file that ran",
        )  # fmt: skip
    found = []
    for stage, mib in run.peaks:
        card = base.cards[stage]
        beside = 0.0
        if run.peak_of == ALLOCATED and memory.source == MemorySource.ESTIMATE:
            rules = base.config.rules
            beside = overhead_mib(rules) - workspaces_mib(base.config.model, rules, card)
        # The run took place: with the runtime it needs no more than the card has.
        found.append(StageMeasurement(plan, schedule, stage, min(mib + beside, float(card.memory_mib))))
    for stage in run.out_of_memory:
        found.append(StageMeasurement(plan, schedule, stage, statement.whole_mib(stage), at_least=True))
    return found


def _refuse_too_little(rows: Sequence[SeenPeak], statement: _Statement) -> None:
    """Refuse a peak below the states of the stage's layers, which are known.

    Raises
    ------
    InputError
        With the stage and its states.
    """
    stated = dict(statement.file.job.measured.peaks)
    for row in rows:
        states = row.fixed_mib - statement.static_mib(row.stage)
        if not row.at_least and row.mib < states:
            raise InputError(
                f"is less than the {states:,.0f} MiB of weights, gradients and optimizer states of the stage's layers",
                field=PEAK_FLAG, value=f"{row.stage}={stated.get(row.stage, row.mib):g}",
                cure="name MiB of one device; state it in the file where the run kept fewer states",
            )  # fmt: skip


def _sentences(rows: Sequence[SeenPeak], correction: PeakCorrection) -> list[str]:
    """Sentence on each measured stage, on what the stages have in common, and on the remaining ones."""
    found = []
    latest = {(row.stage, row.at_least): row for row in rows}
    for row in latest.values():
        more = correction.peak_mib(row) - row.predicted_mib
        if not row.at_least:
            word = "more" if row.more_mib >= 0 else "less"
            needed = f"stage {row.stage} needed {abs(row.more_mib):,.0f} MiB {word} than predicted"
            found.append(f"{needed} ({row.mib:,.0f} instead of {row.predicted_mib:,.0f} MiB)")
        elif row.more_mib >= 0:
            needed = f"stage {row.stage} needed at least {row.more_mib:,.0f} MiB more than predicted"
            predicted = f"it ran out of {row.mib:,.0f} MiB with {row.predicted_mib:,.0f} predicted"
            found.append(f"{needed}: {predicted}; planned with {more:,.0f} MiB more, so that this plan does not fit")
        else:
            found.append(
                f"stage {row.stage} ran out of {row.mib:,.0f} MiB, as predicted ({row.predicted_mib:,.0f} MiB): "
                "nothing new was learned of it"
            )
    if correction.kept_factor != 1.0:
        found.append(
            f"kept activations count {correction.kept_factor:.3f} times, and {correction.common_mib:+,.0f} MiB are "
            "added to every stage: each measured stage is predicted best so from the others"
        )
    elif correction.common_mib:
        found.append(f"{correction.common_mib:+,.0f} MiB are added to every stage: the measured ones deviate alike")
    elif len({row.stage for row in rows}) < len(correction.extra_mib):
        found.append("the other stages stay as predicted: nothing was measured of them")
    return found


def _same(one: StageMeasurement, other: StageMeasurement) -> bool:
    """Return whether both are of the same stage of the same plan."""
    return (one.stage, one.schedule, one.plan) == (other.stage, other.schedule, other.plan)


def _keep(path: Path, seen: Sequence[StageMeasurement]) -> None:
    data = [
        {
            "layers": one.plan.layers,
            "recompute": one.plan.recompute,
            "schedule": asdict(one.schedule),
            "stage": one.stage,
            "mib": one.mib,
            "at_least": one.at_least,
        }
        for one in seen[-MOST_KEPT:]
    ]
    write_kept(path, data)


def _schedule(fields: Mapping[str, Any]) -> ScheduleSpec:
    """A schedule as it was kept, its lists as tuples."""
    kept: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return ScheduleSpec(**kept)


def _read(path: Path) -> list[StageMeasurement]:
    """Measurements that were kept; none where the file is missing, has been changed since or is another version's."""
    try:
        return [
            StageMeasurement(
                PipelinePlan(_grids(entry["layers"]), _grids(entry["recompute"])),
                _schedule(entry["schedule"]),
                int(entry["stage"]), float(entry["mib"]), bool(entry["at_least"]),
            )
            for entry in read_kept(path) or []
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return []


def _grids(data: Mapping[str, list[list[int]]]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {name: as_grid(rows) for name, rows in data.items()}
