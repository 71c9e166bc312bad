"""The first steps of every job on one configuration file: read it, find its device and memory, state its problem."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.cost_model.choices.module_choices import ModuleWords
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.fitting.design import modes_at_hand
from taylor.dryrun.interface import DryRunBackend
from taylor.dryrun.launch import read_environment
from taylor.nd_search.stated import broken_rules
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import SELECT, PipelinePlan
from taylor.pipeline.schedule import AUTO, PLAIN, ScheduleSpec
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.devices import ChosenDevice, choose_device
from taylor.workflows.statement.dryrun_backend import open_backend
from taylor.workflows.statement.entries import entry_lines
from taylor.workflows.statement.export import refuse_impossible
from taylor.workflows.statement.job_facts import JobFacts, log_head, log_misspelled, log_notes
from taylor.workflows.statement.legality import require_legal
from taylor.workflows.statement.lending import lenders_of, lending_assumptions, with_lending
from taylor.workflows.statement.measured_run import LearnedMemory, limits_by_stage, with_limits
from taylor.workflows.statement.memory_source import obtain_memory
from taylor.workflows.statement.module_choices import (
    assumptions,
    known_plan,
    offered_words,
    optimizer_assumptions,
    with_host_priced,
    with_module_choices,
)
from taylor.workflows.statement.options import NESTED, Export, FileJob
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from taylor.workflows.statement.replayed_memory import replayed_memory
from taylor.workflows.statement.schedules import log_interleaving, require_schedule
from taylor.workflows.statement.stage_devices import OnStages, usual_device
from taylor.workflows.statement.tensor_choices import (
    TensorChoices,
    refuse_tensors,
    tensor_choices,
    with_tensor_choices,
)
from taylor.workflows.statement.time_ratios import SettledRatios, settle_ratios
from taylor.workflows.statement.towers import tower_lines, with_images, with_tower


def read_for(
    path: Path,
    register_path: Path | None = None,
    env_json: Path | None = None,
    margin: MemoryMargin = MemoryMargin(),  # noqa: B008 - frozen
    world_size: int | None = None,
    images: str = "",
) -> TrainingConfig:
    """Read a configuration under the environment of its job's runs.

    Parameters
    ----------
    env_json : Path, optional
        That environment, as JSON.
    margin : MemoryMargin
        Memory that the job keeps free on every device.
    world_size : int, optional
        Ranks of the job, where the file leaves them to its launch.
    images : str
        Images of a job with an encoder (`with_images`).

    Raises
    ------
    InputError
        When one of the two cannot be read, the job does not start on that number of ranks, or it has no encoder.
    """
    config = read_config(path, register_path, read_environment(env_json)).replace(margin=margin)
    config = with_images(config, images)
    return config if world_size is None else config.on_ranks(world_size)


@dataclass(frozen=True)
class StatedFile:
    """A configuration file with all that its pipeline problem needs but the memory.

    Parameters
    ----------
    config : TrainingConfig
        As the file states it.
    running : TrainingConfig
        The same with the requested virtual stages and schedule.
    chosen : ChosenDevice
        Device that it is planned for.
    ratios : SettledRatios
        Times that it is planned with.
    stages : OnStages or None
        Devices of the stages, where not all lie on the chosen device.
    modules : ModuleWords or None
        Modules to choose from, where recompute or offload by module was requested.
    learned : LearnedMemory or None
        Correction of the memory by what was measured of the job.
    """

    job: FileJob
    config: TrainingConfig
    running: TrainingConfig
    chosen: ChosenDevice
    ratios: SettledRatios
    stages: OnStages | None = None
    modules: ModuleWords | None = None
    learned: LearnedMemory | None = None

    @classmethod
    def read(cls, job: FileJob) -> StatedFile:
        """Read a job's file, find its device and its ratios, and log what was read and assumed.

        Raises
        ------
        InputError
            When the file or the register cannot be read, the job cannot start as the file states it, or it sets a
            switch that its schedule does not have.
        """
        config = read_for(job.path, job.register_path, job.dryruns.env_json, job.margin, job.world_size)
        log_misspelled([config])
        job = with_devices_of(job, config)
        file = cls.of(job, config, choose_device(config, usual_device(job, config), job.register_path))
        log_head(file.facts.head(job.register_path))
        log_notes(file.config)
        _note_idle_switch(job, config)
        given = job.low_memory is not None
        log_interleaving(file.running.schedule, config, given=given, env_json=job.dryruns.env_json)
        return file

    @classmethod
    def of(cls, job: FileJob, config: TrainingConfig, chosen: ChosenDevice) -> StatedFile:
        """State the job of a configuration that was read, on a device that was found.

        Raises
        ------
        InputError
            When the framework does not start the job, or it sets a switch that its schedule does not have.
        """
        job = with_devices_of(job, config)
        config = with_images(with_host_priced(config, chosen.spec), job.images)
        vpp = config.strategy.vpp if job.given_vpp is None else job.given_vpp
        schedule = asked_schedule(job, config)
        config = _legal(job, config, vpp, schedule, chosen.spec)
        ratios = settle_ratios(job.ratios, config, chosen.spec)
        modules = offered_words(config, chosen.spec, job.modules)
        file = cls(job, config, config, chosen, ratios, OnStages.of(job, config), modules)
        limits_by_stage(job.stage_limits, config, file.cards)
        lenders_of(job.lend, config.strategy.pp)  # refused at once
        if job.tensors:
            refuse_tensors(config, several_devices=file.stages is not None)
        return file.running_as(vpp, schedule)

    @property
    def device(self) -> DeviceSpec:
        """Device that it is planned for."""
        return self.chosen.spec

    @property
    def cards(self) -> dict[int, DeviceSpec]:
        """Device of each stage."""
        return {s: self.device if self.stages is None else self.stages.specs[s] for s in range(self.config.strategy.pp)}

    @property
    def lenders(self) -> tuple[int, ...]:
        """Lender of each stage; empty where the job requests none."""
        return lenders_of(self.job.lend, self.config.strategy.pp)

    @cached_property
    def tensors(self) -> TensorChoices | None:
        """Choices by tensor; None where the job requests none."""
        return tensor_choices(self.running, self.device) if self.job.tensors else None

    @property
    def facts(self) -> JobFacts:
        """Facts of the job that are known before planning."""
        moves = self.config.moved is not None or (self.modules is not None and bool(self.modules.offload))
        moves = moves or (self.job.tensors and self.device.host_link_gb_s is not None)
        moved = assumptions(self.device) if moves else ()
        further = (
            *tower_lines(self.running, self.device),
            *entry_lines(self.running),
            *moved,
            *optimizer_assumptions(self.config.rules, self.device),
            *lending_assumptions(self.running, self.device, self.lenders),
            *(() if self.tensors is None else self.tensors.lines()),
        )
        # The steps of a file that was made for a model are a placeholder.
        length = self.job.length if self.job.made_for_model else self.job.length.over(self.running.length)
        return JobFacts(self.running, self.chosen, self.ratios, length, self.stages, further, self.learned)

    def running_as(self, interleaves: int, schedule: ScheduleSpec) -> StatedFile:
        """Copy with a number of virtual stages and the schedule that it means."""
        config = self.config.replace(strategy=self.config.strategy.replace(vpp=interleaves))
        if self.job.encoder != NESTED and config.tower is not None and config.tower.spread is not None:
            # Other places are compared with the first stage.
            config = config.replace(tower=replace(config.tower, spread=None), plan=None)
        running = config.replace(schedule=schedule)
        # The wait for other ranks at the end of a step depends on the number of virtual stages.
        ratios = settle_ratios(self.job.ratios, config, self.device)
        stages = None if self.stages is None else OnStages.of(self.job, config)
        running = running.replace(schedule=running.schedule_for(interleaves))
        return replace(self, running=running, ratios=ratios, stages=stages)

    def refuse_illegal(self) -> None:
        """Refuse virtual stages and a schedule with which the framework does not start the job.

        Raises
        ------
        ValueError
            With the rule.
        """
        other = self.running.strategy.vpp != self.config.strategy.vpp
        running = self.running.replace(plan=None) if other else self.running
        for rule in broken_rules(running, self.device, self.job.allow_illegal):
            raise ValueError(f"rule {rule.name}: {rule.explanation}")

    def as_in_the_file(self) -> StatedFile:
        """Copy with the file's virtual stages and schedule; a requested low-memory order stays."""
        asked = asked_schedule(replace(self.job, schedule=None), self.config)
        stated = replace(self, job=replace(self.job, encoder=NESTED))
        return stated.running_as(self.config.strategy.vpp, asked).as_it_recomputes()

    def as_it_recomputes(self) -> StatedFile:
        """Copy for the plan in the file, which may recompute several layers at once; a plan to be solved does not."""
        return replace(self, running=self.running.as_it_recomputes())

    def memory_like(self, memory: MemoryProfile) -> MemoryProfile:
        """Profile of the same source for this schedule: a new estimate, any other as it is."""
        return estimate_memory(self.running, self.device) if memory.source == MemorySource.ESTIMATE else memory

    def choices_covered_by(
        self, memory: MemoryProfile, options: Sequence[tuple[int, ScheduleSpec]]
    ) -> list[tuple[int, ScheduleSpec]]:
        """Choices whose stages have the static memory that the profile states; the others are named in one line.

        The static memory of a stage depends on the schedule: a V shape has the head on the first stage, and torch's
        transfers keep buffers by virtual stage. An estimate is repeated for each choice (`memory_like`); a profile that
        was measured or given covers only the pipeline that the file runs, and those with the same static memory.

        Raises
        ------
        InputError
            When it covers none.
        """
        covered = [one for one in options if self.is_covered_by(memory, *one)]
        left_out = [f"{spec.name} with {vpp} virtual stages" for vpp, spec in options if (vpp, spec) not in covered]
        if left_out:
            running = f"{self.running.schedule.name} with {self.running.strategy.vpp}"
            reason = f"the memory profile has the static memory of {running}, and theirs differs"
            cure = "name one with -schedule and -vpp, or choose on estimates (no -memory, -dryrun n)"
            if not covered:
                raise InputError(reason, file=self.config.path, field="-vpp, -schedule", value=AUTO, cure=cure)
            log.warning("%s: left out: %s; %s; %s", self.config.path, ", ".join(left_out), reason, cure)
        return covered

    def is_covered_by(self, memory: MemoryProfile, interleaves: int, schedule: ScheduleSpec) -> bool:
        """Return whether a profile for this file covers other numbers of virtual stages and another schedule too."""
        return memory.source == MemorySource.ESTIMATE or self._has_statics_of(interleaves, schedule)

    def _has_statics_of(self, interleaves: int, schedule: ScheduleSpec) -> bool:
        """Return whether, by the estimate, a choice's stages have the same static memory as this one's."""
        try:
            own, other = (
                estimate_memory(each.running, self.device).static_mib(self.config.strategy.pp)
                for each in (self, self.running_as(interleaves, schedule))
            )
        except ValueError:
            return True  # The schedule cannot run so; the choice's message says it.
        return bool(np.allclose(own, other))

    def refuse_early(self, exports: Sequence[Export]) -> None:
        """Refuse, before anything is measured or solved, a job that can give no plan, or none that can be exported.

        Raises
        ------
        InputError
            When the schedule does not exist for the numbers, or a form can state no plan with this many virtual stages.
        """
        vpp = self.running.strategy.vpp
        # More virtual stages than layers are refused with the problem, in better words.
        if vpp <= self.running.model.n_layers:
            require_schedule(self.running)
            refuse_impossible(exports, vpp, self.running.schedule)

    @property
    def modes(self) -> tuple[str, ...]:
        """Recompute modes whose activations the problem needs."""
        asked, plan = self.job.search_select, self.config.plan
        return modes_at_hand(plan is not None and plan.uses(SELECT) if asked is None else asked)

    def problem(self, memory: MemoryProfile) -> PipelineProblem:
        """Pipeline problem under a memory profile.

        Raises
        ------
        InputError
            When there are fewer layers than chunks, or the profile lacks a mode that is searched.
        """
        problem = self._problem_on_cards(memory)
        problem = with_limits(problem, self.job.stage_limits, self.config, memory.source)
        return problem if self.learned is None else self.learned.on(problem)

    def _problem_on_cards(self, memory: MemoryProfile) -> PipelineProblem:
        """Problem with each stage on its device, as the memory profile has it."""
        if self.stages is None:
            return self._problem_on(memory, self.device, self.ratios)
        specs = {spec.name: spec for spec in self.stages.specs}
        on_each = {name: self._problem_on(memory, spec, self.stages.ratios[name]) for name, spec in specs.items()}
        return self.stages.on(on_each, self.running)

    def _problem_on(self, memory: MemoryProfile, device: DeviceSpec, ratios: SettledRatios) -> PipelineProblem:
        """Problem with all stages on one device."""
        asked = self.job.search_select
        problem = build_problem(self.running, memory, ratios.ratios, search_select=asked, device=device)
        problem = with_module_choices(problem, self.running, device, self.modules)
        problem = with_tensor_choices(problem, self.running, device, self.tensors)
        problem = with_tower(problem, self.running, device, memory.source)
        return with_lending(problem, self.running, device, self.lenders)

    def known_plan(self, problem: PipelineProblem) -> PipelinePlan | None:
        """Baseline in terms of a problem, as the start of its solve; None where it has another shape."""
        plan = known_plan(self.config, self.modules)
        if (
            plan is None
            or self.running.tower != self.config.tower
            or (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages)
        ):
            return None
        if any(plan.uses(mode) for mode in plan.recompute if mode not in (*problem.recompute_ratio, *problem.choices)):
            return None
        return plan_in_terms_of(problem, plan)

    def open_backend(self, folder: Path) -> AbstractContextManager[DryRunBackend | None]:
        """Context with the backend of the job's dry-runs; None in it where none is wanted or none can run."""
        given = self.job.memory_file is not None or self.job.dryrun_data is not None
        wanted = self.job.check or (self.job.dryrun and not given)
        return open_backend(self.job.dryruns, self.running, folder) if wanted else nullcontext(None)

    def obtain_memory(self, backend: DryRunBackend | None, folder: Path) -> MemoryProfile:
        """Memory profile to plan with; one log line names its source.

        Raises
        ------
        InputError
            When the job's own profile is bad.
        OutsideProgramError
            When every dry-run failed, and the job requested dry-runs by name.
        """
        if self.job.dryrun_data is not None:
            return replayed_memory(self.as_in_the_file().running, self.device, self.job.dryrun_data)
        return obtain_memory(
            self.running,
            self.device,
            memory_file=self.job.memory_file,
            dryrun=self.job.dryrun,
            backend=backend,
            output=folder,
            modes=self.modes,
            may_estimate=self.job.dryruns.backend == "auto",
        )


