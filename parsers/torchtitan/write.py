"""Plans and strategies written into a torchtitan TOML file: which entries change, and to what."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.toml_edit import TomlPath, TomlSource, edit_toml
from taylor.parsers.torchtitan.read import (
    PARTS,
    POINTS,
    SCHEDULES,
    config_from_source,
    counts_micro_batches,
    home_of,
    release_in,
    setting_of,
)
from taylor.parsers.torchtitan.recompute import checkpoint_entries
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, values_in_order
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import ModelSpec

PLAN_KEYS = frozenset(
    {
        PARTS,
        POINTS,
        "pipeline_parallel_layers_per_stage",
        "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size",
        "pipeline_parallel_microbatches",
        "local_batch_size",
        "batch_size",
        "global_batch_size",
        "mode",
        "selective_ac_option",
    }
)
"""Keys that a plan may change in a file."""


def with_plan(source: TomlSource, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> TomlSource:
    """The file with a plan in it."""
    current = config_from_source(source, config.model)
    current.refuse_other_stages(plan, "pipeline_parallel_degree")
    top, counted = Fields(source.data, source.file), _counted(source)
    if micro_batches is None and plan.interleaves != current.strategy.vpp and counted:
        micro_batches = current.strategy.micro_batches  # Left unsaid, the number would follow the model parts.
    if micro_batches is not None:
        source = edit_toml(source, _batch(top, config.strategy.replace(micro_batches=micro_batches), counted=counted))
    return _placed(source, plan, config.schedule_for(plan.interleaves), config.model)


def with_strategy(
    source: TomlSource,
    config: TrainingConfig,
    strategy: Strategy,
    plan: PipelinePlan | None,
    extra: Mapping[str, object],
) -> TomlSource:
    """The file with another strategy, a plan that fits it, and further dotted keys set."""
    current = config_from_source(source, config.model)
    top = Fields(source.data, source.file)
    shard = strategy.op // strategy.cp if strategy.op % strategy.cp == 0 else 0
    if shard < 1 or strategy.dp % shard:
        raise InputError(
            f"cannot be split {strategy.op} ways over {strategy.dp} x {strategy.cp} replicas",
            file=source.file,
            field="data_parallel_shard_degree",
        )
    # Releases before September 2024 have one data-parallel degree, for either kind.
    _, data_parallel = setting_of(top, "data_parallel_shard_degree", "data_parallel_degree")
    _, tensor_parallel = setting_of(top, "tensor_parallel_degree", "sequence_parallel_degree")
    if data_parallel == "data_parallel_degree":
        if (shard > 1) != current.rules.parameter_shard and strategy.dp > 1:
            raise InputError(
                f"cannot be split {strategy.op} ways over {strategy.dp} replicas: data_parallel_type settles that",
                file=source.file,
                field="training.data_parallel_degree",
            )
        replicas_and_shards = {data_parallel: strategy.dp}
    else:
        replicas_and_shards = {"data_parallel_replicate_degree": strategy.dp // shard, data_parallel: shard}
    degrees = {
        **replicas_and_shards,
        tensor_parallel: strategy.tp,
        "pipeline_parallel_degree": strategy.pp,
        "context_parallel_degree": strategy.cp,
        "expert_parallel_degree": strategy.ep,
    }
    wanted: dict[TomlPath, Any] = {}
    for name, value in degrees.items():
        place = home_of(top, name)
        if value != 1 or top.section(place).has(name) or name == data_parallel:
            wanted[place, name] = value
    schedule = config.schedule_for(strategy.vpp)
    for dotted, entry in extra.items():
        table, _, key = dotted.rpartition(".")
        wanted[table, key] = entry
    for name in (PARTS, POINTS, "pipeline_parallel_layers_per_stage"):
        wanted[home_of(top, name), name] = None  # Written again for the new stages.
    wanted |= _batch(top, strategy, counted=_counted(source))
    if strategy.pp > 1:
        wanted[home_of(top, "pipeline_parallel_schedule"), "pipeline_parallel_schedule"] = _written(
            schedule, source.file
        )
    if plan is None:
        plan = current.replace(schedule=schedule).even_plan(strategy)
    if (plan.stages, plan.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError("the plan's shape differs from the strategy's [vpp, pp]")
    placed = sum(map(sum, _body(plan)))
    if placed != current.model.n_layers:
        raise InputError(
            f"has {current.model.n_layers} layers by its flavour; {placed} cannot be asked for",
            file=source.file,
            field="model.flavor",
        )
    wanted |= _split(top, plan, schedule)
    return _placed(edit_toml(source, wanted), plan, schedule, config.model)


def _written(schedule: ScheduleSpec, file: Path) -> str:
    """torchtitan's name of a schedule."""
    if schedule.name not in SCHEDULES:
        raise InputError(
            "is not a schedule of torchtitan",
            file=file,
            field="pipeline_parallel_schedule",
            value=schedule.name,
            cure=f"use {', '.join(SCHEDULES)}",
        )
    return SCHEDULES[schedule.name]


