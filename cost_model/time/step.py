"""Time of a layer, a micro-batch and a step on a device: the ratios the solver takes, and a quick step time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.parameters import (
    layer_groups,
    module_body_groups,
)
from taylor.cost_model.job.sparse_latent import sparse_latent
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity, StrategyTable, ulysses_ranks
from taylor.cost_model.memory.activations import activation_bytes, micro_batch_tokens, sequence_split
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.memory.saved_operators import mixer_products
from taylor.cost_model.memory.states import group_bytes
from taylor.cost_model.memory.statics import MIB, layer_input_bytes, layer_state_bytes, static_mib
from taylor.cost_model.network.collectives import all_reduce_ms, all_to_all_ms, gather_ms, hops_ms, send_ms
from taylor.cost_model.profile import RatioSource, TimeRatios
from taylor.cost_model.time.adapter_time import NO_ADAPTERS, adapter_time
from taylor.cost_model.time.determinism import attention_backward_ms
from taylor.cost_model.time.expert_exchange import (
    alone_exchange_ms,
    expert_exchange_ms,
    shared_experts_ms,
)
from taylor.cost_model.time.expert_products import expert_products
from taylor.cost_model.time.indexer import indexer_time
from taylor.cost_model.time.launches import ends_ms, host_time, rotation_ms, shown_forward, shown_together
from taylor.cost_model.time.overlap import shown_behind, shown_in_rings
from taylor.cost_model.time.paired_exchange import PairedWork, paired_exchange_ms, unpaired_micro_batches
from taylor.cost_model.time.product_times import dense_products
from taylor.cost_model.time.rank_spread import wait_share
from taylor.cost_model.time.selective_time import LayerPieces, selective_ms
from taylor.cost_model.time.shard_ends import ShardedLayer, shard_ends_ms
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.tail import StageTime, tail_ms
from taylor.cost_model.time.tensor_grid import forms_grid, grid_transfers
from taylor.cost_model.time.uneven_routing import timed_rules
from taylor.cost_model.time.work import LayerWork, head_work, layer_work
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.adapters import EMBEDDING, HEAD
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import DENSE_MLP
from taylor.register.layers import UNREACHED, AttentionSpec
from taylor.register.model import DENSE, MTP, ModelSpec

BACKWARD_TRAFFIC = 1.5
"""Memory traffic of backward over forward, element by element: a norm reads input and gradient and writes one (6 bytes
for 4), dropout and residuals stay as they are."""

FLASH_BACKWARD = 2.5
"""A flash kernel's backward rebuilds the scores: five GEMMs for two (Dao 2023, arXiv:2307.08691 §3.1)."""


@dataclass(frozen=True)
class LayerTime:
    """Times of one layer and micro-batch on one device, ms; each a scalar or an array [n].

    `recompute` is by mode; `backward` has no recompute in it. `exposed` is the extra time of forward and backward
    beside no layer of the other direction, where the experts' exchanges do not overlap.
    """

    forward: Quantity
    backward: Quantity
    recompute: Mapping[str, Quantity]
    exposed: tuple[Quantity, Quantity] = (0.0, 0.0)


