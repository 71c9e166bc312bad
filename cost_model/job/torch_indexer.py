"""An indexer of sparse attention as single operations of torch: score matrices over all pairs of tokens.

MindSpeed-LLM c77308a1 without ``--use-fused-lightning-indexer``: every rank of TP and CP scores the whole sequence
(mindspeed_llm/tasks/models/transformer/multi_latent_attention.py:717-725, dsa_indexer.py:378-381). Not counted: its
parameters, projections and time.
"""

from __future__ import annotations

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.register.layers import AttentionSpec

_FP32 = 4


def indexer_bytes(attention: AttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes a token of a rank that an indexer's scores keep.

    Queries as fp32 and the ReLU of their products with all keys, which the product with the heads' weights keeps too
    (dsa_indexer.py:95-101); the chosen pairs as a mask of bytes (660).
    """
    if rules.torch_indexer is None or attention.latent is None:
        return 0.0
    heads, width = rules.torch_indexer
    return degrees.cp * (_FP32 * heads * (width + rules.seq_length) + rules.seq_length)


def indexer_workspace_bytes(attention: AttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes a token of a rank that the indexer's loss needs beside what is kept, when attention has just run.

    It takes the attention's own distribution (dsa_indexer.py:979-1000), heads by all pairs of tokens: an input of the
    product that Megatron's global buffer never gives back, the scores, their fp32 cast and its softmax.
    """
    if rules.torch_indexer is None or attention.latent is None:
        return 0.0
    pairs = attention.n_heads / degrees.tp * rules.seq_length
    return degrees.cp * (2 * rules.compute_bytes + 2 * _FP32) * pairs
