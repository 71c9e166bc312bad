"""DBRX: experts in every layer, norms without biases, sizes in two nested sections."""

from __future__ import annotations

from taylor.parsers.huggingface.attention import ExpertRule, experts_block
from taylor.parsers.huggingface.shape import Described, decoder_layer
from taylor.parsers.huggingface.values import HEADS, HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import AttentionSpec


def dbrx(values: Values) -> Described:
    """DBRX; ``attn_config`` names the key heads, ``ffn_config`` the experts.

    Source: transformers 5.23.0 models/dbrx/modeling_dbrx.py, ``DbrxAttention`` and ``DbrxExpertGLU``. Its class takes
    no tied head.

    Raises
    ------
    InputError
        When a size is missing or does not fit the others.
    """
    values.must_be("tie_word_embeddings", False, "the model type's class takes no tied head")
    attention, experts = values.section("attn_config", values.defaults), values.section("ffn_config", values.defaults)
    heads, hidden, keys = values.size(*HEADS), values.size(*HIDDEN), attention.size("kv_n_heads")
    if hidden % heads:
        raise values.error("n_heads", f"must divide the hidden size {hidden}", heads)
    if heads % keys:
        raise attention.error("kv_n_heads", f"must divide the {heads} query heads", keys)
    layer = decoder_layer(
        AttentionSpec(heads, keys, hidden // heads), experts_block(experts, ExpertRule(width=("ffn_hidden_size",)))
    )
    return Described([layer] * values.size(*LAYERS, high=MAX_LAYERS))
