"""Plans and strategies written into scripts of PaddleNLP's trainer, and into the strategy file that one names."""

from __future__ import annotations

import json
from collections.abc import Mapping

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.measured.layer_strategy import LayerwisePlan, even_division
from taylor.parsers.paddlenlp.read import config_from_script
from taylor.parsers.paddlenlp.script import (
    COARSE,
    FINE,
    FORM,
    GRANULARITY,
    SHARDING_LEVEL,
    STRATEGY_PATH,
    ULYSSES,
    PaddleScript,
)
from taylor.parsers.text.flag_edit import Setting, edit_flags, plain_value
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan

PROFILER_START, PROFILER_END = "job-schedule-profiler-start", "job-schedule-profiler-end"
"""Steps whose pipeline jobs the trainer logs (paddle-galvatron b0bdd07
paddlenlp/trainer/auto_training_args.py:78-82)."""
PLAN_KEYS = frozenset(
    {
        "recompute",
        "recompute-granularity",
        "gradient-accumulation-steps",
        "gradient_accumulation_steps",
        "global_batch_size",
        "pp_stage_idx_list",
        "recompute_list",
    }
)
_DEGREES = "tensor-parallel-degree"
_BATCH = "per-device-train-batch-size"
_FULL_GRANULARITY = {FULL: "full", SELECT: "core_attn"}
_HOW = "taylor galvatron STRATEGY --script SCRIPT writes both"


def with_plan(
    script: PaddleScript, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None
) -> tuple[str, str]:
    """The text of the file that holds the plan, before and after: the strategy file where the script names one.

    Raises
    ------
    InputError
        When the number of stages differs, or the script has one strategy for all layers and the plan has not.
    """
    config_from_script(script).refuse_other_stages(plan, "--pipeline_parallel_degree")
    path = script.layerwise_path
    if path is None:
        wanted = _recompute_flags(script, plan)
        if micro_batches is not None:
            wanted["gradient-accumulation-steps"] = str(micro_batches)
        return script.source.text, _edited(script, wanted).source.text
    text = read_text(path)
    if plan.interleaves > 1:
        raise InputError(
            "has a plan with virtual stages, which a strategy file cannot express",
            file=path,
            cure="solve it with -vpp 1",
        )
    data = json.loads(text)
    sizes = [sum(grid[0][stage] for grid in plan.layers.values()) for stage in range(plan.stages)]
    if plan.uses(SELECT):
        raise InputError("recomputes selectively, and a strategy file knows whole layers", file=path,
                         cure="solve it with -select n")  # fmt: skip
    full = plan.recompute.get(FULL)
    first = [0] * plan.stages if full is None else list(full[0])
    stages = [stage for stage, size in enumerate(sizes) for _ in range(size)]
    again = [int(at < first[stage]) for stage, size in enumerate(sizes) for at in range(size)]
    entries: dict[str, object] = {
        "pp_stage_idx_list": ",".join(map(str, stages)),
        "recompute_list": ",".join(map(str, again)),
    }
    if micro_batches is not None:
        each = data["global_batch_size"] // data["gradient_accumulation_steps"]
        entries |= {"global_batch_size": each * micro_batches, "gradient_accumulation_steps": micro_batches}
    if all(data[key] == value for key, value in entries.items()):
        return text, text
    return text, json.dumps({**data, **entries}, indent=4) + "\n"