def layer_time(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec) -> LayerTime:
    """Roofline and collectives of one layer (Williams et al. 2009, doi:10.1145/1498765.1498785), ms."""
    rules = timed_rules(model, kind, degrees, rules.within(model.layers_of(kind)))
    speed = Speed.of(device, rules, in_layer=True)
    work = layer_work(model, kind, degrees, rules)
    dense = dense_products(work, rules, speed)
    grouped = expert_products(model, kind, degrees, rules, speed)
    attention, attention_back = _core_ms(model, kind, work, rules, speed)
    scores, traffic = speed.bytes(work.score_bytes), speed.bytes(work.element_bytes)
    tensor = _tensor_ms(model, kind, degrees, rules, device, speed)
    expert = expert_exchange_ms(model, kind, degrees, rules, device, speed)
    ring, heads = _context_ms(model, kind, degrees, rules, device, speed)
    compute = dense.forward + grouped.forward + attention + scores + traffic
    compute = compute + speed.bytes(work.slice_bytes + work.mask_bytes + work.filled_bytes)
    compute = compute + speed.bytes(work.cast_bytes, "cast")
    attention_back = attention_backward_ms(model, kind, degrees, rules, device, speed, attention_back)
    compute_back = dense.backward + grouped.backward + attention_back + BACKWARD_TRAFFIC * traffic
    compute_back = compute_back + speed.bytes(
        work.gradient_score_bytes + work.gradient_slice_bytes + work.gradient_filled_bytes
    )
    compute_back = compute_back + speed.bytes(work.gradient_cast_bytes, "cast")
    pieces = LayerPieces(work, attention + scores, grouped.forward, tensor, expert)
    if rules.mlp_tiles:
        tiled = rules.replace(selective=(DENSE_MLP,))
        compute_back = compute_back + selective_ms(model, kind, degrees, tiled, speed, pieces)
    beside_frozen = adapter_time(model, kind, degrees, rules, device, speed) if rules.adapters else NO_ADAPTERS
    compute, compute_back = compute + beside_frozen.forward, compute_back + beside_frozen.backward
    choice = indexer_time(model, kind, degrees, rules, speed)
    compute, compute_back = compute + choice.forward, compute_back + choice.backward
    shown = tensor - np.minimum((1 - speed.shares["tensor_shown_backward"]) * tensor, dense.weight_gradients)
    shown_ahead = speed.shares["tensor_shown_forward"] * tensor
    if rules.overlap_tensor:
        # Only under sequence parallelism (Megatron-LM d98e8a64 megatron/training/arguments.py, `tp_comm_overlap`).
        shown_ahead = np.where(degrees.sp, shown_in_rings(tensor, dense.forward, degrees), shown_ahead)
        shown = np.where(degrees.sp, shown_in_rings(tensor, dense.backward, degrees), shown)
    if rules.tensor_grid is not None:
        on_grid = forms_grid(degrees, rules)
        grid = grid_transfers(model, kind, degrees, rules, device, speed, dense)
        shown_ahead = np.where(on_grid, grid.forward, shown_ahead)
        shown, ring = np.where(on_grid, grid.backward, shown), ring + np.where(on_grid, grid.ring, 0.0)
    shared: Quantity = 0.0
    if rules.overlap_shared or rules.overlap_experts:
        shared = shared_experts_ms(model, kind, degrees, rules, speed, work)
    experts = grouped.forward + shared + speed.bytes(work.expert_activation_bytes)
    experts_back = grouped.backward + 2 * shared + BACKWARD_TRAFFIC * speed.bytes(work.expert_activation_bytes)
    paired = PairedWork(compute - experts, compute_back - experts_back, experts, experts_back)
    # A ring's hops overlap with the attention of the current block.
    ring_ahead, ring_behind = shown_behind(ring, attention), shown_behind(2 * ring, attention_back)
    shards: tuple[Quantity, Quantity] = (0.0, 0.0)
    if rules.parameter_shard:
        moved = _shard_times(model, kind, degrees, rules, device, speed)
        shards = _shown_shards(moved, degrees, rules, compute, compute_back, speed.shares["data_shown"])
    rotation, rotation_back = rotation_ms(model, kind, rules)
    host = host_time(model, kind, degrees, rules, device)
    host = host._replace(backward=host.backward + rotation_back)
    beside = 1e-3 * speed.shares["layer_us"]

    def with_exchange(ahead: Quantity, behind: Quantity) -> tuple[Quantity, Quantity, Quantity]:
        """Forward and backward with a given exposed part of the exchanges, and the device's backward."""
        forward = compute + shown_ahead + ahead + heads + ring_ahead
        backward = compute_back + shown + behind + heads + ring_behind
        if rules.overlap_shared:
            forward, backward = forward - np.minimum(shared, ahead), backward - np.minimum(2 * shared, behind)
        if rules.parameter_shard:
            forward, backward = forward + shards[0], backward + shards[1]
        of_experts = grouped.forward + ahead + speed.bytes(work.expert_activation_bytes)
        forward = shown_forward(forward, of_experts, attention + scores, host, static=rules.static_experts)
        return forward + rotation + beside, np.maximum(backward, host.backward) + 2 * beside, backward

    forward, backward, device_back = with_exchange(*paired_exchange_ms(expert, paired, rules))
    again = forward
    exposed: tuple[Quantity, Quantity] = (0.0, 0.0)
    if rules.overlap_experts:
        weight_gradients = grouped.backward / 2 if rules.adapters is None else 0.0
        again, behind, _ = with_exchange(*alone_exchange_ms(expert, rules, shared, weight_gradients))
        # A pass that overlaps more inside its own layers than beside another's takes no longer alone.
        exposed = np.maximum(again - forward, 0.0), np.maximum(behind - backward, 0.0)
    select = selective_ms(model, kind, degrees, rules, speed, pieces)
    # What runs again and the backward behind it are one segment.
    select = shown_together(device_back, host.backward, select, host.again_select)
    again = np.maximum(again, shown_together(device_back, host.backward, 0.0, host.again_full))
    again = again + _input_moves_ms(model, degrees, rules, device, forward, again + backward)
    # A reference model runs forward beside the trained one, and is not recomputed.
    forwards = rules.forward_models * forward
    if model.layers_of(kind)[0].frozen == UNREACHED:
        return LayerTime(forwards, 0.0 * backward, {FULL: 0.0 * again, SELECT: 0.0 * again})
    # Full recompute runs the forward again separately, before the backward.
    return LayerTime(forwards, backward, {FULL: again, SELECT: select}, exposed)


