"""Time of the host to start the operations of a layer, of its recompute, of the ends and of a step; arrays alike.

A framework that runs operator by operator starts every operation from Python; the device waits where it is faster.
Experts make many small ones: each expert has its own GEMMs and casts. The operations of a CUDA graph start together.

`host_operations` has the counts. Others measure too that the host bounds such layers: a Megatron layer of 128 experts
on eight H100 takes 12.4 ms forward and backward with experts of 2048 x 768 and 11.8 ms with 4096 x 1536
(github.com/marin-community/marin/issues/4311); the count here says 10.3 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.strategy import (
    GRAPHED_EXPERTS,
    GRAPHED_MIXER,
    GRAPHED_ROUTER,
    MODULE_AN_EXPERT,
    TrainingRules,
)
from taylor.cost_model.job.strategy_table import Degrees, Quantity, ulysses_ranks
from taylor.cost_model.memory.states import replicas
from taylor.cost_model.time import host_operations as counts
from taylor.cost_model.time.host_operations import Operations
from taylor.cost_model.time.selective_time import repeated_parts
from taylor.cost_model.time.torch_operations import torch_host_ms
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import ATTENTION_CORE, LATENT_UP, NORMS
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec

_Part = tuple[Operations, Quantity, str]
"""Operations, their number, and the graph that starts them."""

_GRAPH_OF = {ATTENTION_CORE: GRAPHED_MIXER, LATENT_UP: GRAPHED_MIXER, NORMS: GRAPHED_MIXER}
"""Graph that starts a part of a layer that runs again; of all others `GRAPHED_EXPERTS` or, in a layer without experts,
`GRAPHED_MIXER`."""


class HostTime(NamedTuple):
    """Host time for one layer and micro-batch, ms.

    Up to the experts' counts, behind them, backward; the part of the first before attention's core; then what full and
    selective recompute add to forward and backward together.
    """

    routed: Quantity
    experts: Quantity
    backward: Quantity
    before_core: Quantity
    again_full: Quantity
    again_select: Quantity


NO_HOST = HostTime(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def host_time(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec) -> HostTime:
    """Host time for one layer of a kind (or of an MTP module's layers), ms; none of a compiled framework.

    torch's selective checkpoint runs all of a layer's Python again, and skips kernels whose results it has saved.
    """
    rules = rules.within(model.layers_of(kind))
    if rules.framework.single_operations:
        forward, backward = torch_host_ms(model, kind, degrees, rules)
        return HostTime(forward, 0.0, backward, 0.0, forward, forward)
    if not rules.framework.starts_experts_singly:
        return NO_HOST
    layers = [_layer_operations(model, layer, degrees, rules) for layer in model.layers_of(kind)]
    host = HostTime(*(1e-3 * device.operation_us * sum(part) for part in zip(*layers, strict=True)))
    hooks = sum(_hooks(model, layer, degrees, rules) for layer in model.layers_of(kind))
    return host._replace(backward=host.backward + 1e-3 * counts.TORCH_OPERATION_US * hooks)


def rotation_ms(model: ModelSpec, kind: str, rules: TrainingRules) -> tuple[float, float]:
    """Host time that rotates a pack's samples one by one, forward and backward, ms (`TrainingRules.packed_samples`).

    The forward's stands by itself: the host waits for the samples' lengths until the device has finished all before.
    """
    if not (rules.packed_samples and rules.framework.starts_experts_singly):
        return 0.0, 0.0
    layers = [counts.sample_rotations(layer, rules) for layer in model.layers_of(kind)]
    ahead, back = (1e-3 * counts.TORCH_OPERATION_US * sum(part) for part in zip(*layers, strict=True))
    return ahead, back


def _layer_operations(
    model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules
) -> tuple[Quantity, Quantity, Quantity, Quantity, Quantity, Quantity]:
    """The fields of `HostTime` as numbers of operations, for a layer without what comes behind it."""
    learned = model.learned_positions > 0
    mixer: list[_Part] = [
        (part, times, GRAPHED_MIXER) for part, times in counts.mixer_operations(layer, rules, learned_positions=learned)
    ]
    if layer.attention is not None:
        mixer.append((counts.RING_BLOCK, _ring_blocks(degrees, rules), GRAPHED_MIXER))
    before, behind = list(mixer), list[_Part]()
    if layer.moe is not None:
        before.append((counts.ROUTER, 1, GRAPHED_ROUTER))
        if layer.moe.shared_width:
            before.append((counts.SHARED, 1, GRAPHED_ROUTER))
        behind = [(counts.EXPERTS, 1, GRAPHED_EXPERTS)]
        behind.append((*counts.expert_operations(layer.moe, degrees, rules), GRAPHED_EXPERTS))
    elif layer.mlp is not None:
        before.append((counts.DENSE, 1, GRAPHED_MIXER))
    if rules.adapters is not None:
        apart, grouped = _adapter_parts(model, layer, degrees, rules)
        before, behind = before + apart, behind + grouped
        # A frozen GEMM's backward makes one gradient.
        before.append((Operations(0, -1), _frozen_products(layer, degrees, rules), GRAPHED_MIXER))
    ahead, back = _transfers(layer, degrees, rules)
    routed = _starts(before, rules, back=False) + ahead
    experts = _starts(behind, rules, back=False)
    backward = _starts([*before, *behind], rules, back=True) + back
    before_core: Quantity = 0.0
    if layer.attention is not None and layer.moe is not None and GRAPHED_MIXER not in rules.graphed:
        before_core = _starts(mixer, rules, back=False) - counts.FROM_CORE_ON
    whole = {GRAPHED_MIXER, GRAPHED_ROUTER, GRAPHED_EXPERTS}.issubset(rules.graphed)
    checkpoint = 0.0 if whole else counts.CHECKPOINT / rules.recompute_group
    full = checkpoint + (1 - counts.WITHOUT_RECORDS) * (routed + experts)
    return routed, experts, backward, before_core, full, _selective(model, layer, degrees, rules)


def _adapter_parts(
    model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules
) -> tuple[list[_Part], list[_Part]]:
    """Operations of a layer's adapters: of those that are modules of their own, and of those of grouped experts."""
    adapters = rules.adapters
    if adapters is None:
        return [], []
    one = Operations(counts.ADAPTER.forward + adapters.dropout, counts.ADAPTER.backward + adapters.dropout)
    tensors = counts.layer_tensors(model, layer, degrees, rules)
    if layer.moe is None or adapters.shared_by_experts or rules.expert_gemms == MODULE_AN_EXPERT:
        return [(one, (tensors.other + tensors.routed) / 2, GRAPHED_MIXER)], []
    each = counts.ADAPTER_GEMMS
    _, groups = counts.expert_operations(layer.moe, degrees, rules)
    matrices = tensors.routed / 2 / (layer.moe.n_experts / degrees.ep)
    rest = Operations(one.forward - each.forward, one.backward - each.backward)
    grouped = [(each, matrices * groups, GRAPHED_EXPERTS), (rest, matrices, GRAPHED_EXPERTS)]
    return [(one, tensors.other / 2, GRAPHED_MIXER)], grouped


def _frozen_products(layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """GEMMs of a layer whose backward makes no weight's gradient."""
    dense = 0
    if layer.mixer is not None:
        dense += 2 if layer.attention is None or layer.attention.latent is None else 5
    dense += 2 * (layer.mlp is not None)
    if layer.moe is None:
        return dense
    own, number = counts.expert_operations(layer.moe, degrees, rules)
    return dense + 2 * bool(layer.moe.shared_width) + own.backward / 2 * number


def _transfers(layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> tuple[Quantity, Quantity]:
    """Transfers of TP in a layer's forward and backward.

    A block's gather and scatter under sequence parallelism, one more gather in backward; else one all-reduce each way.
    Routed experts exchange instead.
    """
    split = np.greater(degrees.tp, 1)
    ahead = np.where(split, np.where(degrees.sp, 2, 1), 0)
    back = np.where(split, np.where(degrees.sp, 3, 1), 0)
    blocks = (layer.mixer is not None) + (layer.moe is None and layer.mlp is not None)
    if layer.moe is not None and layer.moe.shared_width:
        blocks += 1
    if GRAPHED_MIXER in rules.graphed:
        return 0.0, 0.0
    of_latents = layer.attention is not None and layer.attention.latent is not None
    gathered = np.logical_and(of_latents, np.greater(ahead, 1))
    more, more_back = counts.LATENT_TRANSFERS
    return blocks * ahead + more * gathered, blocks * back + more_back * gathered


def _ring_blocks(degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Blocks of keys and values that come round the ring of context ranks to each of them."""
    ways = ulysses_ranks(degrees, rules)
    return np.maximum(degrees.cp / ways - 1, 0)


def _hooks(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Operations of torch for the gradients of a layer's parameters; a graph starts those of its own."""
    tensors = counts.layer_tensors(model, layer, degrees, rules)
    other = 0.0 if GRAPHED_MIXER in rules.graphed else tensors.other
    return counts.HOOK * (other + (0.0 if GRAPHED_EXPERTS in rules.graphed else tensors.routed))


def _selective(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Operations that selective recompute adds to a layer's forward and backward."""
    total: Quantity = 0.0
    for part in sorted(repeated_parts(rules)):
        graph = _GRAPH_OF.get(part, GRAPHED_MIXER if layer.moe is None else GRAPHED_EXPERTS)
        if graph in rules.graphed:
            continue
        own, checkpoints = counts.repeated_operations(
            layer, part, degrees, rules, learned_positions=model.learned_positions > 0
        )
        total = total + (1 - counts.WITHOUT_RECORDS) * own + checkpoints * counts.CHECKPOINT
    return total


def ends_ms(model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec) -> tuple[Quantity, Quantity]:
    """Host time of the head with its loss, and of the embedding, for one micro-batch, ms.

    As the step takes them: a third of the head's both ways, half of the embedding's.
    """
    if not rules.framework.starts_experts_singly:
        return 0.0, 0.0
    split = np.greater(degrees.tp, 1)
    loss = counts.LOSS if rules.loss_kernel is None else counts.FUSED_LOSS
    both = _both(counts.HEAD) + _both(loss) + np.where(split, counts.LOSS_TRANSFERS, 0)
    embedding = _both(counts.EMBEDDING) + np.where(split, _both(counts.SPLIT_EMBEDDING), 0)
    operation_ms = 1e-3 * device.operation_us
    return operation_ms * (1 + model.mtp_layers) * both / 3, operation_ms * embedding / 2


def _both(operations: Operations) -> int:
    return operations.forward + operations.backward


def update_ms(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Host time of the optimizer's step on an average stage, ms.

    The host is not ahead: Megatron waits for the gradients' norm where the library cannot scale by a tensor
    (megatron/core/optimizer/clip_grads.py:138), and each layer with dropless experts waits for their counts. A
    distributed optimizer cuts one buffer of all gradients in equal parts and updates the tensors of its own, a whole or
    a part of each (optimizer/distrib_optimizer.py:134-190).
    """
    if not rules.framework.starts_experts_singly:
        return 0.0
    tensors = counts.stage_tensors(model, degrees, rules)
    if not (rules.parallel_optimizer or rules.parameter_shard):
        own = tensors.routed + tensors.other
    else:
        dense_ranks, _, routed_ranks = replicas(degrees, rules)
        shards = np.maximum(np.minimum(degrees.op, dense_ranks), 1)
        routed_shards = np.where(np.greater_equal(degrees.op, dense_ranks), routed_ranks, shards)
        own = np.maximum(tensors.other / shards, 1.0) + tensors.routed / routed_shards
    return 1e-3 * counts.TORCH_OPERATION_US * counts.UPDATED_TENSOR * own


def shown_together(device: Quantity, host: Quantity, more_device: Quantity, more_host: Quantity) -> Quantity:
    """Time that more work adds to a segment, ms; a segment takes the larger of its times on device and host."""
    return np.maximum(device + more_device, host + more_host) - np.maximum(device, host)


def shown_forward(forward: Quantity, of_experts: Quantity, core: Quantity, host: HostTime, *, static: bool) -> Quantity:
    """Forward of a layer whose operations the host starts, ms.

    Parameters
    ----------
    forward, of_experts, core : ms
        Device time for the layer, for the part behind the experts' counts, and for attention's core.
    static : bool
        The number of every expert's rows is known beforehand. Else the host waits for the counts: it starts the
        experts when the device has finished the rest (Megatron-LM d98e8a64
        megatron/core/transformer/moe/token_dispatcher.py `_maybe_dtoh_and_synchronize`).
    """
    bound = np.maximum(forward, host.routed + host.experts)
    if static:
        return bound
    # From one layer's counts to the next's, the device runs only operations started behind the first ones.
    waits = np.maximum(host.experts + forward - of_experts, host.experts + host.before_core + core)
    return np.maximum(bound, np.where(host.experts > 0, waits, 0.0))


def _starts(parts: Sequence[_Part], rules: TrainingRules, *, back: bool) -> Quantity:
    total: Quantity = 0.0
    for operations, times, graphed in parts:
        if graphed in rules.graphed:
            continue
        count = operations.backward if back else operations.forward
        if rules.narrow is not None:
            count += operations.backward_casts if back else operations.forward_casts
        total = total + times * count
    return total
