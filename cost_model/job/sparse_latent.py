"""Sparse latent attention in the space of the latents: one key a token for all heads, which an indexer chooses.

Kernels that gather chosen keys take queries and contexts as wide as the latent, so that the up-projection of the keys
is multiplied with the queries, and that of the values with the context. Sources: Megatron-LM d98e8a64
megatron/core/transformer/experimental_attention_variant/absorbed_mla.py:588-668, dsa.py:115-178, `AbsorbedMLA` whatever
the kernels (transformer_config.py:1511-1516); MindSpeed-LLM c77308a1
mindspeed_llm/core/transformer/custom_dot_product_attention.py:380-395 (``attention_mode=2``).
"""

from __future__ import annotations

from typing import NamedTuple

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Quantity
from taylor.register.layers import AttentionSpec, IndexerSpec, MlaSpec

_INDEX_BYTES = 4
"""Bytes of the number of a chosen key: an int32 (Megatron-LM d98e8a64
megatron/core/transformer/experimental_attention_variant/dsa_cudnn_kernels.py:963)."""


class SparseLatent(NamedTuple):
    """Attention with chosen keys in the space of its latents.

    Parameters
    ----------
    mla : MlaSpec
        Widths of latents and heads.
    indexer : IndexerSpec
        The choice of keys.
    """

    mla: MlaSpec
    indexer: IndexerSpec

    @property
    def key_width(self) -> int:
        """Elements of a key, and of each head's query: the latent and the rotated part."""
        return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim

    @property
    def value_width(self) -> int:
        """Elements of each head's context: the latent."""
        return self.mla.kv_lora_rank

    @property
    def matrices(self) -> int:
        """Weights that the indexer's own GEMMs multiply, whole on every rank of TP."""
        own = self.indexer
        return 0 if own.reused else own.parameters - 2 * own.head_dim

    def projected_bytes(self, heads: Quantity, rules: TrainingRules) -> Quantity:
        """Bytes a token of a rank's queries, before and behind the keys' up-projection, and of the key."""
        own = self.mla.qk_nope_head_dim + self.mla.qk_rope_head_dim
        return rules.compute_bytes * (heads * (own + self.key_width) + self.key_width)

    def core_bytes(self, heads: Quantity, rules: TrainingRules) -> Quantity:
        """Bytes a token that the kernels keep beside their inputs and the softmax's statistics.

        The context as wide as the latent, and the numbers of the chosen keys (dsa_cudnn_kernels.py:2547); where the
        indexer trains, the gradients of its queries, its key and its heads' weights, which its forward makes (2468).
        """
        elements = heads * self.value_width
        if rules.trains_indexer and not self.indexer.reused:
            elements = elements + self.indexer.n_heads * (self.indexer.head_dim + 1) + self.indexer.head_dim
        return rules.compute_bytes * elements + _INDEX_BYTES * min(self.indexer.top_k, rules.seq_length)


def sparse_latent(attention: AttentionSpec, rules: TrainingRules) -> SparseLatent | None:
    """The attention in the space of its latents; None where each head has its own keys."""
    absorbs = rules.framework.activations.absorbs_latents and not rules.keys_by_head
    if attention.latent is None or attention.indexer is None or not absorbs:
        return None
    return SparseLatent(attention.latent, attention.indexer)
