"""Memory of a stage outside its layers: embedding, head, logits, buffers, overhead; scalars and arrays alike."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from taylor.cost_model.job.adapters import adapter_groups
from taylor.cost_model.job.parameters import (
    ParameterGroups,
    embedding_parameters,
    head_parameters,
    layer_groups,
    module_body_groups,
    router_parameters,
)
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import (
    activation_bytes,
    input_split,
    layers_a_chunk,
    micro_batch_tokens,
    routed_slots,
    sequence_split,
)
from taylor.cost_model.memory.alive import alive_lower_bound
from taylor.cost_model.memory.backward_workspace import (
    entering_bytes,
    input_gradient_bytes,
    keeps_gradients,
    makes_weight_gradients,
    workspace_bytes,
)
from taylor.cost_model.memory.reserved import PAGE_BYTES, POOLS, beside_the_peak, gather_pool_bytes, passing_bytes
from taylor.cost_model.memory.states import StateBytes, group_bytes
from taylor.pipeline.plan import FULL
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.adapters import BESIDE, EMBEDDING, HEAD, ROUTERS
from taylor.register.frameworks import COMPILED_LOSS, ENGINE_LOSS, FLASH_LOSS
from taylor.register.model import MTP, ModelSpec

MIB = 2**20
HOST_BUFFERS = 2
"""Layer inputs on the device while others are on the host: the present one, and the one on its way (verl-project/verl
1dda039b verl/utils/activation_offload.py:221-300, ``AsyncDoubleBufferGroupOffloadHandler``)."""

_WIDE_BYTES = 4
"""Bytes of a logit in fp32."""
_SOFTMAX_BYTES = 4
"""Bytes a logit (fp32) of an MTP module's softmax that waits for its backward."""


