"""Model types whose layers have an attention of their own making: MiMo-V2, Step-3.7, MiniMax-M3, Hunyuan, Nemotron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from taylor.parsers.huggingface.attention import (
    HEAD_NORM,
    ExpertRule,
    dense_block,
    experts_block,
    shared_bias,
    softmax_attention,
)
from taylor.parsers.huggingface.reaches import (
    after_layer,
    all_full,
    experts_of,
    frequency_list,
    listed_reaches,
    mimo,
    reaches_of,
    window_of,
)
from taylor.parsers.huggingface.shape import DENSE, Described, decoder_layer, joined
from taylor.parsers.huggingface.values import EXPERTS, HEADS, HIDDEN, KV_HEADS, LAYERS, SHARED_EXPERTS, TOP_K, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import FULL_REACH, SLIDING, AttentionSpec, IndexerSpec, LayerSpec, MlpSpec, MoeSpec

NO_OP = "no-op"


def mimo_v2(values: Values) -> Described:
    """MiMo-V2: layers with the window have heads of their own and sinks; an MTP module has the window and an MLP."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    reaches, routed = reaches_of(values, count, mimo), experts_of(values, count, frequency_list)
    values.asked.update(("sliding_window_size", "attention_chunk_size", "moe_layer_freq"))
    value_size = values.size("v_head_dim")
    full = replace(softmax_attention(values, bias="attention_bias"), v_head_dim=value_size)
    windowed = replace(
        softmax_attention(values, SLIDING, bias="attention_bias", sinks=True),
        n_heads=values.size_or_none("swa_num_attention_heads") or full.n_heads,
        n_kv_heads=values.size_or_none("swa_num_key_value_heads") or 2 * full.n_kv_heads,
        head_dim=values.size_or_none("swa_head_dim") or full.head_dim,
        v_head_dim=values.size_or_none("swa_v_head_dim") or value_size,
    )
    if "add_swa_attention_sink_bias" in values.data:
        windowed = replace(windowed, sinks=values.flag("add_swa_attention_sink_bias"))
    full = replace(full, sinks=values.flag("add_full_attention_sink_bias"))
    attentions = {FULL_REACH: full, SLIDING: windowed}
    mlp = dense_block(values)
    moe = experts_block(values, ExpertRule(shared=True)) if any(routed) else None
    return Described(
        [
            decoder_layer(attentions[reach], moe if moe is not None and has else mlp)
            for reach, has in zip(reaches, routed, strict=True)
        ],
        mtp=(decoder_layer(windowed, mlp),),
    )


def step3p7(values: Values) -> Described:
    """Step-3.7: a gate a head, layers with the window with heads of their own, experts from the fourth layer on."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    reaches = listed_reaches(values, count, all_full)
    named = enumerated(values, "moe_layers_enum")
    routed = experts_of(
        values,
        count,
        after_layer(3) if named is None else lambda _, layers: [at in named for at in range(layers)],
    )
    other = values.section("attention_other_setting", {})
    sliding_heads = values.size_or_none("num_sliding_attention_heads") or other.size_or_none(*HEADS)
    attention = softmax_attention(
        values, bias="attention_bias", output_bias="attention_bias", qk_norm=HEAD_NORM, gate="head"
    )
    window = window_of(values, SLIDING)
    windowed = replace(attention, window=window, reach=SLIDING if window is not None else FULL_REACH)
    if sliding_heads is not None:
        windowed = replace(windowed, n_heads=sliding_heads, gate=sliding_heads)
    attentions = {FULL_REACH: attention, SLIDING: windowed}
    moe = experts_block(values, ExpertRule(shared_width="share_expert_dim"))
    mlp = dense_block(values, bias="mlp_bias")
    shared = shared_bias(values, "mlp_bias", moe)
    values.asked.update(("first_k_dense_replace", "n_shared_experts"))
    return Described(
        [
            decoder_layer(attentions[reach], moe if has else mlp, extra=shared if has else 0)
            for reach, has in zip(reaches, routed, strict=True)
        ],
        mtp=(decoder_layer(windowed if SLIDING in reaches else attention, mlp),),
    )


def enumerated(values: Values, name: str) -> set[int] | None:
    """Layers as a list of numbers or as a text with commas."""
    written = values.data.get(name)
    values.asked.add(name)
    if isinstance(written, str):
        parts = [part.strip() for part in written.split(",") if part.strip()]
        if not all(part.isdigit() and len(part) < 6 for part in parts):
            raise values.error(name, "must be numbers with commas between", written)
        return {int(part) for part in parts}
    listed = values.list_or_none(name, lambda entry, value: values.whole(entry, value, 0, MAX_LAYERS))
    return None if listed is None else set(listed)


def minimax_m3(values: Values) -> Described:
    """MiniMax-M3: an indexer a layer that chooses blocks of keys, in the layers that are sparse."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    nested = values.section("sparse_attention_config", values.defaults)
    listed = values.by_layer("layer_types", values.one_of({"full_attention": False, "minimax_m3_sparse": True}), count)
    if listed is None:
        listed = nested.by_layer("sparse_attention_freq", nested.zero_or_one, count) or [False] * count
    values.must_be("attention_output_gate", False, "a gate on the context is not known")
    attention = softmax_attention(values, qk_norm=HEAD_NORM)
    sparse = replace(attention, indexer=_block_indexer(values, nested)) if any(listed) else attention
    if isinstance(values.data.get("moe_layer_freq"), list):
        routed = values.by_layer("moe_layer_freq", values.zero_or_one, count) or []
    else:
        routed = [True] * count
    routed = experts_of(values, count, lambda _, layers: routed)
    values.asked.update(("moe_layer_freq", "moe_intermediate_size", "n_shared_experts", "first_k_dense_replace"))
    values.asked.update(("num_mtp_modules", "use_qk_norm", "qk_norm_type"))
    moe = experts_block(values, ExpertRule(width=("intermediate_size",), shared_width="shared_intermediate_size"))
    mlp = dense_block(values, width=("dense_intermediate_size",))
    return Described(
        [
            decoder_layer(sparse if indexed else attention, moe if has else mlp)
            for indexed, has in zip(listed, routed, strict=True)
        ]
    )


