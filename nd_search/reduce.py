"""Small configuration that is profiled on few cards to get the ratios of a large one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Iterator

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.memory import peaks
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rules import judge
from taylor.nd_search.space import divisors
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid, even_plan, grid_in_order
from taylor.register.device import DeviceSpec
from taylor.register.model import DENSE, MOE, MTP, ModelSpec
from taylor.register.pattern import kinds_in_order, pattern_of, whole_period


@dataclass(frozen=True)
class Reduction:
    """A small stand-in for a large job.

    Parameters
    ----------
    strategy, model, plan
        The small job: its degrees, its layers (fewer, of the same kinds), their chunks and their recompute.
    kept, changed : tuple of str
        Values as in the large job, and changed ones, one line each.
    """

    original: Strategy
    strategy: Strategy
    model: ModelSpec
    plan: PipelinePlan
    kept: tuple[str, ...]
    changed: tuple[str, ...]


def reduce_strategy(
    config: TrainingConfig, device: DeviceSpec, strategy: Strategy, rank_num: int, device_limit_mib: float
) -> Reduction:
    """Job to profile on `rank_num` cards for a strategy of many.

    tp, ep, cp, mbs and the kind of schedule stay, since the ratios depend on them. First pp is lowered, to as many
    stages as fit and no fewer than 2 where chunks are interleaved, or where the model has dense and MoE layers
    (recompute takes a chunk's first layers, so one chunk cannot run both kinds both ways). Then dp is lowered, as
    little as needed. pp = 1, without virtual stages, comes last. The first legal job that fits the memory is taken.

    The layers: each chunk has two of its kind, the first recomputed, the second not. With both kinds the first chunk
    has two dense layers, one of them recomputed, and a MoE layer; the others have MoE layers. A model of unlike layers
    keeps whole periods of their order, enough to give each chunk two layers, divided evenly.

    Raises
    ------
    InputError
        When tp, ep and cp alone need more cards than there are, or the order of unlike layers does not repeat.
    """
    best: tuple[float, Reduction] | None = None
    for small, model, plan, context in _legal_options(config, device, strategy, rank_num, device_limit_mib):
        peak, _ = peaks(StrategyTable.from_strategies([small]), context, "none")
        reduction = _described(config, strategy, small, model, plan)
        if peak[0] <= device_limit_mib:
            return reduction
        if best is None or peak[0] < best[0]:
            best = (float(peak[0]), reduction)
    if best is None:
        every = _legal_options(config, device, strategy, strategy.world_size, device_limit_mib)
        least = min((small.world_size for small, *_ in every), default=None)
        if least is None:
            raise InputError(
                "cannot be reduced: no smaller job that keeps tp, ep and cp obeys the framework's rules",
                field=f"--rank_num for {strategy.name}",
                value=rank_num,
                cure="profile other candidates",
            )
        raise InputError(
            f"cannot be reduced to {rank_num} cards: tp, ep and cp are kept and need more",
            field=f"--rank_num for {strategy.name}",
            value=rank_num,
            cure=f"give {least} cards, or profile other candidates",
        )
    note = (
        f"memory: about {best[0]:.0f} MiB of {device_limit_mib:.0f} without any recompute; "
        "every legal reduction to this many cards is as tight"
    )
    return replace(best[1], changed=(*best[1].changed, note))


def _legal_options(
    config: TrainingConfig, device: DeviceSpec, strategy: Strategy, rank_num: int, device_limit_mib: float
) -> Iterator[tuple[Strategy, ModelSpec, PipelinePlan, SearchContext]]:
    """Smaller jobs that obey the rules, the most like the original first, and the facts for the rules."""
    for small in _options(config, strategy, rank_num):
        model, plan = _small_layers(config, small)
        context = _context(config, device, model, small, device_limit_mib)
        table = StrategyTable.from_strategies([small])
        if all(judge(rule, table, context).all() for rule in LEGALITY_RULES if rule.concerns(context)):
            yield small, model, plan, context


def _options(config: TrainingConfig, strategy: Strategy, rank_num: int) -> Iterator[Strategy]:
    """Smaller strategies, the most like the original first."""
    a_stage = strategy.tp * strategy.cp
    both = config.model.n_dense and config.model.n_moe and not config.model.pattern
    least_pp = min(strategy.pp, 2) if both or strategy.vpp > 1 else 1
    smaller_dp = [int(dp) for dp in divisors(strategy.dp)[::-1]]
    degrees = [(pp, strategy.dp) for pp in range(strategy.pp, least_pp - 1, -1)]
    degrees += [(least_pp, dp) for dp in smaller_dp[1:]]
    if least_pp > 1:
        degrees += [(1, dp) for dp in smaller_dp]
    for pp, dp in degrees:
        if pp * dp * a_stage > rank_num:
            continue
        replicas = dp * strategy.cp
        whole = strategy.op == strategy.dp * strategy.cp
        micro_batches = 1 if pp == 1 else (2 * pp if strategy.micro_batches >= 2 * pp else pp)
        yield strategy.replace(
            pp=pp,
            vpp=1 if pp == 1 else strategy.vpp,  # one stage has no virtual stages
            dp=dp,
            op=replicas if whole else gcd(strategy.op, replicas),
            micro_batches=micro_batches,
        )


def _context(
    config: TrainingConfig, device: DeviceSpec, model: ModelSpec, strategy: Strategy, device_limit_mib: float
) -> SearchContext:
    """Facts of the small job for the rules: its own layers, cards and batch."""
    return SearchContext(
        model=model,
        rules=config.rules,
        device=device,
        own=strategy,
        schedule=config.schedule,
        world_size=strategy.world_size,
        gbs=strategy.global_batch,
        layers=model.n_layers + (model.mtp_layers if config.mtp_counted else 0),
        max_expert_parallel=strategy.ep,
        device_limit_mib=device_limit_mib,
    )


def _small_layers(config: TrainingConfig, strategy: Strategy) -> tuple[ModelSpec, PipelinePlan]:
    """Two layers a chunk, the first recomputed (see `reduce_strategy`)."""
    chunks = strategy.pp * strategy.vpp
    model = config.model
    if model.pattern:
        return _whole_periods(config, strategy)
    both = model.n_dense > 0 and model.n_moe > 0
    if both and chunks == 1:
        dealt, recomputed = [[DENSE, MOE, MOE]], [2]
    else:
        body = MOE if model.n_moe else DENSE
        dealt = [[body, body] for _ in range(chunks)]
        recomputed = [1] * chunks
        if both:
            dealt[0] = [DENSE, DENSE, MOE]
    kinds = [kind for chunk in dealt for kind in chunk]
    dealt[-1] = [*dealt[-1], *[MTP] * model.mtp_layers]
    small = model.replace(n_layers=len(kinds))
    if model.moe is not None:
        small = small.replace(moe=replace(model.moe, first_dense=kinds.count(DENSE)))
    return small, _plan_of(config, strategy, dealt, recomputed)


def _whole_periods(config: TrainingConfig, strategy: Strategy) -> tuple[ModelSpec, PipelinePlan]:
    """Whole periods of the layers' order, divided evenly, the first layer of each chunk recomputed."""
    chunks, model = strategy.pp * strategy.vpp, config.model
    order = kinds_in_order(model.pattern)
    period = whole_period(order)
    if period == len(order):
        raise InputError(
            "cannot be reduced: the order of its layers does not repeat",
            file=str(config.path),
            field="layers",
            value=model.pattern,
            cure="profile the job as it is, or give the ratios",
        )
    times = min(-(-2 * chunks // period), len(order) // period)
    small = model.replace(n_layers=period * times, pattern=pattern_of(order[: period * times]))
    plan = even_plan(
        small.layer_counts(), strategy.pp, strategy.vpp, v_shape=config.schedule.v_shape, pinned_last=(MTP,)
    )
    body = plan.total_layers([run for run in plan.layers if run != MTP])
    return small, PipelinePlan(plan.layers, {FULL: as_grid([[min(1, in_chunk) for in_chunk in row] for row in body])})


def _plan_of(config: TrainingConfig, strategy: Strategy, dealt: list[list[str]], recomputed: list[int]) -> PipelinePlan:
    """Plan from each chunk's layers and recomputed layers, chunks in model order."""
    kinds = [kind for kind in (DENSE, MOE, MTP) if any(kind in chunk for chunk in dealt)]
    v_shape = config.schedule.v_shape
    layers = {kind: grid_in_order([chunk.count(kind) for chunk in dealt], strategy.pp, v_shape) for kind in kinds}
    return PipelinePlan(layers, {FULL: grid_in_order(recomputed, strategy.pp, v_shape)})


def _described(
    config: TrainingConfig, original: Strategy, small: Strategy, model: ModelSpec, plan: PipelinePlan
) -> Reduction:
    kept, changed = [], []
    for name in ("tp", "ep", "cp", "vpp", "mbs", "sp", "pp", "dp", "op", "micro_batches"):
        before, after = getattr(original, name), getattr(small, name)
        if before == after:
            kept.append(f"{name} = {int(before)}")
        else:
            changed.append(f"{name}: {int(before)} -> {int(after)}")
    kept.append(f"layer sizes, experts, vocabulary and sequence of {config.model.name}")
    before_counts, after_counts = config.model.kind_counts, model.kind_counts
    for kind, count in before_counts.items():
        if after_counts.get(kind, 0) == count:
            kept.append(f"{kind} layers = {count}")
        else:
            changed.append(f"{kind} layers: {count} -> {after_counts.get(kind, 0)}")
    changed.append("recompute: the first layer of each chunk, so that its kind is measured with and without recompute")
    if small.pp * small.vpp == 1 and model.n_dense and model.n_moe and not model.pattern:
        changed[-1] = (
            "recompute: the dense layer and one of two MoE layers; dense layers show under recompute only, "
            "since a chunk's first layers are the recomputed ones"
        )
    return Reduction(original, small, model, plan, tuple(kept), tuple(changed))
