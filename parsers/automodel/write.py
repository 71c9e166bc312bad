"""Plans and strategies written into a recipe: degrees, batch, split of a pipeline, and recompute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.automodel.pipeline import PARTS, PER_STAGE, ROUNDED, SCHEDULE, SCHEDULES, SINGLE, SIZE
from taylor.parsers.automodel.read import DDP, GLOBAL, LOCAL, RECOMPUTE, Recipe, config_from_source, recipe_in
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.torchtitan.read import default_split
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, values_in_order
from taylor.pipeline.schedule import ScheduleSpec

PLAN_KEYS = frozenset({LOCAL, GLOBAL, RECOMPUTE, PARTS, PER_STAGE, ROUNDED, SCHEDULE, SIZE, "pipeline", "dp_size"})
"""Keys that a plan may change in a file."""
_D, _STEP = "distributed", "step_scheduler"
_DEGREES = {"tp_size": "tp", "cp_size": "cp", "ep_size": "ep", "pp_size": "pp"}


def with_plan(source: YamlSource, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> YamlSource:
    """The file with a plan in it."""
    config.refuse_other_stages(plan, f"{_D}.pp_size")
    recipe = recipe_in(source, model=config.model)
    strategy = config.strategy.replace(vpp=plan.interleaves)
    wanted: dict[YamlPath, Any] = {}
    if micro_batches is not None and micro_batches != strategy.micro_batches:
        strategy = strategy.replace(micro_batches=micro_batches)
        wanted |= _batch(recipe, strategy)
    wanted |= _split(source, recipe, config.schedule_for(plan.interleaves), plan) | _recompute(recipe, plan)
    source = edit_yaml(source, wanted)
    if config_from_source(source, model=config.model).strategy.dp != strategy.dp:
        # The ranks are others than the file's batch would let assume.
        source = edit_yaml(source, {(_D, "dp_size"): strategy.dp})
    return _checked(source, config, strategy, plan)


def with_strategy(
    source: YamlSource,
    config: TrainingConfig,
    strategy: Strategy,
    plan: PipelinePlan | None,
    extra: Mapping[str, object],
) -> YamlSource:
    """The file with another strategy, a plan that fits it, and further dotted keys set."""
    recipe = recipe_in(source, model=config.model)
    schedule = config.schedule_for(strategy.vpp)
    if plan is None:
        plan = config.replace(schedule=schedule).even_plan(strategy)
    wanted: dict[YamlPath, Any] = {(_D, "dp_size"): strategy.dp}
    for name, degree in _DEGREES.items():
        value = getattr(strategy, degree)
        if value != 1 or recipe.distributed.has(name):
            wanted[_D, name] = value
    wanted |= _replicas(recipe, strategy)
    if strategy.sp != config.strategy.sp and strategy.tp > 1:
        wanted[_D, "sequence_parallel"] = strategy.sp
    wanted |= _batch(recipe, strategy)
    placed = sum(map(sum, body_layers(plan)))
    if placed != config.model.n_layers:
        problem = f"has {config.model.n_layers} layers; {placed} cannot be asked for"
        raise InputError(problem, file=source.file, field="model", cure="plan without changing the model's layers")
    wanted |= _split(source, recipe, schedule, plan) | _recompute(recipe, plan)
    wanted |= {tuple(name.split(".")): value for name, value in extra.items()}
    return _checked(edit_yaml(source, wanted), config, strategy, plan)


def _replicas(recipe: Recipe, strategy: Strategy) -> dict[YamlPath, Any]:
    """Copies of the shards.

    Raises
    ------
    InputError
        When the shards are no multiple of the context ranks, or are none under FSDP.
    """
    if recipe.strategy == DDP:
        return {}
    shards = strategy.op // strategy.cp if strategy.op % strategy.cp == 0 else 0
    if shards < 1 or strategy.dp % shards or (shards == 1 and strategy.dp > 1):
        problem = f"cannot be split {strategy.op} ways over {strategy.dp} x {strategy.cp} replicas"
        cure = "divide them over all replicas, or a part of them that is more than one"
        raise InputError(problem, file=recipe.top.file, field=f"{_D}.dp_replicate_size", cure=cure)
    replicas = strategy.dp // shards
    if replicas == recipe.degrees.replicas:
        return {}
    return {(_D, "dp_replicate_size"): replicas}


def _batch(recipe: Recipe, strategy: Strategy) -> dict[YamlPath, Any]:
    """The batches of a rank and of a step; a pipeline's micro-batches are of one local batch."""
    wanted: dict[YamlPath, Any] = {(_STEP, GLOBAL): strategy.global_batch}
    if strategy.pp == 1:
        return {**wanted, (_STEP, LOCAL): strategy.mbs}
    local = recipe.local
    # The accumulated batches of the file stay, where they divide the micro-batches alike.
    if local % strategy.mbs or strategy.micro_batches % (local // strategy.mbs) or local // strategy.mbs < strategy.pp:
        local = strategy.mbs * strategy.micro_batches
    return {**wanted, (_STEP, LOCAL): local, (_D, "pipeline", SIZE): strategy.mbs}


def _split(source: YamlSource, recipe: Recipe, schedule: ScheduleSpec, plan: PipelinePlan) -> dict[YamlPath, Any]:
    """The pipeline of a plan: by a number of layers where the program deals them so, else module by module."""
    if plan.stages == 1:
        return {}
    sizes = tuple(values_in_order(body_layers(plan), schedule.v_shape))
    if recipe.degrees.pp == plan.stages and (recipe.stages.sizes, recipe.stages.schedule.name) == (
        sizes,
        schedule.name,
    ):
        return {}
    if schedule.name not in SCHEDULES:
        cure = f"use {', '.join(SCHEDULES)}"
        raise InputError("is not a schedule of torch", file=source.file, field=SCHEDULE, value=schedule.name, cure=cure)
    wanted: dict[str, Any] = {SCHEDULE: SCHEDULES[schedule.name], PER_STAGE: None, ROUNDED: None, PARTS: None}
    layers, chunks = sum(sizes), len(sizes)
    if sizes != tuple(default_split(layers, chunks, 0, 0)):
        wanted[PARTS] = part_names(sizes)
    elif chunks != (1 if schedule.name in SINGLE else 2) * plan.stages:
        wanted[PER_STAGE] = next((each for each in range(1, layers + 1) if -(-layers // each) == chunks), None)
        if wanted[PER_STAGE] is None:
            wanted[PARTS] = part_names(sizes)
    pipeline = recipe.distributed.section("pipeline")
    return {(_D, "pipeline", name): value for name, value in wanted.items() if value is not None or pipeline.has(name)}


def part_names(sizes: tuple[int, ...]) -> list[list[str]]:
    """The modules of every part by name, in model order, as the program names those of a language model
    (components/distributed/pipelining/functional.py:88-160)."""
    parts, first = [], 0
    for size in sizes:
        parts.append([*(f"model.layers.{first + index}" for index in range(size)), "model.rotary_emb"])
        first += size
    parts[0].insert(0, "model.embed_tokens")
    parts[-1] += ["model.norm", "lm_head"]
    return parts


def _recompute(recipe: Recipe, plan: PipelinePlan) -> dict[YamlPath, Any]:
    wanted: Any = True if plan.uses(FULL) else "selective" if plan.uses(SELECT) else False
    return {(_D, RECOMPUTE): wanted}


def _checked(source: YamlSource, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan) -> YamlSource:
    """The file, which is read again as what was written.

    Raises
    ------
    InputError
        When it means something else.
    """
    found = config_from_source(source, model=config.model)
    same = found.plan is not None and body_layers(found.plan) == body_layers(plan)
    modes = (
        all(found.plan.uses(mode) == plan.uses(mode) for mode in (FULL, SELECT)) if found.plan is not None else False
    )
    if not (same and modes) or found.strategy != strategy:
        raise InputError("cannot express the plan", file=source.file, cure="export the plan as JSON instead")
    return source
