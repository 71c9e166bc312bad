"""Changes of a job that lower its peak memory, each priced by the analytical model of the changed job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.memory.breakdown import StageBreakdown, lightest_plan, stage_breakdown
from taylor.cost_model.profile import MemorySource
from taylor.nd_search.stated import broken_rules
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid, kind_of
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.measured_run import LearnedMemory

NARROW_MOMENTS = 4
"""Bytes a parameter of Adam's two moments in 16 bits."""
NARROW_GRADIENT = 2
"""Bytes of a gradient that is accumulated in 16 bits."""
OMITTED = "the file omits"
"""Words before flags of states in lower precision."""

Peaks = Callable[[TrainingConfig, PipelinePlan | None], list[float]]


@dataclass(frozen=True)
class Lever:
    """A change of a job and its memory.

    Parameters
    ----------
    name : str
        The change in words.
    saved_mib : float
        Reduction of the peak of the stage that was asked for; with another number of stages, of the largest peak.
    largest_mib : float
        Largest peak of all stages after the change.
    fits : bool
        Whether every stage is then within its limit.
    narrows : bool
        The optimizer keeps states in lower precision.
    """

    name: str
    saved_mib: float
    largest_mib: float
    fits: bool
    narrows: bool = False


@dataclass(frozen=True)
class _Change:
    """A changed job; `plan` None is the even plan in the baseline's recompute mode.

    `narrows`: its optimizer keeps states in lower precision.
    """

    name: str
    config: TrainingConfig
    plan: PipelinePlan | None = None
    same_stages: bool = True
    narrows: bool = False


def levers_of(
    config: TrainingConfig,
    plan: PipelinePlan,
    device: DeviceSpec,
    stage: int,
    limits_mib: Sequence[float],
    learned: LearnedMemory | None = None,
) -> list[Lever]:
    """Legal changes that lower a stage's peak, the largest saving first.

    Parameters
    ----------
    config : TrainingConfig
        With the virtual stages and schedule that run.
    limits_mib : sequence of float [pp]
    learned : LearnedMemory, optional
        Correction of the peaks; a changed number of stages has the part of stages without a measurement.
    """
    allowed = _waived(config, device)
    before = corrected_peaks(config, plan, device, learned)
    found = []
    for change in _changes(config, plan, stage):
        if broken_rules(change.config.replace(plan=change.plan), device, allowed):
            continue
        try:
            after = corrected_peaks(
                change.config, change.plan or config.even_plan(change.config.strategy), device, learned
            )
        except ValueError:  # no such plan or schedule
            continue
        saved = before[stage] - after[stage] if change.same_stages else max(before) - max(after)
        limits = limits_mib if change.same_stages else [min(limits_mib)] * len(after)
        if saved > 0:
            found.append(Lever(change.name, saved, max(after), _within(after, limits)))
    return sorted(found, key=lambda lever: -lever.saved_mib)


def smallest_change_of(
    config: TrainingConfig,
    plan: PipelinePlan | None,
    device: DeviceSpec,
    limits_mib: Sequence[float],
    learned: LearnedMemory | None = None,
) -> Lever | None:
    """First change of the job that makes it fit, in an order from the least intrusive one; None where none alone does.

    Parameters
    ----------
    plan : PipelinePlan or None
        Plan that does not fit: then the fewest further layers under full recompute are tried first. None: no plan of
        the job fits, and each change is judged by its plan that needs the least memory.
    """
    if plan is not None and (lever := _fewest_recomputed(config, plan, device, limits_mib, learned)) is not None:
        return lever
    return _first_that_fits(_restated(config), config, plan, device, limits_mib, learned)


def can_be_judged(source: MemorySource, problem: PipelineProblem, plan: PipelinePlan | None) -> bool:
    """Return whether the analytical model gives the peaks of a changed job: those of the plan are its estimates, and no
    layer has a choice by module.
    """
    return source == MemorySource.ESTIMATE and not (plan and any(map(plan.uses, problem.choices)))


def narrow_change_of(
    config: TrainingConfig,
    plan: PipelinePlan | None,
    device: DeviceSpec,
    limits_mib: Sequence[float],
    learned: LearnedMemory | None = None,
) -> Lever | None:
    """First optimizer states in lower precision that make the job fit alone; None where none do.

    Parameters
    ----------
    plan : PipelinePlan or None
        As in `smallest_change_of`.
    """
    return _first_that_fits(_narrow_states(config), config, plan, device, limits_mib, learned)