def layer_pieces(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec
) -> LayerPieces:
    """Pieces of the forward that `layer_time` times."""
    rules = timed_rules(model, kind, degrees, rules.within(model.layers_of(kind)))
    speed, work = Speed.of(device, rules, in_layer=True), layer_work(model, kind, degrees, rules)
    return LayerPieces(
        work,
        _core_ms(model, kind, work, rules, speed)[0] + speed.bytes(work.score_bytes),
        expert_products(model, kind, degrees, rules, speed).forward,
        _tensor_ms(model, kind, degrees, rules, device, speed),
        expert_exchange_ms(model, kind, degrees, rules, device, speed),
    )


def _input_moves_ms(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, ahead: Quantity, behind: Quantity
) -> Quantity:
    """Exposed moves of a layer's input to the host and back, each beside one layer's pass, ms; 0 where it stays."""
    if not rules.inputs_on_host or not device.host_link_gb_s:
        return 0.0
    moved = layer_input_bytes(model, degrees, rules) / (1e6 * HOST_LINK_SHARE * device.host_link_gb_s)
    return np.maximum(moved - ahead, 0.0) + np.maximum(moved - behind, 0.0)


def _core_ms(
    model: ModelSpec, kind: str, work: LayerWork, rules: TrainingRules, speed: Speed
) -> tuple[Quantity, Quantity]:
    """Times of the mixers' cores forward and backward, ms: of attention, and of what has no softmax."""
    flops = work.attention_flops + speed.shares["softmax_flops"] * work.attention_scores
    longer = 1 + speed.shares["attention_tokens"] * work.attention_edges / np.maximum(work.attention_flops, 1.0)
    forward = speed.flops("attention", flops) * longer
    layers = model.layers_of(kind)
    scan = speed.flops("scan" if any(layer.mamba is not None for layer in layers) else "delta_scan", work.scan_flops)
    wide = any(layer.attention is not None and layer.attention.qk_width > layer.attention.v_width for layer in layers)
    passes = FLASH_BACKWARD * speed.backward_of_attention(wide=wide) if rules.flash_attention else 2.0
    return forward + scan, passes * forward + (FLASH_BACKWARD if rules.flash_attention else 2.0) * scan


def head_time(
    model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec
) -> tuple[Quantity, Quantity]:
    """Forward times of LM head with loss, and of the embedding, for one micro-batch, ms."""
    speed, work = Speed.of(device, rules), head_work(model, degrees, rules)
    product = speed.product(work.flops, work.read_bytes, work.written_bytes)
    boundary = micro_batch_tokens(degrees, rules) * model.hidden * rules.compute_bytes
    gather = gather_ms(boundary, degrees.tp, 1, device, speed.network)
    head, embedding = product + speed.bytes(work.element_bytes) + gather, speed.bytes(work.embedding_bytes) + gather
    host_head, host_embedding = ends_ms(model, degrees, rules, device)
    head, embedding = np.maximum(head, host_head), np.maximum(embedding, host_embedding)
    return rules.forward_models * head, rules.forward_models * embedding


