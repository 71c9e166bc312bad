"""Memory seen in a run of the file's plan: measured peaks, stages that ran out of memory, and limits by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taylor.base.errors import InputError, shortened
from taylor.cost_model.errors.peak_correction import PeakCorrection
from taylor.cost_model.profile import MemorySource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.register.device import DeviceSpec

PEAK_FLAG, OUT_FLAG, LIMIT_FLAG = "--measured_peak", "--out_of_memory", "--stage_limit"
ALLOCATED, CARD = "allocated", "card"
PEAK_KINDS = (ALLOCATED, CARD)
"""Meanings of a measured peak: torch's ``max_memory_allocated`` (without the runtime and the buffers of
communication), or all that the job takes of a card (``nvidia-smi``)."""


@dataclass(frozen=True)
class StageMeasurement:
    """Memory that a stage of a run was seen to need.

    Parameters
    ----------
    plan : PipelinePlan
    schedule : ScheduleSpec
        Plan and schedule of the run.
    mib : float
        Peak as all that the job takes of a card, MiB.
    at_least : bool
        The stage ran out of memory: the peak is at least `mib`.
    """

    plan: PipelinePlan
    schedule: ScheduleSpec
    stage: int
    mib: float
    at_least: bool = False


@dataclass(frozen=True)
class MeasuredRun:
    """Memory seen in a run of the plan in the file.

    Parameters
    ----------
    peaks : tuple of (stage, MiB)
    out_of_memory : tuple of int
        Stages that ran out of memory.
    peak_of : str
        One of `PEAK_KINDS`.
    earlier : tuple of StageMeasurement
        Measurements of earlier plans of the same job.
    """

    peaks: tuple[tuple[int, float], ...] = ()
    out_of_memory: tuple[int, ...] = ()
    peak_of: str = ALLOCATED
    earlier: tuple[StageMeasurement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.peaks or self.out_of_memory or self.earlier)

    def refuse(self, config: TrainingConfig, cards: Mapping[int, DeviceSpec]) -> None:
        """Refuse measurements that contradict the job or each other.

        Parameters
        ----------
        cards : mapping of stage to DeviceSpec

        Raises
        ------
        InputError
            With the option, the value and the cure.
        """
        for flag, stages in ((PEAK_FLAG, [stage for stage, _ in self.peaks]), (OUT_FLAG, self.out_of_memory)):
            _refuse_stages(flag, stages, config)
        for stage, mib in self.peaks:
            if stage in self.out_of_memory:
                raise InputError(
                    f"contradicts {OUT_FLAG} {stage}: a stage that ran out of memory has no measured peak",
                    field=PEAK_FLAG, value=f"{stage}={mib:g}", cure="give one of the two for this stage",
                )  # fmt: skip
            if not 0 < mib <= cards[stage].memory_mib:
                raise InputError(
                    f"is above the {cards[stage].memory_mib:,} MiB of {cards[stage].name}",
                    field=PEAK_FLAG, value=f"{stage}={mib:g}",
                    cure=f"name MiB of one device, or the device of the run with --device; {OUT_FLAG} {stage} if the "
                    "stage ran out of memory",
                )  # fmt: skip
        if self.peak_of not in PEAK_KINDS:
            raise InputError(
                "is no kind of peak", field="--peak_of", value=self.peak_of, cure=f"name {' or '.join(PEAK_KINDS)}"
            )


def limits_by_stage(
    limits: tuple[tuple[int, float], ...], config: TrainingConfig, cards: Mapping[int, DeviceSpec]
) -> None:
    """Refuse limits of stages that do not exist or whose card has less.

    Raises
    ------
    InputError
        With the option, the value and the cure.
    """
    _refuse_stages(LIMIT_FLAG, [stage for stage, _ in limits], config)
    for stage, mib in limits:
        if not 0 < mib <= cards[stage].memory_mib:
            raise InputError(
                f"is above the {cards[stage].memory_mib:,} MiB of {cards[stage].name}",
                field=LIMIT_FLAG, value=f"{stage}={mib:g}", cure="name MiB that one device of the stage has",
            )  # fmt: skip


def _refuse_stages(flag: str, stages: list[int] | tuple[int, ...], config: TrainingConfig) -> None:
    count = config.strategy.pp
    for stage in stages:
        if not 0 <= stage < count:
            raise InputError(
                f"names no stage of {count}", file=config.path, field=flag, value=stage,
                cure=f"stages count from 0 to {count - 1}",
            )  # fmt: skip
    twice = [stage for stage in stages if list(stages).count(stage) > 1]
    if twice:
        raise InputError("names a stage twice", field=flag, value=twice[0], cure="name each stage once")


@dataclass(frozen=True)
class LearnedMemory:
    """Correction of the memory model by what was seen of the job.

    Parameters
    ----------
    sentences : tuple of str
        Facts for a reader: how much more each stage needed, and what it is planned with.
    seen : tuple of StageMeasurement
        Measurements that it rests on.
    """

    correction: PeakCorrection
    sentences: tuple[str, ...] = ()
    seen: tuple[StageMeasurement, ...] = ()

    def for_stages(self, count: int) -> LearnedMemory:
        """Correction of a job with another number of stages: the part that stages without a measurement have."""
        if len(self.correction.extra_mib) == count:
            return self
        common = (self.correction.common_mib,) * count
        return replace(self, correction=replace(self.correction, extra_mib=common))

    def on(self, problem: PipelineProblem) -> PipelineProblem:
        """Problem with the corrected memory; static memory does not fall below zero."""
        static = tuple(
            max(0.0, mib + more) for mib, more in zip(problem.static_mib, self.correction.extra_mib, strict=True)
        )
        return scaled_activations(problem, self.correction.kept_factor).replace(static_mib=static)

    def to_dict(self) -> dict[str, object]:
        """Correction as plain data."""
        return {
            "extra_mib": [round(one, 3) for one in self.correction.extra_mib],
            "kept_factor": round(self.correction.kept_factor, 6),
            "sentences": list(self.sentences),
        }


@dataclass(frozen=True)
class SeenMemory:
    """Memory of the candidates of a file beyond their estimates.

    Parameters
    ----------
    learned : LearnedMemory or None
        Correction by runs of the plan in the file.
    limits : tuple of (stage, MiB)
        Memory limits of single stages, instead of that of their device.
    """

    learned: LearnedMemory | None = None
    limits: tuple[tuple[int, float], ...] = ()

    def on(self, problem: PipelineProblem, config: TrainingConfig, source: MemorySource) -> PipelineProblem:
        """Problem of a candidate with its limits and the corrected memory."""
        limited = with_limits(problem, self.limits, config, source)
        return limited if self.learned is None else self.learned.for_stages(problem.stages).on(limited)

    def refuse(self, configs: Sequence[TrainingConfig], device: DeviceSpec) -> None:
        """Refuse limits above the memory of the device, and of stages that no candidate has.

        Raises
        ------
        InputError
            With the option, the value and the cure.
        """
        most = max((config.strategy.pp for config in configs), default=0)
        for stage, mib in self.limits:
            if configs and not 0 <= stage < most:
                raise InputError(
                    f"names a stage that no candidate has: they have {most} at most", field=LIMIT_FLAG, value=stage,
                    cure=f"stages count from 0 to {most - 1}",
                )  # fmt: skip
            if not 0 < mib <= device.memory_mib:
                raise InputError(
                    f"is above the {device.memory_mib:,} MiB of {device.name}",
                    field=LIMIT_FLAG, value=f"{stage}={mib:g}", cure="name MiB that one device of the stage has",
                )  # fmt: skip


def with_limits(
    problem: PipelineProblem, limits: tuple[tuple[int, float], ...], config: TrainingConfig, source: MemorySource
) -> PipelineProblem:
    """Problem whose stages have limits of their own, less the job's margin; those that it lacks are left out."""
    if not limits:
        return problem
    margin, known, found = config.margin, config.memory_error(source), dict(enumerate(problem.limit_mib))
    found |= {stage: margin.below(mib, known) for stage, mib in limits if stage < problem.stages}
    return problem.replace(limit_mib=tuple(found[stage] for stage in range(problem.stages)))


