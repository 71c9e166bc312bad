"""Parameters of a layer and of a model, exact to the unit, and how parallelism splits them.

Counts follow the models' own papers and reference weights: multi-head / grouped-query attention,
multi-head latent attention (DeepSeek-V2, arXiv:2405.04434 §2.1), Mamba, linear attentions, plain and gated MLPs,
routed and shared experts (DeepSeek-V3, arXiv:2412.19437), multi-token prediction (ibid. §2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from taylor.register.layers import (
    GATED_DELTA,
    KIMI_DELTA,
    AttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import MTP, ModelSpec


@dataclass(frozen=True)
class ParameterGroups:
    """Parameters of one block by how they are split over ranks.

    Parameters
    ----------
    split : int
        Split over TP: attention and MLP matrices, shared experts.
    latent : int
        Down projections of latent attention, and those to and from the width of latent experts: split over TP or whole
        on every TP rank, as the framework has it (`register.frameworks.StateRules`).
    replicated : int
        Whole on every TP rank: norms, routers, biases added after the reduction.
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


def layer_groups(model: ModelSpec, kind: str) -> ParameterGroups:
    """Parameters of one layer of a kind or run, or of one MTP module (``mtp``), by split.

    An MTP module is its layers, two norms, a projection of 2·hidden to hidden and a final norm; its embedding and head
    are the model's (DeepSeek-V3 §2.2).

    Raises
    ------
    ValueError
        When the model has no layers of that kind.
    """
    extra = ParameterGroups()
    if kind == MTP:
        extra = ParameterGroups(split=2 * model.hidden * model.hidden, replicated=3 * norm_parameters(model))
    return sum((layer_parameter_groups(model, layer) for layer in model.layers_of(kind)), extra)


def module_body_groups(model: ModelSpec) -> ParameterGroups:
    """Parameters of the layers of one MTP module, without its projection and norms."""
    return sum((layer_parameter_groups(model, layer) for layer in model.mtp_module()), ParameterGroups())


def router_parameters(model: ModelSpec, kind: str) -> int:
    """Parameters of the routers of one layer of a kind, with the gates of shared experts."""
    experts = [layer.moe for layer in model.layers_of(kind) if layer.moe is not None]
    return sum(moe.router_rows * model.hidden + moe.shared_gate * model.hidden for moe in experts)


def layer_parameters(model: ModelSpec, kind: str) -> int:
    """Parameters of one layer of a kind (``dense``, ``moe``, ``mtp``)."""
    return layer_groups(model, kind).total


def embedding_parameters(model: ModelSpec) -> int:
    """Token embedding and, when learned, position embedding."""
    return (model.vocab + model.learned_positions) * model.hidden


def head_parameters(model: ModelSpec) -> int:
    """LM head matrix, vocab · hidden, tied to the embedding or not; a vector of a value head."""
    return model.outputs * model.hidden


def total_parameters(model: ModelSpec, with_mtp: bool = False) -> int:
    """Parameters of the whole model; a tied head counts once, MTP modules only when asked for."""
    total = embedding_parameters(model) + model.extra_parameters + norm_parameters(model)
    if not model.tied_embedding:
        total += head_parameters(model)
    for kind, count in model.kind_counts.items():
        if kind != MTP or with_mtp:
            total += count * layer_parameters(model, kind)
    return total


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes through, without MTP: those of the routed experts that it visits count."""
    total: float = total_parameters(model)
    for kind, count in model.body_counts.items():
        for layer in model.layers_of(kind):
            if layer.moe is not None:
                total -= count * (layer.moe.n_experts - layer.moe.visited) * expert_parameters(model, layer.moe)
    return round(total)


def expert_parameters(model: ModelSpec, moe: MoeSpec) -> int:
    """Parameters of one routed expert."""
    outer = expert_outer(model, moe)
    matrices = 3 if moe.gated else 2
    biases = (matrices - 1) * moe.expert_hidden + outer if moe.expert_bias else 0
    return matrices * outer * moe.expert_hidden + biases


def expert_outer(model: ModelSpec, moe: MoeSpec) -> int:
    """Width of a routed expert's input and output, elements."""
    return model.hidden if moe.latent is None else moe.latent


def norm_parameters(model: ModelSpec) -> int:
    """Parameters of one norm as wide as the model."""
    return model.hidden * (2 if model.norm_bias else 1)


def layer_parameter_groups(model: ModelSpec, layer: LayerSpec) -> ParameterGroups:
    """Parameters of one layer, by split."""
    total = ParameterGroups(replicated=layer.norm_count * norm_parameters(model) + layer.extra)
    if layer.attention is not None:
        total += _attention(model, layer.attention)
    if layer.mamba is not None:
        total += _mamba(model, layer.mamba)
    if layer.linear is not None:
        total += _linear_attention(model, layer.linear)
    if layer.mlp is not None:
        total += _mlp(model, layer.mlp)
    if layer.moe is not None:
        total += _experts(model, layer.moe)
    return total


