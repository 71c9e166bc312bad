"""Ring-linear and Ling 2.5 and 3: linear attention in all but the last layer of every group of layers."""

from __future__ import annotations

from dataclasses import replace

from taylor.parsers.huggingface.attention import (
    HEAD_NORM,
    ExpertRule,
    dense_block,
    experts_block,
    head_size,
    latent_attention,
    softmax_attention,
)
from taylor.parsers.huggingface.linear import IS_LINEAR, mixed_layer
from taylor.parsers.huggingface.reaches import after_first, experts_of
from taylor.parsers.huggingface.shape import Described
from taylor.parsers.huggingface.values import HEADS, KV_HEADS, LAYERS, OWN_HEAD, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import KIMI_DELTA, LIGHTNING, AttentionSpec, LinearAttentionSpec, MoeSpec


def ring_linear(values: Values) -> Described:
    """Ring-linear 2.0: lightning attention, and grouped-query attention at the end of a group.

    Source: vllm-project/vllm 055e47c2 vllm/model_executor/layers/mamba/linear/bailing_linear_attn.py,
    ``BailingMoELinearAttention``; defaults of sgl-project/sglang ab500ad6 python/sglang/srt/configs/
    bailing_moe_linear.py; inclusionAI's technical report, arXiv:2510.19338 §2.
    """
    norm = HEAD_NORM if values.flag("use_qk_norm") else ""
    attention = softmax_attention(values, bias="use_qkv_bias", output_bias="use_bias", qk_norm=norm)
    return _layers(values, _lightning(values), attention, 2 * attention.head_dim if norm else 0)


def bailing_hybrid(values: Values) -> Described:
    """Ling 2.5 and 3: latent attention at the end of a group, behind lightning or Kimi delta attention.

    Ling 3 has a short convolution, projections of full rank for decays and gate, and a gate a head on the latent
    attention (transformers 5.23.0 models/bailing_hybrid/modeling_bailing_hybrid.py). Ling 2.5 says the groups of its
    norm instead (vllm-project/vllm 055e47c2 vllm/model_executor/models/bailing_moe_linear.py,
    ``BailingMoeV25MLAAttention``).
    """
    values.must_be("use_mla_nope", False, "latent attention without rotary heads is not known here")
    attention = latent_attention(values, bias="attention_bias")
    size = head_size(values)
    if values.data.get("short_conv_kernel_size") is None and "group_norm_size" in values.data:
        return _layers(values, _lightning(values), attention, 2 * size if values.flag("use_qk_norm") else 0)
    values.must_be("no_kda_lora", True, "transformers has projections of full rank alone")
    heads = values.size(*HEADS)
    linear = LinearAttentionSpec(
        KIMI_DELTA, heads, heads, size, size, values.size("short_conv_kernel_size"), full_gate=True, full_decay=True
    )
    values.asked.update(("kda_safe_gate", "kda_lower_bound"))
    return _layers(values, linear, replace(attention, gate=heads), 0)


def _lightning(values: Values) -> LinearAttentionSpec:
    heads, size = values.size(*HEADS), head_size(values)
    values.must_be("use_bias", False, "biases of linear attention are not counted")
    values.must_be("use_qkv_bias", False, "biases of linear attention are not counted")
    values.asked.update(("group_norm_size", "linear_silu", "use_linear_silu", "linear_rope", "use_qk_norm"))
    return LinearAttentionSpec(LIGHTNING, heads, heads, size, size, 0)


def _layers(values: Values, linear: LinearAttentionSpec, attention: AttentionSpec, norms: int) -> Described:
    """The layers in order; `norms` parameters of the linear ones' norms on queries and keys."""
    values.must_be("tie_word_embeddings", False, OWN_HEAD)
    count = values.size(*LAYERS, high=MAX_LAYERS)
    listed = values.by_layer("layer_types", values.one_of(IS_LINEAR), count)
    group = values.size("layer_group_size", high=MAX_LAYERS)
    kinds = listed if listed is not None else [(at + 1) % group != 0 for at in range(count)]
    routed = experts_of(values, count, after_first)
    moe = _experts(values) if any(routed) else None
    mlp = dense_block(values)
    values.asked.update((*KV_HEADS, "max_window_layers", "multi_gate", "router_type"))
    layers = [
        mixed_layer(linear if kind else attention, moe if has else mlp, norms if kind else 0)
        for kind, has in zip(kinds, routed, strict=True)
    ]
    return Described(layers, mtp=(mixed_layer(attention, moe or mlp),))


def _experts(values: Values) -> MoeSpec:
    """The experts; shared ones have a width of their own where the file says it, each."""
    moe = experts_block(values, ExpertRule(shared=True))
    width = values.size_or_none("moe_shared_expert_intermediate_size")
    return moe if width is None else replace(moe, shared_hidden=moe.n_shared * width)
