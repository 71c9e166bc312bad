"""Time of the experts' exchanges, and of the computation that overlaps them; scalars and arrays alike."""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.parameters import expert_outer
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens, routed_slots
from taylor.cost_model.memory.saved_operators import mlp_products
from taylor.cost_model.network.collectives import Copies, all_to_all_ms, gather_ms
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.work import LayerWork
from taylor.register.device import DeviceSpec
from taylor.register.layers import MoeSpec
from taylor.register.model import ModelSpec

EXCHANGE_PROCESSORS = 20 / 132
"""Fraction of a device's multiprocessors that exchanges take while they run beside computation: DeepEP's 20
(deep_ep/buffer.py, ``Buffer.num_sms``) of an H100's 132."""

DEEPEP_NEAR, DEEPEP_FAR = 0.69, 0.88
"""Fractions of the bandwidth inside a node and between nodes that DeepEP's dispatch and combine reach: 153 and 158 of
200 GB/s on H800, 726 and 740 of 900 on SM100, of which seven of eight parts leave the rank; between nodes 58, 57
(EP 32), 51, 50 (EP 64) and 61 GB/s (8 x 4) for a port of 50 GB/s, of which three of four or seven of eight parts leave
the node (deepseek-ai/DeepEP dd758caf docs/legacy.md, README.md, both under «Performance»). HybridEP publishes none:
assumed to reach the same."""


def expert_exchange_ms(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> Quantity:
    """Tokens to their experts and back; split experts need them gathered over TP there and scattered back."""
    return sum(
        _routed_ms(model, layer.moe, degrees, rules, device, speed)
        for layer in model.layers_of(kind)
        if layer.moe is not None
    )


def shown_exchange_ms(exchange: Quantity, compute: Quantity, rules: TrainingRules) -> Quantity:
    """Exposed time of the experts' exchanges in a layer's forward, or its backward, ms.

    Beside another micro-batch's forward or backward they are overlapped as far as a layer's computation of both ways
    lasts, which they slow down by the multiprocessors that they take from it.
    """
    if not rules.overlap_experts:
        return exchange
    hidden = np.minimum(exchange, compute / 2)
    return exchange - hidden * (1 - EXCHANGE_PROCESSORS)


def alone_exchange_ms(
    exchange: Quantity, rules: TrainingRules, shared: Quantity, expert_weight_gradients: Quantity
) -> tuple[Quantity, Quantity]:
    """Exposed time of the experts' exchanges in a layer's forward and backward that run alone, ms.

    MindSpeed's passes with ``--moe-fb-overlap`` overlap some of them with the layer itself: the dispatch with the
    shared experts; backward the combine with theirs, the dispatch with the experts' weight gradients (MindSpeed
    028de58c mindspeed/core/transformer/moe/moe_feature/fb_overlap/overlap_funcs/fwd.py:132-153, bwd.py:60-75, 125-144).

    Parameters
    ----------
    shared, expert_weight_gradients : float
        The layer's shared experts forward, and the weight gradients of its routed ones, ms.
    """
    if not rules.overlap_inside:
        return exchange, exchange
    half = exchange / 2
    behind = np.minimum(2 * shared, half) + np.minimum(expert_weight_gradients, half)
    return exchange - np.minimum(shared, half), exchange - behind


def shared_experts_ms(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, speed: Speed, work: LayerWork
) -> Quantity:
    """Forward of the shared experts of one layer of a kind, ms; 0 without any."""
    layers = [layer for layer in model.layers_of(kind) if layer.moe is not None and layer.moe.shared_width]
    if not layers:
        return 0.0
    weights = sum(product.weights for layer in layers for product in mlp_products(model, layer, degrees))
    products = speed.flops("matmul", 2 * micro_batch_tokens(degrees, rules) * weights)
    return products + speed.bytes(work.activation_bytes - work.expert_activation_bytes)


def _routed_ms(
    model: ModelSpec, moe: MoeSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> Quantity:
    tokens = micro_batch_tokens(degrees, rules)
    if rules.gathers_tokens:
        # Megatron-LM d98e8a64 megatron/core/transformer/moe/token_dispatcher.py `MoEAllGatherTokenDispatcher`: gathered
        # over the ranks of EP, and of TP where it splits the experts; the results are scattered back as sums.
        split = rules.experts_over(degrees.tp)
        own = tokens * np.where(degrees.sp, split / degrees.tp, 1)
        ranks = degrees.ep * split
        gathered = own * degrees.ep * expert_outer(model, moe) * rules.compute_bytes
        return 2 * gather_ms(gathered, ranks, 1, device, speed.network)
    slots = tokens * routed_slots(moe, degrees, rules) * (1 + moe.n_empty / moe.n_experts)
    volume = slots * expert_outer(model, moe) * rules.compute_bytes
    copies, near, far = None, speed.network, speed.network
    if rules.dispatch_by_node:
        copies, near, far = Copies(moe.top_k, moe.n_groups, moe.top_groups), DEEPEP_NEAR, DEEPEP_FAR
    if rules.whole_experts:
        return 2 * all_to_all_ms(volume, degrees.ep, 1, device, near, copies, far)
    split = rules.experts_over(degrees.tp)
    own = volume / np.where(degrees.sp, split, 1)
    exchange = all_to_all_ms(own, degrees.ep, split, device, near, copies, far)
    return 2 * exchange + 2 * gather_ms(volume, split, 1, device, speed.network)
