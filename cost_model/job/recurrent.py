"""Mixers without softmax: memory, FLOPs and traffic of Mamba and linear attention; scalars and arrays alike.

Heads, with all their tensors, are split over TP. Under context parallelism every rank takes a part of the heads over
the whole sequence between two all-to-alls, so its part of the tokens counts as elsewhere (Megatron-LM d98e8a64
megatron/core/ssm/mamba_context_parallel.py, megatron/core/ssm/gated_delta_net/common.py ``a2a_cp_to_hp``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from taylor.cost_model.job.products import Product
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.job.torch_scan import torch_scan_bytes, torch_scan_workspace_bytes
from taylor.register.adapters import MIXER_IN, MIXER_OUT
from taylor.register.layers import GATED_DELTA, KIMI_DELTA, LinearAttentionSpec, MambaSpec

_FP32 = 4

MAMBA_CHUNK = 128
"""Tokens of a chunk of Mamba-2's scan (Megatron-LM d98e8a64 megatron/core/ssm/mamba_mixer.py, ``chunk_size``)."""

SELECTIVE_CHUNK = 2048
"""Tokens between kept states of Mamba-1's scan.

state-spaces/mamba e9594ce1 csrc/selective_scan/selective_scan.cpp:307.
"""

DELTA_CHUNK = 64
"""Tokens of a chunk of linear attentions' scans.

fla-org/flash-linear-attention bc3b101d fla/ops/gated_delta_rule/chunk.py:278-279.
"""

_MAMBA_SCAN_FLOPS = 7
"""FLOPs of Mamba's scan an inner channel and state (Megatron-LM d98e8a64 megatron/training/training.py:902)."""

_DELTA_SCAN_FLOPS = 6
"""FLOPs of a delta rule's scan a token and entry of its state [key size, value size]: the state read, corrected and
written, two a multiply and add."""


def recurrent_products(hidden: int, mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees) -> tuple[Product, ...]:
    """The dense GEMMs around the scan, in the order in which they run."""
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
            # The kernel adds its bias.
            Product(rank, inner),
            Product(inner, hidden, bias),
        )
    keys, values, heads = mixer.key_width / tp, mixer.value_width / tp, mixer.value_heads / tp
    if mixer.style == KIMI_DELTA:
        rank, decays = mixer.low_rank, mixer.decay_width / tp
        sizes = [(hidden, keys), (hidden, keys), (hidden, values)]
        sizes += [(hidden, decays)] if mixer.full_decay else [(hidden, rank), (rank, decays)]
        sizes += [(hidden, heads)]
        sizes += [(hidden, values)] if mixer.full_gate else [(hidden, rank), (rank, values)]
        return *(Product(*size) for size in sizes), Product(values, hidden)
    if mixer.style == GATED_DELTA:
        return Product(hidden, 2 * keys + 2 * values + 2 * heads), Product(values, hidden)
    return Product(hidden, 2 * keys + values), Product(hidden, values), Product(values, hidden)


def recurrent_bytes(
    mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees, rules: TrainingRules, split: Quantity
) -> Quantity:
    """Bytes a token that the mixer keeps behind its norm's output, on one rank.

    Parameters
    ----------
    split : scalar or array [n]
        Ways in which tokens of a GEMM that every TP rank holds whole are split (`activations.input_split`).
    """
    if isinstance(mixer, MambaSpec):
        return _mamba_bytes(mixer, degrees, rules)
    return _linear_bytes(mixer, degrees, rules, split)


def entering_bytes(mixer: MambaSpec | LinearAttentionSpec, rules: TrainingRules) -> float:
    """Bytes an element of the mixer's input: once in the compute type, or a narrow copy a GEMM.

    Kimi's GEMMs of low rank, whole on every TP rank, stay in the compute type.
    """
    if rules.saved_narrow is None or isinstance(mixer, MambaSpec) or mixer.style == GATED_DELTA:
        return rules.input_bytes_of(MIXER_IN)
    if mixer.style == KIMI_DELTA:
        # Narrow: queries, keys, values, write strengths, and what has full rank.
        narrow = (6 - mixer.low_ranks) * rules.input_bytes_of(MIXER_IN)
        return narrow + (rules.compute_bytes if mixer.low_ranks else 0)
    return 2 * rules.input_bytes_of(MIXER_IN)


