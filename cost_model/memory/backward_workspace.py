"""Memory that the backward of one layer needs beyond what its forward kept; scalars and arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from taylor.cost_model.job.adapters import decomposed_bytes
from taylor.cost_model.job.parameters import expert_outer, layer_parameter_groups
from taylor.cost_model.job.recurrent import recurrent_workspace_bytes
from taylor.cost_model.job.sparse_latent import sparse_latent
from taylor.cost_model.job.strategy import ENGINE_RING, MODULE_AN_EXPERT, PASSED_RING, TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity, ulysses_ranks
from taylor.cost_model.job.torch_indexer import indexer_workspace_bytes
from taylor.cost_model.memory.activations import (
    block_bytes,
    layer_bytes,
    micro_batch_tokens,
    plain_modules,
    recomputed_together,
    residual_bytes,
    routed_slots,
    sequence_split,
)
from taylor.cost_model.memory.adapter_workspace import expert_adapter_bytes, mlp_adapter_bytes
from taylor.cost_model.memory.states import group_bytes
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.adapters import MIXER_OUT
from taylor.register.frameworks import UNSAVED_OPERATORS
from taylor.register.layers import (
    UNREACHED,
    AttentionSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import MTP, ModelSpec
from taylor.register.narrow_products import NarrowProducts


def workspace_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes for the backward of one layer, of the largest kind: what recompute rebuilds, and the gradients.

    Where recompute takes several layers together, all that they keep lives at once.

    Under `StaticRules.counted_as_fitted` only what recompute rebuilds: the gradients are within the overhead there.
    """
    kinds = [*([MTP] if model.mtp_layers else []), *model.body_counts]
    return reduce(np.maximum, (kind_workspace_bytes(model, kind, FULL, degrees, rules) for kind in kinds))


