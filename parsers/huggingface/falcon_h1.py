"""Falcon-H1: Mamba-2 and attention side by side in every layer, with an MLP behind both."""

from __future__ import annotations

from taylor.parsers.huggingface.attention import dense_block, softmax_attention, switched
from taylor.parsers.huggingface.shape import Described, attention_name, joined
from taylor.parsers.huggingface.values import HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import LayerSpec, MambaSpec

BESIDE = "attention and Mamba of a layer run side by side there: planned one behind the other, with equal parameters"


def falcon_h1(values: Values) -> Described:
    """Layers in two halves, Mamba-2 first: both mixers share the first norm, which counts with it.

    Source: transformers 5.23.0 models/falcon_h1/modeling_falcon_h1.py, ``FalconH1DecoderLayer`` and ``FalconH1Mixer``.
    """
    attention = softmax_attention(values, bias="attention_bias", output_bias="attention_bias")
    second = LayerSpec("attn+dense", attention, mlp=dense_block(values, bias="mlp_bias"), norms=1)
    columns, output = values.flag("mamba_proj_bias"), values.flag("projectors_bias")
    mamba = _mamba(values, columns and output)
    # One bias without the other: of all columns of the first projection, or of the hidden size.
    extra = 0
    if columns != output:
        extra = mamba.inner + mamba.conv_width + mamba.n_heads if columns else values.size(*HIDDEN)
    name = joined("mamba", attention_name(attention), "dense")
    layer = LayerSpec(name, mamba=mamba, norms=1, extra=extra, then=second)
    values.notes.append(BESIDE)
    values.asked.update(("layers_block_type", "layer_types", "mamba_expand", "mamba_use_mlp"))
    return Described([layer] * values.size(*LAYERS, high=MAX_LAYERS))


def _mamba(values: Values, biases: bool) -> MambaSpec:
    """The mixer; ``mamba_d_ssm`` is its inner width, else ``mamba_expand`` times the hidden size.

    Raises
    ------
    InputError
        When heads times head size are another width.
    """
    given = values.size_or_none("mamba_d_ssm")
    inner = given if given is not None else values.size("mamba_expand", high=1024) * values.size(*HIDDEN)
    heads = values.size("mamba_n_heads")
    name, size = values.value("mamba_d_head")
    size = inner // heads if size == "auto" else values.whole(name, size)
    if size * heads != inner:
        raise values.error("mamba_n_heads", f"times mamba_d_head must be the inner width {inner}", heads)
    return MambaSpec(
        inner,
        heads,
        values.size("mamba_d_state"),
        values.size("mamba_n_groups"),
        values.size("mamba_d_conv"),
        conv_bias=switched(values, "mamba_conv_bias"),
        projection_bias=biases,
        gate_norm=switched(values, "mamba_rms_norm"),
    )
