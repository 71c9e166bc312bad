"""Bytes of weights, gradients and optimizer states on one device; scalars and arrays alike.

The memory of a parameter follows from the framework (`register.frameworks.StateRules`) and from what the job stores
and shards (`TrainingRules`), in mixed precision with Adam:

- the stored weight, in `param_bytes`; where that is fp32 it is the optimizer's master weight itself, and what
  stays beside it is a copy in the compute type. Under `parameter_shard` there is no copy between uses;
- a gradient, accumulated over micro-batches, split among replicas under `gradient_shard` or `parameter_shard`;
- master weight and Adam's two moments, split under `parallel_optimizer` or `parameter_shard`.

Where 16-bit parameters have no master weight (`StateRules.follows_weight_type`), gradients take their type too. A job's
other choices are in `TrainingRules.optimizer`; GEMMs in fewer than 16 bits (`TrainingRules.narrow`) keep copies of a
layer's matrices, beside the stored weights or in their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taylor.cost_model.job.parameters import ParameterGroups
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity


@dataclass(frozen=True)
class StateBytes:
    """Bytes on one device; each a scalar or an array [n].

    `cached` is what the allocator keeps for gradients that are not counted at the peak (`cost_model.memory.reserved`).
    """

    weights: Quantity = 0.0
    gradients: Quantity = 0.0
    optimizer: Quantity = 0.0
    cached: Quantity = 0.0

    @property
    def total(self) -> Quantity:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.cached

    def __add__(self, other: StateBytes) -> StateBytes:
        return StateBytes(
            self.weights + other.weights,
            self.gradients + other.gradients,
            self.optimizer + other.optimizer,
            self.cached + other.cached,
        )

    def scaled(self, factor: Quantity) -> StateBytes:
        """All of them times a number or an array [n]."""
        return StateBytes(self.weights * factor, self.gradients * factor, self.optimizer * factor, self.cached * factor)


def replicas(degrees: Degrees, rules: TrainingRules) -> tuple[Quantity, Quantity, Quantity]:
    """Number of ranks with the same shard: of a TP-split, a TP-replicated and a routed parameter.

    Replicas of a TP-split parameter lie on DP·CP; of a replicated one on DP·CP·TP where the framework
    counts TP ranks as replicas, else on DP·CP. Routed ones lie on what EP and their own TP leave of DP·CP·TP.
    """
    data = degrees.dp * degrees.cp
    every = data * degrees.tp
    whole = every if rules.framework.states.tp_ranks_are_replicas else data
    return data, whole, np.maximum(every / rules.experts_over(degrees.tp) / degrees.ep, 1)


def group_bytes(
    groups: ParameterGroups, degrees: Degrees, rules: TrainingRules, *, copy_weights: bool = True, in_layer: bool = True
) -> StateBytes:
    """Bytes that one device holds of a block's parameters, gradients and optimizer states.

    Parameters
    ----------
    copy_weights : bool
        Off: without the copy of fp32 weights in the compute type (`StateRules.casts_embedding_rows`).
    in_layer : bool
        The split parameters are a layer's matrices, not a table over the vocabulary.
    """
    if rules.adapters is not None:
        return _frozen_bytes(groups, degrees, rules, in_layer=in_layer)
    split, whole, routed = replicas(degrees, rules)
    full = np.greater_equal(degrees.op, split)
    expert_split = degrees.ep * rules.experts_over(degrees.tp)
    states = rules.framework.states
    splits_latent = states.splits_latent_projections
    parts = [
        (groups.split / degrees.tp, split, in_layer),
        (groups.latent / (degrees.tp if splits_latent else 1), split if splits_latent else whole, in_layer),
        (groups.replicated, whole, False),
    ]
    result = StateBytes()
    of_experts = (groups.routed / expert_split, routed, in_layer)
    for (stored, ranks, matrices), own in [*((part, rules) for part in parts), (of_experts, rules.of_experts)]:
        # The full degree reaches every replica; a partial one makes equal groups of them, or goes that far.
        partial = ranks * degrees.op / split if states.groups_replicas else degrees.op
        shards = np.where(full, ranks, np.clip(partial, 1, ranks))
        result = result + _state(stored, shards, degrees, own, copy_weights, matrices)
    return result


def _frozen_bytes(groups: ParameterGroups, degrees: Degrees, rules: TrainingRules, *, in_layer: bool) -> StateBytes:
    """Bytes of a block's parameters that do not train: no gradients, no optimizer states, no copy in another type."""
    adapters = rules.adapters
    base = rules.compute_bytes if adapters is None or adapters.base_bytes is None else adapters.base_bytes
    split, whole, routed = (each if rules.parameter_shard else 1 for each in replicas(degrees, rules))
    latent_ways = degrees.tp if rules.framework.states.splits_latent_projections else 1
    matrices = groups.split / degrees.tp / split + groups.latent / latent_ways / (
        split if rules.framework.states.splits_latent_projections else whole
    )
    matrices = matrices + groups.routed / (degrees.ep * rules.experts_over(degrees.tp)) / routed
    narrow = 0.0 if rules.narrow is None or not in_layer else rules.narrow.weight_bytes
    own = 0.0 if narrow and rules.narrow_weights else base if in_layer else rules.compute_bytes
    return StateBytes(weights=matrices * (own + narrow) + groups.replicated / whole * rules.compute_bytes)


