"""Activations that one micro-batch keeps alive in one layer, by recompute mode; scalars and arrays alike.

The count follows Korthikanti et al. 2022 (arXiv:2205.05198 §4): every tensor that the backward pass
needs, in bytes, split over TP where the GEMMs are, under sequence parallelism also where the norms are, over CP
everywhere. With GPT's shape and dropout it is their sbh(34 + 5as/h). Rotary models keep the QKV GEMM's result (V is a
view of it) beside the rotated Q and K: 286 MiB a layer of LLaMA3-70B at TP8 + SP, s = 8192. Latent attention keeps q,
k, the up-projected K/V and the context.

Selective recompute removes what its parts (`TrainingRules.recomputed_parts`) make again; under `UNSAVED_OPERATORS` it
keeps only `saved_operators`. Where a part is checkpointed its input stays; Megatron's ``CheckpointWithoutOutput`` (core
0.13 and later, megatron/core/tensor_parallel/random.py) drops the output of norms, latent up-projections and the
experts' activation function as well, which the next GEMM would have kept.

GEMMs in fewer than 16 bits (`TrainingRules.narrow`) save their inputs in their own type; two GEMMs of one input save
two copies. Where something else keeps an input in 16 bits, they take that one, or save theirs on top.

Fused kernels keep that. The framework's `ActivationRules` state what less fused ones keep in addition, and which
framework runs them; the counts are checked against `dryrun.torch_stage`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import numpy as np

from taylor.cost_model.job.adapters import adapter_kept_bytes, routed_kept_bytes
from taylor.cost_model.job.parameters import expert_outer, layer_parameter_groups
from taylor.cost_model.job.recurrent import entering_bytes, recurrent_bytes
from taylor.cost_model.job.sparse_latent import SparseLatent, sparse_latent
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.job.torch_indexer import indexer_bytes
from taylor.cost_model.memory.saved_operators import saved_bytes
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.adapters import DOWN, GATE, JOINED_QKV, JOINED_UP, KEY, LATENTS, OUTPUT, QUERY, UP, VALUE
from taylor.register.frameworks import (
    ATTENTION_CORE,
    DENSE_ACTIVATION,
    DENSE_MLP,
    EXPERT_ACTIVATION,
    EXPERT_BLOCK,
    EXPERT_ROWS,
    LATENT_UP,
    NORMS,
    SHARED_ACTIVATION,
    SHARED_EXPERTS,
    UNSAVED_OPERATORS,
)
from taylor.register.layers import UNREACHED, AttentionSpec, LayerSpec, MlaSpec, MlpSpec, MoeSpec
from taylor.register.model import MTP, ModelSpec

_FP32 = 4

_QKV = (JOINED_QKV, QUERY, KEY, VALUE)
_UPWARDS = (JOINED_UP, UP, GATE)


def activation_bytes(model: ModelSpec, kind: str, mode: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes alive in one layer of a kind after one micro-batch's forward, a scalar or an array [n].

    Raises
    ------
    ValueError
        When the mode is none of ``none``, ``select``, ``full``.
    """
    if mode not in (NONE, SELECT, FULL):
        raise ValueError(f"unknown recompute mode {mode!r}")
    layers = model.layers_of(kind)
    if layers[0].frozen == UNREACHED:
        return 0.0 * micro_batch_tokens(degrees, rules)  # No backward needs them.
    rules = rules.within(layers)
    if mode == FULL and kind != MTP:
        layers = layers[:1]
    kept = sum(layer_bytes(model, layer, mode, degrees, rules) for layer in layers)
    if mode == FULL and rules.inputs_on_host and kind != MTP:
        return 0.0 * kept
    if mode == FULL and rules.recompute_group > 1 and kind != MTP:
        together, in_chunk = recomputed_together(model, degrees, rules), layers_a_chunk(model, degrees)
        return kept * np.ceil(in_chunk / together) / in_chunk
    return kept


def layers_a_chunk(model: ModelSpec, degrees: Degrees) -> Quantity:
    """Body layers of the largest chunk of an even split."""
    return np.maximum(1, np.ceil(sum(model.body_counts.values()) / (degrees.pp * degrees.vpp)))


