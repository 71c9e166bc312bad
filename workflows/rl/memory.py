"""Memory of an iteration of reinforcement learning by phase: what lies on the fullest card, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.cost_model.memory.states import StateBytes
from taylor.cost_model.memory.statics import (
    MIB,
    buffer_bytes,
    embedding_state_bytes,
    head_state_bytes,
    layer_state_bytes,
    logits_bytes,
)
from taylor.cost_model.network.nccl import LIBRARY
from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.rl_iteration import (
    COPY,
    CRITIC,
    ENGINE,
    GRADIENTS,
    LOG_PROBS,
    OPTIMIZER,
    REFERENCE,
    RESHARDING,
    ROLLOUT,
    TRAINING,
    VALUES,
    WEIGHTS,
    Critic,
    RlIteration,
)
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import NONE
from taylor.register.device import DeviceSpec

CACHE, WORKING, BUCKET, RUNTIME = "key-value cache", "activations and workspaces", "gathered weights", "runtime"

_SCORED = {TRAINING: (LOG_PROBS, REFERENCE), CRITIC: (VALUES,)}
"""Phases in which a role runs forward alone, by the phase in which it trains."""

ASLEEP = "engine asleep"
"""What the engine's process keeps outside its share while it sleeps."""

FITS, RISK, OVER = "fits", "exceeds the risk", "does not fit"


@dataclass(frozen=True)
class PhaseMemory:
    """Memory of one phase on the fullest card.

    Parameters
    ----------
    stage : int
        Pipeline stage of that card; 0 on cards of roll-outs alone.
    parts : mapping of str to float
        By category, MiB.
    limit_mib : float
        Memory that a plan of the job may take, by the planned risk of its estimate.
    usable_mib : float
        Memory of the card that a job can take at all.
    """

    phase: str
    stage: int
    parts: Mapping[str, float]
    limit_mib: float
    usable_mib: float

    @property
    def total_mib(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def allotted(self) -> bool:
        """Whether an engine allots itself all of it."""
        return self.phase == ROLLOUT and not set(self.parts) - {ENGINE, CACHE, RUNTIME}

    @property
    def verdict(self) -> str:
        """`FITS`, `RISK` or `OVER`; memory that an engine allots itself has no risk."""
        if self.total_mib <= (self.usable_mib if self.allotted else self.limit_mib):
            return FITS
        return RISK if self.total_mib <= self.usable_mib else OVER


def stages_of(config: TrainingConfig) -> list[StageBreakdown]:
    """Memory of the training's stages under the configuration's plan; under the even plan where it has none."""
    plan = config.plan or config.even_plan(config.strategy)
    return stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)


def phase_memory(
    config: TrainingConfig, iteration: RlIteration, device: DeviceSpec, stages: Sequence[StageBreakdown]
) -> list[PhaseMemory]:
    """Memory of every phase on the fullest card of those it runs on.

    Parameters
    ----------
    stages : sequence of StageBreakdown
        `stages_of` the configuration.
    """
    limit = config.memory_limit_mib(device)
    usable = float(device.usable_memory_mib if config.device_limit_mib is None else config.device_limit_mib)
    found = []
    for phase in iteration.phases:
        if phase == ROLLOUT and not iteration.colocated:
            parts = {**_engine_parts(config, iteration, device, 0.0), RUNTIME: stages[0].overhead}
            found.append(PhaseMemory(phase, 0, parts, limit, usable))
            continue
        each = [
            PhaseMemory(phase, stage.stage, _parts(config, iteration, device, phase, stage, beside), limit, usable)
            for stage, beside in side_by_side(stages, iteration.critic)
        ]
        found.append(max(each, key=lambda one: one.total_mib))
    return found


