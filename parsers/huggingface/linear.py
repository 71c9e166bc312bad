"""Linear attention in most layers and softmax attention in some: Qwen3-Next and 3.5, Kimi Linear, MiniMax-01."""

from __future__ import annotations

from dataclasses import replace

from taylor.parsers.huggingface.attention import (
    HEAD_NORM,
    ExpertRule,
    dense_block,
    experts_block,
    latent_attention,
    softmax_attention,
)
from taylor.parsers.huggingface.reaches import Placement, after_first, every_step, everywhere, experts_of
from taylor.parsers.huggingface.shape import DENSE, EXPERTS, Described, decoder_layer, joined
from taylor.parsers.huggingface.values import HEADS, HIDDEN, LAYERS, OWN_HEAD, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import (
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    AttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    MlpSpec,
    MoeSpec,
)

IS_LINEAR = {"linear_attention": True, "full_attention": False, "attention": False}
_QWEN_EXPERTS = ExpertRule(shared_width="shared_expert_intermediate_size", shared_gate=True)


def qwen3_next(values: Values) -> Described:
    """Qwen3-Next: gated delta net and gated attention, experts by ``decoder_sparse_step``."""
    return _qwen(values, every_step, _QWEN_EXPERTS)


def qwen3_5(values: Values) -> Described:
    """Qwen3.5, dense: gated delta net and gated attention; an MTP module has full attention."""
    return _qwen(values, everywhere, None)


def qwen3_5_moe(values: Values) -> Described:
    """Qwen3.5 with experts in every layer."""
    values.asked.update(("mlp_only_layers", "decoder_sparse_step"))
    if values.data.get("mlp_only_layers"):
        raise values.error(
            "mlp_only_layers", "must be empty", values.data["mlp_only_layers"], "all layers have experts"
        )
    return _qwen(values, everywhere, _QWEN_EXPERTS)


def _qwen(values: Values, placement: Placement, experts: ExpertRule | None) -> Described:
    count = values.size(*LAYERS, high=MAX_LAYERS)
    values.must_be("attn_output_gate", True, "attention without its gate is not known")
    attention = softmax_attention(
        values, bias="attention_bias", output_bias="attention_bias", qk_norm=HEAD_NORM, gate="width"
    )
    linear = LinearAttentionSpec(
        GATED_DELTA,
        values.size("linear_num_key_heads"),
        values.size("linear_num_value_heads"),
        values.size("linear_key_head_dim"),
        values.size("linear_value_head_dim"),
        values.size("linear_conv_kernel_dim", low=0),
    )
    step = values.size_or_none("full_attention_interval", high=MAX_LAYERS) or 4
    listed = values.by_layer("layer_types", values.one_of(IS_LINEAR), count)
    is_linear = listed if listed is not None else [(at + 1) % step != 0 for at in range(count)]
    routed = experts_of(values, count, placement) if experts is not None else [False] * count
    moe = experts_block(values, experts) if experts is not None and any(routed) else None
    mlp = None if all(routed) else dense_block(values)
    bias = attention.gate if attention.bias else 0  # The gate is part of the query's projection.
    layers = [
        mixed_layer(linear, moe if has else mlp) if kind else mixed_layer(attention, moe if has else mlp, bias)
        for kind, has in zip(is_linear, routed, strict=True)
    ]
    return Described(layers, mtp=(mixed_layer(attention, moe or mlp, bias),))


