"""Times of an iteration of reinforcement learning by phase: roll-outs as measured, the rest by the analytical model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.network.collectives import gather_ms, ring_bandwidth
from taylor.cost_model.profile import MemoryProfile
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import estimate_ratios, head_time, lag_ms, layer_time
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.policy.job import packed_samples
from taylor.parsers.rl_iteration import (
    COPY,
    CRITIC,
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
from taylor.parsers.tables.generation import GenerationSpeed
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.register.model import kind_of
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.own_plans import problem_of
from taylor.workflows.solving.evaluate_file import evaluate_own
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.module_choices import with_host_priced

COPIES = "moves to and from the host"
"""Name of the time in which states leave the card and come back."""


@dataclass(frozen=True)
class SampleTokens:
    """Mean tokens of a sample.

    Parameters
    ----------
    prompt, answer : int
    """

    prompt: int
    answer: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.prompt + self.answer


def timed_config(config: TrainingConfig, iteration: RlIteration, tokens: SampleTokens) -> TrainingConfig:
    """The configuration with samples of the mean length, and micro-batches that hold as many of them.

    Raises
    ------
    InputError
        When the mean is longer than the longest sample.
    """
    if tokens.total > config.rules.seq_length:
        cure = f"state at most {config.rules.seq_length:,} tokens in all"
        raise InputError("is longer than the longest sample", field="--mean_answer", value=tokens.total, cure=cure)
    strategy = config.strategy
    unit = 2 * strategy.cp * strategy.tp
    length = min(config.rules.seq_length, -(-tokens.total // unit) * unit)
    if iteration.packed_tokens is not None:
        each = strategy.global_batch // strategy.dp
        count = packed_samples(iteration.packed_tokens, length, each)
        strategy = strategy.replace(mbs=count, micro_batches=each // count)
    return config.replace(strategy=strategy, rules=config.rules.replace(seq_length=length))


def timed_iteration(iteration: RlIteration, timed: TrainingConfig, tokens: SampleTokens) -> RlIteration:
    """The iteration with the forward micro-batches of samples of the mean length, the critic's too."""
    critic = iteration.critic
    if critic is not None:
        config = timed_config(critic.config, critic.iteration, tokens)
        critic = replace(critic, config=config, iteration=timed_iteration(critic.iteration, config, tokens))
    return replace(iteration, log_prob_samples=scored_samples(timed, iteration), critic=critic)


def critic_ms(critic: Critic, chosen: ChosenDevice, tokens: SampleTokens) -> dict[str, float]:
    """Time of a critic's phases, its values and its training, ms."""
    timed = timed_config(critic.config, critic.iteration, tokens)
    values = scoring_ms(timed, critic.iteration, chosen.spec)
    return {VALUES: values, CRITIC: step_ms(timed, chosen) * critic.iteration.updates}


def problem_for(config: TrainingConfig, chosen: ChosenDevice, memory: MemoryProfile) -> PipelineProblem:
    """Pipeline problem of a configuration by the analytical model, as rankings state it.

    Raises
    ------
    TaylorError
        When it cannot be stated.
    """
    config = with_host_priced(config, chosen.spec)
    ratios = estimate_ratios(config.model, config.strategy, config.rules, chosen.spec)
    return problem_of(CandidateFile(config, memory, ratios, device=chosen))


def step_ms(config: TrainingConfig, chosen: ChosenDevice) -> float:
    """Step of the configuration's plan, ms; of the even plan where it has none."""
    config = config if config.plan is not None else config.replace(plan=config.even_plan(config.strategy))
    problem = problem_for(config, chosen, estimate_memory(config, chosen.spec))
    solution = evaluate_own(config, problem)
    assert solution.objective is not None and problem.unit_ms is not None
    return float(solution.objective * problem.unit_ms)


def scoring_ms(config: TrainingConfig, iteration: RlIteration, device: DeviceSpec) -> float:
    """Forward passes over all samples of an iteration for their log-probabilities, ms.

    Micro-batches follow each other through the stages; a stage takes as long for each.
    """
    stages, batches = _scored_stages(config, iteration, device)
    return _passes_ms(stages, batches, config, device)


def least_scoring_ms(config: TrainingConfig, iteration: RlIteration, device: DeviceSpec) -> float:
    """Lower bound of `scoring_ms` over all plans of the configuration's strategy, ms.

    All stages together take the same under every plan, and the longest at least an equal part of that.
    """
    stages, batches = _scored_stages(config.replace(plan=None), iteration, device)
    equal = np.full(config.strategy.pp, stages.mean())
    return _passes_ms(equal, batches, config, device)


def _passes_ms(stages: NDArray[np.float64], batches: int, config: TrainingConfig, device: DeviceSpec) -> float:
    """Forward passes of micro-batches through stages of these times, ms."""
    lag = (config.strategy.pp - 1) * float(lag_ms(config.model, config.strategy, config.rules, device))
    return float(stages.sum() + (batches - 1) * stages.max() + lag)