def _block_indexer(values: Values, nested: Values) -> IndexerSpec:
    """Queries of few heads, one key, a norm on each.

    Source: transformers 5.23.0 models/minimax_m3_vl/modeling_minimax_m3_vl.py, MiniMaxM3VLIndexer.
    """

    def size(old: str, new: str) -> int:
        return nested.size(old) if nested.data.get(old) is not None else values.size(new)

    heads, width = size("sparse_num_index_heads", "index_n_heads"), size("sparse_index_dim", "index_head_dim")
    block, blocks = size("sparse_block_size", "index_block_size"), size("sparse_topk_blocks", "index_topk_blocks")
    return IndexerSpec(heads, width, block * blocks, values.size(*HIDDEN) * (heads + 1) * width + 2 * width)


def hunyuan_moe(values: Values) -> Described:
    """Hunyuan-A13B: experts, their width and how many a token visits may be listed by layer."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    attention = softmax_attention(values, bias="attention_bias", output_bias="attention_bias", qk_norm=HEAD_NORM)
    values.must_be("use_qk_norm", True, "transformers always has these norms")
    values.must_be("use_cla", False, "keys and values that layers share are not counted")
    width = values.size("intermediate_size")
    listed = [
        _by_layer(values, names, count, usual)
        for names, usual in ((EXPERTS, None), (TOP_K, None), (("moe_intermediate_size",), width), (SHARED_EXPERTS, 1))
    ]
    layers: list[LayerSpec] = []
    for experts, top_k, expert_width, shared in zip(*listed, strict=True):
        if top_k > experts:
            raise values.error(values.value(*TOP_K)[0], f"must be at most the {experts} experts", top_k)
        moe = MoeSpec(experts, top_k, expert_width, shared, shared_hidden=shared * width)
        layers.append(decoder_layer(attention, moe if experts > 1 else dense_block(values)))
    return Described(layers)


def _by_layer(values: Values, names: tuple[str, ...], count: int, usual: int | None) -> list[int]:
    """A whole number a layer, from a list or one number for all."""
    if usual is not None and not values.has(*names):
        return [usual] * count
    name, value = values.value(*names)
    if isinstance(value, list):
        return values.by_layer(name, values.whole, count) or []
    return [values.whole(name, value)] * count


def nemotron_nas(values: Values) -> Described:
    """Llama-Nemotron after architecture search: every block says its own heads and MLP, or neither.

    DeciLM: sgl-project/sglang 65cf1ed0 python/sglang/srt/models/nemotron_nas.py.
    """
    count = values.size(*LAYERS, high=MAX_LAYERS)
    values.asked.update((*KV_HEADS, "intermediate_size"))
    blocks = values.list_or_none("block_configs", lambda name, value: _block(values, name, value))
    if blocks is None or len(blocks) != count:
        raise values.error("block_configs", f"must name each of the {count} layers")
    return Described(blocks)


def _block(values: Values, name: str, data: Any) -> LayerSpec:
    if not isinstance(data, Mapping):
        raise values.error(name, "must have an attention and an ffn", data)
    block = Values(data, values.file, values.model_type, {}, values.path(name))
    said, ffn = block.section("attention", {}), block.section("ffn", {})
    attention: AttentionSpec | None = None
    mixer, feed = NO_OP, NO_OP
    for part in (said, ffn):
        for field in ("replace_with_linear", "sparsify"):
            part.must_be(field, False, "layers with this change are not supported")
    said.must_be("window_length", None, "windows are not known here")
    if not said.flag("no_op"):
        heads, group = values.size(*HEADS), said.size("n_heads_in_group")
        if heads % group:
            raise said.error("n_heads_in_group", f"must divide the {heads} query heads", group)
        size = values.size_or_none("head_dim") or values.size(*HIDDEN) // heads
        on = values.flag("attention_bias")
        attention, mixer = AttentionSpec(heads, heads // group, size, bias=on, output_bias=on), f"attn(g{group})"
    mlp = None
    if not ffn.flag("no_op"):
        multiple = ffn.number("ffn_mult")
        width = int(2 * multiple * values.size(*HIDDEN) / 3)
        mlp, feed = MlpSpec(-(-width // 256) * 256, bias=values.flag("mlp_bias")), f"{DENSE}(x{multiple})"
    if attention is None and mlp is None:
        raise block.error("attention", "is a no-op, as is the ffn: an empty layer is not known")
    return LayerSpec(joined(mixer, feed), attention, mlp=mlp)
