"""Operations that the host of a Megatron job starts one by one: of a layer, of a checkpoint, of the ends, of a step.

Counted in Megatron-LM d98e8a64 (megatron/core) and TransformerEngine d0067d0 (transformer_engine), each beside its
figure. An operation is a kernel, a transfer, or a call of Python about as long (`CHECKPOINT`). A loop over tensors
counts torch's own operations (`TORCH_OPERATION_US`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.adapters import adapted_matrices
from taylor.cost_model.job.strategy import MODULE_AN_EXPERT, ONE_KERNEL, TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.register.frameworks import (
    ATTENTION_CORE,
    DENSE_ACTIVATION,
    DENSE_MLP,
    EXPERT_ACTIVATION,
    EXPERT_BLOCK,
    EXPERT_ROWS,
    LATENT_UP,
    NORMS,
    SHARED_ACTIVATION,
    SHARED_EXPERTS,
)
from taylor.register.layers import LIGHTNING, AttentionSpec, LayerSpec, LinearAttentionSpec, MambaSpec, MoeSpec
from taylor.register.model import MTP, ModelSpec


class Operations(NamedTuple):
    """Operations of one part of a layer in forward and backward, and its casts to fewer than 16 bits."""

    forward: int
    backward: int
    forward_casts: int = 0
    backward_casts: int = 0


ATTENTION = Operations(11, 21, 2, 2)
"""Norm, two GEMMs, queries, keys and values separately (3), their norms (2), rotation, attention, residual; back: two
gradients a GEMM (4), attention (3), norms (6), rotation (2), one gradient of three (4), residual (2)."""
LATENT = Operations(12, 24, 5, 5)
"""Latent attention (multi_latent_attention.py:690-960): norm, five GEMMs, two latent norms, two rotations, attention,
residual; back: two gradients a GEMM (10), attention (3), norms (6), rotations (2), gradients of latent and rotated
keys joined, residual (2)."""
LATENT_QUERIES = Operations(2, 4, 1, 1)
"""Operations fewer where queries come from the hidden state: a GEMM and a norm."""
LATENT_TRANSFERS = 2, 3
"""Transfers of latent attention beyond a block's own under sequence parallelism: latents of queries and of keys are
gathered separately, and rotated keys too; back, a latent is gathered once more and two more gradients are scattered."""
ROTATION_APART = Operations(23, 14)
"""Operations beyond one kernel where single operations rotate queries and keys (rope_utils.py:105-161), twelve for
each, back eight: cosines and sines scaled and cast (6), half negated, halves joined, two products, a sum, rotated and
other part joined. torch's own operations are counted in a test."""
LATENT_APART = Operations(27, 27)
"""The same of latent attention beyond its two kernels (multi_latent_attention.py:907-950): 29 there and back, which
joins even and odd entries, content and rotated parts, and copies values. Counted in the same test."""
SAMPLE_ROTATION, LATENT_SAMPLE_ROTATION = Operations(40, 38), Operations(46, 48)
"""Operations of torch alone, views included, that rotate queries and keys of one sample of a pack
(`TrainingRules.packed_samples`), and those of latent attention. torch's own operations are counted in a test."""
PACK_ROTATION = Operations(16, 4)
"""The same of a whole pack beside its samples: lengths, parts, the result. Four of the forward wait for the device."""
MAMBA = Operations(17, 28, 2, 2)
"""A Mamba layer (ssm/mamba_mixer.py ``_ssm_training`` and mamba_ssm's ``mamba_split_conv1d_scan_combined``): norm, two
GEMMs, two copies to another order, decays (2), convolution, the scan's six kernels, its norm, residual, a copy of the
convolution's input; back: two gradients a GEMM (4), norms (4), copies (2), the scan's states made again (4) and its
gradients (9), convolution (2), decays (2), residual."""
DELTA = Operations(28, 34, 2, 2)
"""A layer of gated delta net (ssm/gated_delta_net/gdn.py:91 and flash-linear-attention's chunked rule): norm, two
GEMMs, convolution, norms of queries and keys (2), copies of queries, keys, values and gate (4), heads repeated (2),
write strength, decays (5), the rule's six kernels, gated norm (4), residual; back: two gradients a GEMM (4), norms (4),
gated norm (4), the rule (8), repeated heads (2), decays (6), convolution (2), one gradient of four (2), residual (2).
Kimi delta attention counts the same, lightning attention the same as softmax attention: assumed."""
DENSE = Operations(6, 10, 2, 2)
"""A dense MLP: norm, two GEMMs, activation, residual with dropout (2); back: two gradients a GEMM (4), activation, norm
(2), biases (2), residual."""
ROUTER = Operations(23, 18)
"""Norm; GEMM, choice, scores, probabilities into zeros (2), map of choices into zeros as integers and back (4)
(moe/moe_utils.py ``topk_routing_with_score_function``); for the auxiliary loss scores, choice, map (4), tokens of each
expert, the loss (4), its record (2), its gradient's scale. torch's own operations are counted in a test."""
EXPERTS = Operations(32, 18)
"""All-to-all dispatcher: counts (moe/token_dispatcher.py:501-600: sums of the map, by rank, of all ranks, of the rank's
experts, a gather: 7), their copies to the host, each recorded on its stream (8), permutation (3), exchanges of rows and
probabilities with their buffers (4), sorting (2), activation (2); sorting, exchange (2), unpermutation (2), residual.
Back: the same kernels once more. DeepEP's dispatcher starts three fewer (moe/fused_a2a.py:72-190), HybridEP's about
half, which is not distinguished."""
SHARED = Operations(4, 7, 2, 2)
"""The shared experts' two GEMMs, activation and sum, and theirs in backward."""
ONE_EXPERT = Operations(2, 4, 2, 2)
"""Both GEMMs of one expert: once forward, a gradient of input and weight each; a cast of each GEMM's input. A GEMM an
expert: common/gemm/cublaslt_gemm.cu ``multi_stream_cublas_gemm``, pytorch/module/grouped_linear.py."""
EXPERT_MODULE = Operations(4, 8, 2, 2)
"""One expert as a module (moe/experts.py:1409, ``SequentialMLP``): two GEMMs, activation, product with probabilities;
back: two gradients a GEMM (4), activation, product (2), its rows' gradient among the others'."""
RING_BLOCK = Operations(4, 4)
"""One block of keys and values that comes round the ring of context parallelism (TransformerEngine
pytorch/attention/dot_product_attention/context_parallel.py:96, 139-200, 932): a transfer each way, attention,
correction of result and statistics; back, transfer, attention (2), the gradient added."""

