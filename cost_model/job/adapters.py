"""Low-rank adapters of a layer: parameters, work, and what they keep; scalars and arrays alike.

An adapter's GEMMs are far from square: they take the time of reading their input and writing their result. Beside them
single operations scale the result and add it to the frozen matrix's, and in backward the input's two gradients are
added up (Megatron-Bridge 067f987d src/megatron/bridge/peft/utils.py:1208-1280, lora_layers.py:70-92; peft 5d602fdb
src/peft/tuners/lora/tp_layer.py:205-232). Every part is counted by torch's own operations in a test.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.parameters import (
    ParameterGroups,
    embedding_parameters,
    expert_outer,
    head_parameters,
    layer_parameters,
    router_parameters,
    total_parameters,
)
from taylor.cost_model.job.recurrent import recurrent_products
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.register.adapters import (
    BESIDE,
    DOWN,
    EMBEDDING,
    GATE,
    HEAD,
    JOINED_QKV,
    JOINED_UP,
    KEY,
    LATENTS,
    MIXER_IN,
    MIXER_OUT,
    OUTPUT,
    QUERY,
    ROUTERS,
    UP,
    VALUE,
    Adapters,
)
from taylor.register.layers import AttentionSpec, LayerSpec
from taylor.register.model import MTP, ModelSpec

_WHOLE = Strategy(1, 1, 1)
"""One rank, whose products are the matrices themselves."""

_SCALED, _ADDED = 2, 3
"""Elements moved where a result is scaled, read and written, and where it is added to another, both read."""


class Adapted(NamedTuple):
    """A frozen matrix with its adapter.

    Parameters
    ----------
    target : str
        A name of `register.adapters.TARGETS`.
    width_in, width_out : int
        Columns and rows of the matrix, not split.
    rows : bool
        TP splits its columns (Megatron's row-parallel linear). Off: its rows.
    copies : int
        Matrices of that size: routed experts.
    whole : bool
        Every rank of TP has all of it and multiplies its own tokens: projections to latents.
    """

    target: str
    width_in: int
    width_out: int
    rows: bool = False
    copies: int = 1
    routed: bool = False
    whole: bool = False


def adapted_matrices(model: ModelSpec, layer: LayerSpec, adapters: Adapters) -> tuple[Adapted, ...]:
    """Matrices of one layer that have an adapter, in the order in which they run."""
    found: list[Adapted] = []
    if layer.attention is not None:
        found += _of_attention(model.hidden, layer.attention)
    elif layer.recurrent is not None:
        *entering, leaving = recurrent_products(model.hidden, layer.recurrent, _WHOLE)
        found += [Adapted(MIXER_IN, int(p.width_in), int(p.width_out)) for p in entering]
        found.append(Adapted(MIXER_OUT, int(leaving.width_in), int(leaving.width_out), rows=True))
    if layer.mlp is not None:
        found += _of_mlp(model.hidden, layer.mlp.width, layer.mlp.gated)
    if layer.moe is not None:
        moe = layer.moe
        if moe.shared_width:
            found += _of_mlp(model.hidden, moe.shared_width, moe.gated)
        if adapters.beside_experts:
            of_experts = _of_mlp(expert_outer(model, moe), moe.expert_hidden, moe.gated)
            found += [each._replace(copies=moe.n_experts, routed=True) for each in of_experts]
    return tuple(each for each in found if each.target in adapters.targets)


def _of_attention(hidden: int, attention: AttentionSpec) -> list[Adapted]:
    heads = attention.n_heads
    output = Adapted(OUTPUT, heads * attention.v_width, hidden, rows=True)
    mla = attention.latent
    if mla is not None:
        query, rank = heads * attention.qk_width, mla.q_lora_rank
        queries = [Adapted(LATENTS, hidden, query)]
        if rank is not None:
            queries = [Adapted(LATENTS, hidden, rank, whole=True), Adapted(LATENTS, rank, query)]
        keys = Adapted(LATENTS, hidden, mla.kv_lora_rank + mla.qk_rope_head_dim, whole=True)
        up = Adapted(LATENTS, mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim))
        return [*queries, keys, up, output]
    q, k = heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    v = 0 if attention.shared_kv else attention.n_kv_heads * attention.v_width
    if attention.reused_kv:
        k = v = 0
    apart = [Adapted(name, hidden, width) for name, width in ((QUERY, q), (KEY, k), (VALUE, v)) if width]
    return [Adapted(JOINED_QKV, hidden, q + k + v + attention.gate), *apart, output]


def _of_mlp(hidden: int, width: int, gated: bool) -> list[Adapted]:
    entering = [Adapted(JOINED_UP, hidden, (2 if gated else 1) * width), Adapted(UP, hidden, width)]
    if gated:
        entering.append(Adapted(GATE, hidden, width))
    return [*entering, Adapted(DOWN, width, hidden, rows=True)]


def adapter_groups(model: ModelSpec, kind: str, rules: TrainingRules) -> ParameterGroups:
    """Parameters of the adapters of one layer of a kind, or of an MTP module's layers, by split; none without."""
    if rules.adapters is None:
        return ParameterGroups()
    layers = model.mtp_module() if kind == MTP else model.layers_of(kind)
    return sum((layer_adapter_groups(model, layer, rules.adapters) for layer in layers), ParameterGroups())


def layer_adapter_groups(model: ModelSpec, layer: LayerSpec, adapters: Adapters) -> ParameterGroups:
    """The same of one layer.

    One adapter for all experts of a rank is whole on every rank of EP.
    """
    groups = ParameterGroups()
    for each in adapted_matrices(model, layer, adapters):
        a, b = adapters.rank * each.width_in, adapters.rank * each.width_out
        magnitudes = each.width_out if adapters.decomposed else 0
        if each.routed:
            shared = adapters.shared_by_experts
            own = a + b + magnitudes
            groups += ParameterGroups(replicated=own) if shared else ParameterGroups(routed=each.copies * own)
            continue
        if adapters.gathers:
            groups += ParameterGroups(split=a + b)
        elif each.whole:
            groups += ParameterGroups(replicated=a + b)
        else:
            groups += ParameterGroups(split=a if each.rows else b, replicated=b if each.rows else a)
        groups += ParameterGroups(replicated=magnitudes) if each.rows else ParameterGroups(split=magnitudes)
    return groups


def adapter_parameters(model: ModelSpec, adapters: Adapters) -> int:
    """Parameters that train, of the whole model; one adapter shared by a rank's experts counts once."""
    total = 0
    for kind, count in model.kind_counts.items():
        layers = model.mtp_module() if kind == MTP else model.layers_of(kind)
        total += count * sum(layer_adapter_groups(model, layer, adapters).total for layer in layers)
    return total + saved_parameters(model, adapters)


def trained_parameters(model: ModelSpec, rules: TrainingRules) -> int:
    """Parameters that train, of the whole model without MTP modules: adapters alone, or all that is not frozen."""
    if rules.adapters is not None:
        return adapter_parameters(model, rules.adapters)
    total = total_parameters(model)
    for part, size in (
        (EMBEDDING, embedding_parameters(model)),
        (HEAD, 0 if model.tied_embedding else head_parameters(model)),
        (BESIDE, model.extra_parameters),
    ):
        total -= size if part in rules.frozen else 0
    for kind, count in model.body_counts.items():
        if model.layer(kind).frozen:
            total -= count * layer_parameters(model, kind)
        elif ROUTERS in rules.frozen:
            total -= count * router_parameters(model, kind)
    return total


def saved_parameters(model: ModelSpec, adapters: Adapters) -> int:
    """Parameters of the copies of embedding and head that train beside adapters."""
    embedding = embedding_parameters(model) if EMBEDDING in adapters.saved else 0
    return embedding + (head_parameters(model) if HEAD in adapters.saved else 0)


class AdapterWork(NamedTuple):
    """Work of one layer's adapters for a micro-batch on one device.

    Parameters
    ----------
    flops : FLOP
        Forward GEMMs.
    moved_bytes : bytes
        Operands and results of the forward GEMMs.
    element_bytes, gradient_element_bytes : bytes
        Traffic of scaling, adding and dropping, forward and backward.
    gathered_bytes : bytes
        Results that ranks of TP gather, of each rank's whole output.
    number : int
        Adapters whose operations the host starts.
    forward_flops, forward_bytes : FLOP, bytes
        What DoRA adds to the forward alone: the adapter's matrix, its sum with the frozen one and their norm.
    again_flops : FLOP
        The frozen matrix's product of the dropped input, forward, and as much backward: DoRA with dropout.
    """

    flops: Quantity = 0.0
    moved_bytes: Quantity = 0.0
    element_bytes: Quantity = 0.0
    gradient_element_bytes: Quantity = 0.0
    gathered_bytes: Quantity = 0.0
    number: Quantity = 0.0
    forward_flops: Quantity = 0.0
    forward_bytes: Quantity = 0.0
    again_flops: Quantity = 0.0


class _Decomposed(NamedTuple):
    """Steps of a library's DoRA.

    Parameters
    ----------
    ahead, back : int
        Elements moved for a result beside LoRA's.
    kept : int
        Results kept for the magnitude's gradient.
    summed : int
        Elements moved for one of the frozen matrix.
    at_once : int
        Matrices alive beside the frozen one.
    by_unit : bool
        The adapter's matrix is its result for a unit matrix, in place of the product of its two.
    """

    ahead: int
    back: int
    kept: int
    summed: int
    at_once: int
    by_unit: bool


_PEFT = _Decomposed(7, 15, 2, 7, 3, by_unit=True)
"""The matrix's and the adapter's results are scaled by the magnitude over the norm, and added; back, both gradients,
and those of the magnitude by either result. The adapter's matrix is written and scaled, the two are added, the norm."""
_BRIDGE = _Decomposed(4, 6, 1, 5, 2, by_unit=False)
"""The sum of both results is scaled, and zero added for the dropout that is not there; back, its gradient and the
magnitude's. The first matrix is scaled before the product (Megatron-Bridge 067f987d
src/megatron/bridge/peft/dora_layers.py:112-169)."""


def _steps(adapters: Adapters) -> _Decomposed:
    return _BRIDGE if adapters.gathers else _PEFT


def adapter_work(
    model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules, tokens: Quantity, slots: Quantity
) -> AdapterWork:
    """Work of the adapters of one layer for a micro-batch on one device.

    Parameters
    ----------
    tokens : scalar or array [n]
        Tokens of the rank.
    slots : scalar or array [n]
        Expert slots a token (`activations.routed_slots`).
    """
    adapters = rules.adapters
    if adapters is None:
        return AdapterWork()
    total = AdapterWork()
    b, r = rules.compute_bytes, adapters.rank
    for each in adapted_matrices(model, layer, adapters):
        rows = tokens * slots if each.routed else tokens
        ways = rules.experts_over(degrees.tp) if each.routed else degrees.tp
        wide = each.width_in / (ways if each.rows else 1)
        out = each.width_out / (1 if each.rows else ways)
        inner = r / ways if adapters.gathers and not each.rows else r
        outside = each.width_out / ways if adapters.gathers else out
        matrices: Quantity = 1.0
        if each.routed and not adapters.shared_by_experts:
            matrices = each.copies / degrees.ep
        weights = inner * wide + r * outside
        dropped = (2 * b + 1) * wide if adapters.dropout else 0.0
        gathers = adapters.gathers and each.rows and not each.routed
        decomposed, steps = adapters.decomposed, _steps(adapters)
        total = AdapterWork(
            total.flops + 2 * rows * weights,
            total.moved_bytes + b * (rows * (wide + inner + r + outside) + matrices * weights),
            total.element_bytes + rows * (b * (_SCALED + _ADDED + steps.ahead * decomposed) * out + dropped),
            total.gradient_element_bytes
            + rows * (b * ((_SCALED + steps.back * decomposed) * out + _ADDED * wide) + dropped),
            total.gathered_bytes + (b * tokens * each.width_out if gathers else 0.0),
            total.number + (1.0 if adapters.shared_by_experts or not each.routed else matrices),
            total.forward_flops + decomposed * 2 * matrices * r * wide * (steps.by_unit * wide + out),
            total.forward_bytes + decomposed * b * matrices * wide * (steps.by_unit * wide + steps.summed * out),
            total.again_flops + decomposed * adapters.dropout * 2 * rows * wide * out,
        )
    return total


def adapter_kept_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Bytes a token that adapters keep beside their input: what A made; with dropout a copy of the input and its mask.

    Routed experts' are in `routed_kept_bytes`.
    """
    adapters = rules.adapters
    if adapters is None:
        return 0.0
    kept: Quantity = 0.0
    sequence = 1 if rules.framework.activations.saves_gathered_inputs else np.where(degrees.sp, degrees.tp, 1)
    for each in adapted_matrices(model, layer, adapters):
        if not each.routed:
            kept = kept + _kept_bytes(each, adapters, rules, degrees.tp, sequence)
    return kept


def routed_kept_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """The same of the routed experts' adapters, bytes an expert slot."""
    adapters = rules.adapters
    if adapters is None:
        return 0.0
    routed = [each for each in adapted_matrices(model, layer, adapters) if each.routed]
    return sum((_kept_bytes(each, adapters, rules, rules.experts_over(degrees.tp), 1) for each in routed), 0.0)


def _kept_bytes(
    each: Adapted, adapters: Adapters, rules: TrainingRules, ways: Quantity, sequence: Quantity
) -> Quantity:
    """Bytes a token of one adapter.

    What peft's first matrix makes has a rank's own tokens: those that it multiplies, or those to which its sum is
    scattered.
    """
    apart = 1 if adapters.gathers and not each.whole else sequence
    inner = adapters.rank / apart
    wide = each.width_in / (ways if each.rows else apart)
    # Results of the matrix and of the adapter, or their sum, for the magnitude's gradient; a rank's own tokens of what
    # TP does not split by features.
    out = each.width_out / (sequence if each.rows or each.whole else ways)
    scaled = _steps(adapters).kept * out if adapters.decomposed else 0.0
    kept: Quantity = rules.compute_bytes * (inner + scaled)
    # Megatron-Bridge drops a latent before it is gathered.
    drops_own = adapters.gathers and each.target == LATENTS and not each.whole
    mask = wide / (sequence if drops_own else 1)
    return kept + (rules.compute_bytes * wide + mask if adapters.dropout else 0.0)


def decomposed_bytes(model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Memory of the norm of DoRA's largest matrix: the adapter's, that scaled, and the sum, bytes."""
    adapters = rules.adapters
    if adapters is None or not adapters.decomposed:
        return 0.0
    sizes = [each.width_in * each.width_out for each in adapted_matrices(model, layer, adapters)]
    return _steps(adapters).at_once * rules.compute_bytes * max(sizes, default=0) / degrees.tp