def kimi_linear(values: Values) -> Described:
    """Kimi Linear: Kimi delta attention and latent attention, whose layers ``linear_attn_config`` numbers from 1.

    Kimi K3 also gates the latent attention, has experts of a narrower width, and attends over depth.
    """
    count = values.size(*LAYERS, high=MAX_LAYERS)
    nested = values.section("linear_attn_config", values.defaults)
    values.asked.update(("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"))
    heads = nested.size("num_heads") if nested.has("num_heads") else values.size("linear_num_heads")
    size = nested.size("head_dim") if nested.data.get("head_dim") is not None else values.size("linear_head_dim")
    taps = (
        nested.size("short_conv_kernel_size")
        if nested.has("short_conv_kernel_size")
        else values.size("linear_conv_kernel_dim")
    )
    linear = LinearAttentionSpec(
        KIMI_DELTA, heads, heads, size, size, taps, full_gate=nested.flag("use_full_rank_gate")
    )
    attention = latent_attention(values, bias="attention_bias")
    if values.flag("mla_use_output_gate"):
        attention = replace(attention, gate=attention.n_heads * attention.v_width)
    routed = experts_of(values, count, _kimi_experts)
    values.must_be("moe_layer_freq", 1, "another step is not known")
    values.must_be("tie_word_embeddings", False, OWN_HEAD)
    moe = experts_block(values, ExpertRule(shared=True, latent="routed_expert_hidden_size")) if any(routed) else None
    mlp = None if all(routed) else dense_block(values)
    kinds = _kimi_kinds(values, nested, count)
    # Kimi K3: a norm between the experts and the way back; a norm and a query for every mixer and block, and one
    # more at the end, that weigh earlier blocks of layers (arXiv:2607.24653 §2.2).
    latent_norm = (moe.latent or 0) if moe is not None and values.flag("latent_moe_use_norm") else 0
    residuals = 4 * values.size(*HIDDEN) if values.size_or_none("attn_res_block_size") is not None else 0
    return Described(
        [
            mixed_layer(linear if kind else attention, moe if has else mlp, residuals + (latent_norm if has else 0))
            for kind, has in zip(kinds, routed, strict=True)
        ],
        extra_parameters=residuals // 2,
    )


def _kimi_experts(values: Values, layers: int) -> list[bool]:
    if values.has("first_k_dense_replace"):
        return after_first(values, layers)
    return [at >= 1 for at in range(layers)]


def _kimi_kinds(values: Values, nested: Values, layers: int) -> list[bool]:
    """Return whether each layer is linear: as the file lists it, else all but every fifth, fourth after the first."""
    listed = values.by_layer("layer_types", values.one_of(IS_LINEAR), layers)
    if listed is not None:
        return listed

    def number(name: str, value: object) -> int:
        return nested.whole(name, value, 1, layers)

    full, delta = nested.list_or_none("full_attn_layers", number), nested.list_or_none("kda_layers", number)
    if full is None or delta is None:
        return [not (at and at % 4 == 0) for at in range(layers)]
    if sorted(full + delta) != list(range(1, layers + 1)):
        problem = f"must, with kda_layers, name each of the layers 1 to {layers} once"
        raise nested.error("full_attn_layers", problem, full, "number the layers from 1")
    return [at + 1 in set(delta) for at in range(layers)]


def minimax(values: Values) -> Described:
    """MiniMax-01: lightning attention and softmax attention, experts everywhere."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    attention = softmax_attention(values)
    heads = values.size(*HEADS)
    linear = LinearAttentionSpec(LIGHTNING, heads, heads, attention.head_dim, attention.head_dim, 0)
    moe = experts_block(values, ExpertRule(width=("intermediate_size",)))
    listed = values.by_layer("layer_types", values.one_of(IS_LINEAR), count)
    if listed is None:
        numbers = values.by_layer("attn_type_list", values.zero_or_one, count)
        listed = [not each for each in numbers] if numbers is not None else [at % 2 == 1 for at in range(count)]
    return Described([mixed_layer(linear if kind else attention, moe) for kind in listed])


def mixed_layer(
    mixer: AttentionSpec | LinearAttentionSpec, block: MlpSpec | MoeSpec | None, extra: int = 0
) -> LayerSpec:
    """A layer of softmax or linear attention and an MLP or experts."""
    assert block is not None
    if isinstance(mixer, AttentionSpec):
        return decoder_layer(mixer, block, extra=extra)
    if isinstance(block, MlpSpec):
        return LayerSpec(joined(mixer.style, DENSE), linear=mixer, mlp=block, extra=extra)
    return LayerSpec(joined(mixer.style, EXPERTS), linear=mixer, moe=block, extra=extra)
