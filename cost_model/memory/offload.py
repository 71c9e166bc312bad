"""Host memory of a layer's modules with offloaded inputs; scalars and arrays alike.

Megatron-LM d98e8a64 moves what a module saves for its backward to pinned host memory and back, a stream for each
direction (megatron/core/pipeline_parallel/fine_grained_activation_offload.py; which modules: megatron/core/transformer
attention.py:397-409, transformer_layer.py:1544-1556, moe/experts.py:254-266). This module counts their inputs, by the
formulas of `activations`: of the attention core queries, keys and values, not its result, which the output projection's
module moves. A core without a flash kernel saves its scores too, and a module's hook moves every tensor that its
forward saves (fine_grained_activation_offload.py:863, ``on_save_for_backward``).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from taylor.cost_model.job.parameters import expert_outer
from taylor.cost_model.job.sparse_latent import sparse_latent
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import (
    activation_bytes,
    attention_bytes,
    input_split,
    micro_batch_tokens,
    norm_input_bytes,
    routed_slots,
    score_bytes,
    sequence_split,
)
from taylor.pipeline.plan import NONE
from taylor.register.frameworks import ATTENTION_CORE, EXPERT_BLOCK, LATENT_UP, NORMS
from taylor.register.layers import AttentionSpec, LayerSpec
from taylor.register.model import ModelSpec

HOST_LINK_SHARE = 0.8
"""Assumed fraction of the link's stated bandwidth that transfers of pinned memory reach.

Measured with NVIDIA's nvbandwidth, threads of github.com/NVIDIA/nvbandwidth: A100 25.1 of 32 GB/s (0.79, issue 42),
H100 57 of 64 (0.89, issue 6), GH200 346 of 450 (0.77, issue 23), each in one direction at a time.
"""

ATTENTION_NORM, BLOCK_NORM = "attention's norm", "the norm before MLP or experts"
PROJECTION_INPUT, CORE_INPUTS, CONTEXT = "input of queries, keys and values", "queries, keys and values", "context"
EXPERT_INPUT, EXPERT_INNER = "experts' input", "input of the experts' activation function"
WHOLE_ATTENTION = "all that attention keeps behind its norm"
"""Tensors of a module that MindSpeed moves: every one that its forward saves and that takes half a MiB or more
(028de58c mindspeed/core/memory/swap_attention/prefetch.py:124, ``no_swap_tensor``); smaller ones are counted with
them."""
WHOLE_LAYER, CORE_RESULT = "all that a layer keeps", "what attention's core gives"
"""Tensors of an offloaded cell that MindSpore moves: results of its operators, so all that a layer keeps
(mindspore/python/mindspore/nn/cell.py, ``Cell.offload``)."""

IN_FLIGHT_LAYERS = 2
"""Layers whose moved tensors are on the device at the worst moment: the one whose backward runs, and the next one's,
which come back meanwhile (megatron/core/pipeline_parallel/fine_grained_activation_offload.py:1198,
``pre_reload_last_layer``, 1271, ``bulk_reload``)."""

OFFLOADED = (ATTENTION_NORM, PROJECTION_INPUT, CORE_INPUTS, CONTEXT, BLOCK_NORM, EXPERT_INPUT, EXPERT_INNER)
"""Parts that Megatron-LM can move, each the input of a module."""

KEPT_NOTHING_OF: dict[str, tuple[str, ...]] = {
    PROJECTION_INPUT: (NORMS, LATENT_UP),
    CORE_INPUTS: (ATTENTION_CORE, LATENT_UP),
    EXPERT_INPUT: (EXPERT_BLOCK,),
    EXPERT_INNER: (EXPERT_BLOCK,),
}
"""Parts of a layer that run again, so that an input need not be moved, or is made again."""


def offloaded_bytes(
    model: ModelSpec, kind: str, inputs: Collection[str], degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """Bytes of one micro-batch that a layer of a kind moves to the host.

    Parameters
    ----------
    inputs : collection of str
        Of `OFFLOADED`, `WHOLE_ATTENTION`, `WHOLE_LAYER`, `CORE_RESULT`; what a layer does not have is nothing.
    """
    if WHOLE_LAYER in inputs:
        return activation_bytes(model, kind, NONE, degrees, rules)
    if WHOLE_ATTENTION in inputs:
        return sum(attention_bytes(model, layer, degrees, rules) for layer in model.layers_of(kind))
    tokens = micro_batch_tokens(degrees, rules)
    return sum(
        tokens * _of_layer(model, layer, part, degrees, rules) for layer in model.layers_of(kind) for part in inputs
    )


def _of_layer(model: ModelSpec, layer: LayerSpec, part: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes a token."""
    attention, moe = layer.attention, layer.moe
    norm = norm_input_bytes(rules) * model.hidden / sequence_split(degrees)
    if part == BLOCK_NORM:
        # Experts have a separate norm; before an MLP it may be one kernel with the GEMM.
        alone = moe is not None or (layer.mlp is not None and not rules.fused_norms)
        return norm if alone else 0.0
    if part in (EXPERT_INPUT, EXPERT_INNER):
        if moe is None:
            return 0.0
        width = moe.expert_hidden / (1 if rules.whole_experts else degrees.tp)
        inner = rules.compute_bytes * (2 if moe.gated else 1) * width
        return routed_slots(moe, degrees, rules) * (
            rules.saved_input_bytes * expert_outer(model, moe) if part == EXPERT_INPUT else inner
        )
    if attention is None:
        return 0.0
    if part == ATTENTION_NORM:
        return norm if attention.latent is not None or not rules.fused_norms else 0.0
    if part == PROJECTION_INPUT:
        return rules.saved_input_bytes * model.hidden / input_split(degrees, rules)
    if part == CORE_RESULT:
        sparse = sparse_latent(attention, rules)
        context = rules.saved_input_bytes * (attention.v_width if sparse is None else sparse.value_width)
        statistics = 4 * rules.framework.activations.attention_statistics if rules.flash_attention else 0
        return attention.n_heads / degrees.tp * (context + statistics)
    if part == CONTEXT:
        return rules.saved_input_bytes * attention.n_heads / degrees.tp * attention.v_width
    scores: Quantity = 0.0
    if not rules.flash_attention:
        scores = score_bytes(rules) * attention.n_heads / degrees.tp * rules.seq_length
    return rules.compute_bytes * _core_inputs(attention, degrees, rules) + scores


def _core_inputs(attention: AttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Elements a token of queries, keys and values."""
    heads = attention.n_heads / degrees.tp
    if (sparse := sparse_latent(attention, rules)) is not None:
        return (heads + 1) * sparse.key_width
    if attention.latent is not None:
        return heads * (2 * attention.qk_width + attention.v_width)
    if attention.reused_kv:
        return heads * attention.qk_width
    kv_heads = np.maximum(attention.n_kv_heads / degrees.tp, 1)
    return heads * attention.qk_width + kv_heads * (attention.head_dim + attention.v_width)
