"""Plans and strategies written into a nanotron YAML: degrees, batch and recompute.

No option places layers: a plan can be written where nanotron deals the layers as the plan does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.nanotron.read import ENGINES, config_from_source, refuse_vpp
from taylor.parsers.text.yaml_edit import edit_yaml, lookup
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, PipelinePlan

RECOMPUTE = "recompute_layer"
PLAN_KEYS = frozenset({RECOMPUTE, "batch_accumulation_per_replica"})
"""Keys that a plan may change in a file."""
_BESIDE = {RECOMPUTE: ("pp_engine", "pp"), "context_parallel_size": ("pp", "dp"), "expert_parallel_size": ("dp",)}


def with_plan(source: YamlSource, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> YamlSource:
    """The file with a plan in it.

    Raises
    ------
    InputError
        When nanotron deals the layers in another way.
    """
    config.refuse_other_stages(plan, "parallelism.pp")
    refuse_vpp(source.file, plan.interleaves)
    wanted: dict[YamlPath, Any] = _recompute(source, plan)
    if micro_batches is not None:
        wanted["tokens", "batch_accumulation_per_replica"] = micro_batches
    return _checked(edit_yaml(source, wanted, beside=_BESIDE), plan)


def with_strategy(
    source: YamlSource,
    config: TrainingConfig,
    strategy: Strategy,
    plan: PipelinePlan | None,
    extra: Mapping[str, object],
) -> YamlSource:
    """The file with another strategy, a plan that fits it, and further dotted keys set.

    Raises
    ------
    InputError
        When nanotron cannot run the strategy, or deals the layers in another way than the plan.
    """
    refuse_vpp(source.file, strategy.vpp)
    if strategy.ep > 1:
        problem = "starts no job with expert parallelism"
        raise InputError(problem, file=source.file, field="parallelism.expert_parallel_size", value=strategy.ep)
    sharded = strategy.op > 1
    if sharded and strategy.op != strategy.dp:
        problem = f"splits optimizer states over all {strategy.dp} replicas or none"
        raise InputError(problem, file=source.file, field="optimizer.zero_stage", value=strategy.op)
    wanted: dict[YamlPath, Any] = {
        ("parallelism", "dp"): strategy.dp,
        ("parallelism", "tp"): strategy.tp,
        ("parallelism", "pp"): strategy.pp,
        ("tokens", "micro_batch_size"): strategy.mbs,
        ("tokens", "batch_accumulation_per_replica"): strategy.micro_batches,
    }
    if strategy.cp > 1 or lookup(source.data, ("parallelism", "context_parallel_size")) is not None:
        wanted["parallelism", "context_parallel_size"] = strategy.cp
    if strategy.tp > 1 and strategy.sp != config.strategy.sp:
        wanted["parallelism", "tp_mode"] = "REDUCE_SCATTER" if strategy.sp else "ALL_REDUCE"
    if strategy.pp > 1:
        wanted["parallelism", "pp_engine"] = _engine(config.schedule_for(1).name, source)
    stage = lookup(source.data, ("optimizer", "zero_stage"))
    if strategy.dp > 1 and sharded != bool(stage):
        wanted["optimizer", "zero_stage"] = int(sharded)
    wanted |= {tuple(dotted.split(".")): value for dotted, value in extra.items()}
    if plan is None:
        return edit_yaml(source, wanted, beside=_BESIDE)
    if (plan.stages, plan.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError("the plan's shape differs from the strategy's [vpp, pp]")
    placed = sum(map(sum, body_layers(plan)))
    if placed != config.model.n_layers:
        wanted["model", "model_config", "num_hidden_layers"] = placed
    return _checked(edit_yaml(source, wanted | _recompute(source, plan), beside=_BESIDE), plan)


def _engine(schedule: str, source: YamlSource) -> str:
    known = {name: engine for engine, name in ENGINES.items()}
    if schedule not in known:
        cure = f"use {', '.join(known)}"
        raise InputError(
            "is no schedule of nanotron", file=source.file, field="parallelism.pp_engine", value=schedule, cure=cure
        )
    return known[schedule]


def _recompute(source: YamlSource, plan: PipelinePlan) -> dict[YamlPath, Any]:
    again = plan.uses(FULL)
    written = bool(lookup(source.data, ("parallelism", RECOMPUTE)))
    return {("parallelism", RECOMPUTE): again} if again != written else {}


def _checked(source: YamlSource, plan: PipelinePlan) -> YamlSource:
    """The file, where nanotron makes this plan of it."""
    config = config_from_source(source)
    made = config.plan
    if made is not None and body_layers(made) == body_layers(plan) and made.recomputed(FULL) == plan.recomputed(FULL):
        return source
    layers = "no plan" if made is None else f"{list(body_layers(made)[0])} layers"
    raise InputError(
        f"cannot express the plan: nanotron deals blocks by their cost, {layers} here, and has no option for it",
        file=source.file,
        field="parallelism.pp",
        cure="export the plan as JSON, or take another number of stages",
    )
