"""Variants of a job: the ways to run it that its flags leave to the tool, in all their combinations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.known_orders import known_orders
from taylor.pipeline.schedule import AUTO, PLAIN, SEARCHED_FREE, ScheduleSpec
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.workflows.showing.alternative import Alternative, choice_name
from taylor.workflows.statement.module_choices import require_host_link
from taylor.workflows.statement.stage_devices import MOST_ORDERS, order_name
from taylor.workflows.statement.stated_file import StatedFile, asked_schedule

MOST_INTERLEAVES = 4
"""Most virtual stages tried: with more, warm-up memory and transfers outweigh the smaller bubble in practice."""

OPTIMIZER_FLAG = "--offload_optimizer"
ON_DEVICE, ON_HOST = "optimizer on the device", "optimizer on the host"


@dataclass(frozen=True)
class Variant:
    """One way to run a job; it states its problem when it is solved.

    Parameters
    ----------
    file : StatedFile
        The job stated so.
    profile : MemoryProfile
        Memory of the job as its flags state it.
    names : tuple of str
        Choices that distinguish it from the other variants; empty where there is none.
    restated : bool
        Whether it runs otherwise than the file: then an estimate is made for it, and the framework's rules are checked.
    """

    file: StatedFile
    profile: MemoryProfile
    names: tuple[str, ...] = ()
    restated: bool = False

    @property
    def name(self) -> str:
        """Name of the variant for a reader."""
        return ", ".join(self.names)

    @property
    def memory(self) -> MemoryProfile:
        """Memory profile that its problem rests on."""
        return self.file.memory_like(self.profile) if self.restated else self.profile

    def problem(self) -> PipelineProblem:
        """State the problem.

        Raises
        ------
        ValueError
            When the framework does not start the job so.
        InputError
            When the problem cannot be stated.
        """
        if self.restated:
            self.file.refuse_illegal()
        return self.file.problem(self.memory)

    def outcome(self, status: str, **known: Any) -> Alternative:
        """Outcome of the variant's solve, with the figures that are `known`."""
        running = self.file.running
        return Alternative(running.strategy.vpp, running.schedule, status, label=self.name, **known)

    def outcomes_of(self, solution: Solution) -> tuple[Alternative, ...]:
        """Outcome of the only variant of a job; none where it has no name."""
        known = {"objective": solution.objective, "bound": solution.bound, "seconds": solution.seconds}
        one = self.outcome(str(solution.status), note=solution.message, **known)
        return (one,) if self.names else ()

    def _chosen(self, name: str, file: StatedFile, *, restated: bool) -> Variant:
        return Variant(file, self.profile, (*self.names, name), self.restated or restated)


def variants_of(file: StatedFile, memory: MemoryProfile) -> list[Variant]:
    """Variants of a job; the job as it is stated, where its flags leave nothing open.

    Raises
    ------
    InputError
        When a choice cannot be stated in the file or under the memory profile, or the variants are too many.
    """
    found = [Variant(file, memory)]
    for choose in (_optimizer_places, _schedules, _stage_orders, _known_orders):
        found = [variant for one in found for variant in choose(one)]
    if len(found) > MOST_ORDERS:
        raise InputError(
            f"{len(found):,} variants of the job are too many to solve; the limit is {MOST_ORDERS}",
            file=file.config.path,
            field=f"-vpp, -schedule, --stage_order, {OPTIMIZER_FLAG}",
            cure="name one of the choices",
        )
    return found


def on_host(file: StatedFile) -> StatedFile:
    """File with its optimizer on the host.

    Raises
    ------
    InputError
        When files of the launcher, or this one, cannot state it, or the device has no link to its host in the register.
    """
    require_host_link(file.device, OPTIMIZER_FLAG)
    config = launcher_of(file.config).with_optimizer_on_host(file.config)
    return replace(StatedFile.of(file.job, config, file.chosen), learned=file.learned)


