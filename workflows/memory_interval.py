"""Between what the peak of a plan lies when flags that no figure has take effect: stated, and told where it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taylor.base.console import log
from taylor.base.errors import shortened
from taylor.cost_model.activations import micro_batch_tokens, sequence_split
from taylor.cost_model.alive import alive_micro_batches
from taylor.cost_model.statics import MIB, embedding_state_bytes, head_state_bytes, layer_state_bytes
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.solution import Solution

Interval = tuple[float | None, float | None]
"""Least and most of a stage's peak, MiB; None where no bound is known."""

GIVEN = "file"
"""Source of a memory profile that the user states: its figures hold as they are."""

_NAMED = 4


def peak_intervals(
    config: TrainingConfig, problem: PipelineProblem, solution: Solution, source: str
) -> tuple[Interval, ...] | None:
    """Between what the peak of each stage lies, [pp]; None where the figures leave nothing open.

    Parameters
    ----------
    source : str
        Where the memory figures come from.
    """
    lower = any(flag.may_lower_memory for flag in config.unmodelled)
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory]
    if solution.plan is None or source == GIVEN or not (lower or higher):
        return None
    unbounded = any(flag.most is None for flag in higher)
    return tuple(
        (
            None if lower else peak,
            None if unbounded else peak + _most_mib(config, problem, solution.plan, higher, stage),
        )
        for stage, peak in enumerate(solution.peak_memory_mib)
    )


def _most_mib(
    config: TrainingConfig, problem: PipelineProblem, plan: PipelinePlan, flags: Sequence[UnmodelledFlag], stage: int
) -> float:
    """Most memory that bounded flags add to a stage."""
    bounds = [flag.most for flag in flags if flag.most is not None]
    parameter_bytes = sum(bound.parameter_bytes for bound in bounds)
    hidden_bytes = sum(bound.hidden_bytes for bound in bounds)
    result = 0.0
    if parameter_bytes:
        result += parameter_bytes * _parameters(config, problem, plan, stage)
    if hidden_bytes:
        strategy = config.strategy
        stream = float(micro_batch_tokens(strategy, config.rules) * config.model.hidden / sequence_split(strategy))
        result += hidden_bytes * stream * _layers_alive(problem, plan, stage)
    return result / MIB


def _parameters(config: TrainingConfig, problem: PipelineProblem, plan: PipelinePlan, stage: int) -> float:
    """Parameters whose gradients a stage's device would hold if nothing were split among replicas."""
    rules = config.rules.replace(parallel_optimizer=False, gradient_shard=False, parameter_shard=False)
    parts: list[Any] = [
        layer_state_bytes(config.model, kind, config.strategy, rules).scaled(sum(row[stage] for row in grid))
        for kind, grid in plan.layers.items()
    ]
    if stage == 0:
        parts.append(embedding_state_bytes(config.model, config.strategy, rules))
    if stage == problem.schedule.head_stage(problem.stages):
        parts.append(head_state_bytes(config.model, config.strategy, rules))
    return float(sum(part.gradients for part in parts)) / rules.gradient_bytes


def _layers_alive(problem: PipelineProblem, plan: PipelinePlan, stage: int) -> float:
    """Layers times micro-batches alive at a stage's fullest moment."""
    layers = plan.total_layers()
    vectors = alive_micro_batches(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)[stage]
    return max(sum(alive * layers[v][stage] for v, alive in enumerate(vector)) for vector in vectors)


def tell_intervals(config: TrainingConfig, solution: Solution, intervals: Sequence[Interval] | None) -> None:
    """Say where the peak may be higher than told, and whether the plan still fits then.

    Parameters
    ----------
    intervals : sequence of Interval [pp] or None
        `peak_intervals` of the plan.
    """
    if intervals is None:
        return
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory]
    if not higher:
        return
    peaks, limits = solution.peak_memory_mib, solution.memory_limit_mib
    stage = min(range(len(peaks)), key=lambda s: limits[s] - (intervals[s][1] or peaks[s]))
    most = intervals[stage][1]
    at_most = "more where no bound is known" if most is None else f"at most {most:,.0f} MiB"
    certain = "it fits even so" if most is not None and most <= limits[stage] else "that it fits is not certain"
    if any(peak > limit for peak, limit in zip(peaks, limits, strict=True)):
        certain = "it is over the limit without them"
    names = _named([flag for flag in higher if flag.most is None] or higher)
    log.warning(
        "%s: stage %d peaks at %s MiB (%s, with %s): %s",
        config.path, stage, f"{peaks[stage]:,.0f}", at_most, names, certain,
    )  # fmt: skip


def reserve(config: TrainingConfig) -> str | None:
    """A sentence on a told peak that flags of the file may raise; None where none does."""
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory]
    return f"memory: the peak may be higher, with {_named(higher)}, which no figure has" if higher else None


def _named(flags: Sequence[UnmodelledFlag]) -> str:
    names = ", ".join(shortened(flag.name) for flag in flags[:_NAMED])
    return names if len(flags) <= _NAMED else f"{names} and {len(flags) - _NAMED} more"
