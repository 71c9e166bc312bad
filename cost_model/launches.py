"""Time of the host to start the operations of a layer with experts; scalars and arrays alike.

A framework that runs operator by operator starts every operation from Python; the device waits where it is faster.
Experts make many small ones: each expert has its own GEMMs and casts. The operations of a CUDA graph start together.

Operations are counted in Megatron-LM d98e8a64 (megatron/core/transformer/transformer_layer.py, attention.py,
moe/router.py, moe/token_dispatcher.py, moe/experts.py) and TransformerEngine d0067d0 (common/gemm/cublaslt_gemm.cu
`multi_stream_cublas_gemm`: a GEMM an expert; pytorch/module/grouped_linear.py). Others measure too that the host bounds
such layers: a Megatron layer of 128 experts on eight H100 takes 12.4 ms forward and backward with experts of 2048 x 768
and 11.8 ms with 4096 x 1536 (github.com/marin-community/marin/issues/4311); the count here says 8.4 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taylor.cost_model.strategy import GRAPHED_EXPERTS, GRAPHED_MIXER, GRAPHED_ROUTER, TrainingRules
from taylor.cost_model.strategy_table import Degrees, Quantity
from taylor.register.device import DeviceSpec
from taylor.register.layers import AttentionSpec
from taylor.register.model import ModelSpec


class _Operations(NamedTuple):
    """Operations of one part of a layer in forward and backward, and its casts to fewer than 16 bits."""

    forward: int
    backward: int
    forward_casts: int = 0
    backward_casts: int = 0


_MIXER = _Operations(11, 21, 2, 2)
"""Counted in Megatron-LM's source: norm, two GEMMs, queries, keys and values separately (3), their norms (2), rotation,
attention, residual; back: two gradients a GEMM (4), attention (3), norms (6), rotation (2), one gradient of three (4),
residual (2)."""
_LATENT = _Operations(12, 24, 5, 5)
"""Counted there of latent attention (multi_latent_attention.py:690-960): norm, five GEMMs, two latent norms, two
rotations, attention, residual; back: two gradients a GEMM (10), attention (3), norms (6), rotations (2), gradients of
latent and rotated keys joined, residual (2)."""
_LATENT_QUERIES = _Operations(2, 4, 1, 1)
"""Operations fewer where queries come from the hidden state: a GEMM and a norm."""
_LATENT_TRANSFERS = 2, 3
"""Transfers of latent attention beyond a block's own under sequence parallelism: latents of queries and of keys are
gathered separately, and rotated keys too; back, a latent is gathered once more and two more gradients are scattered."""
_ROTATION_APART = _Operations(23, 14)
"""Operations beyond one kernel where single operations rotate queries and keys (rope_utils.py:105-161), twelve for
each, back eight: cosines and sines scaled and cast (6), half negated, halves joined, two products, a sum, rotated and
other part joined. torch's own operations are counted in a test."""
_LATENT_APART = _Operations(27, 27)
"""The same of latent attention beyond its two kernels (multi_latent_attention.py:907-950): 29 there and back, which
joins even and odd entries, content and rotated parts, and copies values. Counted in the same test."""
_DENSE = _Operations(6, 10, 2, 2)
"""Counted there of a dense MLP: norm, two GEMMs, activation, residual with dropout (2); back: two gradients a GEMM (4),
activation, norm (2), biases (2), residual."""
_ROUTER = _Operations(17, 18)
"""Counted there: norm, GEMM, scores, choice (4), map of choices (4), auxiliary loss (6)."""
_EXPERTS = _Operations(22, 18)
"""Counted there: counts (4), their copies to the host (4), permutation (3), two exchanges, sorting (2), probabilities;
activation (2); sorting, exchange, unpermutation, residual."""
_SHARED = _Operations(4, 7, 2, 2)
"""Counted there: the shared experts' two GEMMs, activation and sum, and theirs in backward."""
_ONE_EXPERT = _Operations(2, 4, 2, 2)
"""Both GEMMs of one expert: once forward, a gradient of input and weight each; a cast of each GEMM's input."""


_FROM_CORE_ON = 3
"""Operations of a mixer's forward from attention's core on: the core, a GEMM, the residual."""

_Part = tuple[_Operations, Quantity, str]
"""Operations, their number, and the graph that starts them."""


class HostTime(NamedTuple):
    """Host time for one layer and micro-batch, ms: up to the experts' counts, behind them, backward; and the part of
    the first before attention's core."""

    routed: Quantity
    experts: Quantity
    backward: Quantity
    before_core: Quantity


NO_HOST = HostTime(0.0, 0.0, 0.0, 0.0)


