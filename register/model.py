"""The shape of a language model, whatever file it was read from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

DENSE, MOE, MTP = "dense", "moe", "mtp"
LAYER_KINDS = (DENSE, MOE, MTP)
"""Names of the layer kinds in model order: dense layers come first, the MTP layer last."""


@dataclass(frozen=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1): ranks and head sizes in elements."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None


@dataclass(frozen=True)
class MoeSpec:
    """Mixture of experts in the layers after the first `first_dense` ones.

    Parameters
    ----------
    n_experts, top_k : int
        Routed experts, and how many of them a token visits.
    expert_hidden : int
        Width of one routed expert's MLP.
    n_shared : int
        Shared experts, each `expert_hidden` wide unless `shared_hidden` (the total width) is given.
    first_dense : int
        Dense layers at the front of the model.
    correction_bias : bool
        Whether the router holds one bias an expert (loss-free balancing).
    shared_gate : bool
        Whether the shared expert has a gate vector of its own (Qwen2-MoE).
    """

    n_experts: int
    top_k: int
    expert_hidden: int
    n_shared: int = 0
    shared_hidden: int | None = None
    first_dense: int = 0
    correction_bias: bool = False
    shared_gate: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer: everything its parameter count and cost depend on.

    `n_layers` counts the body layers without the MTP ones; sizes are in elements.

    Parameters
    ----------
    ffn_hidden : int
        Width of the dense MLP.
    gated_mlp : bool
        Three matrices (SwiGLU) instead of two.
    learned_positions : int
        Rows of a learned position embedding; 0 for rotary or none.
    norm_bias, attention_bias, output_bias, mlp_bias : bool
        Biases of the norms (LayerNorm), of Q, K, V, of the attention output, of the MLP.
    qk_norm : bool
        A norm on each head's query and key (Qwen3).
    mtp_layers : int
        Multi-token-prediction modules, each a body layer with a projection of 2·hidden to hidden.
    published_parameters : int or None
        Of a registered model: the parameter count that its authors publish, MTP modules left out. No part of its
        shape.
    """

    name: str
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    gated_mlp: bool = True
    tied_embedding: bool = False
    learned_positions: int = 0
    norm_bias: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    mla: MlaSpec | None = None
    moe: MoeSpec | None = None
    mtp_layers: int = 0
    published_parameters: int | None = field(default=None, compare=False)

    @property
    def n_dense(self) -> int:
        """Dense body layers."""
        return self.n_layers if self.moe is None else min(self.moe.first_dense, self.n_layers)

    @property
    def n_moe(self) -> int:
        """Mixture-of-experts body layers, MTP left out."""
        return self.n_layers - self.n_dense

    def layer_counts(self) -> dict[str, int]:
        """Layers by kind in model order; kinds the model lacks are left out."""
        counts = {DENSE: self.n_dense, MOE: self.n_moe, MTP: self.mtp_layers}
        return {kind: count for kind, count in counts.items() if count}

    def replace(self, **changes: Any) -> ModelSpec:
        """A copy with some fields changed."""
        return replace(self, **changes)