ADAPTER = Operations(4, 6)
"""An adapter: two GEMMs, the scaling, the sum; back, two gradients a GEMM (4), the scaling, the input's two gradients
added. One operation more each way under dropout. torch's own operations are counted in a test."""
ADAPTER_GEMMS = Operations(2, 4)
"""The part of `ADAPTER` that runs for each expert where experts are grouped: adapters beside them are grouped modules
too (modelscope/mcore-bridge f020e47 src/mcore_bridge/tuners/lora.py:166-200), with a GEMM an expert."""

FROM_CORE_ON = 3
"""Operations of a mixer's forward from attention's core on: the core, a GEMM, the residual."""

TORCH_OPERATION_US = 8.0
"""Time of the host for one operation of torch alone, without a framework's modules, µs: 512 x 512 additions submitted
one behind the other beside an A100 (github.com/flagos-ai/Torch-FL/pull/27, ``cuda_sub``). The same on every host:
assumed."""
HOOK = 2
"""Operations of torch for a weight's gradient in backward: autograd's accumulation, and the hook that counts it in its
bucket (distributed/distributed_data_parallel.py:553-586). Measured on a CPU: a hook of the same steps takes as long as
an addition."""
UPDATED_TENSOR = 4
"""Operations of torch for a tensor in the optimizer's step: its gradient's part viewed
(optimizer/distrib_optimizer.py:2776-2792), the tensor and its states listed and viewed for norm, clipping and Adam
(optimizer/clip_grads.py:143-180, TransformerEngine pytorch/optimizers/fused_adam.py:560-700), the weight's part viewed
and written (distrib_optimizer.py:2864-2886). Measured on a CPU: a loop of the same steps takes as long as four
additions. The kernels themselves take many tensors at once: multi-tensor apply."""

CHECKPOINT = 10
"""Operations of what runs again beside its own (tensor_parallel/random.py:535-676, 848-1000): the states of two random
generators read; back, read, set, and set again behind it (8); the hook that runs it, and its own backward inside the
other. The same steps with nothing in them take 0.7 ms on an AMD EPYC's core with torch 2.13, most of it the backward
inside a backward: more than ten operations of an H100's host."""
WITHOUT_RECORDS = 0.3
"""Part of an operation's time that a forward saves where autograd records nothing, as the first of two does: an
addition takes 4.2 us in place of 6.0 on the same core."""