def _note_idle_switch(job: FileJob, config: TrainingConfig) -> None:
    """Log a choice of the low-memory order where there is none to choose."""
    if job.low_memory is None:
        return
    vpp = config.strategy.vpp if job.given_vpp is None else job.given_vpp
    schedule = asked_schedule(job, config)
    several = max(vpp, 2) if job.vpp == AUTO else vpp
    run = schedule.for_interleaves(several, config.rules.framework)
    if job.schedule == AUTO:
        why = "with -schedule auto, which tries the low-memory orders too"
    elif run.traits.low_memory_switch:
        return
    else:
        why = f"here: {run.name} with {several} virtual stage{'s' * (several > 1)} has no low-memory order"
    log.warning("%s: -low_mem %s has no effect %s", config.path.name, "y" if job.low_memory else "n", why)


def _legal(
    job: FileJob, config: TrainingConfig, vpp: int, schedule: ScheduleSpec, device: DeviceSpec
) -> TrainingConfig:
    """Return the configuration with the notes of `require_legal` for the virtual stages and schedule that run.

    Where the tool chooses them, each choice is checked on its own (`StatedFile.refuse_illegal`), and here 1F1B with one
    virtual stage.
    """
    if job.has_choices:
        vpp, schedule = 1, config.schedule.renamed(PLAIN)
    running = config.replace(strategy=config.strategy.replace(vpp=vpp), schedule=schedule)
    if (vpp, schedule) != (config.strategy.vpp, config.schedule):
        running = running.replace(plan=None)
    return config.replace(notes=require_legal(running, device, job.allow_illegal).notes)


def with_devices_of(job: FileJob, config: TrainingConfig) -> FileJob:
    """Job on the devices that its file names for the stages, where it names none itself."""
    return job if job.stage_devices else replace(job, stage_devices=config.stage_devices)


def asked_schedule(job: FileJob, config: TrainingConfig) -> ScheduleSpec:
    """The file's schedule with the job's changes to it."""
    asked = config.schedule.renamed(job.given_schedule or config.schedule.name)
    return asked if job.low_memory is None else replace(asked, low_memory=job.low_memory)