def scaled_activations(problem: PipelineProblem, factor: float) -> PipelineProblem:
    """Problem whose layers keep `factor` times the activations."""
    if factor == 1.0:
        return problem
    kinds = tuple(
        replace(kind, activation_mib={mode: factor * mib for mode, mib in kind.activation_mib.items()})
        for kind in problem.kinds
    )
    return problem.replace(kinds=kinds)


def stage_figures(text: str) -> tuple[tuple[int, float], ...]:
    """Figures of stages, from ``STAGE=MiB,STAGE=MiB``.

    Raises
    ------
    ValueError
        When the text is not of that form.
    """
    found: list[tuple[int, float]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        stage, equals, figure = part.partition("=")
        try:
            one = int(stage), float(figure.replace("_", ""))
        except ValueError:
            equals = ""
            one = 0, 0.0
        if not equals or not 0 < one[1] < 1e9:
            raise ValueError(f"{shortened(repr(part))} is not of the form STAGE=MiB, as 1=61300")
        found.append(one)
    if not found:
        raise ValueError("names no stage: write STAGE=MiB, as 1=61300")
    return tuple(found)


def stage_numbers(text: str) -> tuple[int, ...]:
    """Stages, from ``STAGE,STAGE``.

    Raises
    ------
    ValueError
        When one is no number.
    """
    parts = [piece.strip() for piece in text.split(",") if piece.strip()]
    if not parts or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise ValueError(f"{shortened(repr(text))} is no list of stages, as 1 or 0,3")
    return tuple(map(int, parts))
