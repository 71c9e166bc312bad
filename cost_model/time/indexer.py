"""Time of the indexer that chooses the keys of sparse latent attention; scalars and arrays alike.

Fused kernels, as of cuDNN or TileLang (Megatron-LM d98e8a64
megatron/core/transformer/experimental_attention_variant/dsa_cudnn_kernels.py): the scores of a query's heads with each
key before it, from which the highest are chosen, then the attention's own scores of the chosen keys, which its loss is
against, and the loss's gradients, all in the forward (2376-2472). The input is detached (dsa.py:1888-1890), so that the
backward makes gradients of the indexer's weights alone.
"""

from __future__ import annotations

from typing import NamedTuple

from taylor.cost_model.job.sparse_latent import SparseLatent, sparse_latent
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens
from taylor.cost_model.time.speed import Speed
from taylor.register.layers import AttentionSpec
from taylor.register.model import ModelSpec

_SCORE_TRAFFIC = 2 * 4
"""Bytes of a score: written as fp32, read by the choice (Megatron-LM d98e8a64
megatron/core/transformer/experimental_attention_variant/dsa_cudnn_kernels.py:503-511)."""


class IndexerTime(NamedTuple):
    """Times of one micro-batch on one device, ms."""

    forward: Quantity
    backward: Quantity


def indexer_time(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, speed: Speed) -> IndexerTime:
    """Time of the indexers of a kind's layers; none where a layer reuses the choice of one before it.

    Every rank of TP projects and scores all its tokens (dsa.py:1159-1207, ``parallel_mode="duplicated"``).
    """
    forward: Quantity = 0.0
    backward: Quantity = 0.0
    for layer in model.layers_of(kind):
        sparse = None if layer.attention is None else sparse_latent(layer.attention, rules)
        if layer.attention is None or sparse is None or sparse.indexer.reused:
            continue
        products = _products_ms(model, sparse, degrees, rules, speed)
        forward = forward + products + _choice_ms(sparse, degrees, rules, speed)
        if rules.trains_indexer:
            forward = forward + _loss_ms(layer.attention, sparse, degrees, rules, speed)
            backward = backward + products
    return IndexerTime(forward, backward)


def _products_ms(
    model: ModelSpec, sparse: SparseLatent, degrees: Degrees, rules: TrainingRules, speed: Speed
) -> Quantity:
    """One pass of the GEMMs for queries, key and the heads' weights."""
    own, tokens, b = sparse.indexer, micro_batch_tokens(degrees, rules), rules.compute_bytes
    read = b * (tokens * ((sparse.mla.q_lora_rank or model.hidden) + 2 * model.hidden) + sparse.matrices)
    written = b * tokens * (own.n_heads * (own.head_dim + 1) + own.head_dim)
    return speed.product(2 * tokens * sparse.matrices, read, written)


def _choice_ms(sparse: SparseLatent, degrees: Degrees, rules: TrainingRules, speed: Speed) -> Quantity:
    """Scores of each query with the keys before it, and the choice of the highest."""
    own = sparse.indexer
    pairs = micro_batch_tokens(degrees, rules) * rules.seq_length / 2
    return speed.flops("attention", 2 * pairs * own.n_heads * own.head_dim) + speed.bytes(_SCORE_TRAFFIC * pairs)


def _loss_ms(
    attention: AttentionSpec, sparse: SparseLatent, degrees: Degrees, rules: TrainingRules, speed: Speed
) -> Quantity:
    """The attention's scores of the chosen keys, the indexer's, and gradients of its queries and keys."""
    own, heads = sparse.indexer, attention.n_heads / degrees.tp
    pairs = micro_batch_tokens(degrees, rules) * attention.seen(rules.seq_length, causal=True)
    return speed.flops("attention", 2 * pairs * (heads * sparse.key_width + 3 * own.n_heads * own.head_dim))