def _first_that_fits(
    changes: Iterator[_Change],
    config: TrainingConfig,
    plan: PipelinePlan | None,
    device: DeviceSpec,
    limits_mib: Sequence[float],
    learned: LearnedMemory | None,
) -> Lever | None:
    """First of some changes with which every stage is within its limit."""
    allowed = _waived(config, device)
    before = max(corrected_peaks(config, plan or _lightest(config), device, learned))
    for change in changes:
        if broken_rules(change.config.replace(plan=None), device, allowed):
            continue
        try:
            kept = plan if change.same_stages else None
            lightest = kept or (_lightest(change.config) if plan is None else config.even_plan(change.config.strategy))
            after = corrected_peaks(change.config, lightest, device, learned)
        except ValueError:
            continue
        limits = limits_mib if change.same_stages else [min(limits_mib)] * len(after)
        if _within(after, limits):
            return Lever(change.name, before - max(after), max(after), fits=True, narrows=change.narrows)
    return None


def corrected_peaks(
    config: TrainingConfig, plan: PipelinePlan, device: DeviceSpec, learned: LearnedMemory | None = None
) -> list[float]:
    """Peak of each stage by the analytical model and what was measured on the device and of the job, MiB."""
    stages = breakdown_of(config, plan)
    return [stage.total + beyond_mib(stage, len(stages), device, learned) for stage in stages]


def beyond_mib(stage: StageBreakdown, stages: int, device: DeviceSpec, learned: LearnedMemory | None = None) -> float:
    """Memory of a stage beyond the analytical model's, as measurements on the device and of the job have it, MiB."""
    extra, factor = device.memory_extra_mib, device.kept_factor
    if learned is not None:
        correction = learned.correction
        same = len(correction.extra_mib) == stages
        extra += correction.extra_mib[stage.stage] if same else correction.common_mib
        factor *= correction.kept_factor
    return extra + (factor - 1.0) * sum(stage.activations.values())


def breakdown_of(config: TrainingConfig, plan: PipelinePlan) -> list[StageBreakdown]:
    """Memory of each stage by category under the schedule that runs."""
    schedule = config.schedule_for(config.strategy.vpp)
    return stage_breakdown(config.model, config.strategy, config.rules, plan, schedule)


def _waived(config: TrainingConfig, device: DeviceSpec) -> tuple[str, ...]:
    """Legality rules that the job breaks as it is: its user waived them, and no change is refused for them."""
    return tuple(rule.name for rule in broken_rules(config, device))


def _within(peaks: Sequence[float], limits: Sequence[float]) -> bool:
    return all(peak <= limit for peak, limit in zip(peaks, limits, strict=True))


def _lightest(config: TrainingConfig) -> PipelinePlan:
    schedule = config.schedule_for(config.strategy.vpp)
    return lightest_plan(config.model, config.strategy, config.rules, FULL, schedule)


def _changes(config: TrainingConfig, plan: PipelinePlan, stage: int) -> Iterator[_Change]:
    """Changes of a job with a plan; those of recompute apply to one stage."""
    for mode, word in ((FULL, "full"), (SELECT, "selective")):
        recomputed = _recomputed_on(config, plan, stage, mode)
        if recomputed != plan:
            layers = sum(row[stage] for row in plan.total_layers(_free_kinds(config, plan)))
            yield _Change(f"{word} recompute of all {layers} layers of stage {stage}", config, recomputed)
    for change in _restated(config):
        yield replace(change, plan=plan) if change.same_stages else change