def layer_state_bytes(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """Weights, gradients and optimizer states of one layer, or of one MTP module's layers, on one device, bytes."""
    rules = rules.within(model.layers_of(kind))
    groups = body_groups(model, kind)
    if ROUTERS in rules.frozen and rules.adapters is None:
        routers = ParameterGroups(replicated=router_parameters(model, kind))
        others = groups + ParameterGroups(replicated=-routers.replicated)
        return _states(others, degrees, rules) + _states(routers, degrees, rules.of_part(ROUTERS))
    states = _states(groups, degrees, rules)
    if rules.adapters is None:
        return states
    return states + _states(adapter_groups(model, kind, rules), degrees, rules.trained)


def body_groups(model: ModelSpec, kind: str) -> ParameterGroups:
    """Parameters of one layer, or of one MTP module's layers, by group."""
    return module_body_groups(model) if kind == MTP else layer_groups(model, kind)


def step_copy_bytes(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The step's copies of one layer's gradients (`OptimizerStates.step_bytes`)."""
    rules = rules.within(model.layers_of(kind))
    without = rules.replace(optimizer=replace(rules.optimizer, step_bytes=0))
    groups = body_groups(model, kind)
    return group_bytes(groups, degrees, rules).optimizer - group_bytes(groups, degrees, without).optimizer


def kept_bytes(model: ModelSpec, kind: str, mode: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Memory that the activations of one micro-batch in one layer take beyond the layer's states, bytes.

    No activation is alive in the step, so that they find the memory of the step's copies of gradients, which are among
    the states (`step_copy_bytes`). In a pipeline, where several micro-batches may be alive, they count beside them.
    """
    kept = activation_bytes(model, kind, mode, degrees, rules)
    if not rules.optimizer.step_bytes:
        return kept
    copies = step_copy_bytes(model, kind, degrees, rules)
    return np.where(np.equal(degrees.pp, 1), np.maximum(kept - copies, 0.0), kept)


def _states(
    groups: ParameterGroups,
    degrees: Degrees,
    rules: TrainingRules,
    *,
    copy_weights: bool = True,
    in_layer: bool = True,
) -> StateBytes:
    """`group_bytes`, and the tensors that full sharding keeps whole.

    That is weights and gradients in a pipeline (`StateRules.whole_in_pipeline`), else weights where they stay gathered
    (`TrainingRules.stay_gathered`, `TrainingRules.whole_ends`). Of gradients that come with their backward
    (`StateRules.fresh_gradients`) none counts where the loss of the only micro-batch is the worst moment; the extra
    memory behind a step's last backward is in `late_gradient_bytes`. What none counts is cached under
    `TrainingRules.separate_pools`.
    """
    state = group_bytes(groups, degrees, rules, copy_weights=copy_weights, in_layer=in_layer)
    gradients = np.where(makes_gradients_late(degrees, rules), 0.0, state.gradients)
    if not rules.parameter_shard:
        return StateBytes(state.weights, gradients, state.optimizer)
    whole = gathered_bytes(groups, degrees, rules, in_layer=in_layer)
    in_pipeline = np.greater(degrees.pp, 1) & rules.framework.states.whole_in_pipeline
    stays = in_pipeline | stays_whole(rules, in_layer=in_layer)
    adds_whole = in_pipeline | (rules.accumulates_whole & np.greater(degrees.micro_batches, 1))
    # Shards that come with the reduction at the end of a pipeline's step are not alive beside the whole gradients.
    gradients = np.where(adds_whole & rules.framework.states.fresh_gradients, 0.0, gradients)
    cached = state.gradients - gradients if rules.separate_pools else 0.0
    weights, gradients = state.weights + whole.weights * stays, gradients + whole.gradients * adds_whole
    return StateBytes(weights, gradients, state.optimizer, cached)


def stays_whole(rules: TrainingRules, *, in_layer: bool) -> bool:
    """Return whether fully sharded weights of a layer, or of an end, stay gathered between their uses."""
    return rules.stay_gathered or (rules.whole_ends and not in_layer)


def makes_gradients_late(degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Return whether gradients are made in the step's only backward, behind the loss (`StateRules.fresh_gradients`)."""
    alone = np.equal(degrees.pp, 1) & np.equal(degrees.micro_batches, 1)
    return alone & rules.framework.states.fresh_gradients


def gathered_bytes(
    groups: ParameterGroups, degrees: Degrees, rules: TrainingRules, *, in_layer: bool = True
) -> StateBytes:
    """A block's parameters as GEMMs take them and their gradients, not sharded."""
    return group_bytes(groups, degrees, rules.gathered(), in_layer=in_layer)


def vocabulary_ways(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Ranks of TP over which the rows of a split embedding, of the head and of its logits are divided."""
    if not rules.framework.states.whole_uneven_vocabulary:
        return degrees.tp
    return np.where(np.equal(np.remainder(model.vocab, degrees.tp), 0), degrees.tp, 1)


def _vocabulary_groups(rows: Any, model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> ParameterGroups:
    """Parameters of a table over the vocabulary, in the ranks that it is divided over."""
    split: Any = np.where(np.equal(vocabulary_ways(model, degrees, rules), degrees.tp), rows, 0)
    return ParameterGroups(split=split, replicated=rows - split)


def embedding_state_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """Weights, gradients and optimizer states of the embedding on one device, bytes.

    The table is split over TP where the file or the framework (`StateRules.splits_embedding_in_pipeline`)
    says so. Learned positions, and what else stands before the layers (`ModelSpec.extra_parameters`), are never
    split: every TP rank holds them all.
    """
    before = ParameterGroups(replicated=model.extra_parameters)
    return _table_state_bytes(model, degrees, rules) + _states(before, degrees, rules.of_part(BESIDE))


def _table_state_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """The same of token and position embedding alone."""
    states, groups = rules.framework.states, embedding_groups(model, degrees, rules)
    # Under autocast a table is cast for the head alone.
    copied = not (states.casts_embedding_rows or (rules.autocast and not model.tied_embedding))
    result = _states(groups, degrees, rules.of_part(EMBEDDING), copy_weights=copied, in_layer=False)
    if rules.saves(EMBEDDING):
        result = result + _states(groups, degrees, rules.trained, copy_weights=copied, in_layer=False)
    sharded = rules.parameter_shard and states.whole_in_pipeline and states.gathers_embedding_gradient
    if sharded and rules.trains(EMBEDDING):
        rows = groups.split * (1 - 1 / degrees.tp) * np.greater(degrees.pp, 1)
        result = result + StateBytes(gradients=rows * rules.gathered().gradient_bytes)
    return result


def embedding_groups(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> ParameterGroups:
    """Parameters of token and position embedding, in the ranks that they are divided over (`embedding_state_bytes`)."""
    states = rules.framework.states
    positions = model.learned_positions * model.hidden
    table = embedding_parameters(model) - positions
    split: Any = table
    if not rules.vocab_parallel:
        split = np.where(np.greater(degrees.pp, 1), table, 0) if states.splits_embedding_in_pipeline else 0
    groups = _vocabulary_groups(split, model, degrees, rules)
    return groups + ParameterGroups(replicated=table - split + positions)


def head_groups(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> ParameterGroups:
    """Parameters of the LM head and the final norm, in the ranks that they are divided over."""
    table = _vocabulary_groups(head_parameters(model), model, degrees, rules)
    return table + ParameterGroups(replicated=model.hidden)


def head_state_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """The same of the LM head and final norm; a tied head is a separate copy unless pp is 1.

    With MTP modules: their projections too, and a copy of the embedding where the last stage is not
    the first. The head is split over TP under every `vocab_parallel`.
    """
    alone = np.equal(degrees.pp, 1)
    result = _states(head_groups(model, degrees, rules), degrees, rules.of_part(HEAD), in_layer=False)
    if model.tied_embedding:
        result = result.scaled(np.where(alone, 0.0, 1.0))
    if rules.saves(HEAD):
        saved = _vocabulary_groups(head_parameters(model), model, degrees, rules)
        result = result + _states(saved, degrees, rules.trained, in_layer=False)
    return result + beside_mtp_bytes(model, degrees, rules) if model.mtp_layers else result


def beside_mtp_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """The same of MTP modules outside their layers: projections, norms, and a copy of the embedding."""
    body, module = module_body_groups(model), layer_groups(model, MTP)
    extra = ParameterGroups(
        split=model.mtp_layers * (module.split - body.split),
        replicated=model.mtp_layers * (module.replicated - body.replicated),
    )
    return _states(extra, degrees, rules) + mtp_embedding_bytes(model, degrees, rules)


def mtp_embedding_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """The same of the copy of the embedding on a stage with MTP modules."""
    return _table_state_bytes(model, degrees, rules).scaled(np.where(np.equal(degrees.pp, 1), 0.0, 1.0))


def logits_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Logits and loss of one micro-batch at its worst moment.

    Where GEMMs make a weight's gradient separately, the head's backward may be the worse moment: the logits'
    gradient, the head's own, its input gathered and that one's gradient.

    Without a pipeline the logits themselves may be gone by then (`StaticRules.drops_logits`).

    The head comes last, with the softmax of every MTP module alive; its input and norm, and what the modules'
    projections save, are kept too. Under `StaticRules.counted_as_fitted` it is one full set of logits for the head and
    one for every module, and nothing else; of several parts of a micro-batch one is at its worst moment, while the
    others hold what they keep (`StaticRules.kept_logits_bytes`).
    """
    statics = rules.framework.statics
    tokens = micro_batch_tokens(degrees, rules)
    columns = model.outputs / vocabulary_ways(model, degrees, rules)
    values = tokens * columns / rules.loss_chunks
    if statics.counted_as_fitted:
        parts = np.where(np.remainder(degrees.mbs, rules.interleaved_parts), 1, rules.interleaved_parts)
        each = (statics.logits_bytes + (parts - 1) * statics.kept_logits_bytes) / parts
        return values * each * (1 + model.mtp_layers)
    split = sequence_split(degrees)
    # A frozen head saves no input.
    entering = 1 / input_split(degrees, rules) if rules.trains(HEAD) else 0
    kept = tokens * model.hidden * rules.compute_bytes * (1 / split + entering)
    kept = kept * (1 + model.mtp_layers)
    # A module keeps its embedding, and both norms' results side by side.
    kept = kept + tokens * model.hidden * rules.compute_bytes * 3 / split * model.mtp_layers
    earlier = _SOFTMAX_BYTES * model.mtp_layers if rules.loss_chunks == 1 else 0
    at_loss = values * np.where(np.equal(columns, model.outputs), loss_bytes(rules), loss_bytes(rules, split=True))
    at_loss = at_loss - dropped_logits_bytes(model, degrees, rules)
    if rules.capped_logits:
        at_loss = at_loss + values * rules.compute_bytes
    if makes_weight_gradients(rules.at(HEAD)):
        behind = input_gradient_bytes(model, degrees, rules) + model.hidden * columns * rules.compute_bytes
        at_loss = np.maximum(at_loss, values * rules.compute_bytes + behind)
    return at_loss + values * earlier + kept


def dropped_logits_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Logits in the compute type that are gone before the loss's backward (`StaticRules.drops_logits`)."""
    if not rules.framework.statics.drops_logits or rules.loss_kernel is not None:
        return 0.0
    columns = model.outputs / vocabulary_ways(model, degrees, rules)
    # A compiled loss takes its gradient from them.
    compiled = rules.compiled_loss & np.equal(columns, model.outputs)
    values = micro_batch_tokens(degrees, rules) * columns / rules.loss_chunks
    return values * rules.compute_bytes * (np.equal(degrees.pp, 1) & np.logical_not(compiled))


def loss_bytes(rules: TrainingRules, *, split: bool = False) -> float:
    """Bytes a logit at the loss's worst moment, by its kernel; `split`: the vocabulary is divided over TP's ranks."""
    if rules.loss_kernel == ENGINE_LOSS:
        return rules.compute_bytes
    if rules.loss_kernel == FLASH_LOSS:
        return 2 * rules.compute_bytes
    further = _WIDE_BYTES if rules.loss_kernel == COMPILED_LOSS else 0
    statics = rules.framework.statics
    if split and statics.split_logits_bytes is not None:
        return statics.split_logits_bytes
    if rules.compiled_loss and statics.compiled_logits_bytes is not None:
        return statics.compiled_logits_bytes
    return statics.logits_bytes + further


def buffer_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Pipeline transfers, and FSDP's gathered layers where there is no pipeline.

    `StaticRules.transfer_buffers` is the number of a stage boundary's tensors in the transfers.

    FSDP holds the gathered parameters of two layers (the present and the prefetched one) and the fp32
    gradient of one before it is scattered (Zhao et al. 2023, arXiv:2304.11277 §4.3); in a pipeline see
    `layer_state_bytes`, at the loss `end_of_step_bytes`.
    """
    buffers = _transfer_bytes(model, degrees, rules) + passes_weights(rules, degrees) * _layer_buffers(
        model, degrees, rules
    )
    return buffers + (HOST_BUFFERS * layer_input_bytes(model, degrees, rules) if rules.inputs_on_host else 0.0)


def layer_input_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Input of one body layer for one micro-batch, bytes."""
    return activation_bytes(model, model.body_kind, FULL, degrees, rules.replace(inputs_on_host=False))


def _transfer_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    boundary = micro_batch_tokens(degrees, rules) * model.hidden * rules.compute_bytes / sequence_split(degrees)
    piped = np.greater(degrees.pp, 1)
    framework = rules.framework
    count: Quantity = framework.statics.transfer_buffers
    if framework.statics.buffers_every_micro_batch:
        # And the gradient sent last.
        count = count * degrees.micro_batches * degrees.vpp + 1
    return np.where(piped, count * boundary, 0.0)


def passes_weights(rules: TrainingRules, degrees: Degrees) -> Quantity:
    """Return whether weights are gathered around their use and gradients scattered behind it."""
    if not rules.parameter_shard:
        return False
    return np.equal(degrees.pp, 1) if rules.framework.states.whole_in_pipeline else True


def _layer_buffers(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Gathered weights of two layers, and one's gradients before they are scattered."""
    gathered = _largest_layer(model, degrees, rules)
    return (0.0 if stays_whole(rules, in_layer=True) else 2 * gathered.weights) + gathered.gradients


def _largest_layer(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    def size(kind: str) -> tuple[bool, int]:
        return not model.layer(kind).frozen, layer_groups(model, kind).total

    largest = max(model.body_counts, key=size)
    return gathered_bytes(layer_groups(model, largest), degrees, rules.within(model.layers_of(largest)))


def end_of_step_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> tuple[Quantity, Quantity, Quantity]:
    """Logits, workspace and buffers of the last stage at its worst moment.

    The loss is over before the first layer's backward begins, so the larger of the two counts alone;
    under `StaticRules.counted_as_fitted` both do. At the loss torch's FSDP holds the gathered head and no layer
    (`StateRules.gathers_blocks`); behind it the head's gradient is there, if it was not before
    (`StateRules.fresh_gradients`). Without a pipeline, whose transfers have it, the gradient of the last layer's output
    is beside the workspace.
    """
    logits = logits_bytes(model, degrees, rules)
    workspace = workspace_bytes(model, degrees, rules)
    buffers = buffer_bytes(model, degrees, rules)
    if rules.framework.statics.counted_as_fitted:
        return logits, workspace, buffers
    workspace = workspace + np.where(np.equal(degrees.pp, 1), entering_bytes(model, degrees, rules), 0.0)
    at_loss = _buffers_at_loss(model, degrees, rules, buffers)
    buffers = buffers + makes_gradients_late(degrees, rules) * _head_gradient_bytes(model, degrees, rules)
    loss = np.greater_equal(logits + at_loss, workspace + buffers)
    return np.where(loss, logits, 0.0), np.where(loss, 0.0, workspace), np.where(loss, at_loss, buffers)


def _buffers_at_loss(model: ModelSpec, degrees: Degrees, rules: TrainingRules, buffers: Quantity) -> Quantity:
    if not (rules.parameter_shard and rules.framework.states.gathers_blocks):
        return buffers
    there = stays_whole(rules, in_layer=False)
    own = rules.at(HEAD)
    head = 0.0 if there else gathered_bytes(head_groups(model, degrees, rules), degrees, own, in_layer=False).weights
    return buffers - passes_weights(rules, degrees) * (_layer_buffers(model, degrees, rules) - head)


def cached_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> tuple[Quantity, Quantity, Quantity]:
    """Memory that torch's allocator keeps beside the peak's tensors, without gradients' shards (`StateBytes.cached`).

    Of the stage of the embedding, a stage with neither end, and that of the head, bytes; where one stage has both ends,
    first + last − middle. See `cost_model.memory.reserved`.
    """
    if not rules.separate_pools:
        return 0.0, 0.0, 0.0
    layer = _largest_layer(model, degrees, rules).weights
    ends = ((embedding_groups(model, degrees, rules), EMBEDDING), (head_groups(model, degrees, rules), HEAD))
    embedding, head = (gathered_bytes(each, degrees, rules.at(end), in_layer=False).weights for each, end in ends)
    cast: Quantity = 1 / degrees.op if rules.compute_bytes < rules.param_bytes and not rules.narrow_gather else 0.0
    # The root's group has both ends (`TrainingRules.whole_ends`); else each is one.
    both = embedding + head if rules.whole_ends else np.maximum(embedding, head)
    pages = POOLS * PAGE_BYTES
    first, middle, last, alone = (gather_pool_bytes(layer, end, cast) + pages for end in (embedding, 0.0, head, both))
    last = np.where(np.equal(degrees.pp, 1), alone - first + middle, last)
    buffers = buffer_bytes(model, degrees, rules)
    at_loss = logits_bytes(model, degrees, rules) + _buffers_at_loss(model, degrees, rules, buffers)
    behind = workspace_bytes(model, degrees, rules) + buffers
    gathered = 0.0 if rules.stay_gathered else 2 * layer + (0.0 if rules.whole_ends else embedding)
    left = passes_weights(rules, degrees) * gathered + _passing_inside(model, degrees, rules)
    counted = sum(end_of_step_bytes(model, degrees, rules))
    counted = counted + late_gradient_bytes(model, degrees, rules, counted)
    left = left + dropped_logits_bytes(model, degrees, rules)
    return first, middle, last + beside_the_peak(at_loss, behind, left, counted)


def _passing_inside(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Inner tensors of the forward of the layer that has most."""
    most: Quantity = 0.0
    tokens = micro_batch_tokens(degrees, rules)
    for layer in {layer for kind in model.body_counts for layer in model.layers_of(kind)}:
        width = 0.0 if layer.mlp is None else layer.mlp.width
        slots: Quantity = 0.0
        expert: Quantity = 0.0
        if layer.moe is not None:
            width = max(width, layer.moe.shared_width)
            slots = routed_slots(layer.moe, degrees, rules)
            expert = layer.moe.expert_hidden / rules.experts_over(degrees.tp)
        inside = passing_bytes(tokens, width / degrees.tp, slots, expert, rules.compute_bytes)
        most = np.maximum(most, inside)
    return most


def _head_gradient_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The gradient of the last stage's head; a tied one is the embedding's."""
    if model.tied_embedding and not rules.saves(HEAD):
        return 0.0
    return group_bytes(head_groups(model, degrees, rules), degrees, rules.at(HEAD), in_layer=False).gradients


def late_gradient_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules, at_loss: Quantity) -> Quantity:
    """Bytes that a micro-batch's backward needs beyond its loss, at the head and at the embedding; else 0.

    Under FSDP the head's new gradient is reduced while it and the layer before are gathered, where they do not stay so
    (`stays_whole`). Behind the last layer no
    activation is left: with every layer recomputed, which keeps least, and gradients that come no sooner
    (`StateRules.fresh_gradients`), that may be more than the loss needed. Then comes the embedding's own gradient: with
    all rows (`StateRules.gathers_embedding_gradient`), beside the gathered table and what is being reduced; of a tied
    table that nothing shards, beside the head's.

    Parameters
    ----------
    at_loss : scalar or array [n]
        All parts of `end_of_step_bytes`, bytes.
    """
    late = makes_gradients_late(degrees, rules)
    passes = np.logical_and(passes_weights(rules, degrees), rules.framework.states.gathers_blocks)
    if not (np.any(late) or np.any(passes)):
        return 0.0
    layers: Quantity = 0.0
    least: Quantity = 0.0
    for kind, count in model.kind_counts.items():
        part = rules.within(model.layers_of(kind))
        layers = layers + count * group_bytes(layer_groups(model, kind), degrees, part).gradients
        least = least + count * activation_bytes(model, kind, FULL, degrees, rules)
    table, largest = embedding_groups(model, degrees, rules), _largest_layer(model, degrees, rules)
    own = group_bytes(table, degrees, rules.at(EMBEDDING), in_layer=False).gradients
    trains = rules.trains(EMBEDDING)
    made: Quantity = late * table.total * rules.gradient_bytes if model.tied_embedding and trains else 0.0
    behind_head: Quantity = 0.0
    if rules.parameter_shard:
        gathered, head = (
            gathered_bytes(groups, degrees, rules.at(end), in_layer=False)
            for groups, end in ((table, EMBEDDING), (head_groups(model, degrees, rules), HEAD))
        )
        every_row = rules.framework.states.gathers_embedding_gradient
        ends, inner = (0.0 if stays_whole(rules, in_layer=inside) else 1.0 for inside in (False, True))
        pending = trains * (table.total * rules.compute_bytes if every_row else gathered.weights)
        made = ends * gathered.weights + pending + np.maximum(gathered.gradients, largest.gradients)
        if keeps_gradients(rules):
            there = ends * head.weights + inner * largest.weights
            behind_head = there + head.weights + head.gradients + entering_bytes(model, degrees, rules)
    at_last_layer = workspace_bytes(model, degrees, rules) + buffer_bytes(model, degrees, rules)
    end = np.where(
        late, _head_gradient_bytes(model, degrees, rules) + layers + np.maximum(at_last_layer, own + made), made
    )
    most = np.maximum(end - least, passes * behind_head) - at_loss
    return np.where(np.logical_or(late, passes), np.maximum(0.0, most), 0.0)


def embedding_gradient_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes that the first stage of a pipeline needs beyond its worst moment in a layer for the table's new gradient.

    It is added to the accumulated one as a layer's is (`backward_workspace.pending_bytes`), with the rows of all ranks
    of TP where `StateRules.gathers_embedding_gradient`. It comes last, when the micro-batch's activations (the least
    that they are, with every layer recomputed) and the workspace are gone.
    """
    states = rules.framework.states
    if not (rules.parameter_shard and states.whole_in_pipeline) or not rules.trains(EMBEDDING):
        return 0.0
    table = embedding_groups(model, degrees, rules)
    ways = 1 if states.gathers_embedding_gradient else degrees.tp
    made = rules.compute_bytes * (table.split / ways + table.replicated)
    least = reduce(np.minimum, (activation_bytes(model, kind, FULL, degrees, rules) for kind in model.body_counts))
    gone = layers_a_chunk(model, degrees) * least + workspace_bytes(model, degrees, rules)
    return np.where(np.greater(degrees.pp, 1), np.maximum(0.0, made - gone), 0.0)


def postponed_gradient_bytes(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, schedule: ScheduleSpec
) -> Quantity:
    """Gradients of a chunk's layers on their way to the whole ones, where these are separate tasks.

    Such a task makes all of a chunk's in the compute type, and FSDP adds them up behind its last. The chunk is one of
    an even split.
    """
    gathered = rules.parameter_shard and rules.framework.states.whole_in_pipeline and rules.adapters is None
    if not (schedule.traits.split_backward and gathered):
        return 0.0
    layers: Quantity = 0.0
    for kind, count in model.kind_counts.items():
        layers = layers + count * gathered_bytes(layer_groups(model, kind), degrees, rules).weights
    return np.where(np.greater(degrees.pp, 1), layers / (degrees.pp * degrees.vpp), 0.0)


def mask_bytes(degrees: Degrees, rules: TrainingRules, schedule: ScheduleSpec | None) -> tuple[Quantity, Quantity]:
    """Masks that came with micro-batches, on the stages of embedding and head, bytes; with one stage the first's alone.

    Megatron-LM core_v0.16.0 megatron/training/utils.py:531-760 (``get_batch_on_this_tp_rank``): on every rank of TP a
    boolean of (mbs, 1, s, s), on the first and the last stage alone (pretrain_gpt.py:69; interleaved, in their first
    and last chunk), of which a context rank keeps its rows (megatron/core/utils.py:2021-2036; the whole one, there
    while they are cut out, is not counted). Layers that run again keep it to their backward
    (megatron/core/tensor_parallel/random.py:528), so that every micro-batch alive counts; where no layer does, the
    first stage needs one alone. 0.9 to main are alike.

    Parameters
    ----------
    schedule : ScheduleSpec or None
        Says how many micro-batches are alive; None: one. All strategies must then have the same pp and vpp.
    """
    if not rules.loads_masks:
        return 0.0, 0.0
    one = degrees.mbs * rules.seq_length**2 / degrees.cp
    last = np.where(np.greater(degrees.pp, 1), one, 0.0)
    if schedule is None:
        return one, last
    stages, interleaves = (int(np.ravel(each)[0]) for each in (degrees.pp, degrees.vpp))
    running = schedule.for_interleaves(interleaves, rules.framework)
    return one * alive_lower_bound(running, stages, interleaves, 0, degrees.micro_batches)[0], last


def overhead_mib(rules: TrainingRules) -> float:
    """Runtime and communication buffers, MiB."""
    return rules.framework.statics.overhead_mib if rules.overhead_mib is None else rules.overhead_mib


def static_mib(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, schedule: ScheduleSpec | None = None
) -> tuple[Quantity, Quantity, Quantity]:
    """Static memory of the first, a middle and the last stage, MiB; with one stage first + last − middle counts.

    Where the schedule's stages form a V, the head is on the first stage and the last is a middle one.
    """
    beside = buffer_bytes(model, degrees, rules) + workspace_bytes(model, degrees, rules)
    postponed = 0.0 if schedule is None else postponed_gradient_bytes(model, degrees, rules, schedule)
    always = overhead_mib(rules) + postponed / MIB
    cached = cached_bytes(model, degrees, rules)
    middle = (beside + cached[1]) / MIB + always
    first = middle + (embedding_state_bytes(model, degrees, rules).total + cached[0] - cached[1]) / MIB
    at_loss = sum(end_of_step_bytes(model, degrees, rules))
    at_end = at_loss + late_gradient_bytes(model, degrees, rules, at_loss)
    last = (head_state_bytes(model, degrees, rules).total + at_end + cached[2]) / MIB + always
    of_first, of_last = mask_bytes(degrees, rules, schedule)
    of_first = of_first + embedding_gradient_bytes(model, degrees, rules)
    first, last = first + of_first / MIB, last + of_last / MIB
    if schedule is not None and schedule.head_stage(2) == 0:
        return first + last - middle, middle, middle
    return first, middle, last
