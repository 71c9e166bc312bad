"""From a configuration, a memory profile and time ratios to a pipeline problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.parsers.registry import launcher_of, speaking_for
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.partners import combines
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan, as_grid, deal_on, values_in_order
from taylor.pipeline_solver.model.problem import LayerKind, Pairing, PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.register.model import DENSE, MOE, MTP, kind_of
from taylor.workflows.statement.entries import may_stand_alone, with_mtp_places


def build_problem(
    config: TrainingConfig,
    memory: MemoryProfile,
    ratios: TimeRatios,
    *,
    search_select: bool | None = None,
    device: DeviceSpec | None = None,
) -> PipelineProblem:
    """State the pipeline problem of one configuration, under the schedule that its virtual stages mean.

    Where the configuration's kind of file has one recompute choice for all chunks, so has the problem: every solution
    can be written.

    Parameters
    ----------
    search_select : bool, optional
        Let the solver choose selective recompute beside full recompute; by default where the plan in the file uses it
        and the memory profile knows it. Where that plan uses it, the problem has its costs either way.

    device : DeviceSpec, optional
        With it MTP layers may lie on any chunk that the configuration's kind of file can name.

    Raises
    ------
    InputError
        When there are fewer layers than chunks, or the profile lacks a mode that is searched.
    """
    stages, vpp = config.strategy.pp, config.strategy.vpp
    select_known = all(SELECT in memory.activation_mib[memory.kind_for(kind)] for kind in config.model.layer_counts())
    own = config.plan is not None and config.plan.uses(SELECT) and select_known
    searched = own if search_select is None else search_select
    modes = (FULL, SELECT) if searched else (FULL,)
    unsearched = (SELECT,) if own and not searched else ()
    kinds = _layer_kinds(config, memory, ratios, (*modes, *unsearched, NONE))
    placed = sum(kind.count for kind in kinds if not kind.pinned)
    spread = None if config.tower is None else config.tower.spread_over(stages, vpp)
    led = 0 if spread is None else spread.begins
    empty = _leaves_empty(config, kinds, led)
    alone = may_stand_alone(config) and not empty
    if placed < stages * vpp - led and not (alone or empty):
        raise InputError(
            f"{placed} layers cannot fill {stages} stages x {vpp} virtual stages with one layer each",
            file=config.path,
            field="pipeline_stage",
            value=stages,
            cure="use fewer stages or virtual stages",
        )
    lags = _boundary_lags(config, ratios)
    schedule = config.schedule_for(vpp)
    pairing = _pairing(config, placed) if ratios.exposed and combines(schedule) else None
    positions = None if pairing is None else pairing.positions
    problem = PipelineProblem(
        stages=stages,
        interleaves=vpp,
        micro_batches=config.strategy.micro_batches,
        kinds=kinds,
        static_mib=memory.static_mib(stages),
        limit_mib=(memory.device_limit_mib,) * stages,
        schedule=schedule,
        backward_ratio=ratios.backward,
        recompute_ratio={mode: ratios.recompute[mode] for mode in (*modes, *unsearched)},
        unsearched=unsearched,
        head_forward=ratios.head,
        embedding_forward=ratios.embedding,
        lag=max(lags, default=0.0),
        lags=lags if len(set(lags)) > 1 else (),
        tail=(ratios.tail,) * stages if ratios.tail else (),
        min_layers=0 if empty else 1,
        entries_alone=alone,
        max_layers={} if positions is None else {(v, s): positions for v in range(vpp) for s in range(stages)},
        pairing=pairing,
        unit_ms=ratios.unit_ms,
        uniform_recompute=uniform_choices(config, modes),
    )
    return problem if device is None else with_mtp_places(problem, config, device)


def _pairing(config: TrainingConfig, layers: int) -> Pairing:
    """Layout in which the configuration's launcher places the layers of combined passes beside each other."""
    chunks = config.strategy.pp * config.strategy.vpp
    return Pairing(launcher_of(config).chunk_positions(config, -(-layers // chunks)))


def _boundary_lags(config: TrainingConfig, ratios: TimeRatios) -> tuple[float, ...]:
    """Transfer time at every boundary between chunks in model order."""
    stages, vpp = config.strategy.pp, config.strategy.vpp
    if not ratios.lags:
        return (ratios.lag,) * (stages * vpp - 1)
    on = config.schedule_for(vpp).placement(stages, vpp).stage_of
    pairs = [(min(a, b), max(a, b)) for a, b in zip(on, on[1:], strict=False)]
    return tuple(_lag_between(ratios.lags, low, high) for low, high in pairs)


def _lag_between(lags: Sequence[float], low: int, high: int) -> float:
    """Transfer time between two stages: the last one's entry is for the way from the last stage to the first."""
    if high - low <= 1 or high - low == len(lags) - 1:
        return lags[low if high - low <= 1 else high]
    return max(lags[low:high])  # the widest of the links that lie between them


def uniform_choices(config: TrainingConfig, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Choices of which one must apply to all chunks, of those with which the job starts."""
    launcher = launcher_of(config)
    barred = launcher.barred_recompute(config)
    choices = speaking_for(config).uniform_recompute(sum(config.model.layer_counts().values()), modes)
    return tuple((mode, count) for mode, count in choices if not count or mode not in barred)


def _leaves_empty(config: TrainingConfig, kinds: tuple[LayerKind, ...], led: int) -> bool:
    """Return whether the manual plan in the file leaves a chunk without layers, and without an embedding, MTP layers
    or a head, which may have a chunk to themselves; the first `led` chunks hold an encoder alone.
    """
    plan, strategy = config.plan, config.strategy
    if plan is None or (plan.interleaves, plan.stages) != (strategy.vpp, strategy.pp):
        return False
    pinned = {kind.name for kind in kinds if kind.pinned}
    if may_stand_alone(config):
        layers = values_in_order(plan.total_layers(), config.schedule.v_shape)[max(1, led) : -1]
    else:
        layers = [
            count for row in plan.total_layers([kind for kind in plan.layers if kind not in pinned]) for count in row
        ][led:]
    return 0 in layers


def plan_in_terms_of(problem: PipelineProblem, plan: PipelinePlan) -> PipelinePlan:
    """Plan with the layer kinds that the problem distinguishes.

    `build_problem` merges a kind without costs of its own into the kind before it; a plan read from a file still names
    it.
    """
    known = {kind.name for kind in problem.kinds}
    runs = {kind.name: kind.count for kind in problem.kinds if kind.pinned_last and kind_of(kind.name) == MTP}
    if len(runs) > 1 and MTP in plan.layers and not known.issubset(plan.layers):
        split = deal_on(problem.placement, runs, problem.placement.values(plan.layers[MTP]))
        layers = {kind: grid for kind, grid in plan.layers.items() if kind != MTP}
        plan = PipelinePlan({**layers, **split}, plan.recompute)
    merged: dict[str, list[str]] = {}
    for kind in plan.layers:
        target = kind if kind in known else next(reversed(merged), problem.kinds[0].name)
        merged.setdefault(target, []).append(kind)
    layers = {target: plan.total_layers(kinds) for target, kinds in merged.items()}
    for leading in problem.pinned_kinds:
        if leading.pinned_first:  # no file counts them among the model's layers
            grid = [[0] * problem.stages for _ in range(problem.interleaves)]
            v, s = problem.placement.chunks[problem.places_of(leading)[0]]
            grid[v][s] = leading.count
            layers[leading.name] = as_grid(grid)
    order = [one.name for one in problem.kinds if one.name in layers]
    layers = {**{name: layers[name] for name in order}, **layers}
    return PipelinePlan(layers, {mode: grid for mode, grid in plan.recompute.items() if plan.uses(mode)})


def _layer_kinds(
    config: TrainingConfig, memory: MemoryProfile, ratios: TimeRatios, modes: tuple[str, ...]
) -> tuple[LayerKind, ...]:
    counts = config.model.layer_counts()
    forward = {
        DENSE: ratios.dense_forward if config.model.n_moe else 1.0,
        MOE: 1.0,
        MTP: 1.0 if ratios.mtp_forward is None else ratios.mtp_forward,
        **ratios.kind_forward,
    }
    kinds: list[LayerKind] = []
    for name, count in counts.items():
        entry = memory.kind_for(name)
        activation = memory.activation_mib[entry]
        missing = [mode for mode in modes if mode not in activation]
        if missing:
            raise InputError(
                "lacks a recompute mode that is searched or that the plan uses",
                field=f"activation.{entry}",
                value=missing[0],
                cure="add it to the memory profile, or plan without it",
            )
        exposed = ratios.exposed.get(kind_of(name), (0.0, 0.0))
        kind = LayerKind(
            name,
            count,
            forward.get(kind_of(name), 1.0),
            memory.layer_mib[entry],
            {mode: activation[mode] for mode in modes},
            pinned_last=name == MTP and not config.mtp_counted,
            exposed_forward=exposed[0],
            exposed_backward=exposed[1],
            joined=name in config.joined_runs,
        )
        before = kinds[-1] if kinds else None
        if before and name == MTP and not kind.pinned_last and _same_costs(before, kind):
            # Equal layers side by side are one kind: the optimum is the same and the search smaller.
            kinds[-1] = replace(before, count=before.count + count)
        else:
            kinds.append(kind)
    return tuple(kinds)


def _same_costs(a: LayerKind, b: LayerKind) -> bool:
    return (a.forward, a.layer_mib, dict(a.activation_mib)) == (b.forward, b.layer_mib, dict(b.activation_mib))