def lag_ms(model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec) -> Quantity:
    """Hand-over of one micro-batch to the next stage, ms; 0 with one stage."""
    sent = _sent_ms(degrees.dp * degrees.cp * degrees.tp, model, degrees, rules, device)
    return np.where(np.greater(degrees.pp, 1), sent, 0.0)


def lags_by_stage_ms(
    model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec
) -> NDArray[np.float64]:
    """The same between each stage and the next one, the last entry between the last stage and the first, float64 [pp].

    A stage's ranks follow each other, stage after stage (Megatron-LM d98e8a64 megatron/core/parallel_state.py,
    ``order="tp-cp-ep-dp-pp"``). Where one pair of ranks lies in two nodes the step waits for its transfer.
    """
    pp, ranks = strategy.pp, strategy.dp * strategy.cp * strategy.tp
    if pp == 1:
        return np.zeros(1)
    node = np.arange(pp * ranks).reshape(pp, ranks) // device.devices_per_node
    leaves = (node != np.roll(node, -1, axis=0)).any(axis=1)
    distance = np.where(leaves, device.devices_per_node, 1)
    return np.asarray(_sent_ms(distance, model, strategy, rules, device), dtype=np.float64)


def _sent_ms(
    distance: Quantity, model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec
) -> Quantity:
    boundary = micro_batch_tokens(degrees, rules) * model.hidden * rules.compute_bytes / sequence_split(degrees)
    return send_ms(rules.forward_models * boundary, distance, device, Speed.of(device, rules).network)


_PARTS: tuple[Callable[[LayerTime], Quantity], ...] = (
    lambda layer: layer.forward,
    lambda layer: layer.backward,
    lambda layer: layer.recompute[FULL],
    lambda layer: layer.recompute[SELECT],
)


