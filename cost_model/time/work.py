"""Work of a device for one layer and one micro-batch: FLOPs and bytes by kernel group; scalars and arrays alike.

FLOPs follow Narayanan et al. 2021 (arXiv:2104.04473 §5.1): two a weight and token forward, twice that
backward; attention 4·s·a·d a token, half of it where a flash kernel skips the masked blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.parameters import expert_outer, expert_parameters, layer_groups, layer_parameter_groups
from taylor.cost_model.job.recurrent import recurrent_traffic, scan_flops
from taylor.cost_model.job.sparse_latent import sparse_latent
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity, ulysses_ranks
from taylor.cost_model.memory.activations import micro_batch_tokens, routed_slots, sequence_split
from taylor.cost_model.memory.saved_operators import mixer_products
from taylor.cost_model.memory.statics import vocabulary_ways
from taylor.register.adapters import HEAD
from taylor.register.layers import BOTH_WAYS, FULL_REACH, UNREACHED, AttentionSpec, LayerSpec, MoeSpec
from taylor.register.model import ModelSpec

_FP32 = 4


@dataclass(frozen=True)
class LayerWork:
    """Forward work of one layer and micro-batch on one device; each a scalar or an array [n].

    Parameters
    ----------
    matmul_flops, grouped_flops, attention_flops : FLOP
        Dense GEMMs, grouped GEMMs of routed experts, attention cores.
    matrices, product_inputs, product_outputs : elements
        Weights, inputs and results of the dense GEMMs, once each.
    scan_flops : FLOP
        Cores of mixers without softmax.
    attention_scores : scores
        Scores that a flash kernel takes the softmax of.
    attention_edges : FLOP/token
        FLOPs of flash kernels over the length of their keys.
    element_bytes : bytes
        Traffic of norms, residuals, rotary embedding, activation functions, routing.
    score_bytes, gradient_score_bytes : bytes
        Traffic over attention scores where no flash kernel is used, forward and backward.
    activation_bytes, expert_activation_bytes : bytes
        The part of `element_bytes` that the activation functions of MLP and experts cause, and that of routed
        experts alone.
    norm_bytes : bytes
        The part that the two norms cause.
    cast_bytes, gradient_cast_bytes : bytes
        Traffic of casting the GEMMs' inputs, and in backward their outputs' gradients, to fewer than 16 bits: read
        once, written along rows and along columns.
    slice_bytes, gradient_slice_bytes : bytes
        Traffic around routed experts that take slices of their rows in sequence, forward and backward.
    mask_bytes : bytes
        Making an attention mask, forward.
    filled_bytes, gradient_filled_bytes : bytes
        Results that are filled before they are written (`cost_model.time.determinism`), forward and backward.
    """

    matmul_flops: Quantity
    matrices: Quantity
    product_inputs: Quantity
    product_outputs: Quantity
    grouped_flops: Quantity
    attention_flops: Quantity
    scan_flops: Quantity
    attention_scores: Quantity
    attention_edges: Quantity
    element_bytes: Quantity
    score_bytes: Quantity
    gradient_score_bytes: Quantity
    activation_bytes: Quantity
    expert_activation_bytes: Quantity
    norm_bytes: Quantity
    cast_bytes: Quantity
    gradient_cast_bytes: Quantity
    slice_bytes: Quantity
    gradient_slice_bytes: Quantity
    mask_bytes: Quantity
    filled_bytes: Quantity
    gradient_filled_bytes: Quantity

    @property
    def flops(self) -> Quantity:
        """All forward FLOPs."""
        return self.matmul_flops + self.grouped_flops + self.attention_flops + self.scan_flops


class _ExpertWork(NamedTuple):
    """Work that router and routed experts add to a layer; element-wise traffic in bytes a token."""

    grouped_flops: Quantity
    inputs: Quantity
    outputs: Quantity
    activation: Quantity
    permutation: Quantity
    router_scores: Quantity
    router: Quantity
    """Weights of the router that a rank multiplies, for its part of the tokens."""
    slices: Quantity
    gradient_slices: Quantity


_NO_EXPERTS = _ExpertWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def layer_work(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> LayerWork:
    """Forward work of one layer of a kind, or of one MTP module's layers, for one micro-batch on one device."""
    parts = [_layer_work(model, layer, degrees, rules) for layer in model.layers_of(kind)]
    if len(parts) == 1:
        return parts[0]
    return LayerWork(**{each.name: sum(getattr(part, each.name) for part in parts) for each in fields(LayerWork)})


