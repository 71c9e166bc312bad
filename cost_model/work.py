"""What one layer and one micro-batch make a device do: FLOPs and bytes by kernel group; scalars and arrays alike.

FLOPs follow Narayanan et al. 2021 (arXiv:2104.04473 §5.1): two a weight and token forward, twice that
backward; attention 4·s·a·d a token, half of it where a flash kernel skips the masked blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from taylor.cost_model.activations import micro_batch_tokens, routed_slots, sequence_split
from taylor.cost_model.parameters import body_kind, expert_parameters, layer_groups, shared_hidden
from taylor.cost_model.statics import vocabulary_ways
from taylor.cost_model.strategy import TrainingRules
from taylor.cost_model.strategy_table import Degrees
from taylor.register.model import DENSE, MTP, ModelSpec


@dataclass(frozen=True)
class LayerWork:
    """Forward work of one layer and micro-batch on one device; each a scalar or an array [n].

    Parameters
    ----------
    matmul_flops, grouped_flops, attention_flops : FLOP
        Dense matrix products, grouped products of routed experts, attention cores.
    matmul_bytes, grouped_bytes : bytes
        Operands and results of the products, once each.
    element_bytes : bytes
        Traffic of norms, residuals, rotary embedding, activation functions, routing.
    score_bytes : bytes
        Traffic over attention scores where no flash kernel is used.
    activation_bytes, expert_activation_bytes : bytes
        The share of `element_bytes` that the activation functions of MLP and experts cause, and that of routed
        experts alone.
    norm_bytes : bytes
        The share that the two norms cause.
    """

    matmul_flops: Any
    matmul_bytes: Any
    grouped_flops: Any
    grouped_bytes: Any
    attention_flops: Any
    element_bytes: Any
    score_bytes: Any
    activation_bytes: Any
    expert_activation_bytes: Any
    norm_bytes: Any

    @property
    def flops(self) -> Any:
        """All forward FLOPs."""
        return self.matmul_flops + self.grouped_flops + self.attention_flops


class _ExpertWork(NamedTuple):
    """What router and routed experts add to a layer; element-wise traffic in bytes a token."""

    grouped_flops: Any
    grouped_bytes: Any
    activation: Any
    permutation: Any
    router_scores: Any
    router: Any
    """Weights of the router that a rank multiplies, its share of the tokens counted in."""


_NO_EXPERTS = _ExpertWork(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def layer_work(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> LayerWork:
    """Forward work of one layer of a kind for one micro-batch on one device."""
    kind = body_kind(model) if kind == MTP else kind
    tokens = micro_batch_tokens(degrees, rules)
    tp, sequence = degrees.tp, sequence_split(degrees)
    groups = layer_groups(model, kind)
    h, b = model.hidden, rules.compute_bytes
    latent_split = tp if rules.framework.states.splits_latent_projections else sequence
    matrices = groups.split / tp + groups.latent / latent_split
    q, k, v = _head_widths(model, tp)
    dense = kind == DENSE
    inner = (model.ffn_hidden if dense else shared_hidden(model)) / tp
    fan = 3 if model.gated_mlp else 2
    attention_traffic = 2 * h + q + k + v + v * model.n_heads / model.n_kv_heads
    mlp_traffic = 2 * h + fan * inner if dense or shared_hidden(model) else 0.0
    causal = 0.5 if rules.flash_attention else 1.0
    heads = model.n_heads / tp
    context = heads * (model.mla.v_head_dim if model.mla else model.head_dim)
    # Two norms read and write a hidden vector, two residual sums read two and write one; dropout
    # adds its mask.
    hidden_traffic = (2 * 2 + 2 * 3) * b + (2 if rules.dropout else 0)
    activation = fan * b * inner
    rotary = 0.0 if model.learned_positions else 2 * b * (q + k)
    element = hidden_traffic * h / sequence + rotary + activation
    experts = _NO_EXPERTS if dense else _expert_work(model, degrees, rules)
    activation = activation + experts.activation
    element = element + experts.activation + experts.permutation + experts.router_scores
    matrices = matrices + experts.router
    # Scores: written by QK, masked and normalised, dropped out, read by AV.
    score = (13 if rules.dropout else 8) * heads * rules.seq_length
    return LayerWork(
        matmul_flops=2 * tokens * matrices,
        matmul_bytes=b * (matrices + tokens * (attention_traffic + mlp_traffic)),
        grouped_flops=experts.grouped_flops,
        grouped_bytes=experts.grouped_bytes,
        attention_flops=tokens * 2 * causal * rules.seq_length * (context + heads * _qk_width(model)),
        element_bytes=tokens * element,
        score_bytes=0.0 if rules.flash_attention else tokens * score,
        activation_bytes=tokens * activation,
        expert_activation_bytes=tokens * experts.activation,
        norm_bytes=tokens * 2 * 2 * b * h / sequence,
    )


def _expert_work(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> _ExpertWork:
    moe = model.moe
    assert moe is not None
    h, b = model.hidden, rules.compute_bytes
    tokens, sequence = micro_batch_tokens(degrees, rules), sequence_split(degrees)
    slots = tokens * routed_slots(model, degrees, rules)
    split = 1 if rules.whole_experts else degrees.tp
    width, weights = moe.expert_hidden / split, expert_parameters(model) / split
    fan = 3 if model.gated_mlp else 2
    return _ExpertWork(
        grouped_flops=2 * slots * weights,
        grouped_bytes=b * (weights * moe.n_experts / degrees.ep + slots * (2 * h + fan * width)),
        activation=fan * b * width * slots / tokens,
        # There and back.
        permutation=4 * b * h * slots / tokens,
        # In fp32.
        router_scores=4 * 4 * moe.n_experts / sequence,
        router=moe.n_experts * h / sequence,
    )


@dataclass(frozen=True)
class HeadWork:
    """Forward work of LM head and loss, and of the embedding, for one micro-batch on one device."""

    flops: Any
    bytes: Any
    element_bytes: Any
    embedding_bytes: Any


def head_work(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> HeadWork:
    """Work of the final norm, the head's product and the loss, once more for every MTP module's head."""
    tokens = micro_batch_tokens(degrees, rules)
    times = 1 + model.mtp_layers
    vocab, h, b = model.vocab / vocabulary_ways(model, degrees, rules), model.hidden, rules.compute_bytes
    projection = 2 * h * h * model.mtp_layers / degrees.tp
    # bf16 logits read, their fp32 copy written, read for maximum, exponent and sum.
    loss = tokens * vocab * (b + 3 * 4)
    return HeadWork(
        flops=2 * tokens * (times * h * vocab + projection),
        bytes=b * (times * (h * vocab + tokens * (h + vocab)) + projection),
        element_bytes=times * (loss + 2 * b * tokens * h / sequence_split(degrees)),
        embedding_bytes=2 * b * tokens * h / sequence_split(degrees),
    )


def model_flops(model: ModelSpec, seq_length: int, *, causal: bool = False) -> float:
    """Forward and backward FLOPs a token without recompute: 3 times 2 a weight, attention included.

    Narayanan et al. 2021 eq. 3 without its recompute: 72·L·h²·(1 + s/6h + V/12Lh) for GPT.
    """
    total = 2.0 * model.hidden * model.vocab * (1 + model.mtp_layers)
    width = model.n_heads * ((model.mla.v_head_dim if model.mla else model.head_dim) + _qk_width(model))
    attention = 2.0 * seq_length * width * (0.5 if causal else 1.0)
    for kind, count in model.layer_counts().items():
        groups = layer_groups(model, kind)
        active = groups.split + groups.latent
        if model.moe is not None and kind != DENSE:
            active += model.moe.top_k * expert_parameters(model) + model.moe.n_experts * model.hidden
        total += count * (2.0 * active + attention)
    return 3 * total


def _qk_width(model: ModelSpec) -> int:
    return model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim if model.mla else model.head_dim


def _head_widths(model: ModelSpec, tp: Any) -> tuple[Any, Any, Any]:
    """Widths of a rank's queries, keys and values, elements."""
    heads = model.n_heads / tp
    if model.mla is not None:
        return heads * _qk_width(model), heads * _qk_width(model), heads * model.mla.v_head_dim
    kv = np.maximum(model.n_kv_heads / tp, 1) * model.head_dim
    return heads * model.head_dim, kv, kv