def estimate_ratios(model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> TimeRatios:
    """The solver's time ratios of a strategy, from the analytical model.

    Returns
    -------
    TimeRatios
        `unit_ms` is one body layer's forward; a model with one kind has `dense_forward` 1.
    """
    body = model.body_kind
    layers = {kind: layer_time(model, kind, strategy, rules, device) for kind in model.body_counts}
    # A model of many kinds has its body's ratios averaged over them; one with dense layers in front, its body's own.
    counts = model.body_counts if model.pattern else {body: 1}
    unit = float(layers[body].forward)
    forward, backward, full, select = (
        float(sum(count * part(layers[kind]) for kind, count in counts.items())) for part in _PARTS
    )
    head, embedding = head_time(model, strategy, rules, device)
    lags = lags_by_stage_ms(model, strategy, rules, device)
    beside = StageTime(
        *(sum(n * part(layers[kind]) for kind, n in model.body_counts.items()) / strategy.pp for part in _PARTS[:2])
    )
    exposed = sum(n * sum(layers[kind].exposed) for kind, n in model.body_counts.items()) / strategy.pp
    tail = tail_ms(model, strategy, rules, device, beside) + _unpaired_ms(exposed, strategy, rules)
    tail = tail + _shard_ends_ms(layers[body], model, strategy, rules, device)
    return TimeRatios(
        dense_forward=float(layers[DENSE].forward) / unit if DENSE in layers else 1.0,
        backward=backward / forward,
        recompute={FULL: full / forward, SELECT: select / forward, NONE: 0.0},
        kind_forward={kind: float(layer.forward) / unit for kind, layer in layers.items()} if model.pattern else {},
        exposed=_exposed(model, layers, unit),
        head=float(head) / unit,
        unit_ms=unit,
        embedding=float(embedding) / unit,
        lag=float(lags.max()) / unit,
        lags=tuple((lags / unit).tolist()) if np.ptp(lags) else (),
        tail=float(tail + _wait_ms(beside, model, strategy, rules)) / unit,
        source=RatioSource.ESTIMATE,
    )


def _shard_ends_ms(
    layer: LayerTime, model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec
) -> Quantity:
    """Exposed transfers of sharded parameters in a step that no layer counts, ms; 0 where none are sharded."""
    if not rules.parameter_shard:
        return 0.0
    moved = _shard_times(model, model.body_kind, degrees, rules, device, Speed.of(device, rules))
    body = ShardedLayer(moved.gather, moved.scatter, layer.forward, layer.backward)
    return shard_ends_ms(model, degrees, rules, device, body)


def _unpaired_ms(exposed: Quantity, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Exposed exchanges of a step's passes that overlap with no other one, ms; those of combining schedules are timed
    pass by pass.

    Parameters
    ----------
    exposed : ms
        Of one micro-batch on a stage, forward and backward (`LayerTime.exposed`).
    """
    if not rules.overlap_experts or rules.overlap_inside:
        return 0.0
    return exposed * unpaired_micro_batches(degrees)


def _wait_ms(stage: StageTime, model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Wait for the slowest ranks in a step, ms."""
    return degrees.micro_batches * (stage.forward + stage.backward) * wait_share(model, degrees, rules)


def _exposed(model: ModelSpec, layers: Mapping[str, LayerTime], unit: float) -> dict[str, tuple[float, float]]:
    """`TimeRatios.exposed`; empty where nothing is. An MTP layer is one of the body's."""
    found = {kind: (float(time.exposed[0]) / unit, float(time.exposed[1]) / unit) for kind, time in layers.items()}
    if not any(map(any, found.values())):
        return {}
    return {**found, MTP: found[model.body_kind]}


def step_ms(
    model: ModelSpec,
    degrees: Degrees,
    rules: TrainingRules,
    device: DeviceSpec,
    recomputed: Mapping[str, Quantity] | None = None,
    *,
    balanced: bool = False,
) -> Quantity:
    """Step time with layers spread evenly over the stages, ms; a scalar or an array [n].

    1F1B: the slowest stage's micro-batches one after the other, filled and drained through the
    others; interleaving divides fill and drain by vpp (Narayanan et al. 2021 §2.2).

    Parameters
    ----------
    recomputed : mapping of mode to fraction of layers (scalar or [n]), optional
        None = nothing is recomputed.
    balanced : bool
        Stages with embedding or head have fewer layers (as under a solved offset), whole layers only.
    """
    total: Quantity = 0.0
    forward: Quantity = 0.0
    backward: Quantity = 0.0
    body: Quantity = 0.0
    exposed: Quantity = 0.0
    for kind, count in model.kind_counts.items():
        layer = layer_time(model, kind, degrees, rules, device)
        forward, backward = forward + count * layer.forward, backward + count * layer.backward
        exposed = exposed + count * (layer.exposed[0] + layer.exposed[1])
        once = layer.forward + layer.backward
        for mode, share in (recomputed or {}).items():
            once = once + share * layer.recompute[mode]
        total, body = total + count * once, once
    head, embedding = head_time(model, degrees, rules, device)
    # The head's GEMMs double in backward as the layers' do; an embedding's gradient is a scatter. Frozen ones have no
    # weights' gradients.
    trains = [rules.trains(end) for end in (HEAD, EMBEDDING)]
    ends = ((2 + trains[0]) * head, (1 + trains[1]) * embedding)
    work = total + ends[0] + ends[1]
    layers = sum(model.kind_counts.values())
    largest = np.ceil(layers / degrees.pp) * total / layers
    slowest = np.where(np.equal(degrees.pp, 1), work, largest + np.maximum(ends[0], ends[1]))
    if balanced:
        share = work / degrees.pp
        # Dense layers or recompute even out a stage a twentieth of a layer over a whole number of them.
        slowest = np.minimum(slowest, np.maximum(np.ceil(share / body - 0.05) * body, share))
    hops = 2 * (degrees.pp - 1) * lag_ms(model, degrees, rules, device)
    fill = (work - slowest) / degrees.vpp
    beside = StageTime(forward / degrees.pp, backward / degrees.pp)
    tail = tail_ms(model, degrees, rules, device, beside) + _wait_ms(beside, model, degrees, rules)
    tail = tail + _unpaired_ms(exposed / degrees.pp, degrees, rules)
    if rules.parameter_shard:
        body_layer = layer_time(model, model.body_kind, degrees, rules, device)
        tail = tail + _shard_ends_ms(body_layer, model, degrees, rules, device)
    return degrees.micro_batches * slowest + np.maximum(fill, 0) + hops + tail


def quick_step_ms(
    model: ModelSpec, rules: TrainingRules, table: StrategyTable, device: DeviceSpec
) -> NDArray[np.float64]:
    """Cheap step time of every strategy, for ordering, ms, float64 [n].

    Layers are balanced, and as many of them recomputed as the device's usable memory makes necessary
    on an average stage.
    """
    share = _recompute_share(model, rules, table, device)
    result = step_ms(model, table, rules, device, {FULL: share}, balanced=True)
    times: NDArray[np.float64] = np.broadcast_to(np.asarray(result, dtype=np.float64), (len(table),)).copy()
    return times


def _recompute_share(model: ModelSpec, rules: TrainingRules, table: StrategyTable, device: DeviceSpec) -> Quantity:
    """Fraction of layers to recompute so that stages fit, averaged over four stages of the pipeline, [n]."""
    counts = model.body_counts if model.pattern else {model.body_kind: 1}
    layers = sum(model.kind_counts.values()) / table.pp
    state: Quantity = 0.0
    kept: Quantity = 0.0
    least: Quantity = 0.0
    for kind, count in counts.items():
        share = count / sum(counts.values()) / MIB
        state = state + share * layer_state_bytes(model, kind, table, rules).total
        kept = kept + share * activation_bytes(model, kind, NONE, table, rules)
        least = least + share * activation_bytes(model, kind, FULL, table, rules)
    _, middle, _ = static_mib(model, table, rules)
    free = device.usable_memory_mib - middle - layers * state
    total: Quantity = 0.0
    for quarter in range(4):
        stage = np.floor(table.pp * quarter / 4)
        alive = np.minimum(table.pp - stage, table.micro_batches)
        saved = np.maximum(kept - least, 1e-9) * layers * alive
        total = total + np.clip((layers * alive * kept - free) / saved, 0, 1)
    return total / 4


def _tensor_ms(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> Quantity:
    """An all-reduce for the mixer and one for the block behind it, ms; none for routed experts that get their tokens
    from the ranks of TP by separate exchanges.

    Under sequence parallelism all-gather and reduce-scatter, which move as much (Korthikanti §4.2.2).
    """
    boundary = micro_batch_tokens(degrees, rules) * model.hidden * rules.compute_bytes
    layers = model.layers_of(kind)
    blocks = sum((layer.mixer is not None) + layer.has_block for layer in layers)
    if rules.framework.dispatches_shards:
        blocks -= sum(layer.moe is not None and not layer.moe.shared_width for layer in layers)
    halves = 2 * gather_ms(boundary, degrees.tp, 1, device, speed.network)
    whole = all_reduce_ms(boundary, degrees.tp, 1, device, speed.network)
    return blocks * np.where(degrees.sp, halves, whole)


def _ring_ms(
    whole: Quantity, ways: Quantity, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> Quantity:
    """Keys and values of all ranks, a number of bytes, round the ring of those that `ways` leave, ms.

    With windows (`TrainingRules.context_window`) they go round every window's inner ring, which neighbours form, while
    the next window's come over the outer one (MindSpeed 028de58c mindspeed/core/context_parallel/ring_context_parallel/
    ring_context_parallel.py:995-1028, mindspeed/core/parallel_state.py:631-648): the longer of both is what is seen.
    """
    ranks, stride = degrees.cp / ways, degrees.tp * ways
    window = np.minimum(rules.context_window, ranks)
    windows = ranks / window
    block = whole / ranks
    inner = windows * hops_ms(block, window, stride, device, speed.network)
    outer = hops_ms(block, windows, stride * window, device, speed.network)
    return np.maximum(inner, outer)


def _context_ms(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> tuple[Quantity, Quantity]:
    """Keys and values of the other context ranks, round the ring (Liu et al. 2023, arXiv:2310.01889), and exchanges of
    heads for tokens and back, ms.

    Ulysses exchanges queries, keys and values among neighbouring ranks and the context back (Jacobs et al. 2023,
    arXiv:2309.14509 §3.1); where it takes a part of the ranks, the others form the ring. Attention waits for it, and
    what it sends is copied before and behind (MindSpeed be07955f
    mindspeed/core/context_parallel/ulysses_context_parallel.py:11-36). A mixer without softmax does the same with its
    channels.
    """
    ring: Quantity = 0.0
    exchanged: Quantity = 0.0
    tokens = micro_batch_tokens(degrees, rules)
    ways = ulysses_ranks(degrees, rules)
    for layer in model.layers_of(kind):
        recurrent, attention = layer.recurrent, layer.attention
        if attention is not None:
            width = _context_width(attention, degrees.tp * ways, rules)
            whole = tokens * degrees.cp * width * rules.compute_bytes
            ring = ring + _ring_ms(whole, ways, degrees, rules, device, speed)
            queries = attention.n_heads * (attention.qk_width + attention.v_width) / degrees.tp
            volume = tokens * (queries + ways * width) * rules.compute_bytes
            apart = all_to_all_ms(volume, ways, degrees.tp, device, speed.network) + speed.bytes(2 * 2 * volume)
            exchanged = exchanged + np.where(np.greater(ways, 1), apart, 0.0)
        elif recurrent is not None:
            products = mixer_products(model, layer, degrees)
            volume = tokens * (products[0].width_out + products[-1].width_in) * rules.compute_bytes
            ring = ring + all_to_all_ms(volume, degrees.cp, degrees.tp, device, speed.network)
    return ring, exchanged


def _context_width(attention: AttentionSpec, ways: Quantity, rules: TrainingRules) -> Quantity:
    """Keys and values of a token on one of the ranks that split the heads, elements."""
    if (sparse := sparse_latent(attention, rules)) is not None:
        return sparse.key_width + (0 if sparse.indexer.reused else sparse.indexer.head_dim)
    if attention.latent is not None:
        return attention.n_heads * (attention.qk_width + attention.v_width) / ways
    return np.maximum(attention.n_kv_heads / ways, 1) * (attention.head_dim + attention.v_width)


class _ShardTimes(NamedTuple):
    """FSDP's transfers of one layer, and the copies around them that the computation waits for, ms."""

    gather: Quantity
    scatter: Quantity
    taken_out: Quantity
    put_in: Quantity


def _shard_times(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> _ShardTimes:
    """FSDP's gathering of one layer's weights, and the scattering of its gradient.

    The gathered weights are copied out of the transfer's buffer, the gradients into it in the type of the reduction
    (`StateRules.copies_transfers`).
    """
    groups = module_body_groups(model) if kind == MTP else layer_groups(model, kind)
    state = group_bytes(groups, degrees, rules.gathered())
    ranks = np.minimum(np.maximum(degrees.op, 1), degrees.dp * degrees.cp)
    gather = gather_ms(state.weights, ranks, degrees.tp, device, speed.network)
    scatter = gather_ms(state.gradients, ranks, degrees.tp, device, speed.network)
    if not rules.framework.states.copies_transfers:
        return _ShardTimes(gather, scatter, 0.0, 0.0)
    return _ShardTimes(gather, scatter, speed.bytes(2 * state.weights), speed.bytes(state.weights + state.gradients))


def _shown_shards(
    shards: _ShardTimes,
    degrees: Degrees,
    rules: TrainingRules,
    compute: Quantity,
    compute_back: Quantity,
    slowed: float,
) -> tuple[Quantity, Quantity]:
    """Exposed time of FSDP's transfers of one layer for one micro-batch, in its forward and its backward, ms.

    Weights are gathered a layer ahead, beside the layer's own work, for every forward and every backward. In a pipeline
    whose weights stay gathered (`StateRules.whole_in_pipeline`) they come once a step, and gradients go once, behind
    the stage's last backward and not overlapped (torch 2.13 torch/distributed/pipelining/stage.py:1164-1193,
    ``perform_reduce_grad``): each micro-batch counts its part.
    """
    once = np.logical_and(rules.framework.states.whole_in_pipeline, np.greater(degrees.pp, 1))
    again = np.logical_not(np.logical_or(once, rules.stay_gathered))
    ahead = shown_behind(shards.gather, compute, slowed) + shards.taken_out
    each = shown_behind(again * shards.gather + shards.scatter, compute_back, slowed)
    each = each + again * shards.taken_out + shards.put_in
    behind = np.where(once, shards.scatter + shards.put_in, each)
    share = np.where(once, 1 / degrees.micro_batches, 1.0)
    return share * ahead, share * behind
