"""Time of the GEMMs of routed experts by their shapes (`cost_model.time.product_times`); scalars and arrays alike.

Every expert has its own matrix, so that a GEMM's shape is the expert's rows by its width, and an expert's
weights are read for its own rows alone.
"""

from __future__ import annotations

from taylor.cost_model.job.parameters import expert_outer
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens, routed_slots
from taylor.cost_model.time.product_times import NO_PRODUCTS, ProductTimes, gradient_traffic, weight_gradients
from taylor.cost_model.time.speed import Speed
from taylor.register.layers import MoeSpec
from taylor.register.model import ModelSpec


def expert_products(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, speed: Speed) -> ProductTimes:
    """Times of the grouped GEMMs of one layer of a kind (or of an MTP module's layers), ms."""
    experts = [layer.moe for layer in model.layers_of(kind) if layer.moe is not None]
    if rules.of_experts is not rules:
        rules, speed = rules.of_experts, Speed.of(speed.device, rules.of_experts, in_layer=True)
    each = [_layer_products(model, moe, degrees, rules, speed) for moe in experts]
    return ProductTimes(*(sum(times) for times in zip(*each, strict=True))) if each else NO_PRODUCTS


def _layer_products(
    model: ModelSpec, moe: MoeSpec, degrees: Degrees, rules: TrainingRules, speed: Speed
) -> ProductTimes:
    rows = micro_batch_tokens(degrees, rules) * routed_slots(moe, degrees, rules)
    outer, width = expert_outer(model, moe), moe.expert_hidden / rules.experts_over(degrees.tp)
    local = moe.n_experts / degrees.ep
    operand, result = rules.operand_bytes, rules.compute_bytes
    of_gradients, joined = weight_gradients(rules, speed)
    forward: Quantity = 0.0
    inputs: Quantity = 0.0
    weights: Quantity = 0.0
    for wide, narrow in ((outer, (2 if moe.gated else 1) * width), (width, outer)):
        flops, matrices = 2 * rows * wide * narrow, local * wide * narrow
        forward = forward + speed.grouped(flops, operand * (matrices + rows * wide), result * rows * narrow)
        inputs = inputs + speed.of_gradients.grouped(flops, operand * (matrices + rows * narrow), result * rows * wide)
        if rules.adapters is not None:
            continue
        written = gradient_traffic(rules) * matrices
        weights = weights + of_gradients.accumulated(flops, joined * rows * (wide + narrow), written, "expert_")
    return ProductTimes(forward, inputs, weights)