def side_by_side(
    stages: Sequence[StageBreakdown], critic: Critic | None
) -> list[tuple[StageBreakdown, StageBreakdown | None]]:
    """Stages of the policy with the critic's that share a card with them: both are dealt to the cards in order."""
    if critic is None:
        return [(stage, None) for stage in stages]
    others = stages_of(critic.config)
    cards = math.lcm(len(stages), len(others))
    pairs = dict.fromkeys((at * len(stages) // cards, at * len(others) // cards) for at in range(cards))
    return [(stages[at], others[beside]) for at, beside in pairs]


def _parts(
    config: TrainingConfig,
    iteration: RlIteration,
    device: DeviceSpec,
    phase: str,
    stage: StageBreakdown,
    beside: StageBreakdown | None,
) -> dict[str, float]:
    """Memory of one stage, and of the critic's beside it, in one phase by category, MiB."""
    parts = _own_parts(config, iteration, phase, stage, TRAINING)
    parts[RUNTIME] = stage.overhead
    if iteration.critic is not None and beside is not None:
        parts |= critic_parts(iteration.critic, phase, beside)
    if phase != ROLLOUT and iteration.colocated and not iteration.keeps_cache and device.collectives == LIBRARY:
        parts[ASLEEP] = iteration.engine.asleep_mib
    if ENGINE in iteration.resident[phase]:
        engine = _engine_parts(config, iteration, device, sum(parts.values()))
        if phase != ROLLOUT and not iteration.keeps_cache:
            engine.pop(CACHE)
        parts |= engine
    return parts


def critic_parts(critic: Critic, phase: str, stage: StageBreakdown) -> dict[str, float]:
    """Memory of one stage of a critic in one phase by category, MiB."""
    parts = _own_parts(critic.config, critic.iteration, phase, stage, CRITIC)
    if critic.own_process:
        parts[RUNTIME] = stage.overhead
    return {f"critic's {name}": mib for name, mib in parts.items()}


def _own_parts(
    config: TrainingConfig, iteration: RlIteration, phase: str, stage: StageBreakdown, training: str
) -> dict[str, float]:
    """States of a role on one stage, and what it works with, MiB.

    Parameters
    ----------
    training : str
        Phase in which the role trains; the critic's further one is that of the values.
    """
    resident, parts = iteration.resident[phase], dict[str, float]()
    states = states_of(stage, config.rules)
    for name in (WEIGHTS, GRADIENTS, OPTIMIZER):
        if name in resident:
            parts[name] = states[name]
    if COPY in resident:
        parts[COPY] = states[WEIGHTS]
    if phase == training:
        kept = sum(stage.activations.values())
        parts[WORKING] = kept + stage.logits + stage.buffers + stage.workspace + stage.cached
    elif phase == RESHARDING and training == TRAINING:
        parts[BUCKET] = iteration.bucket_mib + largest_tensor_mib(config)
    elif phase in _SCORED[training]:
        parts[WORKING] = _scoring_mib(config, iteration, stage)
    return parts


def states_of(stage: StageBreakdown, rules: TrainingRules) -> dict[str, float]:
    """Weights, gradients and optimizer states of a stage, MiB.

    Where fully sharded weights are the optimizer's master weights, the model counts them among its states.
    """
    own = _masters(stage.optimizer, rules)
    return {WEIGHTS: stage.weights + own, GRADIENTS: stage.gradients, OPTIMIZER: stage.optimizer - own}


def _masters(optimizer: float, rules: TrainingRules) -> float:
    """Part of the optimizer's states that are the weights themselves, in the unit of `optimizer`."""
    if not (rules.parameter_shard and rules.param_bytes >= rules.framework.states.master_bytes):
        return 0.0
    return optimizer * rules.param_bytes / (rules.param_bytes + rules.moments_bytes)


def _scoring_mib(config: TrainingConfig, iteration: RlIteration, stage: StageBreakdown) -> float:
    """Memory of a forward pass for log-probabilities: one layer at a time, and the logits on the last stage, MiB."""
    model, rules = config.model, config.rules
    strategy = config.strategy.replace(mbs=iteration.log_prob_samples)
    kinds = [kind for kind, count in stage.layers.items() if count]
    layer = max((float(activation_bytes(model, kind, NONE, strategy, rules)) for kind in kinds), default=0.0)
    head = stage.stage == config.schedule.head_stage(strategy.pp)
    logits = float(logits_bytes(model, strategy, rules)) if head else 0.0
    return (layer + logits + float(buffer_bytes(model, strategy, rules))) / MIB


def _engine_parts(
    config: TrainingConfig, iteration: RlIteration, device: DeviceSpec, resident_mib: float
) -> dict[str, float]:
    """Engine's weights and the cache that its share of memory leaves, MiB."""
    weights = iteration.engine.weights_mib(config.model)
    pool = iteration.engine.pool_mib(float(device.memory_mib), resident_mib)
    return {ENGINE: weights, CACHE: max(0.0, pool - weights)}


def largest_tensor_mib(config: TrainingConfig) -> float:
    """Largest tensor that is gathered whole in 16 bits, the vocabulary's table or a matrix of a layer, MiB."""
    model = config.model
    widest = max(model.vocab, model.ffn_hidden * (2 if model.gated_mlp else 1))
    return 2.0 * widest * model.hidden / MIB


def samples_cached(
    config: TrainingConfig, iteration: RlIteration, device: DeviceSpec, mean_tokens: int, resident_mib: float = 0.0
) -> int:
    """Samples of a mean length that one engine's cache holds at once; 0 where its weights leave none.

    Parameters
    ----------
    resident_mib : float
        What others have of the card when the engine takes its part.
    """
    cache = _engine_parts(config, iteration, device, resident_mib)[CACHE]
    each = iteration.engine.cache_mib(config.model, max(1, mean_tokens))
    return iteration.engine.dp * (int(cache // each) if each else iteration.engine.concurrent)


def _beside_critic(profile: MemoryProfile, critic: Critic | None) -> MemoryProfile:
    """The profile with what a critic leaves on the fullest of its cards while the policy trains."""
    if critic is None:
        return profile
    mib = max(sum(critic_parts(critic, TRAINING, stage).values()) for stage in stages_of(critic.config))
    return replace(
        profile,
        static_first_mib=profile.static_first_mib + mib,
        static_middle_mib=profile.static_middle_mib + mib,
        static_last_mib=profile.static_last_mib + mib,
    )


def training_profile(config: TrainingConfig, iteration: RlIteration, device: DeviceSpec) -> MemoryProfile:
    """Memory profile of the training, with what reference and critic leave on its cards."""
    profile = _beside_critic(estimate_memory(config, device), iteration.critic)
    if COPY not in iteration.resident[TRAINING]:
        return profile
    model, strategy, rules = config.model, config.strategy, config.rules

    def copy_mib(states: StateBytes) -> float:
        return float(states.weights + _masters(float(states.optimizer), rules)) / MIB

    first, last = (copy_mib(of(model, strategy, rules)) for of in (embedding_state_bytes, head_state_bytes))
    layers = {
        kind: mib + copy_mib(layer_state_bytes(model, kind, strategy, rules)) for kind, mib in profile.layer_mib.items()
    }
    return replace(
        profile,
        layer_mib=layers,
        static_first_mib=profile.static_first_mib + first,
        static_last_mib=profile.static_last_mib + last,
    )
