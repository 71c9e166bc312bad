"""The end of a step: gradients reduced, weights gathered, the optimizer's update; scalars and arrays alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.adapters import adapter_groups, saved_parameters
from taylor.cost_model.job.parameters import (
    ParameterGroups,
    embedding_parameters,
    head_parameters,
    layer_groups,
    router_parameters,
)
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.memory.states import replicas
from taylor.cost_model.network.collectives import all_reduce_ms, gather_ms
from taylor.cost_model.time.launches import update_ms
from taylor.cost_model.time.overlap import buckets, shown_beside
from taylor.cost_model.time.speed import Speed
from taylor.register.adapters import EMBEDDING, HEAD, ROUTERS
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec

HOST_UPDATE_MS = 2.5e-7
"""Time of a host's processors for Adam's update of a parameter, ms.

ZeRO-Offload's CPU-Adam on two Xeon 8168: 0.22 to 0.30 s a billion parameters (Ren et al. 2021, arXiv:2101.06840, the
table of Adam's latencies for 1 to 10 billion). Megatron-LM takes torch's fused one.
"""
CARDS_A_HOST = 8
"""Cards whose updates a host runs; assumed."""

_WRITTEN_WEIGHT_BYTES = 2
"""Bytes a parameter of an updated weight that the optimizer writes in bf16."""

_OPEN_OVERLAP = 0.5, 1.0
"""Exposed fraction of gradient reduction and weight gathering where their overlap is not known, without a pipeline and
in one. Assumed: between all and none, and all."""


class StageTime(NamedTuple):
    """Forward and backward of one micro-batch on an average stage, without recompute, ms."""

    forward: Quantity
    backward: Quantity


NOTHING = StageTime(0.0, 0.0)


def tail_ms(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, beside: StageTime = NOTHING
) -> Quantity:
    """Gradient reduction, weight gathering and optimizer of an average stage with a vocabulary matrix, ms.

    Gradients go bucket by bucket where they overlap with computation, in the type that they are accumulated in; updated
    weights come back in bf16 where the optimizer is split, else the other half of an all-reduce. States on the host add
    their transfers over the link, and the host's update.

    Parameters
    ----------
    beside : StageTime
        Computation beside the transfers in a framework that overlaps them: exposed is what outlasts it, and what they
        slow it down by (`Speed.shares`).
    """
    speed = Speed.of(device, rules)
    split, routed, updated = _stage_parameters(model, degrees, rules)
    # Adam reads and writes its states, reads the gradient and writes the weight.
    update_bytes = 2 * rules.optimizer_bytes + rules.gradient_bytes + _WRITTEN_WEIGHT_BYTES + rules.logged_bytes
    update = np.maximum(speed.bytes(updated * update_bytes), update_ms(model, degrees, rules))
    result = update + speed.shares["step_ms"] + rules.framework.step_ms
    result = result + updated * host_ms(rules, device)
    if rules.parameter_shard:
        return result
    dense_ranks, _, routed_ranks = replicas(degrees, rules)
    expert_stride = np.maximum(degrees.tp * dense_ranks / routed_ranks, 1)
    overlaps = rules.framework.overlaps_reduction
    credits = (speed.shares["data_shown"], speed.shares["data_shown_in_pipeline"]) if overlaps else _OPEN_OVERLAP
    share = np.where(np.equal(degrees.pp, 1), *credits) if rules.overlap_reduction else 1.0

    def shown(parameter_bytes: int, work: Quantity, *, whole: bool = False) -> Quantity:
        def moved(parameters: Quantity, ranks: Quantity, stride: Quantity) -> Quantity:
            collective = all_reduce_ms if whole else gather_ms
            pieces = buckets(parameters, ranks) if overlaps and rules.overlap_reduction else 1.0
            return pieces * collective(parameters * parameter_bytes / pieces, ranks, stride, device, speed.network)

        dense = moved(split, dense_ranks, degrees.tp)
        transfer = dense + np.where(np.greater(routed, 0), moved(routed, routed_ranks, expert_stride), 0.0)
        outlasting = shown_beside(transfer, work, degrees, split + routed, dense_ranks) if overlaps else 0.0
        return outlasting + share * (transfer - outlasting)

    if not rules.parallel_optimizer:
        return result + shown(rules.gradient_bytes, beside.backward, whole=True)
    result = result + shown(rules.gradient_bytes, beside.backward)
    return result + shown(rules.compute_bytes, beside.forward)


def host_ms(rules: TrainingRules, device: DeviceSpec) -> float:
    """Time of the host and the link to it for a parameter whose optimizer lies partly on the host, ms.

    Megatron-LM d98e8a64 megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py:114, 124, 173: gradients go to the
    host as they are accumulated, the host updates its part, weights come back in the model's type; with a stream a
    direction (``--overlap-cpu-optimizer-d2h-h2d``) these overlap. MindSpeed 028de58c
    mindspeed/core/optimizer/swap_optimizer/swap_optimizer.py:129-174 and docs/zh/features/swap-optimizer.md: master
    weights and moments come and go in rounds, and a round begins when the one before has gone. Tensors within a round
    overlap a little, which is not counted. Nothing where no source states the device's link.
    """
    optimizer, link = rules.optimizer, device.host_link_gb_s
    if not optimizer.host_share or link is None:
        return 0.0
    update = 0.0
    if optimizer.host_updates:
        there, back = rules.gradient_bytes, _WRITTEN_WEIGHT_BYTES
        update = HOST_UPDATE_MS * CARDS_A_HOST
    else:
        there = back = rules.optimizer_bytes
    pieces = [bytes_moved / (1e6 * HOST_LINK_SHARE * link) for bytes_moved in (there, back)] + [update]
    return optimizer.host_share * (max(pieces) if optimizer.host_overlaps else sum(pieces))


def _stage_parameters(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> tuple[Quantity, Quantity, Quantity]:
    """Parameters of an average stage on one device: TP-split, routed, and those its optimizer updates."""
    split: Quantity = 0.0
    routed: Quantity = 0.0
    expert_split = degrees.ep * rules.experts_over(degrees.tp)
    for kind, count in model.kind_counts.items():
        own = rules.within(model.layers_of(kind))
        groups = layer_groups(model, kind) if own.adapters is None else adapter_groups(model, kind, own)
        if ROUTERS in rules.frozen and own.adapters is None:
            groups = groups + ParameterGroups(replicated=-router_parameters(model, kind))
        split = split + count * (groups.total - groups.routed) / degrees.tp / degrees.pp
        routed = routed + count * groups.routed / expert_split / degrees.pp
    ends = 0 if EMBEDDING in rules.frozen else embedding_parameters(model)
    ends += 0 if model.tied_embedding or HEAD in rules.frozen else head_parameters(model)
    if rules.adapters is not None:
        ends = saved_parameters(model, rules.adapters)
    split = split + ends / degrees.tp / np.minimum(degrees.pp, 2)
    dense_ranks, _, routed_ranks = replicas(degrees, rules)
    if not (rules.parallel_optimizer or rules.parameter_shard):
        return split, routed, split + routed
    shards = np.maximum(np.minimum(degrees.op, dense_ranks), 1)
    updated = split / shards + routed / np.where(np.greater_equal(degrees.op, dense_ranks), routed_ranks, shards)
    return split, routed, updated