def _restated(config: TrainingConfig) -> Iterator[_Change]:
    """Changes of a job's rules and degrees, the least intrusive first; the batch of a step stays."""
    strategy, rules = config.strategy, config.rules
    replicas = strategy.dp * strategy.cp

    def ruled(name: str, **changes: object) -> _Change:
        return _Change(name, config.replace(rules=rules.replace(**changes)))

    if not rules.parallel_optimizer and not rules.parameter_shard and replicas > 1:
        split = ruled(f"distributed optimizer (ZeRO-1) over {replicas} ranks", parallel_optimizer=True)
        yield replace(split, config=split.config.replace(strategy=strategy.replace(op=replicas)))
    if strategy.tp > 1 and not strategy.sp:
        yield _Change("sequence parallelism", config.replace(strategy=strategy.replace(sp=True)))
    if not rules.flash_attention:
        yield ruled("flash attention", flash_attention=True)
    yield from _narrow_states(config)
    if strategy.mbs % 2 == 0:
        half = strategy.replace(mbs=strategy.mbs // 2, micro_batches=2 * strategy.micro_batches)
        yield _Change(f"micro-batches of {half.mbs} instead of {strategy.mbs}", config.replace(strategy=half))
    if strategy.vpp > 1:
        alone = config.replace(strategy=strategy.replace(vpp=1), plan=None)
        yield _Change("one virtual stage", alone, same_stages=False)
    if strategy.dp % 2 == 0:
        for name in ("pp", "tp", "cp"):
            degree = 2 * getattr(strategy, name)
            left = replicas if name == "cp" else replicas // 2
            fewer = strategy.replace(
                dp=strategy.dp // 2, micro_batches=2 * strategy.micro_batches, **{name: degree},
                op=left if strategy.op == replicas else min(strategy.op, left),
            )  # fmt: skip
            yield _Change(
                f"{name.upper()} {degree} and DP {fewer.dp}", config.replace(strategy=fewer, plan=None),
                same_stages=name != "pp",
            )  # fmt: skip


def _narrow_states(config: TrainingConfig) -> Iterator[_Change]:
    """Optimizer states in lower precision: by the launcher's flags, else as the framework takes them."""
    rules, offered = config.rules, launcher_of(config).narrow_states(config)
    if offered is not None:
        for one in offered:
            if one.optimizer != rules.optimizer:
                changed = config.replace(rules=rules.replace(optimizer=one.optimizer))
                yield _Change(f"{one.name} ({OMITTED} {one.flags})", changed, narrows=True)
        return
    if not (rules.framework.states.takes_narrow_states and rules.parallel_optimizer):
        return
    narrow: OptimizerStates = replace(
        rules.optimizer, moments_bytes=NARROW_MOMENTS, other_moments_bytes=NARROW_MOMENTS, step_bytes=0
    )
    if rules.moments_bytes > NARROW_MOMENTS:
        changed = config.replace(rules=rules.replace(optimizer=narrow))
        yield _Change("Adam's moments in 16 bits (precision-aware optimizer)", changed, narrows=True)
    if rules.gradient_bytes > NARROW_GRADIENT:
        changed = config.replace(rules=rules.replace(optimizer=replace(narrow, gradient_bytes=NARROW_GRADIENT)))
        yield _Change("Adam's moments and gradients in 16 bits (precision-aware optimizer)", changed, narrows=True)


def _free_kinds(config: TrainingConfig, plan: PipelinePlan) -> list[str]:
    return [kind for kind in plan.layers if kind_of(kind) not in config.pinned_kinds]


def _recomputed_on(config: TrainingConfig, plan: PipelinePlan, stage: int, mode: str) -> PipelinePlan:
    """Plan with every layer of a stage under full recompute, or with those that keep all under selective."""
    layers = plan.total_layers(_free_kinds(config, plan))
    full = [list(row) for row in plan.recomputed(FULL)]
    select = [list(row) for row in plan.recomputed(SELECT)]
    for v, row in enumerate(layers):
        if mode == FULL:
            full[v][stage], select[v][stage] = row[stage], 0
        else:
            select[v][stage] = row[stage] - full[v][stage]
    return _with_recompute(plan, full, select)


def _with_recompute(plan: PipelinePlan, full: list[list[int]], select: list[list[int]]) -> PipelinePlan:
    grids = {FULL: as_grid(full), SELECT: as_grid(select)}
    return PipelinePlan(plan.layers, {mode: grid for mode, grid in grids.items() if any(map(any, grid))})


def _fewest_recomputed(
    config: TrainingConfig,
    plan: PipelinePlan,
    device: DeviceSpec,
    limits: Sequence[float],
    learned: LearnedMemory | None,
) -> Lever | None:
    """Fewest further layers of each stage over its limit under full recompute; None where all of them do not help."""
    before = corrected_peaks(config, plan, device, learned)
    layers = plan.total_layers(_free_kinds(config, plan))
    full, select = ([list(row) for row in plan.recomputed(mode)] for mode in (FULL, SELECT))
    added: dict[int, int] = {}
    peaks = before
    while over := [s for s, (peak, limit) in enumerate(zip(peaks, limits, strict=True)) if peak > limit]:
        for stage in over:
            v = next((v for v, row in enumerate(layers) if full[v][stage] < row[stage]), None)
            if v is None:
                return None
            full[v][stage] += 1
            select[v][stage] = min(select[v][stage], layers[v][stage] - full[v][stage])
            added[stage] = added.get(stage, 0) + 1
        peaks = corrected_peaks(config, _with_recompute(plan, full, select), device, learned)
    if not added:
        return None
    each = ", ".join(f"{count} more layer{'s' * (count > 1)} of stage {stage}" for stage, count in added.items())
    return Lever(f"full recompute of {each}", max(before) - max(peaks), max(peaks), fits=True)
