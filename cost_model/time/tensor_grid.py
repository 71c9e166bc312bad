"""Transfers of tensor parallelism in two dimensions (MindSpeed's ``--tp-2d``): TP ranks form a grid of x by y.

The stream between layers is split x ways over tokens and y ways over the hidden size, a GEMM's weight x ways over its
outputs and y ways over its inputs. The GEMM gathers its input among x ranks and scatters its partial sums among y; the
next GEMM does the reverse. Nothing runs beside these in forward. Backward gathers the gradient of the output alone,
then the input beside the GEMM that needs no input, and scatters the input's gradient beside the weight's (MindSpeed
028de58c mindspeed/core/tensor_parallel/tp_2d/linear_2d_split_along_first_dim.py:96-131, 170-228; which ranks:
mlp_2d.py:30-62, self_attention_2d.py:46-87). So everything that a layer keeps is split TP ways, as under sequence
parallelism. Keys and values go around a ring of y ranks (adaptor.py:30-36 of core/context_parallel,
`TensorParallelYUnionCP`), and a norm reduces two numbers a token among them (rms_norm_2d.py:74, 89).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens
from taylor.cost_model.network.collectives import gather_ms
from taylor.cost_model.time.overlap import shown_behind
from taylor.cost_model.time.product_times import ProductTimes
from taylor.cost_model.time.speed import Speed
from taylor.register.device import DeviceSpec
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec

_FP32 = 4


class GridTransfers(NamedTuple):
    """Exposed time of a layer's transfers, ms."""

    forward: Quantity
    backward: Quantity
    ring: Quantity


def grid_transfers(
    model: ModelSpec,
    kind: str,
    degrees: Degrees,
    rules: TrainingRules,
    device: DeviceSpec,
    speed: Speed,
    products: ProductTimes,
) -> GridTransfers:
    """Exposed time of the grid's transfers in one layer and micro-batch, and of the keys and values in its ring, ms.

    Parameters
    ----------
    products : ProductTimes
        Times of the layer's GEMMs.
    """
    assert rules.tensor_grid is not None
    x, y = rules.tensor_grid
    tokens = micro_batch_tokens(degrees, rules)

    def among_x(width: Quantity) -> Quantity:
        return gather_ms(tokens * width * rules.compute_bytes, x, 1, device, speed.network)

    def among_y(width: Quantity, bytes_each: float = rules.compute_bytes) -> Quantity:
        return gather_ms(tokens * width * bytes_each, y, x, device, speed.network)

    forward: Quantity = 0.0
    exposed: Quantity = 0.0
    inputs: Quantity = 0.0
    ring: Quantity = 0.0
    for layer in model.layers_of(kind):
        for wide_in, wide_out, first in _products(model, layer):
            into = among_x(wide_in / y) if first else among_y(wide_in / x)
            out = among_y(wide_out / x) if first else among_x(wide_out / y)
            forward, exposed, inputs = forward + into + out, exposed + out, inputs + into
        # An all-reduce is a gather and a scatter.
        sums = 2 * layer.norm_count * among_y(1, _FP32)
        forward, exposed = forward + sums, exposed + sums
        if layer.attention is not None:
            kept = layer.attention
            ring = ring + among_y(kept.n_kv_heads * (kept.head_dim + kept.v_width) / x)
    beside = shown_behind(inputs, products.input_gradients) + shown_behind(inputs, products.weight_gradients)
    return GridTransfers(forward, exposed + beside, ring)


def forms_grid(degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Return whether the TP ranks form the job's grid."""
    return rules.tensor_grid is not None and np.equal(degrees.tp, rules.tensor_grid[0] * rules.tensor_grid[1])


def _products(model: ModelSpec, layer: LayerSpec) -> Iterator[tuple[int, int, bool]]:
    """Widths of input and output of a layer's GEMMs, and whether each gathers among x ranks."""
    attention, mlp = layer.attention, layer.mlp
    if attention is not None:
        queries, context = attention.n_heads * attention.head_dim, attention.n_heads * attention.v_width
        keys = attention.n_kv_heads * (attention.head_dim + attention.v_width)
        yield model.hidden, queries + keys, True
        yield context, model.hidden, False
    if mlp is not None:
        yield model.hidden, mlp.width * (2 if mlp.gated else 1), True
        yield mlp.width, model.hidden, False