def _counted(source: TomlSource) -> bool:
    """Return whether the file states the number of micro-batches."""
    return counts_micro_batches(Fields(source.data, source.file), release_in(source))


def _batch(top: Fields, strategy: Strategy, *, counted: bool) -> dict[TomlPath, Any]:
    local = "batch_size" if top.section("training").has("batch_size") else "local_batch_size"
    name = "pipeline_parallel_microbatch_size"
    wanted: dict[TomlPath, Any] = {}
    if strategy.pp > 1:
        wanted["training", local] = strategy.mbs * strategy.micro_batches
        wanted["training", "global_batch_size"] = None
        if counted:
            count = "pipeline_parallel_microbatches"
            wanted[home_of(top, count), count] = strategy.micro_batches
            wanted[home_of(top, name), name] = None
            return wanted
        place = home_of(top, name)
        if strategy.mbs != 1 or top.section(place).has(name):
            wanted[place, name] = strategy.mbs
        return wanted
    wanted["training", local] = strategy.mbs
    wanted["training", "global_batch_size"] = strategy.global_batch if strategy.micro_batches > 1 else None
    return wanted


def _split(top: Fields, plan: PipelinePlan, schedule: ScheduleSpec) -> dict[TomlPath, Any]:
    """The model parts of a plan: each part's modules by name, or (2024 files) the layers where parts begin."""
    if plan.stages == 1:
        return {}
    v_shape = schedule.v_shape
    if top.has("parallelism") or not top.has("experimental"):
        return {("parallelism", PARTS): part_names(plan, v_shape)}
    sizes = _chunk_sizes(plan, v_shape)
    return {("experimental", POINTS): [f"layers.{sum(sizes[:k])}" for k in range(1, len(sizes))]}


def part_names(plan: PipelinePlan, v_shape: bool) -> list[list[str]]:
    """The modules of every model part by name, in model order: ``tok_embeddings, layers.0, …, norm, output``."""
    parts, first = [], 0
    for size in _chunk_sizes(plan, v_shape):
        parts.append([f"layers.{first + index}" for index in range(size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def _chunk_sizes(plan: PipelinePlan, v_shape: bool) -> list[int]:
    return values_in_order(_body(plan), v_shape)


def _placed(source: TomlSource, plan: PipelinePlan, schedule: ScheduleSpec, model: ModelSpec) -> TomlSource:
    """Set the split and the recompute mode, unless the file already means the plan."""
    top = Fields(source.data, source.file)
    if not _same_layers(source, plan, schedule, model):
        wanted = _split(top, plan, schedule)
        if plan.stages > 1:
            wanted[home_of(top, "pipeline_parallel_schedule"), "pipeline_parallel_schedule"] = _written(
                schedule, source.file
            )
            for name in (PARTS, POINTS, "pipeline_parallel_layers_per_stage"):
                if (place := (home_of(top, name), name)) not in wanted:
                    wanted[place] = None
        source = edit_toml(source, wanted)
    current = config_from_source(source, model).plan
    if current is None or not _same_recompute(current, plan):
        source = edit_toml(source, checkpoint_entries(plan))
    current = config_from_source(source, model).plan
    if current is None or not _same_layers(source, plan, schedule, model) or not _same_recompute(current, plan):
        raise InputError("cannot express the plan", file=source.file, cure="export the plan as JSON instead")
    return source


def _same_layers(source: TomlSource, plan: PipelinePlan, schedule: ScheduleSpec, model: ModelSpec) -> bool:
    try:
        config = config_from_source(source, model)
    except InputError:
        return False
    return (
        config.plan is not None
        and (plan.stages == 1 or config.schedule.name == schedule.name)
        and _body(config.plan) == _body(plan)
    )


def _body(plan: PipelinePlan) -> Any:
    return body_layers(plan)


def _same_recompute(one: PipelinePlan, other: PipelinePlan) -> bool:
    return all(one.recomputed(mode) == other.recomputed(mode) for mode in (FULL, SELECT))
