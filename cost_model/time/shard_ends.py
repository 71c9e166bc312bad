"""Transfers of fully sharded parameters that no layer's work hides: the first, the last, embedding and head.

FSDP gathers one module ahead and reduces one behind. Nothing runs before the embedding's and the first layer's gathers,
and nothing behind the reductions of their gradients; the head's run beside the last layer's work alone (torch 2.13
torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:795-840; torchtitan b5bcd76c
torchtitan/distributed/fsdp.py:394-404 for the order of forward prefetches). Without a pipeline gradients are reduced in
every micro-batch, for nothing there switches that off; in one, once a step, behind the last backward (torch 2.13
torch/distributed/pipelining/stage.py:845-847, 1164-1193).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.parameters import embedding_parameters, head_parameters
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.network.collectives import gather_ms
from taylor.cost_model.time.overlap import shown_behind
from taylor.cost_model.time.speed import Speed
from taylor.register.adapters import EMBEDDING, HEAD
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


class ShardedLayer(NamedTuple):
    """Times of one layer, ms: its gather, the reduction of its gradient, its forward and backward."""

    gather: Quantity
    scatter: Quantity
    forward: Quantity
    backward: Quantity


def shard_ends_ms(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, layer: ShardedLayer
) -> Quantity:
    """Exposed transfers of a step outside those counted with the layers, ms; 0 unless parameters are sharded."""
    if not rules.parameter_shard:
        return 0.0
    whole, speed = rules.gathered(), Speed.of(device, rules)
    ranks = np.minimum(np.maximum(degrees.op, 1), degrees.dp * degrees.cp)

    def moved(parameters: int, size: int) -> Quantity:
        return gather_ms(parameters * size / degrees.tp, ranks, degrees.tp, device, speed.network)

    embedding, head = embedding_parameters(model), 0 if model.tied_embedding else head_parameters(model)
    gathers = moved(embedding, whole.param_bytes), moved(head, whole.param_bytes)
    trained = [size * (end not in rules.frozen) for size, end in ((embedding, EMBEDDING), (head, HEAD))]
    scatters = moved(trained[0], whole.gradient_bytes), moved(trained[1], whole.gradient_bytes)
    slowed = speed.shares["data_shown"]
    gathered = gathers[0] + shown_behind(gathers[1], layer.forward, slowed)
    scattered = scatters[0] + layer.scatter + shown_behind(scatters[1], layer.backward, slowed)
    # Ends that stay gathered come once a step.
    times = 1 if rules.whole_ends else degrees.micro_batches
    all_micro_batches = times * gathered + degrees.micro_batches * (layer.gather + scattered)
    if not rules.framework.states.whole_in_pipeline:
        return all_micro_batches
    # In a pipeline the layers' gathers and reductions are counted with them, and a stage has one end alone.
    one_end = np.maximum(gathers[0] + scatters[0], gathers[1] + scatters[1])
    return np.where(np.greater(degrees.pp, 1), one_end, all_micro_batches)
