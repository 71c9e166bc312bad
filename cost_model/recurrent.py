"""Mixers without softmax: what Mamba and linear attention keep, multiply and move; scalars and arrays alike.

Heads, with all that they own, are split over TP. Under context parallelism every rank takes a share of the heads over
the whole sequence between two all-to-alls, so its share of the tokens counts as elsewhere (Megatron-LM d98e8a64
megatron/core/ssm/mamba_context_parallel.py, megatron/core/ssm/gated_delta_net/common.py ``a2a_cp_to_hp``).
"""

from __future__ import annotations

from typing import Any

from taylor.cost_model.products import Product
from taylor.cost_model.strategy import TrainingRules
from taylor.cost_model.strategy_table import Degrees
from taylor.register.layers import GATED_DELTA, KIMI_DELTA, LinearAttentionSpec, MambaSpec

_FP32 = 4

MAMBA_CHUNK = 128
"""Tokens of a chunk of Mamba-2's scan (Megatron-LM d98e8a64 megatron/core/ssm/mamba_mixer.py, ``chunk_size``)."""

DELTA_CHUNK = 64
"""Tokens of a chunk of the delta rules' scans (flash-linear-attention fla/ops/gated_delta_rule/chunk.py)."""

_MAMBA_SCAN_FLOPS = 7
"""FLOPs of Mamba's scan an inner channel and state (Megatron-LM d98e8a64 megatron/training/training.py:902)."""

_DELTA_SCAN_FLOPS = 6
"""FLOPs of a delta rule's scan a token and entry of its state [key size, value size]: the state read, corrected and
written, two a multiply and add."""


def recurrent_products(hidden: int, mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees) -> tuple[Product, ...]:
    """The dense products around the scan, in the order in which they run."""
    tp = degrees.tp
    if isinstance(mixer, MambaSpec):
        inner = mixer.inner / tp
        bias = mixer.projection_bias
        if mixer.dt_rank is None:
            columns = (2 * mixer.inner + 2 * mixer.n_groups * mixer.state + mixer.n_heads) / tp
            return Product(hidden, columns, bias), Product(inner, hidden, bias)
        rank = mixer.dt_rank
        return (
            Product(hidden, 2 * inner, bias),
            Product(inner, rank + 2 * mixer.state),
            Product(rank, inner, True),
            Product(inner, hidden, bias),
        )
    keys, values, heads = mixer.key_width / tp, mixer.value_width / tp, mixer.value_heads / tp
    if mixer.style == KIMI_DELTA:
        rank = mixer.value_head_dim if mixer.gate_rank is None else mixer.gate_rank
        sizes = [(hidden, keys), (hidden, keys), (hidden, values), (hidden, rank), (rank, keys), (hidden, heads)]
        sizes += [(hidden, rank), (rank, values), (values, hidden)]
        return tuple(Product(*size) for size in sizes)
    gates = 2 * heads if mixer.style == GATED_DELTA else 0
    return Product(hidden, 2 * keys + 2 * values + gates), Product(values, hidden)


