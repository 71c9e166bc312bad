"""LFM2: short gated convolutions in most layers and softmax attention in some, MLPs or experts."""

from __future__ import annotations

from taylor.parsers.huggingface.attention import (
    HEAD_NORM,
    ExpertRule,
    dense_block,
    experts_block,
    softmax_attention,
    switched,
)
from taylor.parsers.huggingface.reaches import after_dense
from taylor.parsers.huggingface.shape import DENSE, EXPERTS, Described, decoder_layer, joined
from taylor.parsers.huggingface.values import HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import LayerSpec, MlpSpec, MoeSpec

CONVOLUTION = "conv"
IS_CONVOLUTION = {"conv": True, "full_attention": False, "attention": False}
NOTE = "short convolutions are counted whole on every rank; their activations and time are not modelled"


def lfm2(values: Values) -> Described:
    """LFM2: attention in the layers that ``layer_types`` or ``full_attn_idxs`` names."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    listed = values.by_layer("layer_types", values.one_of(IS_CONVOLUTION), count)
    if listed is None:
        full = values.list_or_none("full_attn_idxs", lambda name, value: values.whole(name, value, 0, count - 1))
        listed = [full is not None and at not in full for at in range(count)]
    mlp = MlpSpec(_adjusted(values, values.size("block_ff_dim", "intermediate_size")))
    return _described(values, listed, [mlp] * count)


def lfm2_moe(values: Values) -> Described:
    """LFM2 with experts behind the first ``num_dense_layers``."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    listed = values.by_layer("layer_types", values.one_of(IS_CONVOLUTION), count)
    if listed is None:
        raise values.error("layer_types", "is missing", cure="name conv or full_attention for every layer")
    routed, mlp = after_dense("num_dense_layers")(values, count), dense_block(values)
    moe = experts_block(values, ExpertRule())
    return _described(values, listed, [moe if each else mlp for each in routed])


def _described(values: Values, convolved: list[bool], blocks: list[MlpSpec | MoeSpec]) -> Described:
    attention = softmax_attention(values, qk_norm=HEAD_NORM)
    hidden, taps = values.size(*HIDDEN), values.size("conv_L_cache", high=1024)
    # Two gates and the stream in, the taps, the way out.
    parameters = 4 * hidden * hidden + hidden * taps + (5 * hidden if switched(values, "conv_bias") else 0)
    if any(convolved):
        values.notes.append(NOTE)
    layers = []
    for convolution, block in zip(convolved, blocks, strict=True):
        if not convolution:
            layers.append(decoder_layer(attention, block))
        elif isinstance(block, MlpSpec):
            layers.append(LayerSpec(joined(CONVOLUTION, DENSE), mlp=block, norms=2, extra=parameters))
        else:
            layers.append(LayerSpec(joined(CONVOLUTION, EXPERTS), moe=block, norms=2, extra=parameters))
    return Described(layers)


def _adjusted(values: Values, width: int) -> int:
    """The width of the MLP: two thirds, times a factor, up to a multiple (models/lfm2/modeling_lfm2.py, Lfm2MLP)."""
    if not values.flag("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    if "block_ffn_dim_multiplier" in values.data and values.data["block_ffn_dim_multiplier"] is None:
        return width
    width = int(values.number("block_ffn_dim_multiplier") * width)
    multiple = values.size("block_multiple_of")
    return -(-width // multiple) * multiple
