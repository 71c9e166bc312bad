"""Plans and strategies in Megatron's and MindSpeed's flags: which of a launch change, and to what."""

from __future__ import annotations

from collections.abc import Mapping

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.megatron.context import context_flags
from taylor.parsers.megatron.hybrid import read_hybrid
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.optimizer import split_flags
from taylor.parsers.megatron.own_plan import DETACH, LAYOUT, PENDING, ZERO_BUBBLE
from taylor.parsers.megatron.placing import KIND_FLAGS, PLACING, Wanted, chunk_layers, placing_flags
from taylor.parsers.megatron.ranks import EXTEND, GRID_FLAGS, read_tensor_grid
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.recompute import RECOMPUTE_FLAGS, recompute_flags
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, zero_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import MTP, ModelSpec

PLAN_FLAGS = frozenset(
    {
        *PLACING,
        *RECOMPUTE_FLAGS,
        *KIND_FLAGS,
        "num-layers",
        "schedules-method",
        DETACH,
        ZERO_BUBBLE,
        PENDING,
        "global-batch-size",
    }
)
"""Flags that a plan may change in a script."""
_BESIDE_LAYERS = ("num-layers", "pipeline-model-parallel-size")
_BESIDE_RECOMPUTE = ("use-distributed-optimizer", "num-layers")


def with_plan(launch: Launch, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> Launch:
    """The script with a plan in it.

    Raises
    ------
    InputError
        When the script's number of stages differs, its flags cannot say the plan, or a value cannot
        be set on its own.
    """
    current = config_from_launch(launch)
    current.refuse_other_stages(plan, "--pipeline-model-parallel-size")
    wanted: Wanted = {}
    if micro_batches is not None:
        wanted["global-batch-size"] = str(config.strategy.dp * config.strategy.mbs * micro_batches)
    return _placed(launch, wanted, plan, config.schedule_for(plan.interleaves))


def with_strategy(
    launch: Launch,
    config: TrainingConfig,
    strategy: Strategy,
    plan: PipelinePlan | None,
    extra: Mapping[str, object],
) -> Launch:
    """The script with another strategy, a plan that fits it, and further flags set."""
    current = config_from_launch(launch)
    flags = launch.flags
    wanted: Wanted = {}
    sizes = {
        "tensor-model-parallel-size": strategy.tp,
        "pipeline-model-parallel-size": strategy.pp,
        "expert-model-parallel-size": strategy.ep,
        "context-parallel-size": strategy.cp,
        "micro-batch-size": strategy.mbs,
        "global-batch-size": strategy.global_batch,
    }
    for name, size in sizes.items():
        if size != 1 or flags.has(name):
            wanted[name] = str(size)
    if flags.has(EXTEND) and strategy.tp > 1:
        if strategy.ep % strategy.tp == 0:
            wanted["expert-model-parallel-size"] = str(strategy.ep // strategy.tp)
        else:  # The other way to say that experts are whole on every rank.
            wanted |= {EXTEND: False, "expert-tensor-parallel-size": "1"}
    if strategy.sp != current.strategy.sp:
        wanted["sequence-parallel"] = strategy.sp
    grid = read_tensor_grid(flags)
    if grid is not None and grid[0] * grid[1] != strategy.tp:
        # A grid of other ranks does not start; one group of them does, with the same memory.
        wanted |= {name: False for name in GRID_FLAGS if flags.has(name)} | {"sequence-parallel": strategy.sp}
    wanted |= split_flags(flags, strategy) | context_flags(flags, strategy)
    for name, value in extra.items():
        wanted[name.removeprefix("--").replace("_", "-")] = launch.setting(name, value)
    schedule = config.schedule_for(strategy.vpp)
    if plan is None:
        plan = current.replace(schedule=schedule).even_plan(strategy)
    if (plan.stages, plan.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError("the plan's shape differs from the strategy's [vpp, pp]")
    hybrid = read_hybrid(flags)
    if hybrid is None:  # A hybrid's pattern says it itself.
        wanted |= _mtp(current, plan)
    if flags.has(LAYOUT) or (hybrid is not None and hybrid.bordered):
        # The chunks that it names go with the number of stages.
        wanted |= placing_flags(flags, current.model, plan, schedule)
    launch, ranks = launch.with_ranks(strategy.world_size)
    wanted |= ranks
    launch = launch.with_flags(wanted, _BESIDE_LAYERS)
    return _placed(launch, {}, plan, schedule)


def _mtp(current: TrainingConfig, plan: PipelinePlan) -> Wanted:
    """The flag that says how many layers predict further tokens, where the plan has others."""
    count = sum(map(sum, plan.layers.get(MTP, ())))
    if count == current.model.mtp_layers:
        return {}
    return {"mtp-num-layers": str(count) if count else False}


def _placed(launch: Launch, wanted: Wanted, plan: PipelinePlan, schedule: ScheduleSpec) -> Launch:
    """Set placing and recompute flags, unless the script already means the plan."""
    if wanted:
        launch = launch.with_flags(wanted, _BESIDE_LAYERS)
    current = config_from_launch(launch)
    if means_plan(current, plan, schedule, current.model):
        return launch
    before = launch.with_flags(placing_flags(launch.flags, current.model, plan, schedule), _BESIDE_LAYERS)
    reread = config_from_launch(before)
    if not means_plan(reread, plan, schedule, current.model):
        before = before.with_flags(recompute_flags(before.flags, plan), _BESIDE_RECOMPUTE)
        reread = config_from_launch(before)
    if not means_plan(reread, plan, schedule, current.model):
        raise InputError(
            "cannot express the plan by its flags",
            file=launch.file,
            cure="export the plan as JSON or as a layout instead",
        )
    return before


def means_plan(config: TrainingConfig, plan: PipelinePlan, schedule: ScheduleSpec, model: ModelSpec) -> bool:
    """Return whether a configuration means a plan; `model` knows the kinds of the plan's layers."""
    if config.plan is None or schedule.name != config.schedule.name:
        return False
    if config.recompute_group > 1 or config.recomputes_mtp or config.recomputes_in_bubble:
        return False  # The script recomputes more than a plan says.
    if (config.plan.stages, config.plan.interleaves) != (plan.stages, plan.interleaves):
        return False
    v_shape = schedule.v_shape
    zeros = zero_grid(plan.stages, plan.interleaves)
    return (
        chunk_layers(config.model, config.plan, v_shape) == chunk_layers(model, plan, v_shape)
        and config.plan.layers.get(MTP, zeros) == plan.layers.get(MTP, zeros)
        and all(config.plan.recomputed(mode) == plan.recomputed(mode) for mode in (FULL, SELECT))
    )