def scored_samples(config: TrainingConfig, iteration: RlIteration) -> int:
    """Samples of a configuration's length in a micro-batch of log-probabilities on a data-parallel rank."""
    each = max(1, iteration.samples // config.strategy.dp)
    if iteration.log_prob_tokens is None:
        return min(each, iteration.log_prob_samples)
    return packed_samples(iteration.log_prob_tokens, config.rules.seq_length, each)


def _scored_stages(
    config: TrainingConfig, iteration: RlIteration, device: DeviceSpec
) -> tuple[NDArray[np.float64], int]:
    """Forward time of a micro-batch on each stage, ms [pp], and the micro-batches of an iteration."""
    model, rules, strategy = config.model, config.rules, config.strategy
    each, count = max(1, iteration.samples // strategy.dp), scored_samples(config, iteration)
    strategy = strategy.replace(mbs=count)
    plan = config.plan or config.even_plan(config.strategy)
    stages = np.zeros(strategy.pp)
    for run, grid in plan.layers.items():
        forward = float(layer_time(model, kind_of(run), strategy, rules, device).forward)
        stages += forward * np.array(grid).sum(axis=0)
    head, embedding = head_time(model, strategy, rules, device)
    stages[config.schedule.head_stage(strategy.pp)] += float(head)
    stages[0] += float(embedding)
    return stages, -(-each // count)


def reshard_ms(config: TrainingConfig, iteration: RlIteration, device: DeviceSpec) -> float:
    """Time in which the policy's weights reach the engines, ms.

    Every training card gathers each tensor whole, over the ranks that share a copy of the model; engines on cards of
    their own then receive it over the narrowest link.
    """
    strategy, share = config.strategy, Speed.of(device, config.rules).network
    volume = float(total_parameters(config.model)) * iteration.engine.weight_bytes
    group = strategy.tp * strategy.pp * max(1, strategy.ep // strategy.tp)
    if config.rules.parameter_shard:
        group = max(group, strategy.op)
    gathered = float(gather_ms(volume, group, 1, device, share)) if group > 1 else 0.0
    if iteration.colocated:
        return gathered
    receivers = strategy.world_size + iteration.rollout_cards
    return gathered + volume / (float(ring_bandwidth(receivers, 1, device)) * share * 1e6)


def copied_ms(resident: Mapping[str, frozenset[str]], states: Mapping[str, float], device: DeviceSpec) -> float | None:
    """Time in which states leave the card and come back over an iteration, ms; None without the host link's speed.

    Parameters
    ----------
    states : mapping of str to float
        MiB of the weights and the optimizer's states, and of the reference; gradients are dropped and made again.
    """
    moved = 0.0
    phases = list(resident.values())
    for name in (WEIGHTS, OPTIMIZER, COPY):
        before = [phases[-1], *phases[:-1]]
        turns = sum((name in now) != (name in then) for then, now in zip(before, phases, strict=True))
        moved += turns * states.get(name, 0.0)
    if not moved:
        return 0.0
    return None if not device.host_link_gb_s else moved * 2**20 / (1e6 * HOST_LINK_SHARE * device.host_link_gb_s)


def rollout_ms(
    iteration: RlIteration, speed: GenerationSpeed, tokens: SampleTokens, cards: int, concurrent: int
) -> float:
    """Generation of an iteration's samples by all engines, ms.

    Parameters
    ----------
    cards : int
        Cards of all engines.
    concurrent : int
        Samples that one engine can hold.
    """
    engines = max(1, cards // iteration.engine.cards)
    each = -(-iteration.samples // engines)
    return 1e3 * speed.seconds(each, tokens.answer, iteration.answer_tokens, concurrent)


def phase_times(
    config: TrainingConfig,
    iteration: RlIteration,
    chosen: ChosenDevice,
    rollout: float,
    copies: float | None,
    critic: Mapping[str, float],
) -> dict[str, float | None]:
    """Time of every phase, ms.

    Parameters
    ----------
    config : TrainingConfig
        With samples of the mean length (`timed_config`).
    rollout : float
        Time of the roll-outs, ms.
    copies : float or None
        Moves of states to and from the host, ms.
    critic : mapping of str to float
        Times of the critic's phases, ms; empty where there is none.
    """
    scoring = scoring_ms(config, iteration, chosen.spec)
    step = step_ms(config, chosen)
    known: dict[str, float | None] = {
        ROLLOUT: rollout,
        LOG_PROBS: scoring,
        REFERENCE: scoring,
        TRAINING: step * iteration.updates,
        RESHARDING: reshard_ms(config, iteration, chosen.spec),
        **critic,
    }
    found = {phase: known[phase] for phase in iteration.phases}
    if iteration.colocated or iteration.critic is not None:
        found[COPIES] = copies
    return found