def _state(
    stored: Quantity, shards: Quantity, degrees: Degrees, rules: TrainingRules, copy_weights: bool, matrices: bool
) -> StateBytes:
    states = rules.framework.states
    split = rules.parallel_optimizer or rules.parameter_shard
    gradient_shards = shards if rules.gradient_shard or rules.parameter_shard else 1
    if states.one_pass_gradients_split and split:
        one_pass = np.equal(degrees.pp, 1) & np.equal(degrees.micro_batches, 1)
        gradient_shards = np.where(one_pass, shards, gradient_shards)
    gradient = rules.gradient_bytes / gradient_shards
    weight = _weight_bytes(shards, rules, copy_weights, matrices)
    kept = _kept_bytes(shards, split, rules, matrices)
    if rules.pairs:
        weight = weight + rules.param_bytes / (shards if rules.parameter_shard else 1)  # The reference model's.
    return StateBytes(stored * weight, stored * gradient, stored * kept / (shards if split else 1))


def _weight_bytes(shards: Quantity, rules: TrainingRules, copy_weights: bool, matrices: bool) -> Quantity:
    """Bytes a parameter of the stored weight, unless that is the optimizer's own, and of its copies."""
    stored_is_master = rules.param_bytes >= rules.framework.states.master_bytes
    narrow = rules.narrow if matrices else None
    if narrow is not None and rules.narrow_weights:
        return narrow.weight_bytes / (shards if rules.parameter_shard else 1)
    # Copies of 16-bit weights always stay whole.
    copies = 0.0 if narrow is None else narrow.weight_bytes
    if rules.parameter_shard:
        return copies + (0.0 if stored_is_master else rules.param_bytes / shards)
    if not stored_is_master or rules.framework.states.keeps_weights_whole:
        return copies + rules.param_bytes
    if rules.autocast and matrices:
        return copies
    return copies + (rules.compute_bytes if copy_weights and rules.compute_bytes < rules.param_bytes else 0.0)


def _kept_bytes(shards: Quantity, split: bool, rules: TrainingRules, matrices: bool) -> Quantity:
    """Bytes a parameter that the optimizer keeps, of all its shards together."""
    states = rules.framework.states
    moments = rules.moments_bytes if matrices else rules.other_moments_bytes
    if not rules.keeps_master:
        # The stored weight is counted as one, except where a shard of it is stored and gathered for the step.
        gathered = np.greater(shards, 1) if split and not rules.parameter_shard else False
        master: Quantity = np.where(gathered, rules.param_bytes, 0)
    elif rules.param_bytes >= states.master_bytes and states.keeps_weights_whole and not rules.parameter_shard:
        master = 0
    else:
        master = rules.master_bytes
    return (moments + master) * (1 - rules.optimizer.host_share) + rules.optimizer.step_bytes
