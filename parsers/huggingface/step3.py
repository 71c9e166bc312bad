"""Step-3: multi-matrix factorized attention, experts from the fifth layer on."""

from __future__ import annotations

from dataclasses import replace

from taylor.parsers.huggingface.attention import ExpertRule, dense_block, experts_block, softmax_attention
from taylor.parsers.huggingface.own_layers import enumerated
from taylor.parsers.huggingface.shape import Described, decoder_layer
from taylor.parsers.huggingface.values import LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS


def step3(values: Values) -> Described:
    """Queries of low rank with a norm between, one head of keys and values; a shared expert of a width of its own.

    Source: vllm-project/vllm 0169d396 vllm/model_executor/models/step3_text.py, ``Step3TextAttention`` and
    ``Step3TextDecoderLayer`` (experts in all but the first layer where ``moe_layers_enum`` is null).

    Raises
    ------
    InputError
        When a size is missing or there is more than one head of keys.
    """
    count = values.size(*LAYERS, high=MAX_LAYERS)
    attention = softmax_attention(values)
    if attention.n_kv_heads != 1:
        raise values.error("num_attention_groups", "must be 1: no other is known of this type", attention.n_kv_heads)
    attention = replace(attention, q_rank=values.size_or_none("share_q_dim") or attention.head_dim)
    listed = enumerated(values, "moe_layers_enum")
    if listed is None:
        listed = set(range(1, count))
    moe = experts_block(values, ExpertRule(shared_width="share_expert_dim"))
    mlp = dense_block(values)
    values.asked.update(("norm_expert_weight", "max_position_embedding", "n_shared_experts"))
    return Described([decoder_layer(attention, moe if at in listed else mlp) for at in range(count)])