def kind_workspace_bytes(model: ModelSpec, kind: str, mode: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes for the backward of a layer of one kind, beyond what it keeps in a recompute mode.

    A layer that keeps everything needs its gradients alone, one in full recompute, or recompute by operator, all that
    it rebuilds beside them. Parts of a layer that run again do so one after the other: what the MLP or the experts
    rebuild is gone when the mixer's backward begins.
    """
    layers = model.layers_of(kind)
    if layers[0].frozen == UNREACHED:
        return 0.0 * micro_batch_tokens(degrees, rules)
    rules = rules.within(layers)
    if mode == FULL and kind == MTP:
        # Its layers run again one by one.
        return reduce(np.maximum, (_rebuilt_bytes(model, (each,), degrees, rules) for each in layers))
    if mode == FULL:
        return _rebuilt_bytes(model, layers, degrees, rules)
    if mode == NONE:
        return np.maximum(0.0, _of_layers(_gradient_workspace_bytes, model, layers, degrees, rules))
    return np.maximum(0.0, reduce(np.maximum, (_selective_bytes(model, each, degrees, rules) for each in layers)))


def _rebuilt_bytes(model: ModelSpec, layers: Sequence[LayerSpec], degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Memory for the backward of layers that full recompute takes together, of which one's input is kept."""
    none = sum(layer_bytes(model, layer, NONE, degrees, rules) for layer in layers)
    extra = recomputed_together(model, degrees, rules) * none - layer_bytes(model, layers[0], FULL, degrees, rules)
    if rules.framework.statics.counted_as_fitted:
        return np.maximum(0.0, extra)
    return np.maximum(0.0, extra + _of_layers(_gradient_workspace_bytes, model, layers, degrees, rules))


def _of_layers(
    part: Callable[..., Quantity], model: ModelSpec, layers: Sequence[LayerSpec], degrees: Degrees, rules: TrainingRules
) -> Quantity:
    return reduce(np.maximum, (part(model, layer, degrees, rules) for layer in layers))


def _selective_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Memory for the backward of a layer in selective recompute, beyond what it keeps."""
    again = layer_bytes(model, layer, NONE, degrees, rules) - layer_bytes(model, layer, SELECT, degrees, rules)
    if UNSAVED_OPERATORS in rules.recomputed_parts or not layer.has_block or layer.mixer is None:
        return again + _gradient_workspace_bytes(model, layer, degrees, rules)
    mixer = layer.replace(mlp=None, moe=None, norms=None)
    of_mixer = layer_bytes(model, mixer, NONE, degrees, rules) - layer_bytes(model, mixer, SELECT, degrees, rules)
    in_block = again - of_mixer + _block_gradient_bytes(model, layer, degrees, rules)
    # The block's own parts ran again, and all that it kept is gone.
    behind = again + _behind_block_bytes(model, layer, degrees, rules)
    return np.maximum(in_block, behind)


def _other_slots(moe: MoeSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Rows that experts' slots become, or come from, over EP and TP."""
    tokens, ways = micro_batch_tokens(degrees, rules), sequence_split(degrees)
    exchanged = np.where(np.greater(degrees.ep, 1), tokens * moe.visited / ways, 0.0)
    if rules.whole_experts:
        return exchanged
    slots = routed_slots(moe, degrees, rules) * tokens
    return np.where(np.greater(ways, 1), slots / rules.experts_over(degrees.tp), exchanged)


def entering_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Gradient of a layer's input or output, bytes."""
    return micro_batch_tokens(degrees, rules) * model.hidden * residual_bytes(rules) / sequence_split(degrees)


def keeps_gradients(rules: TrainingRules) -> bool:
    """Return whether a layer's new gradients stay in the compute type to the end of its backward (`pending_bytes`)."""
    return rules.parameter_shard and rules.framework.states.gathers_blocks and rules.adapters is None


def pending_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """A layer's new gradients in the compute type, which FSDP reduces or adds up behind the layer's backward; else 0.

    In a pipeline fully sharded parameters stay whole, and so do their gradients, which are added up there
    (torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``accumulate_unsharded_grad_if_needed``); else they
    are reduced together (_fsdp_param_group.py, ``post_backward``).
    """
    if not keeps_gradients(rules):
        return 0.0
    groups = layer_parameter_groups(model, layer)
    return group_bytes(groups, degrees, rules.replace(narrow=None).gathered()).weights


def makes_weight_gradients(rules: TrainingRules) -> bool:
    """Return whether one GEMM's weight gradient is alive beside the accumulated ones; FSDP's count with its layers."""
    return not (rules.adds_in_products or rules.parameter_shard or rules.adapters is not None)


def input_gradient_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The gradient of a column-parallel GEMM's input over all its tokens, and that input where it is gathered."""
    ways = sequence_split(degrees)
    return micro_batch_tokens(degrees, rules) * model.hidden * rules.compute_bytes * np.where(np.greater(ways, 1), 2, 1)


def gradient_workspace_bytes(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Most that the backward of one layer holds beyond what its forward kept.

    It is at its start, in the MLP: a dense one holds the gathered gradient of its output beside the
    gradient of the activation's result, then that beside the gradient of gate and up (where these are separate GEMMs:
    three gradients of the unfused activation, or two gathered ones). Experts hold the gradient of their slots before
    and after the all-to-all or the gather. A mixer without softmax holds what its scan's backward rebuilds
    (`recurrent.recurrent_workspace_bytes`), when what its MLP and experts kept is gone.

    GEMMs in fewer than 16 bits cast a gradient before they use it, and so keep it beside its copies.
    Where GEMMs make a weight's gradient separately, there are two moments more: in the down projection
    beside the gradients of its output and input, and in gate and up, when what the activation kept is gone.
    """
    own = rules.within(model.layers_of(kind))
    extras = [_gradient_workspace_bytes(model, layer, degrees, own) for layer in model.layers_of(kind)]
    return reduce(np.maximum, extras)


def _gradient_workspace_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    extra = _block_gradient_bytes(model, layer, degrees, rules)
    extra = np.maximum(extra, decomposed_bytes(model, layer, degrees, rules))
    return np.maximum(extra, _behind_block_bytes(model, layer, degrees, rules))


def _block_gradient_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The part of `_gradient_workspace_bytes` in a layer's MLP and experts, or in a mixer alone in its layer."""
    extra: Quantity = 0.0
    if layer.moe is not None:
        extra = np.maximum(extra, _expert_workspace_bytes(model, layer.moe, degrees, rules))
        other = _other_slots(layer.moe, degrees, rules)
        extra = np.maximum(extra, expert_adapter_bytes(model, layer.moe, other, degrees, rules))
        shared = MlpSpec(layer.moe.shared_width, layer.moe.gated)
        if shared.width:
            extra = np.maximum(extra, _mlp_workspace_bytes(model, shared, degrees, rules))
            extra = np.maximum(extra, mlp_adapter_bytes(model, shared, degrees, rules))
    if layer.mlp is not None and rules.mlp_tiles:
        extra = np.maximum(extra, _tiled_mlp_bytes(model, layer, layer.mlp, degrees, rules))
    elif layer.mlp is not None:
        extra = np.maximum(extra, _mlp_workspace_bytes(model, layer.mlp, degrees, rules))
        extra = np.maximum(extra, mlp_adapter_bytes(model, layer.mlp, degrees, rules))
    if not layer.has_block:
        extra = np.maximum(extra, _mixer_workspace_bytes(model, layer, degrees, rules))
    return extra


def _tiled_mlp_bytes(
    model: ModelSpec, layer: LayerSpec, mlp: MlpSpec, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """Memory for the backward of an MLP that runs over parts of the sequence, beyond its whole input.

    One part's activations, result and workspace, beside the gradient of the whole input, and of every matrix the sum of
    the gradients over the parts, with those that an earlier part left and a new one beside them (verl b178a3cd
    verl/models/transformers/tiled_mlp.py:42-73, 109-156: a hook that returns None leaves a part's own gradients too;
    axolotl 067b021c src/axolotl/monkeypatch/tiled_mlp/base.py:254-349: one of them and all of the next part).
    DeepSpeed's own (edaa7221 deepspeed/runtime/sequence_parallel/ulysses_sp.py:1012-1070) has no second set.
    """
    part = rules.replace(mlp_tiles=0, seq_length=-(-rules.seq_length // rules.mlp_tiles))
    alone = layer.replace(attention=None, mamba=None, linear=None, moe=None, norms=1)
    inner = layer_bytes(model, alone, NONE, degrees, part) - layer_bytes(
        model, alone, NONE, degrees, part.replace(mlp_tiles=1)
    )
    tokens = micro_batch_tokens(degrees, rules) + micro_batch_tokens(degrees, part)
    rows = tokens * model.hidden * rules.compute_bytes
    if rules.adapters is not None:
        return inner + _mlp_workspace_bytes(model, mlp, degrees, part) + rows
    matrices, sets = 3 if mlp.gated else 2, 1 if rules.mlp_tiles == 1 else 2
    weight = rules.param_bytes * model.hidden * mlp.width / degrees.tp
    # The weights' gradients are all in these sets and the one more.
    without = part.replace(fused_accumulation=True, parameter_shard=False)
    return inner + _mlp_workspace_bytes(model, mlp, degrees, without) + rows + (sets * matrices + 1) * weight


def _behind_block_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The part of `_gradient_workspace_bytes` in the mixer, when what MLP and experts kept is gone, and at the end."""
    extra: Quantity = 0.0
    recurrent = layer.recurrent
    if recurrent is not None:
        extra = np.maximum(extra, _scan_workspace_bytes(model, layer, recurrent, degrees, rules))
    if layer.attention is not None and not rules.flash_attention:
        extra = np.maximum(extra, _score_workspace_bytes(model, layer, degrees, rules))
    elif layer.attention is not None:
        extra = np.maximum(extra, _kernel_workspace_bytes(model, layer, degrees, rules))
    if layer.attention is not None and rules.torch_indexer is not None:
        # In the forward, before MLP and experts keep anything.
        indexer = micro_batch_tokens(degrees, rules) * indexer_workspace_bytes(layer.attention, degrees, rules)
        extra = np.maximum(extra, indexer - block_bytes(model, layer, degrees, rules))
    # All that the layer kept is gone, and all its gradients are there.
    end = pending_bytes(model, layer, degrees, rules) + entering_bytes(model, degrees, rules)
    return np.maximum(extra, end - layer_bytes(model, layer, NONE, degrees, rules))


_RING_BLOCKS = 4
"""Blocks of other ranks' keys and values, and of their gradients, in the backward of attention over a ring: one at work
and one on its way (NVIDIA/TransformerEngine transformer_engine/pytorch/attention/dot_product_attention/
context_parallel.py, ``AttnFuncWithCPAndKVP2P.backward``: two of ``(2, *kv.shape)``)."""


def torch_ring_elements(queries: Quantity, keys: Quantity, ranks: Quantity, rules: TrainingRules) -> Quantity:
    """Elements a token, in the compute type, that the backward of torch's ring attention holds beside its arguments.

    Gradients add up in fp32 (torch 2.13 torch/distributed/tensor/experimental/_context_parallel/_attention.py,
    ``_templated_ring_attention_backward``, ``convert_to_f32``). At the arrival of a block's gradient: those of the
    queries, summed and new, and of keys and values the sum that came, the one before, both as they were joined, and the
    new ones of half a block. At the addition to a half of the queries: their sum, its two halves and the new one.
    Beside either the keys and values of all ranks, or, passed on, of two: one at work and one on its way. Tests run
    torch's own function on fake tensors.

    Parameters
    ----------
    queries, keys : float
        Elements of a token's queries, and of its keys and values together.
    ranks : int
        Ranks of the ring.
    """
    others = keys * (np.minimum(2, ranks - 1) if rules.ring == PASSED_RING else ranks)
    return others + np.maximum(3 * queries + 11.5 * keys, 5.5 * queries + 4 * keys)


def _kernel_workspace_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The attention kernel's backward: gradients of its result and its inputs, when MLP and experts are over.

    Beside them are the gradient of the block's input, and under FSDP those of the weights behind the kernel.
    """
    attention = layer.attention
    assert attention is not None
    context, queries, keys = _core_gradients(attention, degrees, rules)
    ranks = degrees.cp / ulysses_ranks(degrees, rules)
    in_ring = queries + (1 + _RING_BLOCKS) * keys
    if rules.ring != ENGINE_RING:
        in_ring = torch_ring_elements(queries, keys, ranks, rules)
    elements = context + np.where(np.greater(ranks, 1), in_ring, queries + keys)
    extra = micro_batch_tokens(degrees, rules) * rules.compute_bytes * elements
    if not layer.has_block:
        return extra
    extra = extra + entering_bytes(model, degrees, rules) - block_bytes(model, layer, degrees, rules)
    before = pending_bytes(model, layer.replace(mlp=None, moe=None, norms=None), degrees, rules)
    return extra + pending_bytes(model, layer, degrees, rules) - before


def _core_gradients(
    attention: AttentionSpec, degrees: Degrees, rules: TrainingRules
) -> tuple[Quantity, Quantity, Quantity]:
    """Elements a token of the gradients of a rank's context, queries, and keys with values.

    In the space of the latents, what the output projection kept of the context is gone by then.
    """
    heads = attention.n_heads / degrees.tp
    if (sparse := sparse_latent(attention, rules)) is not None:
        return heads * (sparse.value_width - attention.v_width), heads * sparse.key_width, sparse.key_width
    kv_heads = attention.n_heads if attention.latent is not None else attention.n_kv_heads
    keys = np.maximum(kv_heads / degrees.tp, 1) * (attention.qk_width + attention.v_width)
    return heads * attention.v_width, heads * attention.qk_width, keys


def _score_workspace_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Kept scores' backward: one gradient of theirs, when what MLP and experts kept is gone.

    The kernel of the softmax writes its gradient over the one that it gets (NVIDIA/apex
    csrc/megatron/scaled_upper_triang_masked_softmax_cuda.cu), a dropout's over the result that it kept.
    """
    tokens, ways = micro_batch_tokens(degrees, rules), sequence_split(degrees)
    heads = 0 if layer.attention is None else layer.attention.n_heads / degrees.tp
    extra = tokens * rules.compute_bytes * (heads * rules.seq_length + model.hidden / ways)
    return extra - block_bytes(model, layer, degrees, rules)


def _scan_workspace_bytes(
    model: ModelSpec, layer: LayerSpec, mixer: MambaSpec | LinearAttentionSpec, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """A scan's backward: what MLP and experts kept is gone, the gradient of their input is alive beside the layer's."""
    tokens, ways = micro_batch_tokens(degrees, rules), sequence_split(degrees)
    extra = tokens * recurrent_workspace_bytes(mixer, model.hidden, ways, degrees, rules)
    if rules.adapters is not None and not rules.adapters.reaches(MIXER_OUT):
        # The gradient of what enters a frozen output projection, in whose place nothing was kept.
        inner = mixer.inner if isinstance(mixer, MambaSpec) else mixer.value_width
        extra = extra + tokens * rules.compute_bytes * inner / degrees.tp
    if not layer.has_block:
        return extra
    return extra + tokens * model.hidden * residual_bytes(rules) / ways - block_bytes(model, layer, degrees, rules)


def _mixer_workspace_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """A mixer alone in its layer: the gathered gradient of its output beside the gradient of the context.

    Next, attention holds the context's gradient beside those of queries, keys and values.
    """
    tokens, attention, mixer = micro_batch_tokens(degrees, rules), layer.attention, layer.recurrent
    gathered = np.where(np.greater(sequence_split(degrees), 1), model.hidden, 0.0)
    context: Quantity
    if mixer is not None:
        context = mixer.inner if isinstance(mixer, MambaSpec) else mixer.value_width
        return tokens * rules.compute_bytes * (gathered + context / degrees.tp)
    if attention is None:
        return 0.0
    context, queries, keys = _core_gradients(attention, degrees, rules)
    inputs = queries + (0 if attention.reused_kv else keys)
    return tokens * rules.compute_bytes * (context + np.maximum(gathered, inputs))


def _quantized_again_bytes(
    rows: Quantity, outer: Quantity, width: Quantity, matrices: Quantity, narrow: NarrowProducts
) -> Quantity:
    """Copies that one GEMM's backward makes of its gradient, twice, of its input and its weight, bytes.

    `NarrowProducts.saves_wide`; of an MLP's GEMMs the one with the wider gradient counts.
    """
    return narrow.input_bytes * (rows * (np.maximum(outer, width) + outer + width) + matrices * outer * width)


def _expert_workspace_bytes(model: ModelSpec, moe: MoeSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    if (narrow := rules.of_experts.narrow) is not None and narrow.saves_wide:
        rows = routed_slots(moe, degrees, rules) * micro_batch_tokens(degrees, rules)
        outer, width = expert_outer(model, moe), moe.expert_hidden / rules.experts_over(degrees.tp)
        copies = _quantized_again_bytes(rows, outer, width, moe.n_experts / degrees.ep, narrow)
        return _expert_workspace_bytes(model, moe, degrees, rules.replace(narrow=None)) + copies
    rules = rules.of_experts
    tokens = micro_batch_tokens(degrees, rules)
    gates, outer = 2 if moe.gated else 1, expert_outer(model, moe)
    slots = routed_slots(moe, degrees, rules) * tokens
    split = rules.experts_over(degrees.tp)
    width = moe.expert_hidden / split
    other = _other_slots(moe, degrees, rules)
    # Before and behind the exchange; behind it and behind the second GEMM; gate and up.
    extra: Quantity = np.maximum((slots + other) * outer, np.maximum((outer + width) * slots, gates * width * slots))
    if plain_modules(rules) and rules.expert_gemms != MODULE_AN_EXPERT:
        # The gradients of the weighted results, in the tokens' order and in the experts', and that of the results.
        extra = np.maximum(extra, 3 * slots * outer)
    extra = rules.compute_bytes * extra
    if rules.narrow is not None:
        arriving = (rules.compute_bytes + 2 * rules.narrow.input_bytes) * outer
        extra = np.maximum(extra, slots * _narrow_workspace_bytes(rules, rules.narrow, arriving, outer, width, gates))
    sharded = keeps_gradients(rules)
    if not (makes_weight_gradients(rules) or sharded):
        return extra
    # The grouped GEMM makes the gradients of all experts of the rank at once; FSDP keeps them to the layer's end.
    weight = rules.compute_bytes * moe.n_experts / degrees.ep * width * outer
    product, outside = (rules.compute_bytes * slots * size for size in (width, outer))
    earlier: Quantity = 0.0
    if sharded and moe.shared_width:
        # The shared experts' backward is over.
        inner = moe.shared_width / degrees.tp
        earlier = inner * (gates + 1) * rules.compute_bytes * (model.hidden - tokens)
    at_first = outside + (gates + sharded) * weight - product
    extra = np.maximum(extra, earlier + np.maximum(outside + product + weight, at_first))
    return extra


def _narrow_workspace_bytes(
    rules: TrainingRules, narrow: NarrowProducts, arriving: Quantity, outer: Quantity, width: Quantity, gates: int
) -> Quantity:
    """Bytes a token, or slot, of an MLP's backward whose GEMMs take gradients and inputs in fewer than 16 bits.

    Three moments: the down projection with the gradients of its output and input; the activation function between
    two gradients, when the down projection's narrow input is gone; gate and up with the two narrow copies of their
    gradient and that of their input, when what the activation kept is gone too.
    """
    wide, kept = rules.compute_bytes, narrow.input_bytes
    between = (gates * wide + wide - kept) * width
    entering = (gates * 2 - 1) * kept * width + wide * outer
    return np.maximum(arriving + wide * width, np.maximum(between, entering))


def _mlp_workspace_bytes(model: ModelSpec, mlp: MlpSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    if (again := rules.narrow) is not None and again.saves_wide:
        rows = micro_batch_tokens(degrees, rules)
        copies = _quantized_again_bytes(rows, model.hidden, mlp.width / degrees.tp, 1, again)
        return _mlp_workspace_bytes(model, mlp, degrees, rules.replace(narrow=None)) + copies
    tokens, ways = micro_batch_tokens(degrees, rules), sequence_split(degrees)
    gathered = np.where(np.greater(ways, 1), tokens * model.hidden * rules.compute_bytes, 0.0)
    gates = 2 if mlp.gated else 1
    width = mlp.width / degrees.tp
    product = tokens * width * rules.compute_bytes
    sharded = keeps_gradients(rules)
    makes = sharded or makes_weight_gradients(rules)
    weight = model.hidden * width * rules.compute_bytes
    if mlp.gated and not rules.framework.activations.fused_swiglu:
        unfused: Quantity = np.maximum(2 * product, 2 * gathered)
        if not makes:
            return unfused
        # The last GEMM between two gradients; gate and up, when what the activation kept is gone.
        inputs = 2 * tokens * model.hidden * rules.compute_bytes - 3 * product + (3 if sharded else 1) * weight
        return np.maximum(unfused + sharded * weight, np.maximum(gathered + product + weight, inputs))
    # Behind a dropout the output's gradient is a separate tensor.
    dropped = tokens * model.hidden * rules.compute_bytes / ways if rules.dropout else 0.0
    extra: Quantity = np.maximum(dropped + gathered + product, gates * product)
    if rules.narrow is not None:
        # A gradient is cast before it is gathered.
        arriving = dropped / tokens + 2 * rules.narrow.input_bytes * model.hidden
        extra = tokens * _narrow_workspace_bytes(rules, rules.narrow, arriving, model.hidden, width, gates)
    if not makes:
        return extra
    entering = input_gradient_bytes(model, degrees, rules) + gates * weight - product
    return np.maximum(extra, np.maximum(dropped + gathered + product + weight, entering))