def _mamba_bytes(mamba: MambaSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Mamba-2: the joined projection, the scan's result before the gate and behind it, and the normed one.

    The fused kernel rebuilds convolution, time steps and states from the projection (state-spaces/mamba
    mamba_ssm/ops/triton/ssd_combined.py:888; Megatron-LM d98e8a64 mamba_mixer.py:707, which gives it no norm: the
    gated result is kept for the norm). Mamba-1 keeps the projection, the small GEMM's result with copies of B and C,
    the scan's result before the gate and few states (mamba_ssm/ops/selective_scan_interface.py:256, ``MambaInnerFn``:
    convolution, time steps and the gated result are rebuilt).
    """
    b, inner = rules.compute_bytes, mamba.inner / degrees.tp
    if mamba.dt_rank is not None:
        small = mamba.dt_rank + 4 * mamba.state
        chunks = math.ceil(rules.seq_length / SELECTIVE_CHUNK) / rules.seq_length
        return b * (3 * inner + small) + _FP32 * 2 * mamba.state * inner * chunks
    if rules.torch_scan is not None:
        return torch_scan_bytes(mamba, degrees, rules, rules.torch_scan)
    kept = b * (_mamba_columns(mamba) / degrees.tp + inner) + rules.input_bytes_of(MIXER_OUT) * inner
    return kept + (b * inner + _FP32 * mamba.n_groups / degrees.tp if mamba.gate_norm else 0)


def _mamba_columns(mamba: MambaSpec) -> int:
    """Columns of Mamba-2's projection: gate, inner stream, B, C and time steps."""
    return mamba.inner + mamba.conv_width + mamba.n_heads


@dataclass(frozen=True)
class _Widths:
    """Linear attention on one rank, elements a token; each a scalar or an array [n]."""

    keys: Quantity
    values: Quantity
    key_heads: Quantity
    heads: Quantity
    repeated: Quantity
    """Queries, or keys, repeated for every head of values."""
    states: Quantity
    """States at the chunks' starts."""

    @classmethod
    def of(cls, linear: LinearAttentionSpec, tp: Quantity) -> _Widths:
        repeated = linear.decay_width / tp
        return cls(
            keys=linear.key_width / tp,
            values=linear.value_width / tp,
            key_heads=linear.key_heads / tp,
            heads=linear.value_heads / tp,
            repeated=repeated,
            states=repeated * linear.value_head_dim / DELTA_CHUNK,
        )


def _linear_bytes(linear: LinearAttentionSpec, degrees: Degrees, rules: TrainingRules, split: Quantity) -> Quantity:
    """Projections before the convolutions, what the scan's kernel saves, the gate, the result and the gated one.

    Gated delta net as Megatron runs it (d98e8a64 megatron/core/ssm/gated_delta_net/common.py:383-442: normed queries
    and keys, repeated for every value head, copied values and gate) over flash-linear-attention's kernel
    (fla/ops/gated_delta_rule/chunk.py:310); Kimi delta attention as fla/layers/kda.py over fla/ops/kda/chunk.py:103,
    which makes its decays again; lightning attention as MiniMax's models have it over fla/ops/simple_gla/chunk.py:196.
    """
    b, w = rules.compute_bytes, _Widths.of(linear, degrees.tp)
    convolved, gated = 2 * w.keys + w.values, rules.input_bytes_of(MIXER_OUT) * w.values
    if linear.style == GATED_DELTA:
        projected = convolved + w.values + 2 * w.heads
        # Queries and keys before and behind their repetition, the chunks' matrices, write strengths.
        scanned = 2 * w.keys + 2 * w.repeated + w.values + w.heads * DELTA_CHUNK + w.heads
        # Copied gate, context, normed context.
        kept = projected + scanned + 3 * w.values
        return b * kept + gated + _FP32 * (2 * w.key_heads + 2 * w.heads)
    if linear.style == KIMI_DELTA:
        before = convolved if linear.conv_kernel else 0
        scanned = convolved + w.repeated + 2 * w.heads + 2 * w.heads * DELTA_CHUNK
        low_ranks = rules.input_bytes_of(MIXER_IN) * linear.low_ranks * linear.low_rank / split
        return b * (before + scanned + 2 * w.values) + low_ranks + gated + _FP32 * (2 * w.key_heads + w.heads)
    # Before the activation and behind it; gate, context, normed context.
    return b * (2 * convolved + 3 * w.values) + gated + _FP32


