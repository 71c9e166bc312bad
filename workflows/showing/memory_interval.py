"""Interval of a plan's peak where flags that no figure includes take effect: stated, and logged where it matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from taylor.base.console import log
from taylor.base.errors import shortened
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens, routed_slots, sequence_split
from taylor.cost_model.memory.alive import alive_micro_batches
from taylor.cost_model.memory.backward_workspace import workspace_bytes
from taylor.cost_model.memory.states import StateBytes
from taylor.cost_model.memory.statics import MIB, embedding_state_bytes, head_state_bytes, layer_state_bytes
from taylor.cost_model.profile import MemoryProfile
from taylor.parsers.flag_table import HIDDEN, INNER, ROUTER, SCORES, UnmodelledFlag
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.register.model import ModelSpec, kind_of
from taylor.register.tower import IN_FRONT

Interval = tuple[float | None, float | None]
"""Least and most of a stage's peak, MiB; None where no bound is known."""

_NAMED = 4


def peak_intervals(
    config: TrainingConfig, problem: PipelineProblem, solution: Solution, memory: MemoryProfile
) -> tuple[Interval, ...] | None:
    """Interval of each stage's peak, [pp]; None where the error of the figures is unknown.

    Its ends are those of the figures' known error at the job's risk, moved by what unmodelled flags may add or remove.
    Flags that do not affect weights, gradients and optimizer states remove at most everything else.

    Parameters
    ----------
    memory : MemoryProfile
        Memory that the problem rests on.
    """
    lower = [flag for flag in config.unmodelled if flag.may_lower_memory]
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory]
    if memory.every_flag:
        lower, higher = [], []
    known, risk = config.memory_error(memory.source), config.margin.stated_risk
    if solution.plan is None or (known is None and not (lower or higher)):
        return None
    least, most = (1.0, 1.0) if known is None else (known.lower(risk), known.upper(risk))
    unbounded, boundless = any(flag.most is None for flag in higher), not all(flag.spares_states for flag in lower)
    plan = solution.plan.without(*IN_FRONT)
    states = [_states(config, problem, plan, stage, config.rules) for stage in range(problem.stages)]
    return tuple(
        (
            None if boundless else least * (min(peak, float(states[stage].total) / MIB) if lower else peak),
            None if unbounded else most * peak + _most_mib(config, problem, plan, higher, stage),
        )
        for stage, peak in enumerate(solution.peak_memory_mib)
    )


def _most_mib(
    config: TrainingConfig, problem: PipelineProblem, plan: PipelinePlan, flags: Sequence[UnmodelledFlag], stage: int
) -> float:
    """Most memory that bounded flags add to a stage."""
    bounds = [flag.most for flag in flags if flag.most is not None]
    strategy, rules = config.strategy, config.rules
    sizes = {kind: layer_elements(config.model, kind, strategy, rules) for kind in plan.layers}
    result = 0.0
    if any(bound.parameter_bytes for bound in bounds):
        result += sum(bound.parameter_bytes for bound in bounds) * _parameters(config, problem, plan, stage)
    result += sum(bound.layers for bound in bounds) * float(workspace_bytes(config.model, strategy, rules))
    # Memory that grows with the alive passes: bytes a layer of each kind, by recompute mode, and bytes a pass.
    always = sum(bound.hidden_bytes for bound in bounds)
    whole = {kind: always * size[HIDDEN] for kind, size in sizes.items()}
    more = {kind: sum(_in_elements(bound.kept, size) for bound in bounds) for kind, size in sizes.items()}
    mask = sum(bound.mask_bytes for bound in bounds) * strategy.mbs * rules.seq_length**2 / strategy.cp
    per_chunk = [
        mask
        + sum(
            modes[mode][v][stage] * (whole[kind] + (0.0 if mode == FULL else more[kind]))
            for kind, modes in plan.recompute_by_kind().items()
            for mode in modes
        )
        for v in range(plan.interleaves)
    ]
    moments = alive_micro_batches(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)[stage]
    result += max(sum(alive * size for alive, size in zip(moment, per_chunk, strict=True)) for moment in moments)
    passing = {kind: sum(_in_elements(bound.passing, size) for bound in bounds) for kind, size in sizes.items()}
    return (result + max(more[kind] + passing[kind] for kind in sizes)) / MIB


