"""Time of GEMMs by their shapes; scalars and arrays alike.

The times of arithmetic, of writing the results and of reading the operands add up: a tile's results are written when
its last product is done. So narrow GEMMs, and few rows beside many weights, stay further from the peak, and a weight's
gradient costs the traffic of adding it to the accumulated one, in every micro-batch. The efficiencies of the memory
bandwidth come from single GEMMs of another's table: DeepGEMM's 16 of at least 256 rows on H800, six of them of dense
layers (github.com/deepseek-ai/DeepGEMM a6d97a1 README.md, M x N x K with the TFLOP/s reached), which they repeat within
2 % in the median, 16 % at most.
"""

from __future__ import annotations

from typing import NamedTuple

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Quantity
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.work import LayerWork


class ProductTimes(NamedTuple):
    """Times of one layer's GEMMs for one micro-batch on one device, ms."""

    forward: Quantity
    input_gradients: Quantity
    weight_gradients: Quantity

    @property
    def backward(self) -> Quantity:
        """Both gradients."""
        return self.input_gradients + self.weight_gradients


NO_PRODUCTS = ProductTimes(0.0, 0.0, 0.0)


def gradient_traffic(rules: TrainingRules) -> int:
    """Bytes a weight that its gradient moves in one micro-batch.

    The GEMM reads and writes the accumulated gradient (transformer engine's GEMM with beta 1 into ``main_grad``);
    where it does not, its own result is written, read, and added. FSDP reduces what a backward pass made.
    """
    if rules.parameter_shard:
        return rules.compute_bytes
    accumulated = 2 * rules.gradient_bytes
    return accumulated if rules.adds_in_products else accumulated + 2 * rules.compute_bytes


def weight_gradients(rules: TrainingRules, speed: Speed) -> tuple[Speed, float]:
    """Speed of the GEMMs that make a weight's gradient, and bytes an element of what they read."""
    if rules.narrow is None or not rules.narrow.wide_weight_gradients:
        return speed.of_gradients, rules.operand_bytes
    return speed.wide, rules.compute_bytes


def dense_products(work: LayerWork, rules: TrainingRules, speed: Speed) -> ProductTimes:
    """Times of a layer's dense GEMMs, ms."""
    operand, result = rules.operand_bytes, rules.compute_bytes
    weights, inputs, outputs = work.matrices, work.product_inputs, work.product_outputs
    forward = speed.product(work.matmul_flops, operand * (weights + inputs), result * outputs)
    back = speed.of_gradients.product(work.matmul_flops, operand * (weights + outputs), result * inputs)
    if rules.adapters is not None:
        return ProductTimes(forward, back, 0.0)
    of_gradients, joined = weight_gradients(rules, speed)
    written = gradient_traffic(rules) * weights
    return ProductTimes(
        forward, back, of_gradients.accumulated(work.matmul_flops, joined * (inputs + outputs), written)
    )
