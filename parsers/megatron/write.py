"""Plans and strategies in Megatron's and MindSpeed's flags: which of a launch change, and to what."""

from __future__ import annotations

from collections.abc import Mapping

from taylor.base.errors import InputError
from taylor.cost_model.strategy import Strategy
from taylor.parsers.megatron.flags import Flags
from taylor.parsers.megatron.kinds import DENSE_FIRST, PATTERN, kind_flags, says_dense_first, starts_with
from taylor.parsers.megatron.launch import Launch, Setting
from taylor.parsers.megatron.layout import LayoutProblem, ends_placement, layout_text
from taylor.parsers.megatron.optimizer import split_flags
from taylor.parsers.megatron.read import (
    DETACH,
    EXTEND,
    FIRST,
    LAST,
    LAYOUT,
    PER_CHUNK,
    PER_RANK,
    V_METHOD,
    config_from_launch,
    is_mindspeed,
)
from taylor.parsers.megatron.recompute import RECOMPUTE_FLAGS, recompute_flags
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, values_in_order
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import DENSE, MOE, MTP

_PLACING = (
    "num-layer-list",
    "noop-layers",
    LAYOUT,
    FIRST,
    LAST,
    PER_CHUNK,
    PER_RANK,
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
)
PLAN_FLAGS = frozenset(
    {*_PLACING, *RECOMPUTE_FLAGS, DENSE_FIRST, PATTERN, "num-layers", "schedules-method", DETACH, "global-batch-size"}
)
"""What a plan may change in a script."""
_BESIDE_LAYERS = ("num-layers", "pipeline-model-parallel-size")
_BESIDE_RECOMPUTE = ("use-distributed-optimizer", "num-layers")
Wanted = dict[str, Setting]


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
        wanted["global-batch-size"] = str(current.strategy.dp * current.strategy.mbs * micro_batches)
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
    wanted |= split_flags(flags, strategy)
    for name, value in extra.items():
        wanted[name.removeprefix("--").replace("_", "-")] = launch.setting(name, value)
    schedule = config.schedule_for(strategy.vpp)
    if plan is None:
        plan = current.replace(schedule=schedule).even_plan(strategy)
    if (plan.stages, plan.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError("the plan's shape differs from the strategy's [vpp, pp]")
    wanted |= _mtp(current, plan)
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
    if _same(current, plan, schedule):
        return launch
    flags = launch.flags
    before = launch.with_flags(_placing(flags, plan, schedule), _BESIDE_LAYERS)
    reread = config_from_launch(before)
    if not _same(reread, plan, schedule):
        before = before.with_flags(recompute_flags(plan), _BESIDE_RECOMPUTE)
        reread = config_from_launch(before)
    if not _same(reread, plan, schedule):
        raise InputError(
            "cannot express the plan by its flags",
            file=launch.file,
            cure="export the plan as JSON or as a layout instead",
        )
    return before


def _same(config: TrainingConfig, plan: PipelinePlan, schedule: ScheduleSpec) -> bool:
    if config.plan is None or schedule.name != config.schedule.name:
        return False
    return {kind: grid for kind, grid in config.plan.layers.items() if any(map(any, grid))} == {
        kind: grid for kind, grid in plan.layers.items() if any(map(any, grid))
    } and all(config.plan.recomputed(mode) == plan.recomputed(mode) for mode in (FULL, SELECT))


def _placing(flags: Flags, plan: PipelinePlan, schedule: ScheduleSpec) -> Wanted:
    """Flags that place the plan's layers and say their kinds, in the form that the script uses or could use."""
    v_shape = schedule.v_shape
    held = values_in_order(plan.total_layers([kind for kind in plan.layers if kind != MTP]), v_shape)
    wanted: Wanted = {name: False for name in _PLACING if flags.has(name)}
    wanted["num-layers"] = str(sum(held))
    if v_shape and not flags.has("schedules-method"):
        wanted["schedules-method"] = V_METHOD
        wanted[DETACH] = not schedule.whole_drain
    elif not v_shape and flags.has("schedules-method"):
        wanted["schedules-method"] = wanted[DETACH] = False
    mindspeed = is_mindspeed(flags)
    kinds = _kinds(plan, v_shape)
    mixed = MOE in plan.layers and any(DENSE in of_chunk for of_chunk in kinds)
    # Stages of unlike length are given by empty layers, or in models without dense layers among others by a list:
    # MindSpeed-LLM counts dense layers as if there were no list, and refuses both together from 2.2.0 on.
    by_list = mindspeed and plan.interleaves == 1 and not mixed
    by_list = by_list and (flags.has("num-layer-list") or not flags.has("noop-layers"))
    even = len(set(held)) == 1
    mtp_elsewhere = MTP in plan.layers and not values_in_order(plan.layers[MTP], v_shape)[-1]
    slots = held
    if flags.has(LAYOUT) or mtp_elsewhere:
        wanted[LAYOUT] = layout_text(plan)
    elif plan.interleaves == 1 and even and not flags.has("num-layer-list") and not (mixed and mindspeed):
        pass
    elif by_list:
        wanted["num-layer-list"] = ",".join(map(str, held))
    elif mindspeed:
        each = _slots(flags, kinds, plan)
        slots = [each] * len(held)
        wanted |= _with_noops(held, each, None if v_shape or plan.interleaves == 1 else PER_CHUNK)
    elif even:
        wanted |= _interleave_flag(flags, plan.interleaves, held[0])
    elif (ends := _ends(plan, held)) is not None:
        wanted |= ends | _interleave_flag(flags, plan.interleaves, None)
    else:
        wanted[LAYOUT] = layout_text(plan)
    if MOE in plan.layers:
        positions = [kind for of, slot in zip(kinds, slots, strict=True) for kind in (*of, *[None] * (slot - len(of)))]
        wanted |= kind_flags(flags, positions, mindspeed)
    return wanted


def _kinds(plan: PipelinePlan, v_shape: bool) -> list[list[str]]:
    """The kinds of the layers of every chunk in model order, MTP left out."""
    body = {kind: values_in_order(grid, v_shape) for kind, grid in plan.layers.items() if kind != MTP}
    chunks = plan.stages * plan.interleaves
    return [[kind for kind in (DENSE, MOE) for _ in range(body.get(kind, [0] * chunks)[k])] for k in range(chunks)]


def _slots(flags: Flags, kinds: list[list[str]], plan: PipelinePlan) -> int:
    """Positions of every chunk, so that each has room for its layers and MindSpeed-LLM starts.

    Raises
    ------
    InputError
        When dense layers fill the first stage and reach into the next.
    """
    held = [len(of) for of in kinds]
    now, each = flags.integer("num-layers"), max(held)
    if len(set(held)) > 1 and now % len(held) == 0 and now // len(held) > each:
        each = now // len(held)
    if MOE not in plan.layers or not any(DENSE in of for of in kinds) or not says_dense_first(flags, True):
        return each
    last = max(k for k, of in enumerate(kinds) if DENSE in of)
    for slots in (each, each + 1):  # One empty layer more may keep the first stage from being all dense.
        if starts_with(last * slots + kinds[last].count(DENSE), slots * len(held), plan.stages):
            return slots
    raise InputError(
        "cannot say the plan: MindSpeed-LLM does not start where dense layers fill the first stage",
        file=flags.file,
        field=f"--{DENSE_FIRST}",
        cure="keep all dense layers on the first stage",
    )


def _interleave_flag(flags: Flags, interleaves: int, each: int | None) -> Wanted:
    if interleaves == 1:
        return {}
    if each is not None and flags.has(PER_CHUNK):
        return {PER_CHUNK: str(each)}
    return {PER_RANK: str(interleaves)}


def _with_noops(held: list[int], each: int, per_chunk: str | None) -> Wanted:
    """Every chunk `each` positions, the spare ones at its end without a layer."""
    spare = [k * each + i for k, count in enumerate(held) for i in range(count, each)]
    wanted: Wanted = {"num-layers": str(each * len(held))}
    if spare:
        wanted["noop-layers"] = ",".join(map(str, spare))
    if per_chunk is not None:
        wanted[per_chunk] = str(each)
    return wanted


def _ends(plan: PipelinePlan, held: list[int]) -> Wanted | None:
    """First- and last-stage flags, when all stages between hold the same."""
    per_stage = [sum(held[s :: plan.stages]) for s in range(plan.stages)]
    inner = set(per_stage[1:-1])
    if len(per_stage) < 3 or len(inner) != 1:
        return None
    first = per_stage[0] if per_stage[0] != per_stage[1] else None
    last = per_stage[-1] if per_stage[-1] != per_stage[1] else None
    try:
        if list(ends_placement(sum(held), plan.stages, plan.interleaves, first, last).slots) != held:
            return None
    except LayoutProblem:
        return None
    wanted: Wanted = {}
    if first is not None:
        wanted[FIRST] = str(first)
    if last is not None:
        wanted[LAST] = str(last)
    return wanted