def recurrent_workspace_bytes(
    mixer: MambaSpec | LinearAttentionSpec, hidden: int, ways: Quantity, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """Bytes a token of the scan's backward beyond what the mixer kept, less what is freed by then.

    Gradients of the scan's inputs and outputs, rebuilt ones, and the states at the chunks' ends with their gradients:
    Mamba-2 has four sets of states at once, two of them fp32 (mamba_ssm/ops/triton/ssd_combined.py:436,
    ``_mamba_chunk_scan_combined_bwd``), the gated delta rule two (fla/ops/gated_delta_rule/chunk.py:126), Kimi's two
    beside seven fp32 gradients and decays as wide as the keys (fla/ops/kda/chunk_bwd.py:435), lightning attention two
    of fp32 (fla/ops/simple_gla/chunk.py:61).

    Parameters
    ----------
    ways : scalar or array [n]
        Ways in which the residual stream's tokens are split (`activations.sequence_split`).
    """
    b = rules.compute_bytes
    if isinstance(mixer, MambaSpec):
        return _mamba_workspace_bytes(mixer, hidden, ways, degrees, rules)
    w = _Widths.of(mixer, degrees.tp)
    waiting = hidden / ways
    if mixer.style == GATED_DELTA:
        # Gradients of context and gate; gate, context, normed context and gated one are gone.
        return b * (5 * w.repeated + 4 * w.values + 2 * w.states + 2 * w.values - 4 * w.values)
    if mixer.style == KIMI_DELTA:
        narrow = 3 * w.repeated + 3 * w.values + 2 * w.states + w.values + waiting - 3 * w.values
        return b * narrow + _FP32 * (7 * w.repeated + 2 * w.heads * DELTA_CHUNK)
    return b * (2 * w.keys + w.values + w.values + waiting - 4 * w.values) + 2 * _FP32 * w.states


def _mamba_workspace_bytes(
    mamba: MambaSpec, hidden: int, ways: Quantity, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    b, inner = rules.compute_bytes, mamba.inner / degrees.tp
    if mamba.dt_rank is not None:
        small = mamba.dt_rank + 2 * mamba.state
        gathered = np.where(np.greater(ways, 1), hidden, 0)
        return b * (8 * inner + small + gathered) + _FP32 * 2 * mamba.state
    if rules.torch_scan is not None:
        return torch_scan_workspace_bytes(mamba, degrees, rules, rules.torch_scan)
    heads, groups = mamba.n_heads / degrees.tp, mamba.n_groups / degrees.tp
    products = _FP32 * groups * MAMBA_CHUNK
    # Gradient of the result, of the projection and of what is convolved, which is rebuilt; time steps.
    total = b * (_mamba_columns(mamba) + 2 * mamba.conv_width + mamba.n_heads) / degrees.tp + b * 2 * inner
    total = total + 2 * _FP32 * heads + products
    states = inner * mamba.state / MAMBA_CHUNK
    # Both fp32 states with their narrow copies; then those alone, beside the gradients of B, C and their products.
    later = 2 * b * states + 2 * _FP32 * groups * mamba.state + 2 * products
    behind = 2 * b * inner + _FP32 * groups if mamba.gate_norm else b * inner
    return total + np.maximum((2 * _FP32 + 2 * b) * states, later) - behind


def scan_flops(mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees) -> Quantity:
    """FLOPs a token of the scan, forward, on one rank."""
    if isinstance(mixer, MambaSpec):
        return _MAMBA_SCAN_FLOPS * mixer.inner * mixer.state / degrees.tp
    return _DELTA_SCAN_FLOPS * mixer.value_heads * mixer.key_head_dim * mixer.value_head_dim / degrees.tp


def recurrent_traffic(mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes a token that convolution, scan, gate and inner norm read and write, forward, on one rank."""
    b, tp = rules.compute_bytes, degrees.tp
    if isinstance(mixer, MambaSpec):
        # The convolution reads and writes its channels; scan and gate read them and the gate and write the result.
        return b * (3 * mixer.conv_width + 4 * mixer.inner) / tp
    channels = 2 * mixer.key_width + mixer.value_width
    convolution = 2 * channels if mixer.conv_kernel else 0
    return b * (convolution + channels + 5 * mixer.value_width) / tp
