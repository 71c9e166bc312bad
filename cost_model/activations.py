"""Activations that one micro-batch leaves alive in one layer, by recompute mode; scalars and arrays alike.

The count follows Korthikanti et al. 2022 (arXiv:2205.05198 §4): every tensor that the backward pass
needs, in bytes, split over TP where the matrix products are, over TP too under sequence parallelism
where the norms are, over CP everywhere. With GPT's shape and dropout it is their sbh(34 + 5as/h).
Rotary models keep the QKV product (V is a view of it) beside the rotated Q and K: 286 MiB a layer of
LLaMA3-70B at TP8 + SP, s = 8192. Latent attention keeps q, k, the up-projected K/V and the context.

MindFormers runs less fused kernels and keeps more: norm inputs as fp32 casts, Q before its rotation,
the two statistics of FlashAttentionScore (fp32 [b, a, s, 8] each), the gate's SiLU beside gate, up
and product, and, a routed slot, gate and up both joined and split, and the expert's output before it
is weighted. Its default selective patterns rebuild SiLU and product of dense MLPs alone. Read from
one published fit (dense 479, selective 400; MoE 765 either way; 30 recomputed; DeepSeek-V3 at
TP4 + SP, s = 4096, MiB).

torchtitan runs plain modules: products save their input as it was gathered over TP (latents, router
and shared experts work on all its tokens too), Q, K and V are products of their own (nothing but V
outlives the rotation), grouped keys and values are copied for every query head unless one is left,
and the gate's SiLU stays beside gate, up and product. Found by `dryrun.torch_stage`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taylor.cost_model.parameters import body_kind, shared_hidden
from taylor.cost_model.strategy import TrainingRules
from taylor.cost_model.strategy_table import Degrees
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.frameworks import MEGATRON, MINDFORMERS, TORCHTITAN
from taylor.register.model import DENSE, MOE, MTP, ModelSpec

_FP32 = 4


def activation_bytes(model: ModelSpec, kind: str, mode: str, degrees: Degrees, rules: TrainingRules) -> Any:
    """Bytes alive in one layer of a kind after one micro-batch's forward, a scalar or an array [n].

    Raises
    ------
    ValueError
        When the mode is none of ``none``, ``select``, ``full``.
    """
    if kind == MTP:
        kind = body_kind(model)
    tokens = micro_batch_tokens(degrees, rules)
    if mode == FULL:
        # Only the layer's input is kept; MindFormers keeps the residual stream in fp32.
        kept = _FP32 if rules.framework == MINDFORMERS else rules.compute_bytes
        return tokens * model.hidden * kept / sequence_split(degrees)
    if mode not in (NONE, SELECT):
        raise ValueError(f"unknown recompute mode {mode!r}")
    attention = _attention(model, degrees, rules, mode == SELECT)
    if kind == DENSE:
        return tokens * (attention + _mlp(model, degrees, rules, mode == SELECT))
    if kind == MOE and model.moe is not None:
        return tokens * (attention + _experts(model, degrees, rules))
    raise ValueError(f"model {model.name} has no layers of kind {kind!r}")


def micro_batch_tokens(degrees: Degrees, rules: TrainingRules) -> Any:
    """Tokens of one micro-batch on one context-parallel rank."""
    return degrees.mbs * rules.seq_length / degrees.cp


def sequence_split(degrees: Degrees) -> Any:
    """Ways in which tensors outside the matrix products are split: TP under sequence parallelism, else 1."""
    return np.where(degrees.sp, degrees.tp, 1)


def routed_slots(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Expert slots a token of the rank brings to the busiest rank: top-k, times capacity or imbalance.

    Whole experts: tokens are spread over TP before they are routed, so a rank serves its share. Split
    experts: tokens are gathered over TP instead.
    """
    assert model.moe is not None
    factor = rules.capacity_factor if rules.capacity_factor is not None else rules.imbalance
    slots = model.moe.top_k * factor
    return slots / sequence_split(degrees) if rules.whole_experts else slots


