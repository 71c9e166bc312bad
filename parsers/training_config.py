"""The neutral form of a training configuration, whatever file it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.errors.known_error import MEMORY_ERRORS, KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.errors.peak_interval import PeakClass, peak_class, recorded_errors
from taylor.cost_model.errors.step_interval import job_class, step_error
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.ranks import OpenRanks, choices, nearest_multiples
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.tower import TowerRun
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.communicators import HCCL, communication_mib
from taylor.cost_model.profile import MemorySource
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.stated_flags import StatedFlags
from taylor.pipeline.plan import FULL, NONE, SELECT, Grid, PipelinePlan, deal_kinds, even_plan, kind_of, values_in_order
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.device import DeviceSpec
from taylor.register.model import MTP, ModelSpec
from taylor.register.tower import IN_FRONT


@dataclass(frozen=True)
class Misfit:
    """Reason why a job cannot start with the strategy that its file states; a search for another one may still read it.

    Parameters
    ----------
    field : str
        The key or flag at fault, as messages name it.
    value : int or str
        As found.
    problem, cure : str
        The fault, and its cure.
    rule : str
        Name of the launcher's rule that the job breaks; empty where it has none.
    source : str
        Place of the check in the launcher's code: repository, release, file and line; empty where nothing states it.
    any_strategy : bool
        The job cannot start whatever its strategy is, so that a search of other ones refuses it too.
    """

    field: str
    value: int | str
    problem: str
    cure: str
    rule: str = ""
    source: str = ""
    any_strategy: bool = False

    def error(self, file: Path) -> InputError:
        """The error for a file that has this misfit."""
        problem = f"breaks the rule {self.rule}: {self.problem}" if self.rule else self.problem
        allow = f"--allow_illegal {self.rule} plans the job anyway" if self.rule else ""
        source = f"source: {self.source}" if self.source else ""
        cure = "; ".join(part for part in (self.cure, source, allow) if part)
        return InputError(
            problem,
            file=file,
            field=self.field,
            value=self.value,
            cure=cure,
            source=self.source or None,
            code="illegal",
        )


@dataclass(frozen=True)
class MovedModules:
    """Modules whose inputs a file moves to the host in every layer that is not recomputed whole.

    Parameters
    ----------
    words : tuple of str
        As the launcher's files name them (`Launcher.module_words`).
    flags : tuple of str
        Sources of this, as `TrainingConfig.unmodelled` names them; a figure that counts the modules has them.
    """

    words: tuple[str, ...]
    flags: tuple[str, ...]


@dataclass(frozen=True)
class TrainingConfig:
    """One training job as its file describes it.

    Parameters
    ----------
    path : Path
        The file it was read from.
    launcher : str
        Name of the launcher whose file it is; `parsers.registry.launcher_of` gives what it can do.
    plan : PipelinePlan or None
        The baseline: layers and recompute of the file; None when the file does not settle them consistently
        (the reason is among `notes`).
    recompute_group : int
        Layers that the baseline's full recompute takes together (`TrainingRules.recompute_group`); a plan that is
        written recomputes them one by one.
    recomputes_in_bubble : bool
        The baseline runs micro-batches again in the pipeline's bubble (`ScheduleSpec.bubble_share`); one that is solved
        does not.
    recomputes_mtp : bool
        The baseline's full recompute takes the MTP layers too, beyond those that `plan` counts; a plan that is written
        never does.
    device_limit_mib : float or None
        Device memory that the file allows, MiB.
    stage_devices : tuple of (str, int)
        Registered devices and how many stages in a row lie on each, as the file's comment says
        (`parsers.stage_comment`); empty where it has none.
    margin : MemoryMargin
        Memory that every device keeps free below its limit; no field of the file states it.
    mtp_counted : bool
        MTP layers count in the offset's layer total (legacy MindFormers: L = layers + MTP depth).
        Otherwise they join the last chunk and the offset is over the body layers alone.
    names_chunks : bool
        The file names what every chunk holds, embedding, MTP layers and head too.
    by_module : PipelinePlan or None
        The baseline by the sets of modules that run again in a layer, where the file names modules; `plan` has all of
        them in the largest number of layers, as selective recompute.
    moved : MovedModules or None
        Modules that the baseline leaves on the host.
    linked : tuple of str
        Flags, as `unmodelled` names them, whose whole cost is known where the device's link to its host is.
    added : tuple of (str, object)
        Settings beside the plan that are written with it, in the launcher's words.
    misfits : tuple of Misfit
        Reasons why the job cannot start as the file states it, where the launcher's own checks would say so.
    open_ranks : OpenRanks or None
        World size as far as known where the file does not state it; `strategy` has the one that is assumed.
    batch_follows_ranks : bool
        The file states the samples of one data-parallel rank, so that the global batch grows with data parallelism.
        Off: it states the global batch.
    length : TrainingLength
        Steps or samples after which the training ends, where the file states them.
    notes : tuple of str
        Assumptions and oddities of the file, one line each, for the log.
    unmodelled : tuple of UnmodelledFlag
        Flags or keys of the file that cost memory, time or placement, or are unknown, and that no figure
        takes into account.
    flags : StatedFlags
        Flags of the launch, for its program's start rules.
    tower : TowerRun or None
        The encoder of images in front of the model; its parameters are none of `model`'s.
    """

    path: Path
    launcher: str
    model: ModelSpec
    strategy: Strategy
    rules: TrainingRules
    schedule: ScheduleSpec
    plan: PipelinePlan | None
    recompute_group: int = 1
    recomputes_mtp: bool = False
    recomputes_in_bubble: bool = False
    device_limit_mib: float | None = None
    stage_devices: tuple[tuple[str, int], ...] = ()
    margin: MemoryMargin = MemoryMargin()
    mtp_counted: bool = True
    names_chunks: bool = False
    by_module: PipelinePlan | None = None
    moved: MovedModules | None = None
    linked: tuple[str, ...] = ()
    added: tuple[tuple[str, object], ...] = ()
    misfits: tuple[Misfit, ...] = ()
    open_ranks: OpenRanks | None = None
    batch_follows_ranks: bool = False
    length: TrainingLength = UNSTATED
    notes: tuple[str, ...] = ()
    unmodelled: tuple[UnmodelledFlag, ...] = ()
    flags: StatedFlags = StatedFlags()
    tower: TowerRun | None = None

    @property
    def pinned_kinds(self) -> tuple[str, ...]:
        """Layer kinds that join the first or the last chunk and do not count in the offset."""
        return IN_FRONT if self.mtp_counted else (*IN_FRONT, MTP)

    @property
    def joined_runs(self) -> tuple[str, ...]:
        """Runs of layers that the framework starts only on the chunk of the layer before them."""
        return self.model.reusing_runs if self.rules.framework.keeps_choices_in_chunk else ()

    def memory_limit_mib(self, device: DeviceSpec, source: MemorySource = MemorySource.ESTIMATE) -> float:
        """Memory that a plan may take of one device: the file's limit, else the device's memory, less the margin.

        Parameters
        ----------
        source : MemorySource
            Source of the plan's peaks.

        Raises
        ------
        InputError
            When the margin leaves nothing.
        """
        whole = min(self._stated_mib(device), self._pool_mib(device))
        return self.margin.below(whole, self.memory_error(source))

    def limited_by_buffers(self, device: DeviceSpec) -> bool:
        """Return whether the buffers of communication leave less of the device than the file or the device states."""
        return self._pool_mib(device) < self._stated_mib(device)

    def _stated_mib(self, device: DeviceSpec) -> float:
        return float(device.usable_memory_mib if self.device_limit_mib is None else self.device_limit_mib)

    def _pool_mib(self, device: DeviceSpec) -> float:
        """Most that MindSpore's pool can take, MiB; without bound under torch, whose overhead has the buffers.

        It takes what the file says or the device has left, whichever is less (mindspore-ai/mindspore
        mindspore/python/mindspore/context.py, ``max_device_memory``); HCCL's buffers lie outside it.
        """
        if device.collectives != HCCL or self.rules.framework.torch_allocator:
            return math.inf
        return device.memory_mib - float(communication_mib(self.model, self.strategy, self.rules, device))

    def memory_error(self, source: MemorySource) -> KnownError | None:
        """Known error of the job's peaks by their source; None where it is unknown."""
        if source == MemorySource.ESTIMATE:
            return recorded_errors().of(self.peak_class)
        return MEMORY_ERRORS.get(source)

    @property
    def peak_class(self) -> PeakClass:
        """Class whose error the job's estimated peaks have; what starts the job stands for its framework."""
        started = min(self.flags.programs, default=self.rules.framework.error_class)
        return peak_class(self.model, started.partition("-")[0].lower())

    def step_error(self, device: DeviceSpec) -> KnownError:
        """Known error of the job's estimated steps."""
        flags = sum(flag.time is not None for flag in self.unmodelled)
        return step_error(job_class(self.model, self.strategy, self.rules, device), flags)

    def as_it_recomputes(self) -> TrainingConfig:
        """The configuration with the groups in which the baseline recomputes, and the MTP layers that it takes."""
        config = self.replace(rules=self.rules.replace(recompute_group=self.recompute_group))
        if self.recomputes_in_bubble:
            body = self.model.body_kind
            inputs, whole = (
                activation_bytes(self.model, body, mode, self.strategy, self.rules) for mode in (FULL, NONE)
            )
            config = config.replace(schedule=replace(self.schedule, bubble_share=float(inputs / whole)))
        plan = self.plan
        if not self.recomputes_mtp or plan is None or MTP not in plan.layers:
            return config
        pairs = zip(plan.recomputed(FULL), plan.layers[MTP], strict=True)
        full = tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in pairs)
        return config.replace(plan=replace(plan, recompute={**plan.recompute, FULL: full}), recomputes_mtp=False)

    def schedule_for(self, interleaves: int) -> ScheduleSpec:
        """The schedule that the job runs with a number of virtual stages."""
        return self.schedule.for_interleaves(interleaves, self.rules.framework)

    def even_plan(self, strategy: Strategy, recompute: str | None = None) -> PipelinePlan:
        """The even plan of a strategy (`pipeline.plan.even_plan`) under the job's schedule.

        Parameters
        ----------
        recompute : str, optional
            The mode of every layer. When not given it is as in the baseline: full where that fully
            recomputes any layer, else selective where it does that, else none; full where there is no plan.
        """
        if recompute is None:
            modes = (FULL,) if self.plan is None else [mode for mode in (FULL, SELECT) if self.plan.uses(mode)]
            recompute = next(iter(modes), NONE)
        return even_plan(
            self.model.layer_counts(),
            strategy.pp,
            strategy.vpp,
            v_shape=self.schedule.v_shape,
            pinned_last=self.pinned_kinds,
            joined=self.joined_runs,
            recompute=recompute,
        )

    def in_kinds_of_model(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan with its MTP layers named, where it was made for a problem that merges them into the body.

        A problem in which an MTP layer costs what a body layer does has no kind for it
        (`workflows.statement.problem`). Such a plan counts MTP layers among the body's, and a file has a key of their
        own for them. Where MTP layers count as layers they are the last ones in model order. MTP layers that a problem
        places one by one are one kind in a file.
        """
        count = self.model.mtp_layers
        plan = plan.with_runs_joined(MTP).without(*IN_FRONT)
        if not count or not self.mtp_counted or MTP in plan.layers:
            return plan
        counts = {kind: sum(map(sum, grid)) for kind, grid in plan.layers.items()}
        last = [kind for kind in counts if counts[kind]][-1]
        counts |= {last: counts[last] - count, MTP: count}
        v_shape = self.schedule_for(plan.interleaves).v_shape
        layers = deal_kinds(counts, values_in_order(plan.total_layers(), v_shape), plan.stages, v_shape)
        return replace(plan, layers=layers)

    def refuse_other_stages(self, plan: PipelinePlan, field: str) -> None:
        """Refuse a plan that was made for another number of stages than the file has.

        Parameters
        ----------
        field : str
            The file's name of its number of stages.

        Raises
        ------
        InputError
            When the plan has more or fewer stages.
        """
        if plan.stages != self.strategy.pp:
            raise InputError(
                f"has {self.strategy.pp} pipeline stages and the plan {plan.stages}",
                file=str(self.path),
                field=field,
                cure="write the plan to a file of its own strategy",
            )

    def batch_on(self, world_size: int) -> int:
        """Samples a step of the same degrees on other ranks: as the file states them, of all ranks or of each."""
        own = self.strategy
        if not self.batch_follows_ranks:
            return own.global_batch
        return max(1, world_size // (own.tp * own.pp * own.cp)) * own.mbs * own.micro_batches

    def on_ranks(self, world_size: int, gbs: int | None = None) -> TrainingConfig:
        """The same with a world size that the file leaves open.

        Data parallelism follows.

        Parameters
        ----------
        gbs : int, optional
            Samples a step; those of `batch_on` when left out.

        Raises
        ------
        InputError
            When the job does not start on these ranks, or its batch is no multiple of what they take at once; when
            the file states another number.
        """
        own, left_open = self.strategy, self.open_ranks
        if left_open is None:
            if world_size == own.world_size:
                return self
            cure = f"name {own.world_size:,}, or change the file"
            raise self._ranks_error(world_size, f"contradicts the {own.world_size:,} ranks that the file states", cure)
        if world_size % left_open.unit:
            cure = f"name {choices(nearest_multiples(left_open.unit, world_size))}"
            raise self._ranks_error(world_size, f"is no multiple of {left_open.unit:,} ({left_open.why})", cure)
        dp, samples = world_size // (own.tp * own.pp * own.cp), gbs or self.batch_on(world_size)
        if samples % (dp * own.mbs):
            problem = f"makes DP x micro-batch size = {dp:,} x {own.mbs:,}, which does not divide the batch {samples:,}"
            raise self._ranks_error(world_size, problem, "name fewer ranks, or another batch with --gbs")
        grow = left_open.shards_grow and (self.rules.parallel_optimizer or self.rules.parameter_shard)
        strategy = own.replace(
            dp=dp, op=own.op * dp // own.dp if grow else own.op, micro_batches=samples // (dp * own.mbs)
        )
        notes = tuple(note for note in self.notes if note != left_open.note)
        return self.replace(strategy=strategy, notes=notes, open_ranks=None)

    def _ranks_error(self, world_size: int, problem: str, cure: str) -> InputError:
        return InputError(problem, file=self.path, field="--world_size", value=world_size, cure=cure)

    def replace(self, **changes: Any) -> TrainingConfig:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        layers = " + ".join(f"{count} {kind}" for kind, count in self.model.kind_counts.items())
        plan = "its plan is not settled" if self.plan is None else "with a plan"
        samples = f"{self.strategy.global_batch} samples of {self.rules.seq_length} tokens a step"
        return (
            f"TrainingConfig: {self.path} ({self.launcher}), {plan}\n"
            f"  {self.model.name}: {layers} layers\n"
            f"  {self.strategy}\n"
            f"  {self.strategy.world_size} ranks, {samples}, {self.schedule.name}"
        )


def body_layers(plan: PipelinePlan) -> Grid:
    """Layers of every chunk without the MTP ones and an encoder's, int [vpp, pp]."""
    return plan.total_layers([kind for kind in plan.layers if kind_of(kind) not in (MTP, *IN_FRONT)])
