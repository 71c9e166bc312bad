"""Time of the host to start the operations of a layer of torch's own modules: torchtitan; scalars and arrays alike.

Counted in torchtitan v0.2.2 (torchtitan/models/llama3/model/model.py ``TransformerBlock``, models/moe/moe.py,
models/llama3/infra/parallelize.py). The host runs ahead of the device over the whole step, for nothing reads a result
before the log does: a layer waits only where its operations take longer to start than to run.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.time.host_operations import TORCH_OPERATION_US
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec

DTENSOR_OPERATION_US = 38.0
"""The same of an operation on a DTensor, µs: 36 to 40 before torch dispatched them in C++
(github.com/pytorch/pytorch/pull/166371, October 2025, ``detach`` on a Skylake host)."""
SHARD_HOOK_US = 1000.0
"""Time of a module's hook that gathers or scatters its shards (FSDP), µs: ``FSDP::pre_forward`` takes 1 ms on a Xeon
with torch 2.10 (github.com/pytorch/pytorch/issues/173680). The hooks of backward take the same: assumed."""


class Started(NamedTuple):
    """Operations in forward and backward, one by one, and as the kernels of a compiled region."""

    forward: int
    backward: int
    kernels: int
    kernels_back: int


MIXER = Started(16, 25, 8, 14)
"""Attention: norm, three GEMMs, rotation of queries and keys in fp32 (6), heads repeated (2), attention, copy, GEMM,
residual; back: two gradients a GEMM (8), norm (2), rotation (6), heads (2), attention, copy, gradients of queries, keys
and values added up (2), residual (2), zeros. Compiled: GEMMs (4), attention, norm, rotation, residual; back: GEMMs (8),
attention, norm (2), rotation, sums (2). Other mixers count the same: assumed."""
DENSE = Started(7, 13, 6, 10)
"""Gated MLP: norm, three GEMMs, SiLU, product, residual; back: GEMMs (6), norm (2), SiLU, product (2), sums (2).
Compiled, SiLU and product are one kernel each way, and the residual goes with the next norm."""
EXPERTS = Started(45, 50, 30, 35)
"""Router, its choice (8), counts, permutation, exchanges (4), three grouped GEMMs, combination. Assumed within a
quarter: the release's steps differ."""

_LINEAR_DISPATCHES = 4, 7
"""Dispatches of a GEMM on DTensors: weight transposed, input viewed, product, result viewed; and in backward."""


def torch_host_ms(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> tuple[Quantity, Quantity]:
    """Host time for one layer's forward and backward, ms.

    Under TP every GEMM and norm works on DTensors, whose dispatch is Python's, unless the layer is compiled: then the
    compiled region starts its kernels, and only its inputs and results are DTensors (torchtitan b5bcd76c
    torchtitan/models/llama3/parallelize.py:41-75: ``torch.compile`` of a block, behind its plan and under FSDP).
    """
    forward: Quantity = 0.0
    backward: Quantity = 0.0
    split = np.greater(degrees.tp, 1)
    for layer in model.layers_of(kind):
        for part, linears in _parts(layer):
            ahead, back = (part.kernels, part.kernels_back) if rules.compiled else (part.forward, part.backward)
            forward, backward = forward + TORCH_OPERATION_US * ahead, backward + TORCH_OPERATION_US * back
            # The norm in front, and the transfers before and behind.
            beside = 3
            there, again = (count * linears + beside for count in _LINEAR_DISPATCHES)
            if rules.compiled:
                there = again = 2
            forward = forward + np.where(split, DTENSOR_OPERATION_US * there, 0.0)
            backward = backward + np.where(split, DTENSOR_OPERATION_US * again, 0.0)
    if rules.parameter_shard:
        # Gathered ahead of forward and backward; scattered behind the backward.
        forward, backward = forward + SHARD_HOOK_US, backward + 2 * SHARD_HOOK_US
    return 1e-3 * forward, 1e-3 * backward


def _parts(layer: LayerSpec) -> list[tuple[Started, int]]:
    """Parts of a layer with the number of their GEMMs."""
    parts: list[tuple[Started, int]] = []
    if layer.mixer is not None:
        parts.append((MIXER, 4))
    if layer.mlp is not None:
        parts.append((DENSE, 3))
    if layer.moe is not None:
        parts.append((EXPERTS, 3 if layer.moe.shared_width else 0))
    return parts