def _norm_and_input(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """A norm's input, the block's input behind it, its dropout mask: bytes a token."""
    norm_input = _FP32 if rules.framework == MINDFORMERS else rules.compute_bytes
    kept = norm_input + (1 if rules.dropout else 0)
    block_input = rules.compute_bytes / _input_split(degrees, rules)
    return (kept / sequence_split(degrees) + block_input) * model.hidden


def _input_split(degrees: Degrees, rules: TrainingRules) -> Any:
    """Ways in which the input that a block's products save is split: torchtitan saves it gathered."""
    return 1 if rules.framework == TORCHTITAN else sequence_split(degrees)


def _attention(model: ModelSpec, degrees: Degrees, rules: TrainingRules, select: bool) -> Any:
    """Bytes a token of the attention block, its norm and dropout mask included."""
    heads = model.n_heads / degrees.tp
    unfused = rules.framework == MINDFORMERS
    result = _norm_and_input(model, degrees, rules)
    if model.mla is not None:
        mla = model.mla
        qk_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        latent = 2 * mla.kv_lora_rank + mla.qk_rope_head_dim + 2 * (mla.q_lora_rank or 0)
        result = result + rules.compute_bytes * latent / _input_split(degrees, rules)
        # q, k, the K/V up-projection (V is a view of it) and the context.
        result = result + rules.compute_bytes * heads * (2 * qk_dim + mla.qk_nope_head_dim + 2 * mla.v_head_dim)
        if unfused:
            result = result + rules.compute_bytes * heads * qk_dim
            result = result + _FP32 * (mla.kv_lora_rank + (mla.q_lora_rank or 0)) / sequence_split(degrees)
    else:
        q = heads * model.head_dim
        # Key/value heads are copied where TP exceeds their number.
        kv_heads = np.maximum(model.n_kv_heads / degrees.tp, 1)
        kv = kv_heads * model.head_dim
        if rules.framework == TORCHTITAN:
            copied = np.where(kv_heads > 1, q, kv)
            result = result + rules.compute_bytes * (2 * q + 2 * copied + (q + kv if model.qk_norm else 0))
        else:
            result = result + rules.compute_bytes * (2 * q + 2 * kv)
            if not model.learned_positions:
                result = result + rules.compute_bytes * (q + kv)
    if rules.flash_attention:
        return result + heads * (2 * 8 * _FP32 if unfused else _FP32)
    if not select:
        # Softmax output; with dropout its mask and output too (Korthikanti's 5as²b).
        scores = 2 * rules.compute_bytes + 1 if rules.dropout else rules.compute_bytes
        result = result + scores * heads * rules.seq_length
    return result


def _mlp(model: ModelSpec, degrees: Degrees, rules: TrainingRules, select: bool) -> Any:
    """Bytes a token of a dense MLP block, its norm and dropout mask included."""
    tensors = 3 if model.gated_mlp else 2
    activations = 1
    if model.gated_mlp and rules.framework != MEGATRON:
        tensors, activations = 4, 2
    if select and rules.flash_attention:
        # Selective recompute beside flash attention rebuilds the activation function (MindFormers'
        # default patterns; Megatron's mlp_act).
        tensors -= activations
    return _norm_and_input(model, degrees, rules) + rules.compute_bytes * tensors * model.ffn_hidden / degrees.tp


def _experts(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Bytes a token of a mixture-of-experts block: norm, router, shared and routed experts."""
    moe = model.moe
    assert moe is not None
    tensors = 3 if model.gated_mlp else 2
    router = 2 * _FP32 * moe.n_experts / _input_split(degrees, rules)
    shared = rules.compute_bytes * (tensors if rules.framework == MEGATRON or not model.gated_mlp else 4)
    shared = shared * shared_hidden(model) / degrees.tp
    width = moe.expert_hidden / (1 if rules.whole_experts else degrees.tp)
    slot = rules.compute_bytes * (model.hidden + tensors * width)
    if rules.framework == MINDFORMERS:
        slot = slot + rules.compute_bytes * (model.hidden + (2 if model.gated_mlp else 0) * width)
    routed = routed_slots(model, degrees, rules) * slot
    return _norm_and_input(model, degrees, rules) + router + shared + routed