def _in_elements(size: Mapping[str, float], elements: Mapping[str, float]) -> float:
    return sum(each * elements[what] for what, each in size.items())


def layer_elements(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> dict[str, float]:
    """Number of each of `parsers.flag_table.ELEMENTS` of one micro-batch in one layer on one device."""
    tokens = micro_batch_tokens(degrees, rules)
    layers = model.layers_of(kind)
    inner: Quantity = 0.0
    heads: Quantity = 0.0
    router = 0.0
    for layer in layers:
        inner += 0.0 if layer.mlp is None else layer.mlp.width / degrees.tp
        heads += 0.0 if layer.attention is None else layer.attention.n_heads / degrees.tp
        if layer.moe is not None:
            width = layer.moe.expert_hidden / rules.experts_over(degrees.tp)
            inner += routed_slots(layer.moe, degrees, rules) * width + layer.moe.shared_width / degrees.tp
            router += layer.moe.n_experts * model.hidden
    sizes = {
        HIDDEN: tokens * model.hidden / sequence_split(degrees),
        INNER: tokens * inner,
        SCORES: tokens * rules.seq_length * heads,
        ROUTER: router,
    }
    return {name: float(size) for name, size in sizes.items()}


def _parameters(config: TrainingConfig, problem: PipelineProblem, plan: PipelinePlan, stage: int) -> float:
    """Parameters whose gradients a stage's device would keep if replicas sharded nothing."""
    rules = config.rules.replace(parallel_optimizer=False, gradient_shard=False, parameter_shard=False)
    return float(_states(config, problem, plan, stage, rules).gradients) / rules.gradient_bytes


def _states(
    config: TrainingConfig, problem: PipelineProblem, plan: PipelinePlan, stage: int, rules: TrainingRules
) -> StateBytes:
    """Weights, gradients and optimizer states of a stage on one device, bytes."""
    total = StateBytes()
    for kind, grid in plan.layers.items():
        layer = layer_state_bytes(config.model, kind_of(kind), config.strategy, rules)
        total = total + layer.scaled(sum(row[stage] for row in grid))
    if stage == 0:
        total = total + embedding_state_bytes(config.model, config.strategy, rules)
    if stage == problem.schedule.head_stage(problem.stages):
        total = total + head_state_bytes(config.model, config.strategy, rules)
    return total


def log_intervals(
    config: TrainingConfig, solution: Solution, intervals: Sequence[Interval] | None, memory: MemoryProfile
) -> None:
    """Log where the peak may be higher than predicted, and whether the plan still fits then.

    Parameters
    ----------
    intervals : sequence of Interval [pp] or None
        `peak_intervals` of the plan.
    memory : MemoryProfile
        Memory that the plan rests on.
    """
    if intervals is None:
        return
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory]
    if not higher:
        return
    # The upper ends include the known error, for which the limits leave memory free.
    known, peaks = config.memory_error(memory.source), solution.peak_memory_mib
    limits = [config.margin.around(limit, known) for limit in solution.memory_limit_mib]
    stage = min(range(len(peaks)), key=lambda s: limits[s] - (intervals[s][1] or peaks[s]))
    most = intervals[stage][1]
    at_most = "more where no bound is known" if most is None else f"at most {most:,.0f} MiB"
    certain = "it fits even so" if most is not None and most <= limits[stage] else "that it fits is not certain"
    if any(peak > limit for peak, limit in zip(peaks, limits, strict=True)):
        certain = "it is over the limit without them"
    names = _named([flag for flag in higher if flag.most is None] or higher)
    log.warning(
        "%s: stage %d peaks at %s MiB (%s, with %s): %s",
        config.path.name, stage, f"{peaks[stage]:,.0f}", at_most, names, certain,
    )  # fmt: skip


def reserve(config: TrainingConfig) -> str | None:
    """Sentence on a predicted peak that flags of the file may raise; None where none does."""
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory]
    return f"memory: the peak may be higher, with {_named(higher)}, which no figure has" if higher else None


def _named(flags: Sequence[UnmodelledFlag]) -> str:
    names = ", ".join(shortened(flag.name) for flag in flags[:_NAMED])
    return names if len(flags) <= _NAMED else f"{names} and {len(flags) - _NAMED} more"