EMBEDDING, SPLIT_EMBEDDING = Operations(2, 3), Operations(7, 2)
"""Embedding: look-up and order of its axes; back, order, gradient, accumulation. Beyond them, where TP splits the
vocabulary: mask (3), masked entries (2), rows set to zero, the reduction; back, rows set to zero, a gather
(tensor_parallel/layers.py ``VocabParallelEmbedding``)."""
HEAD = Operations(7, 9)
"""Norm, GEMM, the losses' mask and sums (5); back, gradients of the GEMM (2), norm (2), mask and sums (5)."""
LOSS = Operations(20, 8)
"""Cross entropy in single steps (tensor_parallel/cross_entropy.py:20-117): cast, maximum, subtraction, mask (3), masked
targets (3), the targets' logits (5), exponentials, sum, logarithm, loss, division, and the transposed logits' copy;
back, range, mask's cast and complement (2), the targets' gradients (3), product, cast."""
FUSED_LOSS = Operations(5, 2)
"""The same in fused kernels: cast with maximum, subtraction to sum, loss, division, copy; back, gradient and cast."""
LOSS_TRANSFERS = 3
"""Reductions of the loss over TP: maximum, the targets' logits, sum."""


def mixer_operations(
    layer: LayerSpec, rules: TrainingRules, *, learned_positions: bool
) -> list[tuple[Operations, int]]:
    """Operations of a layer's mixer, each part with its number.

    With learned positions latent attention rotates by single operations (megatron/training/arguments.py:1628).
    """
    if isinstance(layer.mixer, MambaSpec):
        return [(MAMBA, 1)]
    if isinstance(layer.mixer, LinearAttentionSpec):
        return [(ATTENTION if layer.mixer.style == LIGHTNING else DELTA, 1)]
    attention = layer.attention
    if attention is None:
        return []
    if attention.latent is None:
        return [(ATTENTION, 1), *([(ROTATION_APART, 1)] if rules.rotated_apart and not rules.packed_samples else [])]
    apart = (rules.rotated_apart or learned_positions) and not rules.packed_samples
    parts = [(LATENT, 1), *([(LATENT_APART, 1)] if apart else [])]
    if attention.latent.q_lora_rank is None:
        parts.append((LATENT_QUERIES, -1))
    return parts


def sample_rotations(layer: LayerSpec, rules: TrainingRules) -> tuple[float, float]:
    """Operations of torch alone that rotate a pack's samples one by one in a layer, forward and backward."""
    attention = layer.attention
    if attention is None or not rules.packed_samples:
        return 0.0, 0.0
    each = SAMPLE_ROTATION if attention.latent is None else LATENT_SAMPLE_ROTATION
    samples = rules.packed_samples
    return PACK_ROTATION.forward + samples * each.forward, PACK_ROTATION.backward + samples * each.backward


def up_projection_operations(
    attention: AttentionSpec, degrees: Degrees, rules: TrainingRules, *, learned_positions: bool
) -> Quantity:
    """Operations of latent attention from its latents to rotated queries, keys and values: two GEMMs, two rotations.

    Under sequence parallelism both GEMMs gather their input. Queries that come from the hidden state are made there too
    (multi_latent_attention.py, ``qkv_up_proj_and_rope_apply``).
    """
    if attention.latent is None:
        return 0
    apart = LATENT_APART.forward if rules.rotated_apart or learned_positions else 0
    return 2 + 2 + apart + 2 * np.logical_and(degrees.sp, np.greater(degrees.tp, 1))


class Tensors(NamedTuple):
    """Parameter tensors of a layer on one rank: those of routed experts, and all others."""

    routed: Quantity
    other: Quantity


def expert_operations(moe: MoeSpec, degrees: Degrees, rules: TrainingRules) -> tuple[Operations, Quantity]:
    """Operations of the routed experts of a rank themselves, and their number."""
    one = EXPERT_MODULE if rules.expert_gemms == MODULE_AN_EXPERT else ONE_EXPERT
    return one, _expert_groups(moe, degrees, rules)