def _layer_work(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> LayerWork:
    tokens = micro_batch_tokens(degrees, rules)
    tp, sequence = degrees.tp, sequence_split(degrees)
    groups = layer_parameter_groups(model, layer)
    h, b = model.hidden, rules.compute_bytes
    latent_split = tp if rules.framework.states.splits_latent_projections else sequence
    matrices = groups.split / tp + groups.latent / latent_split
    mixer = _mixer_work(model, layer, degrees, rules)
    # Gate and up GEMMs of MLP and shared experts are together as wide as the activation's operands.
    inner = [(layer.mlp.width, layer.mlp.gated)] if layer.mlp is not None else []
    if layer.moe is not None and layer.moe.shared_width:
        inner.append((layer.moe.shared_width, layer.moe.gated))
    widths: Quantity = sum((3 if gated else 2) * width for width, gated in inner) / tp
    mlp_traffic = 2 * h * len(inner) + widths
    mlp_inputs: Quantity = sum(h + width / tp for width, _ in inner)
    inputs = mixer.product_inputs + mlp_inputs
    outputs = mixer.product_traffic + mlp_traffic - inputs
    cast = _cast_bytes(rules)
    # Behind a norm the largest value is known; rows that come from other ranks are read for it.
    of_experts = rules.of_experts
    rows_first = b if of_experts.narrow is not None and of_experts.narrow.maximum_first else 0
    expert_cast = _cast_bytes(of_experts) + rows_first
    of_weights = _weight_cast_bytes(rules) * matrices + _weight_cast_bytes(of_experts) * groups.routed / (
        degrees.ep * rules.experts_over(tp)
    )
    # A norm reads and writes a hidden vector, a residual sum reads two and writes one; dropout adds its mask.
    blocks = (layer.mixer is not None) + layer.has_block
    norms = layer.norm_count * (_single_norm_bytes(b) if rules.unfused_elements else 2 * b)
    hidden_traffic = norms + 3 * blocks * b + (blocks if rules.dropout else 0)
    # One by one, the gate's function writes a result that the multiplication by the other half reads.
    apart: Quantity = sum(2 * width for width, gated in inner if gated) / tp if rules.unfused_elements else 0.0
    activation = b * (widths + apart)
    element = hidden_traffic * h / sequence + mixer.element + activation
    experts = _NO_EXPERTS if layer.moe is None else _expert_work(model, layer.moe, degrees, rules)
    filled: Quantity = 0.0
    gradient_filled: Quantity = 0.0
    if rules.deterministic:
        # Libraries make, in forward, results of GEMMs, attention and norms, and tensors gathered and scattered over
        # TP; in backward gradients of all that these came from, the other gathered inputs and weights' gradients.
        tensor = np.where(np.greater(sequence, 1), blocks, 0)
        around = layer.norm_count * h / sequence + tensor * (h + h / tp)
        context, joined = (
            (0.0, 0.0)
            if layer.mixer is None
            else (mixer.product_inputs - h, mixer.product_traffic - mixer.product_inputs - h)
        )
        filled = b * tokens * (around + outputs + experts.outputs + context)
        gradient_filled = b * tokens * (around + tensor * h + inputs + experts.inputs + joined)
        gradient_filled = gradient_filled + (0 if rules.adds_in_products else b * matrices)
    activation = activation + experts.activation
    element = element + experts.activation + experts.permutation + experts.router_scores
    matrices = matrices + experts.router
    return LayerWork(
        matmul_flops=2 * tokens * matrices,
        matrices=matrices,
        product_inputs=tokens * inputs,
        product_outputs=tokens * outputs,
        grouped_flops=experts.grouped_flops,
        attention_flops=tokens * mixer.core_flops,
        scan_flops=tokens * mixer.scan,
        attention_scores=tokens * mixer.core_scores,
        attention_edges=tokens * mixer.core_edges,
        element_bytes=tokens * element,
        score_bytes=tokens * mixer.scores,
        gradient_score_bytes=tokens * mixer.gradient_scores,
        activation_bytes=tokens * activation,
        expert_activation_bytes=tokens * experts.activation,
        norm_bytes=tokens * norms * h / sequence,
        cast_bytes=tokens * (cast * inputs + expert_cast * experts.inputs) + of_weights,
        gradient_cast_bytes=tokens * (cast * outputs + expert_cast * experts.outputs) + of_weights,
        slice_bytes=tokens * experts.slices,
        gradient_slice_bytes=tokens * experts.gradient_slices,
        mask_bytes=_mask_bytes(layer, degrees, rules),
        filled_bytes=filled,
        gradient_filled_bytes=gradient_filled,
    )


def _cast_bytes(rules: TrainingRules) -> float:
    """Traffic of quantizing an input or a gradient, bytes an element."""
    if rules.narrow is None:
        return 0.0
    # A copy along columns is for a weight's gradient.
    copies = 2 if rules.adapters is None else 1
    return rules.compute_bytes + copies * rules.narrow.input_bytes


def _weight_cast_bytes(rules: TrainingRules) -> float:
    """Traffic of quantizing a weight again in each direction, bytes an element; 0 where it comes quantized or stays so.

    The largest value of a weight is found by reading it once more.
    """
    narrow = rules.narrow
    if narrow is None or not narrow.saves_wide or rules.narrow_gather:
        return 0.0
    return rules.compute_bytes * (2 if narrow.maximum_first else 1) + narrow.input_bytes


class _MixerWork(NamedTuple):
    """A mixer's work a token on one rank: elements of its GEMMs in all, of their inputs, FLOPs and scores of its core,
    element-wise bytes, bytes over scores forward and backward, the core's FLOPs over the keys' length, FLOPs of a core
    without softmax."""

    product_traffic: Quantity
    product_inputs: Quantity
    core_flops: Quantity
    core_scores: Quantity
    element: Quantity
    scores: Quantity = 0.0
    gradient_scores: Quantity = 0.0
    core_edges: Quantity = 0.0
    scan: Quantity = 0.0


def _mixer_work(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> _MixerWork:
    attention = layer.attention
    if attention is None:
        recurrent = layer.recurrent
        if recurrent is None:
            return _MixerWork(0.0, 0.0, 0.0, 0.0, 0.0)
        products = mixer_products(model, layer, degrees)
        inputs = sum(product.width_in for product in products)
        moved = inputs + sum(product.width_out for product in products)
        traffic = recurrent_traffic(recurrent, degrees, rules)
        return _MixerWork(moved, inputs, 0.0, 0.0, traffic, scan=scan_flops(recurrent, degrees))
    heads = attention.n_heads / degrees.tp
    q, k, v = _head_widths(attention, degrees.tp)
    copies = 1 if attention.latent is not None else attention.n_heads / attention.n_kv_heads
    gate = attention.gate / degrees.tp
    seen = attention.seen(rules.seq_length, causal=rules.flash_attention)
    scores = 0.0 if rules.flash_attention else heads * rules.seq_length
    dropped = _DROPPED_BYTES if rules.dropout else 0
    b = rules.compute_bytes
    # One by one: to fp32, the complex product, back.
    turned = (b + _FP32) + 2 * _FP32 + (_FP32 + b) if rules.unfused_elements else 2 * b
    rotary = 0.0 if model.learned_positions else turned * (q + k)
    if rules.rotated_apart and not (rules.unfused_elements or model.learned_positions):
        rotary = rotary + _APART_ROTATION * b * rules.rotated_apart * _rotated(attention, q, k, degrees.tp)
    gating = b * (gate + 2 * heads * attention.v_width) if attention.gate else 0.0
    flops = 2 * seen * heads * (attention.v_width + attention.qk_width)
    traffic, inputs = 2 * model.hidden + q + k + v + v * copies + gate, model.hidden + v * copies
    if (sparse := sparse_latent(attention, rules)) is not None:
        mla = sparse.mla
        flops = 2 * seen * heads * (sparse.key_width + sparse.value_width)
        # The keys' up-projection turns queries into latents, the values' a latent context into one a head.
        inputs = model.hidden + heads * (mla.qk_nope_head_dim + sparse.value_width + mla.v_head_dim)
        traffic = inputs + model.hidden + q + heads * (mla.kv_lora_rank + mla.v_head_dim)
        # Rotated and joined with the latents.
        rotary = turned * (heads + 1) * mla.qk_rope_head_dim + 2 * b * (heads + 1) * sparse.key_width
    return _MixerWork(
        product_traffic=traffic,
        product_inputs=inputs,
        core_flops=flops,
        core_scores=seen * heads if rules.flash_attention else 0.0,
        element=rotary + gating,
        scores=(_SCORE_BYTES + dropped + (_READ_MASK if rules.engine_layers else 0)) * scores,
        gradient_scores=(_GRADIENT_SCORE_BYTES + dropped) * scores,
        core_edges=flops * _edges(attention, degrees, rules) if rules.flash_attention else 0.0,
    )


def _edges(attention: AttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Edges of the mask over the length of the keys that a kernel sees, 1/tokens.

    On a ring each rank's kernels see one block of keys at a time; its own has the mask's edge, and the others, without
    one, half as much of what `attention_tokens` counts (`benchmarks.device_tables`, tables without a mask).
    """
    if attention.reach == BOTH_WAYS:
        return 0.0
    ways = ulysses_ranks(degrees, rules)
    blocks = degrees.cp / ways
    length = np.minimum(rules.seq_length / blocks, _reach(attention, rules.seq_length))
    return (1 + 1 / blocks) / 2 / length


def _reach(attention: AttentionSpec, seq_length: int) -> int:
    """Keys that the last query of a sequence looks at."""
    if attention.indexer is not None:
        return min(attention.indexer.top_k, seq_length)
    if attention.reach == FULL_REACH or attention.window is None:
        return seq_length
    return min(attention.window, seq_length)


_SCORE_BYTES = 2 + (2 + 2) + 2
"""Traffic of a score of 16 bits without a flash kernel: written by the GEMM of queries and keys, read and written by
the softmax, read by the GEMM with the values. Counted by torch's own operations in a test."""

_READ_MASK = 1
"""Traffic of transformer engine's softmax beside a score: its kernel that needs no mask is switched off
(TransformerEngine d0067d0 transformer_engine/pytorch/attention/dot_product_attention/softmax.py:345-351,
`forward_fused_softmax`)."""

_GRADIENT_SCORE_BYTES = 2 + 2 + (2 + 2 + 2) + 2 + 2
"""The same in backward: the gradient written by the GEMM with the values, probabilities read for the values'
gradient, both read and the scores' gradient written by the softmax, that read for queries and for keys. Counted in the
same test."""

_DROPPED_BYTES = 2 + 2 + 1
"""Traffic of dropout on a score, either way: the score read and written, its mask written or read."""

_ENGINE_MASK = 4 + (4 + 4) + (4 + 4) + (4 + 1) + (4 + 1) + (1 + 1) + (1 + 1 + 1) + (1 + 1) + 1
"""Traffic of an element of the mask that transformer engine makes again in every layer without a flash kernel:
differences of positions, two bounds, two comparisons, what joins them, and read (the same folder, utils.py:1835-1863,
`get_full_mask`). torch's own operations are counted in a test."""

_MASK_BYTES = 1 + 2 + (1 + 4) + (1 + 4 + 4) + (4 + 1)
"""Traffic of an element of a window's mask: ones, the lower triangle of them, the whole mask cast to fp32, one chosen
of it and a number, that cast to bool (MindSpeed-LLM 1.0.RC3 modellink/core/transformer/transformer_layer.py:97-100).
torch's own operations are counted in a test."""


def _mask_bytes(layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes that making attention masks moves for a layer's forward."""
    square = rules.seq_length**2
    made: Quantity = _MASK_BYTES / 2 * degrees.mbs * square if rules.window_masks else 0.0
    if layer.attention is not None and rules.engine_layers and not rules.flash_attention:
        # Joined with the mask of each sample that came with the batch.
        made = made + (_ENGINE_MASK + (1 + 1) * degrees.mbs) * square
    return made


_CAP_ELEMENTS = 6 + 7
"""Elements that a cap on the logits moves for each: divided, tanh, multiplied; back, the tanh's gradient of its result
and what arrives, and both numbers again (MindSpeed-LLM 1.0.RC3 modellink/core/models/gpt/gpt_model.py:114-117).
Counted in the same test."""

_APART_ROTATION = 10
"""Elements that a rotation of single operations moves beyond the two of one kernel, for each that it rotates.

Megatron-LM d98e8a64 megatron/core/models/common/embeddings/rope_utils.py:75-161: times the cosines (2), half of it
negated (1), halves joined (2), times the sines (2), sum (3), joined with the part that is not rotated (2).
"""


def _rotated(attention: AttentionSpec, q: Quantity, k: Quantity, tp: Quantity) -> Quantity:
    """Elements a token of queries and keys that are rotated on one rank."""
    mla = attention.latent
    return q + k if mla is None else (attention.n_heads / tp + 1) * mla.qk_rope_head_dim


def _expert_work(model: ModelSpec, moe: MoeSpec, degrees: Degrees, rules: TrainingRules) -> _ExpertWork:
    h, outer, b = model.hidden, expert_outer(model, moe), rules.compute_bytes
    tokens, sequence = micro_batch_tokens(degrees, rules), sequence_split(degrees)
    slots = tokens * routed_slots(moe, degrees, rules)
    split = rules.experts_over(degrees.tp)
    width, weights = moe.expert_hidden / split, expert_parameters(model, moe) / split
    fan = 3 if moe.gated else 2
    moved = fan + (2 if moe.gated and rules.unfused_elements else 0)
    # Read and written, there and back.
    copies: Quantity = 4
    if rules.gathers_tokens:
        copies = copies + (4 if rules.pads_expert_rows else 0)
    elif not rules.dispatch_by_node:
        # Rows from every rank separately are sorted by expert once more, where there are several
        # (Megatron-LM d98e8a64 megatron/core/transformer/moe/token_dispatcher.py:757, 803).
        copies = copies + 4 * np.logical_and(np.greater(degrees.ep, 1), np.less(degrees.ep, moe.n_experts))
        if rules.pads_expert_rows:
            copies = copies + 4
    there, back = slice_passes(moe.n_experts / degrees.ep) if rules.sliced_experts else (0, 0)
    return _ExpertWork(
        grouped_flops=2 * slots * weights,
        inputs=(outer + width) * slots / tokens,
        outputs=(outer + (fan - 1) * width) * slots / tokens,
        activation=moved * b * width * slots / tokens,
        permutation=copies * b * outer * slots / tokens,
        # In fp32.
        router_scores=4 * 4 * moe.router_rows / sequence,
        router=moe.router_rows * h / sequence,
        slices=there * b * outer * slots / tokens,
        gradient_slices=back * b * outer * slots / tokens,
    )


def slice_passes(experts: Quantity) -> tuple[Quantity, Quantity]:
    """Reads and writes of every element of the experts' rows around their GEMMs, forward and backward.

    Megatron-LM core_v0.8.0 megatron/core/transformer/moe/experts.py `SequentialMLP`: every expert multiplies a slice of
    the rows and writes its result into a slice of zeros. In backward each of both slices costs a pass over all rows:
    autograd copies the whole gradient before it takes an expert's slice out of it and zeros it there (PyTorch
    torch/csrc/autograd/functions/tensor.cpp, ``CopySlices``), and makes a whole gradient of zeros for every slice that
    was read, which it adds to the others'.
    """
    whole = (2 + 1) * experts + 3 * (experts - 1)
    # An expert's own rows: taken out and put in; zeroed behind it but for the first, whose base has no gradient.
    own = 2 + 2 + (1 + 2) * (experts - 1) / experts
    return 1 + 2, whole + own


def _single_norm_bytes(b: int) -> int:
    """Bytes an element of an RMS norm of single operations in fp32: cast, square, mean, times its inverse root, times
    the weight, cast back."""
    return (b + _FP32) + 2 * _FP32 + _FP32 + 2 * _FP32 + 2 * _FP32 + (_FP32 + b)


@dataclass(frozen=True)
class HeadWork:
    """Forward work of LM head and loss, and of the embedding, for one micro-batch on one device."""

    flops: Quantity
    read_bytes: Quantity
    written_bytes: Quantity
    element_bytes: Quantity
    embedding_bytes: Quantity


def mtp_projection_weights(model: ModelSpec, degrees: Degrees) -> Quantity:
    """Weights of all MTP modules' projections of two hidden states to one, on one device."""
    return 2 * model.hidden * model.hidden * model.mtp_layers / degrees.tp


def head_work(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> HeadWork:
    """Work of the final norm, the head's GEMM and the loss, once more for every MTP module's head."""
    tokens = micro_batch_tokens(degrees, rules)
    times = 1 + model.mtp_layers
    vocab, h, b = model.outputs / vocabulary_ways(model, degrees, rules), model.hidden, rules.compute_bytes
    projection = mtp_projection_weights(model, degrees)
    # The step takes the head's backward as twice its forward.
    capped = _CAP_ELEMENTS * b if rules.capped_logits else 0
    # A frozen head's backward is one product, and takes as long as its forward.
    passes = 3 if rules.of_part(HEAD).adapters is None else 2
    loss = tokens * vocab * (rules.loss_traffic + capped) / passes
    return HeadWork(
        flops=2 * tokens * (times * h * vocab + projection),
        read_bytes=b * (times * (h * vocab + tokens * h) + projection),
        written_bytes=b * times * tokens * vocab,
        element_bytes=times * (loss + 2 * b * tokens * h / sequence_split(degrees)),
        embedding_bytes=2 * b * tokens * h / sequence_split(degrees),
    )


def model_flops(
    model: ModelSpec, seq_length: int, *, causal: bool = False, frozen: bool = False, frozen_head: bool = False
) -> float:
    """Forward and backward FLOPs a token without recompute: 3 times 2 a weight, attention included.

    Narayanan et al. 2021 eq. 3 without its recompute: 72·L·h²·(1 + s/6h + V/12Lh) for GPT. The backward of `frozen`
    weights is one product in place of two; adapters beside them are not counted. A layer that no gradient reaches has
    no backward.
    """
    total = 2.0 * (2 if frozen or frozen_head else 3) * model.hidden * model.outputs * (1 + model.mtp_layers)
    for kind, count in model.kind_counts.items():
        groups = layer_groups(model, kind)
        own = model.layers_of(kind)[0].frozen
        reached = own != UNREACHED
        passes = 1 + reached * (1 if frozen or own else 2)
        active: float = groups.split + groups.latent
        core = 0.0
        for layer in model.layers_of(kind):
            if layer.moe is not None:
                active += layer.moe.visited * expert_parameters(model, layer.moe) + layer.moe.router_rows * model.hidden
            core += _core_flops(layer, seq_length, causal)
        total += count * (2.0 * passes * active + (1 + 2 * reached) * core)
    return total


def _core_flops(layer: LayerSpec, seq_length: int, causal: bool) -> float:
    """FLOPs a token of a layer's mixer without projections, forward."""
    if layer.attention is None:
        recurrent = layer.recurrent
        return 0.0 if recurrent is None else float(scan_flops(recurrent, Strategy(1, 1, 1)))
    width = layer.attention.n_heads * (layer.attention.v_width + layer.attention.qk_width)
    return 2.0 * layer.attention.seen(seq_length, causal=causal) * width


def _head_widths(attention: AttentionSpec, tp: Quantity) -> tuple[Quantity, Quantity, Quantity]:
    """Widths of a rank's queries, keys and values, elements."""
    heads = attention.n_heads / tp
    if attention.latent is not None:
        return heads * attention.qk_width, heads * attention.qk_width, heads * attention.v_width
    kv_heads = np.maximum(attention.n_kv_heads / tp, 1)
    return heads * attention.head_dim, kv_heads * attention.head_dim, kv_heads * attention.v_width
