"""What a stage holds besides its layers: embedding, head, logits, buffers, overhead; scalars and arrays alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_model.activations import activation_bytes, micro_batch_tokens, sequence_split
from cost_model.parameters import ParameterGroups, body_kind, embedding_parameters, head_parameters, layer_groups
from cost_model.states import StateBytes, group_bytes
from cost_model.strategy import TrainingRules
from cost_model.strategy_table import Degrees
from pipeline.plan import FULL, NONE
from register.model import MTP, ModelSpec

MIB = 2**20

FRAMEWORK_OVERHEAD_MIB = {"mindformers": 1536.0, "megatron": 1536.0, "torchtitan": 1024.0}
"""Runtime and communication buffers where neither file nor device gives a figure. MindFormers: what is
left of a published fit's 2382 MiB middle stage after buffers and workspace. The other two: CUDA context
and NCCL channels as commonly seen, about 1-1.5 GiB."""

LOGITS_BYTES = {"mindformers": 14, "megatron": 10, "torchtitan": 14}
"""Bytes a logit at the loss's worst moment: bf16 logits 2, fp32 cast 4, softmax 4, gradient 4; Megatron's
vocabulary-parallel cross entropy works in place on one of them."""


def layer_state_bytes(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """Weights, gradients and optimizer states of one layer on one device, bytes."""
    return group_bytes(layer_groups(model, body_kind(model) if kind == MTP else kind), degrees, rules)


def embedding_state_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """Weights, gradients and optimizer states of the embedding on one device, bytes.

    MindFormers counts as split over TP whatever ``vocab_emb_dp`` says: the published fit of its
    DeepSeek-V3, whose files set that flag, has 1001 MiB more on the first stage than on a middle one,
    which is 4 + 12/16 bytes for a quarter of the table and a third of what a whole one would take.
    """
    count, mindformers = embedding_parameters(model), rules.framework == "mindformers"
    split = rules.vocab_parallel or mindformers
    groups = ParameterGroups(split=count) if split else ParameterGroups(replicated=count)
    return group_bytes(groups, degrees, rules, copy_weights=not mindformers)


def head_state_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> StateBytes:
    """The same of the LM head and final norm; a tied head is a copy of its own unless pp is 1.

    With MTP modules: their projections too, and a copy of the embedding where the last stage is not
    the first. The head is split over TP whatever `vocab_parallel` says of the embedding.
    """
    alone = np.equal(degrees.pp, 1)
    groups = ParameterGroups(split=head_parameters(model), replicated=model.hidden)
    result = group_bytes(groups, degrees, rules)
    if model.tied_embedding:
        result = _scaled(result, np.where(alone, 0.0, 1.0))
    if model.mtp_layers:
        body, module = layer_groups(model, body_kind(model)), layer_groups(model, MTP)
        extra = ParameterGroups(
            split=model.mtp_layers * (module.split - body.split),
            replicated=model.mtp_layers * (module.replicated - body.replicated),
        )
        copy = _scaled(embedding_state_bytes(model, degrees, rules), np.where(alone, 0.0, 1.0))
        result = result + group_bytes(extra, degrees, rules) + copy
    return result


def logits_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Logits and loss of one micro-batch at its worst moment, one set for the head and one an MTP module."""
    values = micro_batch_tokens(degrees, rules) * model.vocab / degrees.tp / rules.loss_chunks
    return values * LOGITS_BYTES[rules.framework] * (1 + model.mtp_layers)


def buffer_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Pipeline transfers (an activation and a gradient, double-buffered) and FSDP's gathered layers.

    FSDP holds the gathered parameters of two layers (the present and the prefetched one) and the fp32
    gradient of one before it is scattered (Zhao et al. 2023, arXiv:2304.11277 §4.3).
    """
    boundary = micro_batch_tokens(degrees, rules) * model.hidden * rules.compute_bytes / sequence_split(degrees)
    result = np.where(np.greater(degrees.pp, 1), 4 * boundary, 0.0)
    if rules.parameter_shard:
        gathered = group_bytes(
            layer_groups(model, body_kind(model)),
            degrees,
            rules.replace(parameter_shard=False, gradient_shard=False, param_bytes=rules.compute_bytes),
        )
        result = result + 2 * gathered.weights + gathered.gradients
    return result


def workspace_bytes(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Any:
    """Room for the backward of one layer: what recompute rebuilds of the largest kind of layer."""
    rebuilt = [
        activation_bytes(model, kind, NONE, degrees, rules) - activation_bytes(model, kind, FULL, degrees, rules)
        for kind in model.layer_counts()
    ]
    largest = rebuilt[0]
    for other in rebuilt[1:]:
        largest = np.maximum(largest, other)
    return largest


def overhead_mib(rules: TrainingRules) -> float:
    """Runtime and communication buffers, MiB."""
    return FRAMEWORK_OVERHEAD_MIB[rules.framework] if rules.overhead_mib is None else rules.overhead_mib


def static_mib(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> tuple[Any, Any, Any]:
    """Static memory of the first, a middle and the last stage, MiB; with one stage first + last − middle counts."""
    common = buffer_bytes(model, degrees, rules) + workspace_bytes(model, degrees, rules)
    middle = common / MIB + overhead_mib(rules)
    first = middle + embedding_state_bytes(model, degrees, rules).total / MIB
    last = middle + (head_state_bytes(model, degrees, rules).total + logits_bytes(model, degrees, rules)) / MIB
    return first, middle, last


def _scaled(state: StateBytes, factor: Any) -> StateBytes:
    return StateBytes(state.weights * factor, state.gradients * factor, state.optimizer * factor)