def _expert_groups(moe: MoeSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Experts of a rank whose GEMMs start by themselves, on weights of their own."""
    return 1.0 if rules.expert_gemms == ONE_KERNEL else moe.n_experts / degrees.ep


def layer_tensors(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Tensors:
    """Parameter tensors of one layer: a matrix each, gate and up as one; a norm's weight and bias.

    Of adapters, where they alone train: two each.
    """
    if rules.adapters is not None:
        each = adapted_matrices(model, layer, rules.adapters)
        experts = sum(one.routed for one in each)
        local = 1.0 if layer.moe is None or rules.adapters.shared_by_experts else layer.moe.n_experts / degrees.ep
        return Tensors(2.0 * experts * local, 2.0 * (len(each) - experts))
    norm = 2 if model.norm_bias else 1
    other = norm * layer.norm_count
    if layer.attention is not None:
        attention = layer.attention
        latent = 0 if attention.latent is None else (2 if attention.latent.q_lora_rank is None else 4) + 1
        other += 2 + latent + bool(attention.bias) + bool(attention.output_bias) + 2 * bool(attention.qk_norm)
    elif layer.mamba is not None:
        other += 7  # two projections, convolution with bias, decays, skip, time step's bias; ssm/mamba_mixer.py
        other += bool(layer.mamba.gate_norm)
    elif layer.linear is not None:
        other += 6  # two projections, convolution, decays, time step's bias, norm; ssm/gated_delta_net/common.py
    if layer.mlp is not None:
        other += 2 + 2 * bool(layer.mlp.bias)
    routed: Quantity = 0.0
    if layer.moe is not None:
        other += 1 + 2 * bool(layer.moe.shared_width) + bool(layer.moe.shared_gate) + 2 * (layer.moe.latent is not None)
        routed = (2 + 2 * bool(layer.moe.expert_bias)) * _expert_groups(layer.moe, degrees, rules)
    return Tensors(routed, float(other))


def stage_tensors(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Tensors:
    """Parameter tensors of an average stage on one rank; an MTP module has three norms and a projection more."""
    routed: Quantity = 0.0
    other: Quantity = 0.0
    for kind, count in model.kind_counts.items():
        other = other + count * (4 if kind == MTP and rules.adapters is None else 0)
        for layer in model.layers_of(kind):
            tensors = layer_tensors(model, layer, degrees, rules.within((layer,)))
            routed, other = routed + count * tensors.routed, other + count * tensors.other
    ends = 0.0 if rules.adapters is not None else 2.0 + (0 if model.tied_embedding else 1)
    return Tensors(routed / degrees.pp, other / degrees.pp + ends / np.minimum(degrees.pp, 2))


def repeated_operations(
    layer: LayerSpec, part: str, degrees: Degrees, rules: TrainingRules, *, learned_positions: bool
) -> tuple[Quantity, int]:
    """Operations that run again with a part of a layer, and the checkpoints that run them.

    Norms that a GEMM's module computes are no modules of their own and not checkpointed (TransformerEngine's
    ``LayerNormLinear``; Megatron-LM d98e8a64 megatron/core/transformer/transformer_layer.py:470-540): those in front of
    plain attention and of a dense MLP.
    """
    attention, moe = layer.attention, layer.moe
    if moe is not None:
        of_experts = {
            EXPERT_BLOCK: expert_block_operations(layer, degrees, rules),
            EXPERT_ACTIVATION: 1,
            EXPERT_ROWS: _ROWS_SENT,
            **({SHARED_EXPERTS: SHARED.forward - 1, SHARED_ACTIVATION: 1} if moe.shared_width else {}),
        }
        if part in of_experts:
            return of_experts[part], 1
    if part == NORMS:
        apart = (attention is not None and attention.latent is not None) + (moe is not None)
        norms = apart if rules.fused_norms else layer.norm_count
        return norms, norms
    if attention is not None and part == ATTENTION_CORE:
        return 1, 1
    if attention is not None and attention.latent is not None and part == LATENT_UP:
        return up_projection_operations(attention, degrees, rules, learned_positions=learned_positions), 1
    if layer.mlp is not None and moe is None and part in _OF_MLP:
        return _OF_MLP[part], 1
    return 0, 0


def expert_block_operations(layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Operations of router, routed and shared experts in forward, without their norm."""
    if layer.moe is None:
        return 0
    shared = SHARED.forward if layer.moe.shared_width else 0
    one, number = expert_operations(layer.moe, degrees, rules)
    return ROUTER.forward - 1 + EXPERTS.forward + shared + one.forward * number


_ROWS_SENT = 9
"""Operations of `EXPERTS` that send rows to their experts: permutation (3), exchanges (4), sorting (2)."""
_OF_MLP = {DENSE_MLP: 3, DENSE_ACTIVATION: 1}
"""Operations of a dense MLP that run again: GEMMs and activation, or the activation."""