def host_time(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec) -> HostTime:
    """Host time for one layer of a kind (or of an MTP module's layers), ms.

    Of layers with attention, a dense MLP or experts. Transfers of TP are operations too: a block's gather and scatter
    under sequence parallelism, one more gather in backward, else one all-reduce each way.
    """
    if not rules.framework.starts_experts_singly:
        return NO_HOST
    routed: Quantity = 0.0
    experts: Quantity = 0.0
    backward: Quantity = 0.0
    before_core: Quantity = 0.0
    transfers = np.where(np.greater(degrees.tp, 1), np.where(degrees.sp, 2, 1), 0)
    transfers_back = np.where(np.greater(degrees.tp, 1), np.where(degrees.sp, 3, 1), 0)
    for layer in model.layers_of(kind):
        mixer: list[_Part] = []
        if layer.attention is not None:
            mixer = _attention_parts(model, layer.attention, rules)
            if layer.attention.latent is not None:
                more, more_back = (np.where(np.greater(transfers, 1), count, 0) for count in _LATENT_TRANSFERS)
                routed, backward = routed + more, backward + more_back
        elif layer.mixer is not None and layer.moe is not None:
            mixer = [(_MIXER, 1, GRAPHED_MIXER)]
        if layer.moe is None:
            parts = mixer + ([(_DENSE, 1, GRAPHED_MIXER)] if layer.mlp is not None else [])
            blocks = (layer.attention is not None) + (layer.mlp is not None)
            routed = routed + _starts(parts, rules, back=False) + blocks * transfers
            backward = backward + _starts(parts, rules, back=True) + blocks * transfers_back
            continue
        before = [(_ROUTER, 1, GRAPHED_ROUTER), *mixer]
        if layer.moe.shared_width:
            before.append((_SHARED, 1, GRAPHED_ROUTER))
        behind = [(_EXPERTS, 1, GRAPHED_EXPERTS), (_ONE_EXPERT, layer.moe.n_experts / degrees.ep, GRAPHED_EXPERTS)]
        routed = routed + _starts(before, rules, back=False)
        experts = experts + _starts(behind, rules, back=False)
        backward = backward + _starts([*before, *behind], rules, back=True)
        if layer.attention is not None and GRAPHED_MIXER not in rules.graphed:
            before_core = before_core + _starts(mixer, rules, back=False) - _FROM_CORE_ON
    return HostTime(*(1e-3 * device.operation_us * part for part in (routed, experts, backward, before_core)))


def _attention_parts(model: ModelSpec, attention: AttentionSpec, rules: TrainingRules) -> list[_Part]:
    """Operations of a mixer with attention.

    With learned positions latent attention rotates by single operations (Megatron-LM d98e8a64
    megatron/training/arguments.py:1628).
    """
    if attention.latent is None:
        parts = [_MIXER, *([_ROTATION_APART] if rules.rotated_apart else [])]
    else:
        parts = [_LATENT, *([_LATENT_APART] if rules.rotated_apart or model.learned_positions else [])]
    times: list[_Part] = [(part, 1, GRAPHED_MIXER) for part in parts]
    if attention.latent is not None and attention.latent.q_lora_rank is None:
        times.append((_LATENT_QUERIES, -1, GRAPHED_MIXER))
    return times


def shown_forward(forward: Quantity, of_experts: Quantity, core: Quantity, host: HostTime, *, static: bool) -> Quantity:
    """Forward of a layer whose operations the host starts, ms.

    Parameters
    ----------
    forward, of_experts, core : ms
        Device time for the layer, for the part behind the experts' counts, and for attention's core.
    static : bool
        The number of every expert's rows is known beforehand. Else the host waits for the counts: it starts the
        experts when the device has finished the rest (Megatron-LM d98e8a64
        megatron/core/transformer/moe/token_dispatcher.py `_maybe_dtoh_and_synchronize`).
    """
    bound = np.maximum(forward, host.routed + host.experts)
    if static:
        return bound
    # From one layer's counts to the next's, the device runs only operations started behind the first ones.
    waits = np.maximum(host.experts + forward - of_experts, host.experts + host.before_core + core)
    return np.maximum(bound, np.where(host.experts > 0, waits, 0.0))


def _starts(parts: Sequence[_Part], rules: TrainingRules, *, back: bool) -> Quantity:
    total: Quantity = 0.0
    for operations, times, graphed in parts:
        if graphed in rules.graphed:
            continue
        count = operations.backward if back else operations.forward
        if rules.narrow is not None:
            count += operations.backward_casts if back else operations.forward_casts
        total = total + times * count
    return total