def with_strategy(
    script: PaddleScript,
    config: TrainingConfig,
    strategy: Strategy,
    plan: PipelinePlan | None,
    extra: Mapping[str, object],
) -> str:
    """The script with one strategy for all layers.

    Raises
    ------
    InputError
        When the script cannot say the strategy or the plan, or starts other ranks.
    """
    flags = script.flags
    if strategy.ep > 1:
        raise InputError("has no experts to spread", file=script.source.file, field="ep", cure="search ep 1")
    wanted: dict[str, Setting] = {
        _DEGREES: str(strategy.tp),
        "pipeline-parallel-degree": str(strategy.pp),
        "sharding-parallel-degree": str(strategy.dp if script.world is None else max(1, strategy.op // strategy.cp)),
        _BATCH: str(strategy.mbs),
        "gradient-accumulation-steps": str(strategy.micro_batches),
        "sequence-parallel": "true" if strategy.sp else "false",
    }
    if strategy.cp > 1 or flags.has("sep-parallel-degree"):
        wanted["sep-parallel-degree"] = str(strategy.cp)
    if strategy.vpp > 1 or flags.has("virtual-pp-degree"):
        wanted["virtual-pp-degree"] = str(strategy.vpp)
        wanted["pipeline-schedule-mode"] = "VPP" if strategy.vpp > 1 else "1F1B"
    if flags.has(GRANULARITY):
        wanted |= {GRANULARITY: COARSE, ULYSSES: "0"}
    wanted |= {
        name.removeprefix("--").replace("_", "-"): plain_value(value, script.source.file, name)
        for name, value in extra.items()
    }
    if plan is None:
        plan = config.replace(schedule=config.schedule_for(strategy.vpp)).even_plan(strategy)
        mode = next((each for each in (FULL, SELECT) if plan.uses(each)), None)
        wanted |= _one_recompute(mode)
    else:
        wanted |= _recompute_flags(script, plan)
    world = script.world
    if world is not None and world != strategy.world_size:
        wanted |= _ranks(script, world, strategy.world_size)
    return _edited(script, wanted).source.text


def for_layerwise(
    script: PaddleScript, plan: LayerwisePlan, named: str, profiled: tuple[int, int] | None = None
) -> str:
    """The script that trains a layer-wise plan, whose strategy file it names.

    The flags follow the first layer, as Galvatron's own manual has them set; its runtime takes them from the file.

    Parameters
    ----------
    named : str
        The strategy file, as the script is to name it.
    profiled : tuple of int, optional
        First and last step whose pipeline jobs the workers log.

    Raises
    ------
    InputError
        When the script has another number of layers or starts other ranks, or a flag cannot be set on its own.
    """
    flags, first = script.flags, plan.layers[0]
    layers = flags.integer("num-hidden-layers", default=len(plan.layers))
    if layers != len(plan.layers):
        raise flags.error(
            "num-hidden-layers", f"differs from the strategy's {len(plan.layers)} layers", layers, "correct one"
        )
    wanted: dict[str, Setting] = {
        "pipeline-parallel-degree": str(plan.stages),
        "sharding-parallel-degree": str(first.dp),
        _DEGREES: str(first.ways),
        "recompute": "true" if any(each.recompute for each in plan.layers) else "false",
        "gradient-accumulation-steps": str(plan.micro_batches),
        _BATCH: str(max(1, plan.global_batch // plan.micro_batches // first.dp)),
        GRANULARITY: FINE,
        STRATEGY_PATH: plain_value(named, script.source.file, STRATEGY_PATH),
        ULYSSES: str(int(first.sp > 1)),
        SHARDING_LEVEL: str(max(each.zero for each in plan.layers)),
    }
    if profiled is not None:
        wanted |= {PROFILER_START: str(profiled[0]), PROFILER_END: str(profiled[1])}
    world = script.world
    if world is not None and world != plan.world:
        wanted |= _ranks(script, world, plan.world)
    return _edited(script, wanted).source.text


def _edited(script: PaddleScript, wanted: Mapping[str, Setting]) -> PaddleScript:
    near = ("pipeline-parallel-degree", _DEGREES)
    return PaddleScript.of(edit_flags(script.source, wanted, FORM, near=near))


def _recompute_flags(script: PaddleScript, plan: PipelinePlan) -> dict[str, Setting]:
    """The flags of a plan with an even division and one recompute for all layers.

    Raises
    ------
    InputError
        When the plan is none; with the file that can say it.
    """
    grid = plan.total_layers(list(plan.layers))
    chunks = [size for row in grid for size in row]
    total = sum(chunks)
    even = even_division(total, plan.stages) if plan.interleaves == 1 else (total // len(chunks),) * len(chunks)
    if tuple(chunks) != even:
        raise InputError(
            f"spreads its layers evenly; the plan has {chunks}",
            file=script.source.file,
            cure=f"a fine_grained_config.json can express it: {_HOW}",
        )
    used = [mode for mode in (FULL, SELECT) if plan.uses(mode)]
    if len(used) > 1 or any(plan.recomputed(mode) != grid for mode in used):
        raise InputError(
            "recomputes all layers or none; the plan recomputes some",
            file=script.source.file,
            field="--recompute",
            cure=f"a fine_grained_config.json can express it: {_HOW}",
        )
    return _one_recompute(next(iter(used), None))


def _one_recompute(mode: str | None) -> dict[str, Setting]:
    if mode is None:
        return {"recompute": "false"}
    return {"recompute": "true", "recompute-granularity": _FULL_GRANULARITY[mode]}


def _ranks(script: PaddleScript, world: int, wanted: int) -> dict[str, Setting]:
    """The flag of the nodes that makes a launcher start `wanted` ranks."""
    flags = script.flags
    nodes = flags.integer("nnodes", default=1)
    per_node = world // nodes
    if wanted % per_node or not flags.has("nnodes"):
        raise InputError(
            f"starts {world} ranks; {wanted} are needed",
            file=script.source.file,
            field="--nnodes",
            cure=f"correct --nnodes and --gpus: {per_node} cards a node now",
        )
    return {"nnodes": str(wanted // per_node)}
