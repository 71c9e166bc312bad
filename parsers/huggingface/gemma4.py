"""Gemma 4: windows and wider global heads, experts beside the MLP, embeddings a layer, keys and values reused."""

from __future__ import annotations

from dataclasses import replace

from taylor.parsers.huggingface.attention import ExpertRule, dense_block, experts_block, softmax_attention
from taylor.parsers.huggingface.reaches import REACHES
from taylor.parsers.huggingface.shape import DENSE, REACH_NAMES, Described, joined
from taylor.parsers.huggingface.values import EXPERTS, HIDDEN, LAYERS, TOP_K, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import FULL_REACH, SLIDING, LayerSpec

GLOBAL_HEAD_DIM = 512
"""Head size of the global layers where the file has none, and the period of full attention below: transformers 5.23.0
models/gemma4/configuration_gemma4.py, Gemma4TextConfig.__post_init__."""
FULL_EVERY = 6


def gemma4(values: Values) -> Described:
    """The layers: five with the window to one global, the last always global."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    listed = values.by_layer("layer_types", values.one_of(REACHES), count)
    if listed is None:
        listed = [SLIDING if (at + 1) % FULL_EVERY else FULL_REACH for at in range(count)]
    reaches = [*listed[:-1], FULL_REACH]
    first_reused = count - (values.size_or_none("num_kv_shared_layers", low=0, high=count) or 0)
    kinds = {(reach, at >= first_reused): None for at, reach in enumerate(reaches)}
    layers = {kind: _layer(values, *kind) for kind in kinds}
    hidden, narrow = values.size(*HIDDEN), _narrow(values)
    values.asked.update(
        ("vocab_size_per_layer_input", "use_double_wide_mlp", *EXPERTS, *TOP_K, "moe_intermediate_size")
    )
    rows = values.size("vocab_size_per_layer_input") if narrow else 0
    return Described(
        [layers[reach, at >= first_reused] for at, reach in enumerate(reaches)],
        extra_parameters=(rows + hidden) * count * narrow + narrow,
    )


def _narrow(values: Values) -> int:
    """Width of the embeddings that every layer has of its own; 0 for none."""
    return values.size_or_none("hidden_size_per_layer_input", low=0) or 0


def _layer(values: Values, reach: str, reused: bool) -> LayerSpec:
    attention = softmax_attention(values, reach, bias="attention_bias", output_bias="attention_bias", qk_norm="head")
    if reach == FULL_REACH:
        size = values.size("global_head_dim") if values.has("global_head_dim") else GLOBAL_HEAD_DIM
        alike = values.flag("attention_k_eq_v")
        given = values.size_or_none("num_global_key_value_heads")
        keys = given if given is not None and alike else attention.n_kv_heads
        attention = replace(attention, head_dim=size, n_kv_heads=keys, shared_kv=alike)
    if reused:
        attention = replace(attention, reused_kv=True, qk_norm_weights=attention.head_dim)
    wide = 2 if reused and values.flag("use_double_wide_mlp") else 1
    narrow, hidden = _narrow(values), values.size(*HIDDEN)
    norms, extra = 4 + bool(narrow), 2 * hidden * narrow
    name, moe = joined(REACH_NAMES[reach], DENSE), None
    if values.flag("enable_moe_block"):
        moe = experts_block(values, ExpertRule())
        name = joined(REACH_NAMES[reach], DENSE, "moe")
        # Norms before the experts, behind them and behind the MLP; a scale of the router's input, one an expert.
        norms, extra = norms + 3, extra + hidden + moe.n_experts
    return LayerSpec(name, attention, mlp=dense_block(values, times=wide), moe=moe, norms=norms, extra=extra)