def _attention(model: ModelSpec, attention: AttentionSpec) -> ParameterGroups:
    h, heads = model.hidden, attention.n_heads
    context = heads * attention.v_width
    split = _output(h, context, attention) + h * attention.gate + (heads if attention.sinks else 0)
    replicated = h if attention.output_bias else 0
    if attention.indexer is not None:
        replicated += attention.indexer.parameters
    mla = attention.latent
    if mla is not None:
        query_in = mla.q_lora_rank if mla.q_lora_rank is not None else h
        split += query_in * heads * attention.qk_width
        split += mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        latent = h * (mla.kv_lora_rank + mla.qk_rope_head_dim) + h * (mla.q_lora_rank or 0)
        replicated += mla.kv_lora_rank + (mla.q_lora_rank or 0)
        if attention.bias:
            replicated += mla.kv_lora_rank + mla.qk_rope_head_dim + (mla.q_lora_rank or 0)
        return ParameterGroups(split=split, latent=latent, replicated=replicated)
    q_width, k_width = heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    v_width = 0 if attention.shared_kv else attention.n_kv_heads * attention.v_width
    if attention.reused_kv:
        k_width = v_width = 0
    rank = attention.q_rank
    split += (h if rank is None else rank) * q_width + h * (k_width + v_width)
    if attention.bias:
        split += q_width + k_width + v_width
    if attention.qk_norm:
        weights = attention.qk_norm_weights
        replicated += 2 * attention.head_dim if weights is None else weights
    return ParameterGroups(split=split, latent=h * (rank or 0), replicated=replicated + (rank or 0))


def _output(hidden: int, context: int, attention: AttentionSpec) -> int:
    """The projection of the context; of low rank, every group of heads has a separate first half."""
    if attention.output_rank is None:
        return context * hidden
    return context * attention.output_rank + attention.output_groups * attention.output_rank * hidden


def _mamba(model: ModelSpec, mamba: MambaSpec) -> ParameterGroups:
    """Mamba-1 (arXiv:2312.00752 §3) or Mamba-2 (arXiv:2405.21060 §7); heads are split over TP, with all they own."""
    h, inner, state = model.hidden, mamba.inner, mamba.state
    convolution = mamba.conv_width * (mamba.conv_kernel + (1 if mamba.conv_bias else 0))
    output = inner * h
    if mamba.dt_rank is not None:
        rank = mamba.dt_rank
        # Input and gate; time step, B and C from the inner stream; the time step back to every channel; A and D.
        split = h * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner + inner * state + inner
        norms = rank + 2 * state if mamba.inner_norms else 0
        biases = 2 * inner if mamba.projection_bias else 0
        return ParameterGroups(
            split=split + convolution + output + biases, replicated=norms + (h if mamba.projection_bias else 0)
        )
    columns = 2 * inner + 2 * mamba.n_groups * state + mamba.n_heads
    split = h * columns + convolution + 3 * mamba.n_heads + (inner if mamba.gate_norm else 0) + output
    if not mamba.projection_bias:
        return ParameterGroups(split=split)
    return ParameterGroups(split=split + columns, replicated=h)


def _linear_attention(model: ModelSpec, linear: LinearAttentionSpec) -> ParameterGroups:
    """Gated delta net, Kimi delta attention or lightning attention; heads are split over TP."""
    h, keys, values = model.hidden, linear.key_width, linear.value_width
    split = h * (2 * keys + values) + values * h + (2 * keys + values) * linear.conv_kernel
    if linear.style == GATED_DELTA:
        # A gate as wide as the values; a write strength and a decay a head, with A and a time bias.
        split += h * values + h * 2 * linear.value_heads + 2 * linear.value_heads
        return ParameterGroups(split=split, replicated=linear.value_head_dim)
    if linear.style == KIMI_DELTA:
        rank, decays = linear.low_rank, linear.decay_width
        # Decay a channel and gate, of low rank or full; a write strength and A a head, a time bias a channel.
        split += (h if linear.full_decay else rank) * decays + (h if linear.full_gate else rank) * values
        split += h * linear.value_heads + linear.value_heads + decays
        return ParameterGroups(split=split, replicated=linear.value_head_dim + linear.low_ranks * h * rank)
    # A gate as wide as the values, and a norm of the context.
    return ParameterGroups(split=split + h * values + values)


def _mlp(model: ModelSpec, mlp: MlpSpec) -> ParameterGroups:
    matrices_in = 2 if mlp.gated else 1
    split = (matrices_in + 1) * model.hidden * mlp.width
    if not mlp.bias:
        return ParameterGroups(split=split)
    return ParameterGroups(split=split + matrices_in * mlp.width, replicated=model.hidden)


def _experts(model: ModelSpec, moe: MoeSpec) -> ParameterGroups:
    h, matrices = model.hidden, 3 if moe.gated else 2
    router = moe.router_rows * h + (moe.router_rows if moe.correction_bias else 0) + (h if moe.shared_gate else 0)
    return ParameterGroups(
        split=matrices * h * moe.shared_width,
        latent=2 * h * (moe.latent or 0),
        replicated=router + (moe.router_rows if moe.router_bias else 0),
        routed=moe.n_experts * expert_parameters(model, moe),
    )