def recomputed_together(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Layers of a chunk that full recompute runs again at once (`TrainingRules.recompute_group`)."""
    return np.minimum(rules.recompute_group, layers_a_chunk(model, degrees))


def layer_bytes(model: ModelSpec, layer: LayerSpec, mode: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The same of one layer of any kind."""
    tokens = micro_batch_tokens(degrees, rules)
    if mode == FULL:
        # Only the layer's input is kept.
        return tokens * model.hidden * residual_bytes(rules) / sequence_split(degrees)
    again: Collection[str] = rules.recomputed_parts if mode == SELECT else ()
    if rules.mlp_tiles:
        again = {*again, DENSE_MLP}
    if UNSAVED_OPERATORS in again:
        slots = 0.0 if layer.moe is None else routed_slots(layer.moe, degrees, rules)
        return tokens * saved_bytes(model, layer, degrees, rules, slots)
    kept: Quantity = 0.0
    if layer.attention is not None:
        kept = kept + _attention(model, layer.attention, degrees, rules, again)
    elif layer.recurrent is not None:
        entering = entering_bytes(layer.recurrent, rules) if rules.fused_norms or NORMS not in again else 0.0
        kept = kept + _norm_and_input(model, degrees, rules, entering)
        kept = kept + recurrent_bytes(layer.recurrent, degrees, rules, input_split(degrees, rules))
    if layer.mlp is not None:
        entry = _Entry.ALONE if layer.mixer is None or layer.norm_count > 1 else _Entry.WITH_ITS_NORM
        kept = kept + _mlp(model, layer.mlp, degrees, rules, again, entry)
    if layer.moe is not None:
        kept = kept + _experts(model, layer.moe, degrees, rules, again, _experts_entry(layer))
    counted = (layer.mixer is not None) + (layer.mlp is not None) + (layer.moe is not None)
    if rules.adapters is not None:
        kept = kept + _adapter_bytes(model, layer, degrees, rules, again)
    further = max(0, layer.norm_count - counted) * _norm_bytes(rules) * model.hidden / sequence_split(degrees)
    return tokens * (kept + further) + (cast_bytes(model, layer, degrees, rules) if rules.autocast else 0.0)


def _adapter_bytes(
    model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules, again: Collection[str]
) -> Quantity:
    """Bytes a token that a layer's adapters keep beside inputs; those of a block that runs again keep nothing."""
    if (DENSE_MLP in again and layer.mlp is not None) or (EXPERT_BLOCK in again and layer.moe is not None):
        layer = layer.replace(mlp=None, moe=None)
    kept = adapter_kept_bytes(model, layer, degrees, rules)
    if layer.moe is None:
        return kept
    return kept + routed_slots(layer.moe, degrees, rules) * routed_kept_bytes(model, layer, degrees, rules)


def cast_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Copies that autocast makes in one layer and its GEMMs save, beside what `layer_bytes` counts anyway, bytes.

    Weights are cast once, inputs for every GEMM (PyTorch aten/src/ATen/autocast_mode.cpp, ``cached_cast``: it caches
    leaves alone): of queries, keys and values, and of gate and up, one copy is counted. Norms of queries and keys,
    whose weights are fp32 and inputs are not, run as single operations in fp32 (aten/src/ATen/native/layer_norm.cpp,
    ``rms_norm_symint``: "Cannot dispatch to fused implementation") and keep their input and result so.
    """
    groups = layer_parameter_groups(model, layer)
    expert_split = degrees.ep * rules.experts_over(degrees.tp)
    weights = (groups.split + groups.latent) / degrees.tp + groups.routed / expert_split
    elements: Quantity = 0.0
    attention = layer.attention
    if attention is not None:
        elements = elements + (1 if attention.latent is not None else 2) * model.hidden
        if attention.qk_norm:
            normed = (attention.n_heads + attention.n_kv_heads) * attention.head_dim / degrees.tp
            elements = elements + (2 * _FP32 / rules.compute_bytes - 1) * normed
    if layer.mlp is not None and layer.mlp.gated:
        elements = elements + model.hidden
    copies: Quantity = rules.compute_bytes * (weights + micro_batch_tokens(degrees, rules) * elements)
    return copies


def block_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes that a layer's MLP and experts keep of one micro-batch, with their norms; nothing recomputed."""
    if not layer.has_block:
        return 0.0
    alone = layer.replace(mlp=None, moe=None, norms=None)
    return layer_bytes(model, layer, NONE, degrees, rules) - layer_bytes(model, alone, NONE, degrees, rules)


def attention_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes that a layer's attention keeps of one micro-batch behind its norm; nothing recomputed."""
    if layer.attention is None:
        return 0.0
    kept = _attention(model, layer.attention, degrees, rules, ())
    return micro_batch_tokens(degrees, rules) * (kept - _norm_and_input(model, degrees, rules, 0))


class _Entry(Enum):
    """Tensors in front of a block that another block on the same input already keeps."""

    ALONE = "nothing"
    WITH_ITS_INPUT = "the norm's input"
    WITH_ITS_NORM = "the norm's input and result"


def _experts_entry(layer: LayerSpec) -> _Entry:
    before = (layer.mixer is not None) + (layer.mlp is not None)
    if before and layer.norm_count <= before and (layer.mlp is not None or layer.norm_count == 1):
        return _Entry.WITH_ITS_NORM
    return _Entry.ALONE if layer.mlp is None else _Entry.WITH_ITS_INPUT


def micro_batch_tokens(degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Tokens of one micro-batch on one context-parallel rank, of those that train."""
    return rules.sequences * degrees.mbs * rules.seq_length / degrees.cp


def sequence_split(degrees: Degrees) -> Quantity:
    """Ways in which tensors outside the GEMMs are split: TP under sequence parallelism, else 1."""
    return np.where(degrees.sp, degrees.tp, 1)


def routed_slots(moe: MoeSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Expert slots a token of the rank brings to the busiest rank: visited experts, times capacity or imbalance.

    Tokens are spread over TP before they are routed, so a rank serves its part, gathered from as many ranks as split an
    expert (Megatron-LM d98e8a64 megatron/core/transformer/moe/token_dispatcher.py: ``tp_size`` is that of the experts'
    own group).
    """
    factor = rules.capacity_factor if rules.capacity_factor is not None else rules.imbalance
    slots = moe.visited * factor
    spread = np.where(degrees.sp, degrees.tp / rules.experts_over(degrees.tp), 1)
    return slots / spread


def input_split(degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Ways in which the saved input of a block's GEMMs is split: 1 where they save it gathered over TP."""
    return 1 if rules.framework.activations.saves_gathered_inputs else sequence_split(degrees)


def residual_bytes(rules: TrainingRules) -> int:
    """Bytes an element of the stream between layers."""
    wide = rules.framework.activations.fp32_residual if rules.wide_residual is None else rules.wide_residual
    return _FP32 if wide else rules.compute_bytes


def norm_input_bytes(rules: TrainingRules) -> int:
    """Bytes an element that a norm keeps of its input."""
    return _FP32 if rules.framework.activations.fp32_norm_input else residual_bytes(rules)


def _norm_bytes(rules: TrainingRules) -> int:
    """Bytes an element that a norm keeps beside its result."""
    return norm_input_bytes(rules) + (_normalized_bytes(rules) if plain_modules(rules) else 0)


def plain_modules(rules: TrainingRules) -> bool:
    """Return whether norms and experts are single operations that no compiler or kernel joins."""
    return rules.framework.activations.plain_modules and not rules.compiled


def _normalized_bytes(rules: TrainingRules) -> int:
    """Bytes an element of the normalized values that a norm of single operations keeps for its weight's gradient."""
    return rules.compute_bytes if rules.adapters is None else 0


def _quantizes_again(rules: TrainingRules) -> bool:
    """Return whether a GEMM makes its input's copy again in the backward, where the input is available."""
    return rules.saved_narrow is None or rules.saved_narrow.requantizes


def _shared_input(rules: TrainingRules) -> float:
    """Bytes an element of an input that something else keeps in the compute type, and a GEMM saves too."""
    return rules.compute_bytes + (0 if _quantizes_again(rules) else rules.saved_input_bytes)


def _norm_and_input(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, input_bytes: float, entry: _Entry = _Entry.ALONE
) -> Quantity:
    """A norm's input, the block's input behind it in the given bytes an element, its dropout mask: bytes a token."""
    ways, split = sequence_split(degrees), input_split(degrees, rules)
    kept = _norm_bytes(rules) + (1 if rules.dropout else 0) if entry is _Entry.ALONE else 0
    # Megatron-Bridge's adapters take, and keep, the input that was gathered for the frozen matrix.
    gathered = rules.adapters is not None and rules.adapters.gathers
    block_input: Quantity = input_bytes / (1 if gathered else split)
    if entry is _Entry.WITH_ITS_NORM and rules.saved_narrow is None:
        # Each block gathers its own input.
        block_input = np.where(np.equal(split, ways), 0.0, block_input)
    return (kept / ways + block_input) * model.hidden


def _attention(
    model: ModelSpec, attention: AttentionSpec, degrees: Degrees, rules: TrainingRules, again: Collection[str]
) -> Quantity:
    """Bytes a token of the attention block, its norm and dropout mask included."""
    heads = attention.n_heads / degrees.tp
    mla, sparse = attention.latent, sparse_latent(attention, rules)
    own_norm = mla is not None or not rules.fused_norms
    # Latent attention multiplies its input by two matrices, others by one joined matrix.
    each = rules.input_bytes_of(*((LATENTS,) if mla is not None else _QKV))
    inputs = each * (2 if mla is not None and rules.saved_narrow is not None else 1)
    inputs = 0 if NORMS in again and own_norm else inputs
    if mla is not None and rules.adapters is not None:
        result = _norm_and_input(model, degrees, rules, 0) + _adapted_latent_input(model, mla, inputs, degrees, rules)
    else:
        result = _norm_and_input(model, degrees, rules, inputs)
    result = result + heads * attention.v_width * _context_bytes(attention, rules, again)
    if mla is not None and LATENT_UP in again:
        # The latents as they were before their norms.
        latent = mla.kv_lora_rank + mla.qk_rope_head_dim + (mla.q_lora_rank or 0)
        result = result + rules.compute_bytes * latent / input_split(degrees, rules)
    elif mla is not None:
        result = result + _latent_projections(mla, heads, degrees, rules, sparse)
    else:
        result = result + _projections(model, attention, heads, degrees, rules)
    result = result + _low_ranks(attention, degrees, rules) + indexer_bytes(attention, degrees, rules)
    if attention.gate:
        # The gate, and the context behind it, which the output projection saves.
        result = result + rules.compute_bytes * attention.gate / degrees.tp
        result = result + rules.input_bytes_of(OUTPUT) * heads * attention.v_width
        if mla is None and rules.framework.activations.joined_qkv:
            # In a joined GEMM every group's gate is separate from the next one's, and is copied beside it.
            copied = np.where(np.greater(attention.n_kv_heads / degrees.tp, 1), attention.gate / degrees.tp, 0)
            result = result + rules.compute_bytes * copied
    if ATTENTION_CORE in again:
        return result
    if sparse is not None:
        result = result + sparse.core_bytes(heads, rules)
    if rules.flash_attention:
        result = result + heads * rules.framework.activations.attention_statistics * _FP32
    else:
        result = result + score_bytes(rules) * heads * rules.seq_length
    return result


def _adapted_latent_input(
    model: ModelSpec, mla: MlaSpec, input_bytes: float, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """Input of latent attention that adapters keep, bytes a token: their tokens' where every rank has all of a matrix.

    The one beside queries that come from the hidden state takes what was gathered, in Megatron-Bridge's steps.
    """
    own: Quantity = input_bytes / input_split(degrees, rules)
    gathers = rules.adapters is not None and rules.adapters.gathers
    if gathers and mla.q_lora_rank is None:
        own = own + np.where(np.greater(input_split(degrees, rules), 1), input_bytes, 0.0)
    return own * model.hidden


def score_bytes(rules: TrainingRules) -> int:
    """Bytes of a kept score: the softmax's output; with dropout its mask and output too (Korthikanti's 5as²b)."""
    return 2 * rules.compute_bytes + 1 if rules.dropout else rules.compute_bytes


def _context_bytes(attention: AttentionSpec, rules: TrainingRules, again: Collection[str]) -> float:
    """Bytes an element of the attention's result, which its kernel keeps and, without a gate, the GEMM behind it."""
    if attention.gate:
        return rules.compute_bytes
    if ATTENTION_CORE in again and rules.adapters is not None:
        return rules.input_bytes_of(OUTPUT)
    alone = ATTENTION_CORE in again and not _quantizes_again(rules)
    return rules.saved_input_bytes if alone else _shared_input(rules)


def _low_ranks(attention: AttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Memory of low-rank queries and outputs: the query's latent before and behind its norm, the output's inner one."""
    inner = 2 * (attention.q_rank or 0) / input_split(degrees, rules)
    inner = inner + attention.output_groups * (attention.output_rank or 0) / degrees.tp
    return rules.compute_bytes * inner


def _projections(
    model: ModelSpec, attention: AttentionSpec, heads: Quantity, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """Q, K and V of a rank's `heads`, bytes a token."""
    operators = rules.framework.activations
    q = heads * attention.head_dim
    if attention.reused_kv:
        # Another layer keeps keys and values; a norm keeps the GEMM's result.
        return rules.compute_bytes * (2 if attention.qk_norm else 1) * q
    # Key/value heads are copied where TP exceeds their number.
    kv_heads: Quantity = np.maximum(attention.n_kv_heads / degrees.tp, 1)
    k, v = kv_heads * attention.head_dim, kv_heads * attention.v_width
    elements = q + k + v
    if operators.joined_qkv:
        # The GEMM's result, of which V is a view, stays beside the rotated Q and K; low-rank queries are not part of
        # it.
        apart = attention.q_rank is not None and not attention.qk_norm
        turned = attention.qk_norm or not model.learned_positions
        elements = elements + turned * (k + (0 if apart else q)) - (v if attention.shared_kv else 0)
    elif attention.qk_norm:
        elements = elements + q + k - (v if attention.shared_kv else 0)
    kept: Quantity = rules.compute_bytes * elements
    if attention.qk_norm and plain_modules(rules) and not operators.joined_qkv:
        # Their norms keep an fp32 cast in place of the GEMM's result.
        kept = kept + (_FP32 - rules.compute_bytes + _normalized_bytes(rules)) * (q + k)
    return kept


def _latent_projections(
    mla: MlaSpec, heads: Quantity, degrees: Degrees, rules: TrainingRules, sparse: SparseLatent | None
) -> Quantity:
    """Latents, Q, K and V of a rank's `heads`, bytes a token."""
    operators = rules.framework.activations
    qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    # Before their norms, and behind them as the up-projections' inputs.
    normed = mla.kv_lora_rank + (mla.q_lora_rank or 0)
    # The latent of the keys is a key as it is.
    multiplied = normed if sparse is None else mla.q_lora_rank or 0
    gathers = rules.adapters is not None and rules.adapters.gathers
    split = input_split(degrees, rules)
    result: Quantity = rules.compute_bytes * (normed + mla.qk_rope_head_dim) / split
    result = result + rules.input_bytes_of(LATENTS) * multiplied / (1 if gathers else split)
    if sparse is not None:
        return result + sparse.projected_bytes(heads, rules)
    # q, k and the K/V up-projection (V is a view of it).
    result = result + rules.compute_bytes * heads * (2 * qk_dim + mla.qk_nope_head_dim + mla.v_head_dim)
    if operators.keeps_unrotated_queries:
        result = result + rules.compute_bytes * heads * qk_dim
    if operators.fp32_norm_input:
        kept = _norm_bytes(rules) if plain_modules(rules) else _FP32
        result = result + kept * (mla.kv_lora_rank + (mla.q_lora_rank or 0)) / sequence_split(degrees)
    return result


def _mlp(
    model: ModelSpec,
    mlp: MlpSpec,
    degrees: Degrees,
    rules: TrainingRules,
    again: Collection[str],
    entry: _Entry,
) -> Quantity:
    """Bytes a token of a dense MLP block, its norm and dropout mask included."""
    if DENSE_MLP in again:
        # Its input, unless the norm runs again with it.
        kept = 0 if rules.fused_norms or NORMS in again else rules.compute_bytes
        return _norm_and_input(model, degrees, rules, kept, entry)
    input_bytes = rules.input_bytes_of(*_UPWARDS) if rules.fused_norms or NORMS not in again else 0
    norm = _norm_and_input(model, degrees, rules, input_bytes, entry)
    return norm + _inner_bytes(rules, mlp.gated, rebuilt=DENSE_ACTIVATION in again) * mlp.width / degrees.tp


def _inner_bytes(rules: TrainingRules, gated: bool, *, rebuilt: bool) -> float:
    """Bytes an element of an MLP's width: what its activation function keeps, and its result unless it is rebuilt."""
    if rebuilt:
        return rules.compute_bytes * (2 if gated else 1)
    if not gated:
        return rules.compute_bytes + rules.input_bytes_of(DOWN)
    # A compiler makes the gate's SiLU again with what needs it; a test counts what torch's keeps.
    unfused = not (rules.framework.activations.fused_swiglu or rules.compiled)
    return rules.compute_bytes * (3 if unfused else 2) + rules.input_bytes_of(DOWN)


def _experts(
    model: ModelSpec,
    moe: MoeSpec,
    degrees: Degrees,
    rules: TrainingRules,
    again: Collection[str],
    entry: _Entry,
) -> Quantity:
    """Bytes a token of a mixture-of-experts block: norm, router, shared and routed experts."""
    if EXPERT_BLOCK in again or SHARED_EXPERTS in again or not moe.shared_width:
        # The router's input is not narrow.
        input_bytes: float = rules.compute_bytes
    else:
        input_bytes = _shared_input(rules)
    if rules.adapters is not None and EXPERT_BLOCK not in again:
        # A frozen router saves none.
        kept_by_shared = moe.shared_width and SHARED_EXPERTS not in again
        input_bytes = rules.input_bytes_of(*_UPWARDS) if kept_by_shared else 0.0
    norm = _norm_and_input(model, degrees, rules, 0 if NORMS in again else input_bytes, entry)
    if EXPERT_BLOCK in again:
        return norm
    operators = rules.framework.activations
    router = 2 * _FP32 * moe.router_rows / input_split(degrees, rules)
    shared: Quantity = 0.0
    if SHARED_EXPERTS not in again:
        inner = _inner_bytes(rules, moe.gated, rebuilt=SHARED_ACTIVATION in again)
        shared = inner * moe.shared_width / degrees.tp
    width, outer = moe.expert_hidden / rules.experts_over(degrees.tp), expert_outer(model, moe)

    def of_experts(*targets: str) -> float:
        """`input_bytes_of` of routed experts."""
        return (
            0.0 if rules.adapters is not None and not rules.adapters.beside_experts else rules.input_bytes_of(*targets)
        )

    # Tensors that run again are dropped; a copy that cannot be made again stays.
    activated = 0.0 if EXPERT_ACTIVATION in again and _quantizes_again(rules) else of_experts(DOWN)
    sent = 0.0 if EXPERT_ROWS in again and _quantizes_again(rules) else of_experts(*_UPWARDS)
    slot = sent * outer + (rules.compute_bytes * (2 if moe.gated else 1) + activated) * width
    if operators.unfused_experts:
        slot = slot + rules.compute_bytes * (outer + (2 if moe.gated else 0) * width)
    elif plain_modules(rules):
        slot = slot + rules.compute_bytes * (outer + (1 if moe.gated else 0) * width)
    # Rows of experts that hold nothing are kept in front of their weights (MindSpeed-LLM c77308a1
    # mindspeed_llm/tasks/models/transformer/zero_experts_moe_layer.py:89).
    routed = routed_slots(moe, degrees, rules) * (slot + moe.n_empty / moe.n_experts * rules.compute_bytes * outer)
    if moe.shared_gate:
        # The shared experts' result, which the gradient of their gate needs (Megatron-LM d98e8a64
        # megatron/core/transformer/moe/shared_experts.py, ``gate_score``).
        shared = shared + rules.compute_bytes * model.hidden / input_split(degrees, rules)
    # What comes back at the experts' width is the input of the projection to the model's.
    latent = rules.compute_bytes * (moe.latent or 0) / input_split(degrees, rules)
    total: Quantity = norm + router + shared + routed + latent
    return total