def recurrent_bytes(mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Bytes a token that the mixer keeps behind its norm's output, on one rank."""
    if isinstance(mixer, MambaSpec):
        return _mamba_bytes(mixer, degrees, rules)
    return _linear_bytes(mixer, degrees, rules)


def _mamba_bytes(mamba: MambaSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Mamba-2: the joined projection, the scan's result and the normed one that the output projection saves.

    The fused kernel rebuilds convolution, time steps and states from the projection (state-spaces/mamba
    mamba_ssm/ops/triton/ssd_combined.py:888; Megatron-LM d98e8a64 mamba_mixer.py:707, which gives it no norm: the
    scan's result before the gate is kept for the gate, the gated one for the norm). Mamba-1 keeps the projection, the
    convolution's result, the time steps before and behind their product, and the result (mamba_ssm/ops/
    selective_scan_interface.py, ``MambaInnerFn``: convolution and time steps are rebuilt at its ``checkpoint_lvl`` 1).
    """
    inner = mamba.inner / degrees.tp
    if mamba.dt_rank is not None:
        small = mamba.dt_rank + 2 * mamba.state
        # Projection with its gate, the small product, the scan's result; the states at every 2048th token are few.
        return rules.compute_bytes * (2 * inner + small + inner)
    projection = 2 * inner + (2 * mamba.n_groups * mamba.state + mamba.n_heads) / degrees.tp
    gated = 2 * inner if mamba.gate_norm else inner
    return rules.compute_bytes * (projection + inner + gated)


def _linear_bytes(linear: LinearAttentionSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Projections before the convolutions, what the scan's kernel saves, the gate, the result and the gated one.

    Gated delta net as Megatron runs it (d98e8a64 megatron/core/ssm/gated_delta_net/common.py:383-442: normed queries
    and keys, repeated for every value head, copied values and gate) over flash-linear-attention's kernel
    (fla/ops/gated_delta_rule/chunk.py:310); Kimi delta attention as fla/layers/kda.py over fla/ops/kda/chunk.py:103;
    lightning attention over fla/ops/simple_gla/chunk.py:196.
    """
    tp, b = degrees.tp, rules.compute_bytes
    keys, values, heads = linear.key_width / tp, linear.value_width / tp, linear.value_heads / tp
    if linear.style == GATED_DELTA:
        repeated = linear.value_heads * linear.key_head_dim / tp
        projected = 2 * keys + 2 * values + 2 * heads
        # The chunk's matrix, queries and keys before and behind their repetition; values, gate, context, gated context.
        kept = projected + 2 * keys + 2 * repeated + heads * DELTA_CHUNK + 4 * values + heads
        # Norms of queries and keys, decay before and behind its sum, the context's norm.
        return b * kept + _FP32 * (2 * linear.key_heads / tp + 3 * heads)
    if linear.style == KIMI_DELTA:
        rank = linear.value_head_dim if linear.gate_rank is None else linear.gate_rank
        # Before the convolutions and behind them, decay, gate, two low ranks, two chunk matrices, context, gated one.
        kept = 2 * (2 * keys + values) + keys + values + 2 * rank + 2 * heads + 2 * heads * DELTA_CHUNK + 2 * values
        return b * kept + _FP32 * (keys + 2 * linear.key_heads / tp + 2 * heads)
    # Queries, keys and values, gate, context, its norm's result and the gated one.
    return b * (2 * keys + values + values + 3 * values)


def recurrent_room_bytes(mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Bytes a token that the scan's backward holds beside what its forward kept.

    The gradients of its inputs, what it rebuilds of them, and the states at the chunks' ends with their
    gradients (Mamba: fp32; mamba_ssm/ops/triton/ssd_combined.py, ``_mamba_chunk_scan_combined_bwd``).
    """
    tp, b = degrees.tp, rules.compute_bytes
    if isinstance(mixer, MambaSpec):
        inner = mixer.inner / tp
        if mixer.dt_rank is not None:
            return b * (2 * inner + 3 * inner) + _FP32 * inner
        columns = 2 * inner + (2 * mixer.n_groups * mixer.state + mixer.n_heads) / tp
        states = 2 * inner * mixer.state / MAMBA_CHUNK
        return b * (columns + mixer.conv_width / tp + inner) + _FP32 * states
    keys = mixer.value_heads * mixer.key_head_dim / tp
    values, state = mixer.value_width / tp, mixer.value_width * mixer.key_head_dim / tp / DELTA_CHUNK
    return b * (4 * keys + 4 * values + 2 * state)


def scan_flops(mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees) -> Any:
    """FLOPs a token of the scan, forward, on one rank."""
    if isinstance(mixer, MambaSpec):
        return _MAMBA_SCAN_FLOPS * mixer.inner * mixer.state / degrees.tp
    return _DELTA_SCAN_FLOPS * mixer.value_heads * mixer.key_head_dim * mixer.value_head_dim / degrees.tp


def recurrent_traffic(mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Bytes a token that convolution, scan, gate and inner norm read and write, forward, on one rank."""
    b, tp = rules.compute_bytes, degrees.tp
    if isinstance(mixer, MambaSpec):
        # The convolution reads and writes its channels; scan and gate read them and the gate and write the result.
        return b * (3 * mixer.conv_width + 4 * mixer.inner) / tp
    channels = 2 * mixer.key_width + mixer.value_width
    convolution = 2 * channels if mixer.conv_kernel else 0
    return b * (convolution + channels + 5 * mixer.value_width) / tp