def choices(
    config: TrainingConfig, interleaves: int | str, schedule: ScheduleSpec | str | None
) -> list[tuple[int, ScheduleSpec]]:
    """Virtual stages and schedules to try: given values stay, ``auto`` varies as the framework allows. With None the
    schedule is the framework's for each number of virtual stages.
    """
    most = sum(config.model.layer_counts().values()) // config.strategy.pp
    counts = range(1, min(MOST_INTERLEAVES, most) + 1) if interleaves == AUTO else [int(interleaves)]
    framework = config.rules.framework
    stages, micro_batches = config.strategy.pp, config.strategy.micro_batches
    found: list[tuple[int, ScheduleSpec]] = []
    for vpp in counts:
        if schedule != AUTO:
            asked = schedule if isinstance(schedule, ScheduleSpec) else config.schedule.renamed(PLAIN)
            found.append((vpp, asked.for_interleaves(vpp, framework)))
            continue
        for spec in map(config.schedule.renamed, framework.schedules):
            # The environment chooses the interleaved order: no file can state it.
            if spec.traits.offered_with(vpp) and micro_batches >= config.rules.least_micro_batches(spec, stages):
                found.append((vpp, spec))
    return found


def _optimizer_places(variant: Variant) -> Iterator[Variant]:
    """Optimizer on the device and on the host, the same for all stages, where the job leaves that open."""
    file = variant.file
    if not file.job.offload_optimizer:
        yield variant
        return
    moved = on_host(file)
    if variant.profile.source != MemorySource.ESTIMATE:
        raise InputError(
            f"needs estimated memory: the {variant.profile.source} profile has the optimizer where the file puts it",
            field=OPTIMIZER_FLAG,
            value="y",
            cure="leave out -memory and dry-runs (-dryrun n)",
        )
    yield variant._chosen(ON_DEVICE, file, restated=False)
    yield variant._chosen(ON_HOST, moved, restated=True)


def _schedules(variant: Variant) -> Iterator[Variant]:
    """Virtual stages and schedules that the job leaves open."""
    file, job = variant.file, variant.file.job
    if not job.has_choices:
        yield variant
        return
    given = job.schedule is not None or job.low_memory is not None
    schedule = AUTO if job.schedule == AUTO else asked_schedule(job, file.config) if given else None
    interleaves = AUTO if job.vpp == AUTO else file.running.strategy.vpp
    for vpp, spec in file.choices_covered_by(variant.profile, choices(file.running, interleaves, schedule)):
        yield variant._chosen(choice_name(vpp, spec), file.running_as(vpp, spec), restated=True)


def _stage_orders(variant: Variant) -> Iterator[Variant]:
    """Orders of the stages that the job leaves open, where they lie on several kinds of devices."""
    file = variant.file
    if file.stages is None:
        yield variant
        return
    for order in file.stages.orders(file.job.stage_order):
        yield variant._chosen(order_name(order.specs), replace(file, stages=order), restated=False)


def _known_orders(variant: Variant) -> Iterator[Variant]:
    """Known orders of tasks, from which one of the plan's own is searched; the variant itself where none exists."""
    file, running = variant.file, variant.file.running
    if not file.job.is_searched:
        yield variant
        return
    strategy, free = running.strategy, file.job.schedule == SEARCHED_FREE
    if free and (variant.profile.source != MemorySource.ESTIMATE or file.stages is not None):
        what = "stages on one kind of devices" if file.stages is not None else "estimated memory"
        raise InputError(
            f"needs {what}: with the chunks, embedding and head move between stages",
            field="-schedule",
            value=SEARCHED_FREE,
            cure="leave out -memory, dry-runs (-dryrun n) and --stage_devices, or use searched or searched-v",
        )
    orders = known_orders(running.schedule, strategy.pp, strategy.vpp, strategy.micro_batches)
    for name, spec in orders.items():
        yield variant._chosen(name, replace(file, running=running.replace(schedule=spec)), restated=free)
    if not orders:
        yield variant
