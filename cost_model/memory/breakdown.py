"""Memory of one strategy: the profile the solver takes, and the breakdown that explains it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.alive import ONE_FORWARD_ONE_BACKWARD, alive_micro_batches
from taylor.cost_model.memory.backward_workspace import workspace_bytes
from taylor.cost_model.memory.best_case import best_case_peak_mib, lightest_layers
from taylor.cost_model.memory.offload import IN_FLIGHT_LAYERS, offloaded_bytes
from taylor.cost_model.memory.plan_peak import PlanPeak
from taylor.cost_model.memory.states import StateBytes
from taylor.cost_model.memory.statics import (
    MIB,
    buffer_bytes,
    cached_bytes,
    embedding_gradient_bytes,
    embedding_state_bytes,
    end_of_step_bytes,
    head_state_bytes,
    kept_bytes,
    late_gradient_bytes,
    layer_state_bytes,
    mask_bytes,
    overhead_mib,
    postponed_gradient_bytes,
    static_mib,
)
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan, as_grid, deal_on
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import MTP, ModelSpec, kind_of
from taylor.register.tower import IN_FRONT

__all__ = ["StageBreakdown", "best_case_peak_mib", "lightest_plan", "memory_profile", "stage_breakdown"]


def memory_profile(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    device_limit_mib: float,
    schedule: ScheduleSpec = ONE_FORWARD_ONE_BACKWARD,
) -> MemoryProfile:
    """The memory coefficients of a strategy, from the analytical model.

    Parameters
    ----------
    device_limit_mib : float
        Memory limit of one device, MiB; copied into the profile.
    schedule : ScheduleSpec
        Says which stage holds the head; nothing else depends on it (a sequence split changes the number of
        micro-batches alive).

    Returns
    -------
    MemoryProfile
        Entries for the kinds the model's body has; the MTP layer is charged as the body layer, its
        projection and copy of the embedding being in the last stage's static memory. Where the modules of a model
        with a `pattern` hold other layers, they have a separate entry.
    """
    # The body's kind stands last: a layer kind without an entry is charged as it.
    kinds = sorted(model.body_counts, key=lambda kind: kind == model.body_kind)
    if model.mtp_layers and model.mtp_kinds:
        kinds.insert(0, MTP)
    first, middle, last = (float(value) for value in static_mib(model, strategy, rules, schedule))
    return MemoryProfile(
        device_limit_mib=float(device_limit_mib),
        static_first_mib=first,
        static_middle_mib=middle,
        static_last_mib=last,
        layer_mib={kind: float(layer_state_bytes(model, kind, strategy, rules).total) / MIB for kind in kinds},
        activation_mib={
            kind: {mode: float(kept_bytes(model, kind, mode, strategy, rules)) / MIB for mode in (NONE, SELECT, FULL)}
            for kind in kinds
        },
        source=MemorySource.ESTIMATE,
    )


@dataclass(frozen=True)
class StageBreakdown:
    """Memory of one stage at its worst moment by category, MiB.

    Parameters
    ----------
    layers : mapping of kind to int
        Layers the stage holds.
    alive : float
        Micro-batches alive, in full passes through the stage.
    activations : mapping of kind to float
        Activations kept, by layer kind (`statics.kept_bytes`).
    workspace : float
        Memory to rebuild and differentiate one layer.
    cached : float
        What torch's allocator reserves beside these tensors (`cost_model.memory.reserved`); 0 where it is not modelled.
    met_mib : float
        The parts of `total` that `at_peak` counts moment by moment.
    at_peak : PlanPeak or None
        Moments of this plan; None where they are not known.
    """

    stage: int
    layers: Mapping[str, int]
    alive: float
    weights: float
    gradients: float
    optimizer: float
    activations: Mapping[str, float]
    logits: float
    buffers: float
    workspace: float
    overhead: float
    cached: float = 0.0
    met_mib: float = 0.0
    at_peak: PlanPeak | None = field(default=None, repr=False, compare=False)

    @cached_property
    def spare(self) -> float:
        """`total` less this plan's own peak, MiB; may be negative.

        `total` adds up one figure a part for all plans of a strategy, with a layer that is rebuilt whole, and
        `plan_peak` the tensors of this plan's worst moment. A plan is made with the former; what torch allocates is
        less by this. Below 0 where `overhead` has a layer's gradients too (`StaticRules.counted_as_fitted`).
        """
        return 0.0 if self.at_peak is None else self.met_mib - self.at_peak.bytes() / MIB

    @property
    def total(self) -> float:
        """Memory that the stage takes of its card, MiB."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + sum(self.activations.values())
            + self.logits
            + self.buffers
            + self.workspace
            + self.overhead
            + self.cached
        )

    def categories(self) -> dict[str, float]:
        """Every part by name, MiB, in the order of a table."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            **{f"activations {kind}": value for kind, value in self.activations.items()},
            "logits": self.logits,
            "buffers": self.buffers,
            "workspace": self.workspace,
            "overhead": self.overhead,
            **({"cached": self.cached} if self.cached else {}),
        }


def stage_breakdown(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    plan: PipelinePlan | None = None,
    schedule: ScheduleSpec = ONE_FORWARD_ONE_BACKWARD,
    recompute: str = FULL,
    moved: Collection[str] = (),
) -> list[StageBreakdown]:
    """Memory of every stage by category.

    Parameters
    ----------
    plan : PipelinePlan, optional
        Layers and recompute of every chunk, of which an encoder's do not count; without one, `lightest_plan` with the
        mode `recompute`.
    moved : collection of str
        Parts that layers without full recompute move to the host (`cost_model.memory.offload`). Of the layers in flight
        they are among `buffers`.

    Returns
    -------
    list of StageBreakdown, one a stage

    Raises
    ------
    ValueError
        When the plan is for other stages or virtual stages than the strategy.
    """
    chosen = lightest_plan(model, strategy, rules, recompute, schedule) if plan is None else plan.without(*IN_FRONT)
    if (chosen.stages, chosen.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError(
            f"the plan is for {chosen.stages} stages x {chosen.interleaves} virtual stages, "
            f"the strategy for {strategy.pp} x {strategy.vpp}"
        )
    on_host = {kind: float(offloaded_bytes(model, kind, moved, strategy, rules)) for kind in model.body_counts if moved}
    shared = _EveryStage.of(model, strategy, rules, schedule)
    peaks = (PlanPeak(model, strategy, rules, chosen, schedule, stage, on_host) for stage in range(strategy.pp))
    return [_stage(at_peak, shared) for at_peak in peaks]


def lightest_plan(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    recompute: str = FULL,
    schedule: ScheduleSpec = ONE_FORWARD_ONE_BACKWARD,
) -> PipelinePlan:
    """The memory-friendliest plan of a strategy, every layer in one recompute mode.

    With one interleave its peak is `best_case_peak_mib`; with several, a stage's layers are spread
    evenly over its chunks, the remainder on the later ones.
    """
    stages = lightest_layers(model, strategy, rules, recompute, schedule)
    sizes = as_grid(
        [
            [count // strategy.vpp + (1 if v >= strategy.vpp - count % strategy.vpp else 0) for count in stages]
            for v in range(strategy.vpp)
        ]
    )
    placement = schedule.placement(strategy.pp, strategy.vpp)
    layers = deal_on(placement, model.layer_counts(), placement.values(sizes))
    return PipelinePlan(layers, {} if recompute == NONE else {recompute: sizes})


@dataclass(frozen=True)
class _EveryStage:
    """Bytes that do not depend on the stage.

    Parameters
    ----------
    cached : (float, float, float)
        `cached_bytes`: of the stage of the embedding, of one with neither end, and of that of the head.
    masks : (float, float)
        `mask_bytes`: on the stages of embedding and head.
    layers : mapping of kind to StateBytes
        Of one layer.
    """

    workspace: float
    buffers: float
    postponed: float
    cached: tuple[float, float, float]
    masks: tuple[float, float]
    layers: Mapping[str, StateBytes]

    @classmethod
    def of(cls, model: ModelSpec, strategy: Strategy, rules: TrainingRules, schedule: ScheduleSpec) -> _EveryStage:
        """The parts of a strategy."""
        first, middle, last = cached_bytes(model, strategy, rules)
        of_first, of_last = mask_bytes(strategy, rules, schedule)
        kinds = [*model.body_counts, *([MTP] if model.mtp_layers else [])]
        return cls(
            float(workspace_bytes(model, strategy, rules)),
            float(buffer_bytes(model, strategy, rules)),
            float(postponed_gradient_bytes(model, strategy, rules, schedule)),
            (float(first), float(middle), float(last)),
            (float(of_first), float(of_last)),
            {kind: layer_state_bytes(model, kind, strategy, rules) for kind in kinds},
        )


def _stage(at_peak: PlanPeak, shared: _EveryStage) -> StageBreakdown:
    model, strategy, rules, plan = at_peak.model, at_peak.strategy, at_peak.rules, at_peak.plan
    schedule, stage = at_peak.schedule, at_peak.stage
    counts: dict[str, int] = {}
    for run, grid in plan.layers.items():
        counts[kind_of(run)] = counts.get(kind_of(run), 0) + sum(grid[v][stage] for v in range(plan.interleaves))
    states = StateBytes()
    for kind, count in counts.items():
        states = states + shared.layers[kind].scaled(count)
    logits, masks, late, workspace, buffers = 0.0, 0.0, shared.postponed, shared.workspace, shared.buffers
    of_embedding, cached, of_head = shared.cached
    at_embedding, at_head = of_embedding - cached, of_head - cached
    if stage == 0:
        cached += at_embedding
        states = states + embedding_state_bytes(model, strategy, rules)
    if stage == schedule.head_stage(strategy.pp):
        states = states + head_state_bytes(model, strategy, rules)
        logits, workspace, buffers = (float(part) for part in end_of_step_bytes(model, strategy, rules))
        late += float(late_gradient_bytes(model, strategy, rules, logits + workspace + buffers))
        masks += shared.masks[1]
        cached += at_head
    if stage == 0:
        masks += shared.masks[0]
        late += float(embedding_gradient_bytes(model, strategy, rules))
    beside = masks + _in_flight_bytes(model, strategy, rules, _modes(plan, stage), at_peak.on_host)
    buffers += beside
    alive, kept = _worst_moment(at_peak)
    layers_alive = sum(alive[v] * grid[v][stage] for grid in plan.layers.values() for v in range(plan.interleaves))
    passes = float(layers_alive / max(1, sum(counts.values())))
    together = late + logits + workspace + buffers + sum(kept.values()) * MIB
    return StageBreakdown(
        stage=stage,
        layers=counts,
        alive=passes,
        weights=float(states.weights) / MIB,
        gradients=(float(states.gradients) + late) / MIB,
        optimizer=float(states.optimizer) / MIB,
        activations=kept,
        logits=logits / MIB,
        buffers=buffers / MIB,
        workspace=workspace / MIB,
        overhead=overhead_mib(rules),
        cached=(float(states.cached) + cached) / MIB,
        met_mib=(together - beside) / MIB,
        at_peak=at_peak,
    )


def _in_flight_bytes(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    modes: Mapping[str, Collection[str]],
    on_host: Mapping[str, float],
) -> float:
    """Moved tensors that are on the device at the worst moment, of the kind that moves most."""
    kept = [
        min(on_host[kind], float(kept_bytes(model, kind, mode, strategy, rules)))
        for kind, used in modes.items()
        for mode in used
        if kind in on_host and mode != FULL
    ]
    return IN_FLIGHT_LAYERS * max(kept, default=0.0)


def _modes(plan: PipelinePlan, stage: int) -> dict[str, set[str]]:
    """Recompute modes of a stage's layers, by kind."""
    found: dict[str, set[str]] = {}
    for run, modes in plan.recompute_by_kind().items():
        used = {mode for mode, grid in modes.items() if any(grid[v][stage] for v in range(plan.interleaves))}
        if used:
            found.setdefault(kind_of(run), set()).update(used)
    return found


def _worst_moment(at_peak: PlanPeak) -> tuple[tuple[float, ...], dict[str, float]]:
    """Micro-batches alive, by interleave, and activations kept, MiB by kind, when a stage keeps most."""
    plan, strategy, stage = at_peak.plan, at_peak.strategy, at_peak.stage
    running = at_peak.schedule.for_interleaves(strategy.vpp, at_peak.rules.framework)
    moments = []
    for alive in alive_micro_batches(running, strategy.pp, strategy.vpp, strategy.micro_batches)[stage]:
        kept: dict[str, float] = {}
        for run, modes in plan.recompute_by_kind().items():
            # A mode that no layer of the stage is in may not exist for its kind.
            used = [(mode, v) for mode in modes for v in range(plan.interleaves) if modes[mode][v][stage]]
            kind = kind_of(run)
            kept[kind] = kept.get(kind, 0.0) + (
                sum(modes[mode][v][stage] * at_peak.kept((kind, mode)) * alive[v] for mode, v in used) / MIB
            )
        moments.append((alive, kept))
    return max(moments, key=lambda moment: sum(moment[1].values()))
