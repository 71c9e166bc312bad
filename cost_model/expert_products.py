"""Time of the products of routed experts by their shapes; scalars and arrays alike.

Every expert multiplies a matrix of its own, so that a product's shape is its share of the rows by its width. What
arithmetic takes, what writing the results takes and what reading the operands takes add up: a tile's results leave
when its last product is done, and an expert's weights are read for its own rows alone. The three shares are settled by
single products of another's table: DeepGEMM's 16 of at least 256 rows on H800 (github.com/deepseek-ai/DeepGEMM
a6d97a1 README.md, M x N x K with the TFLOP/s reached), which they repeat within 2 % in the median, 16 % at most.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from taylor.cost_model.activations import micro_batch_tokens, routed_slots
from taylor.cost_model.parameters import expert_outer
from taylor.cost_model.speed import Speed
from taylor.cost_model.strategy import TrainingRules
from taylor.cost_model.strategy_table import Degrees
from taylor.register.layers import MoeSpec
from taylor.register.model import ModelSpec


class ExpertProducts(NamedTuple):
    """Times of one layer's grouped products for one micro-batch on one device, ms."""

    forward: Any
    input_gradients: Any
    weight_gradients: Any

    @property
    def backward(self) -> Any:
        """Both gradients."""
        return self.input_gradients + self.weight_gradients


NO_PRODUCTS = ExpertProducts(0.0, 0.0, 0.0)


def expert_products(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, speed: Speed
) -> ExpertProducts:
    """Times of the grouped products of one layer of a kind (or of an MTP module's layers), ms."""
    experts = [layer.moe for layer in model.layers_of(kind) if layer.moe is not None]
    each = [_layer_products(model, moe, degrees, rules, speed) for moe in experts]
    return ExpertProducts(*(sum(times) for times in zip(*each, strict=True))) if each else NO_PRODUCTS


def _layer_products(
    model: ModelSpec, moe: MoeSpec, degrees: Degrees, rules: TrainingRules, speed: Speed
) -> ExpertProducts:
    rows = micro_batch_tokens(degrees, rules) * routed_slots(moe, degrees, rules)
    outer, width = expert_outer(model, moe), moe.expert_hidden / (1 if rules.whole_experts else degrees.tp)
    local = moe.n_experts / degrees.ep
    operand, result = rules.saved_input_bytes, rules.compute_bytes
    forward: Any = 0.0
    inputs: Any = 0.0
    weights: Any = 0.0
    for wide, narrow in ((outer, (2 if moe.gated else 1) * width), (width, outer)):
        flops, matrices = 2 * rows * wide * narrow, local * wide * narrow
        forward = forward + grouped_ms(speed, flops, operand * (matrices + rows * wide), result * rows * narrow)
        inputs = inputs + grouped_ms(speed, flops, operand * (matrices + rows * narrow), result * rows * wide)
        written = gradient_traffic(rules) * matrices
        weights = weights + grouped_ms(speed, flops, operand * rows * (wide + narrow), written)
    return ExpertProducts(forward, inputs, weights)


def gradient_traffic(rules: TrainingRules) -> int:
    """Bytes a weight that its gradient moves in one micro-batch.

    The product reads and writes the accumulated gradient (transformer engine's GEMM with beta 1 into ``main_grad``);
    where it does not, its own result is written, read, and added. FSDP reduces what a backward pass made.
    """
    if rules.parameter_shard:
        return rules.compute_bytes
    accumulated = 2 * rules.gradient_bytes
    return accumulated if rules.adds_in_products else accumulated + 2 * rules.compute_bytes


def grouped_ms(speed: Speed, flops: Any, read_bytes: Any, written_bytes: Any) -> Any:
    """Time of one grouped product, ms: its arithmetic, its operands, its results."""
    read, written = speed.bytes(read_bytes, "expert_operands"), speed.bytes(written_bytes, "expert_results")
    return speed.flops("matmul", flops) + read + written
