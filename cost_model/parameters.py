"""Parameters of a layer and of a model, exact to the unit, and how parallelism splits them.

Counts follow the models' own papers and reference weights: multi-head / grouped-query attention,
multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1), plain and gated MLPs, routed and
shared experts (DeepSeek-V3, arXiv:2412.19437), multi-token prediction (ibid. §2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from taylor.register.model import DENSE, MOE, MTP, ModelSpec


@dataclass(frozen=True)
class ParameterGroups:
    """Parameters of one block by how they are split over ranks.

    Parameters
    ----------
    split : int
        Split over TP: attention and MLP matrices, shared experts.
    latent : int
        The down projections of latent attention: split over TP or held whole by every TP rank, as the
        framework has it (`register.frameworks.StateRules`).
    replicated : int
        Held whole by every TP rank: norms, routers, biases added after the reduction.
    routed : int
        Routed experts, split over EP.
    """

    split: int = 0
    latent: int = 0
    replicated: int = 0
    routed: int = 0

    @property
    def total(self) -> int:
        """All parameters of the block."""
        return self.split + self.latent + self.replicated + self.routed

    def __add__(self, other: ParameterGroups) -> ParameterGroups:
        return ParameterGroups(
            self.split + other.split,
            self.latent + other.latent,
            self.replicated + other.replicated,
            self.routed + other.routed,
        )


def body_kind(model: ModelSpec) -> str:
    """The kind of the model's body layers: ``moe`` when it has experts, else ``dense``."""
    return MOE if model.n_moe else DENSE


def layer_groups(model: ModelSpec, kind: str) -> ParameterGroups:
    """Parameters of one layer of a kind (``dense``, ``moe``, ``mtp``), by split.

    An MTP module is a body layer, two norms, a projection of 2·hidden to hidden and a final norm of
    its own; its embedding and head are the model's (DeepSeek-V3 §2.2).

    Raises
    ------
    ValueError
        When the kind is unknown, or ``moe`` is asked of a model without experts.
    """
    if kind == MTP:
        extra = ParameterGroups(split=2 * model.hidden * model.hidden, replicated=3 * _norm(model))
        return layer_groups(model, body_kind(model)) + extra
    if kind == DENSE:
        return _attention(model) + _mlp(model)
    if kind == MOE and model.moe is not None:
        return _attention(model) + _experts(model)
    raise ValueError(f"model {model.name} has no layers of kind {kind!r}")


def layer_parameters(model: ModelSpec, kind: str) -> int:
    """Parameters of one layer of a kind (``dense``, ``moe``, ``mtp``)."""
    return layer_groups(model, kind).total


def embedding_parameters(model: ModelSpec) -> int:
    """Token embedding and, when learned, position embedding."""
    return (model.vocab + model.learned_positions) * model.hidden


def head_parameters(model: ModelSpec) -> int:
    """LM head matrix, vocab · hidden, whether or not it is the embedding's own."""
    return model.vocab * model.hidden


def total_parameters(model: ModelSpec, with_mtp: bool = False) -> int:
    """Parameters of the whole model; a tied head counts once, MTP modules only when asked for."""
    total = embedding_parameters(model) + _norm(model)
    if not model.tied_embedding:
        total += head_parameters(model)
    for kind, count in model.layer_counts().items():
        if kind != MTP or with_mtp:
            total += count * layer_parameters(model, kind)
    return total


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes through, MTP left out: `top_k` of the routed experts count."""
    total = total_parameters(model)
    if model.moe is None:
        return total
    idle = model.moe.n_experts - model.moe.top_k
    return total - model.n_moe * idle * expert_parameters(model)


def expert_parameters(model: ModelSpec) -> int:
    """Parameters of one routed expert."""
    assert model.moe is not None
    return (3 if model.gated_mlp else 2) * model.hidden * model.moe.expert_hidden


def shared_hidden(model: ModelSpec) -> int:
    """Total width of the shared experts' MLP, elements (0 when there are none)."""
    moe = model.moe
    if moe is None:
        return 0
    return moe.shared_hidden if moe.shared_hidden is not None else moe.n_shared * moe.expert_hidden


def _norm(model: ModelSpec) -> int:
    return model.hidden * (2 if model.norm_bias else 1)


def _attention(model: ModelSpec) -> ParameterGroups:
    h, heads = model.hidden, model.n_heads
    if model.mla is not None:
        mla = model.mla
        query_in = mla.q_lora_rank if mla.q_lora_rank is not None else h
        split = query_in * heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        split += mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        split += heads * mla.v_head_dim * h
        latent = h * (mla.kv_lora_rank + mla.qk_rope_head_dim) + h * (mla.q_lora_rank or 0)
        replicated = _norm(model) + mla.kv_lora_rank + (mla.q_lora_rank or 0)
        return ParameterGroups(split=split, latent=latent, replicated=replicated)
    q_width, kv_width = heads * model.head_dim, model.n_kv_heads * model.head_dim
    split = h * (q_width + 2 * kv_width) + q_width * h
    if model.attention_bias:
        split += q_width + 2 * kv_width
    replicated = _norm(model) + (h if model.output_bias else 0) + (2 * model.head_dim if model.qk_norm else 0)
    return ParameterGroups(split=split, replicated=replicated)


def _mlp(model: ModelSpec) -> ParameterGroups:
    h, f = model.hidden, model.ffn_hidden
    matrices_in = 2 if model.gated_mlp else 1
    split = (matrices_in + 1) * h * f
    replicated = _norm(model)
    if model.mlp_bias:
        split += matrices_in * f
        replicated += h
    return ParameterGroups(split=split, replicated=replicated)


def _experts(model: ModelSpec) -> ParameterGroups:
    moe = model.moe
    assert moe is not None
    h, matrices = model.hidden, 3 if model.gated_mlp else 2
    router = moe.n_experts * h + (moe.n_experts if moe.correction_bias else 0) + (h if moe.shared_gate else 0)
    return ParameterGroups(
        split=matrices * h * shared_hidden(model),
        replicated=_norm(model) + router,
        routed=moe.n_experts * expert_parameters(model),
    )
