"""DeepSeek-V4: one shared key and value, low-rank projections, compressed attention, several residual streams.

Parameters by name: transformers 5.23.0 models/deepseek_v4/modeling_deepseek_v4.py.
"""

from __future__ import annotations

from taylor.parsers.huggingface.attention import ExpertRule, experts_block, kv_heads
from taylor.parsers.huggingface.shape import EXPERTS, Described, joined
from taylor.parsers.huggingface.values import HEADS, HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import SLIDING, AttentionSpec, IndexerSpec, LayerSpec

WINDOW, SPARSE, HEAVY = "mqa-sliding", "csa", "hca"
KINDS = {
    "sliding_attention": WINDOW,
    "compressed_sparse_attention": SPARSE,
    "heavily_compressed_attention": HEAVY,
}
LONG_NAMES = {kind: name for name, kind in KINDS.items()}
RATIOS = {0: WINDOW, 4: SPARSE, 128: HEAVY}
"""What ``compress_ratios`` stand for, and the usual rates: configuration_deepseek_v4.py,
_COMPRESS_RATIO_TO_LAYER_TYPE and DeepseekV4Config.default_compress_rates."""
USUAL_RATES = {SPARSE: 4, HEAVY: 128}
BLOCKS = {"moe": True, "hash_moe": True}


def deepseek_v4(values: Values) -> Described:
    """The layers; an MTP module has the kind that follows them in ``compress_ratios``, else the window."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    order, after = _order(values, count)
    values.by_layer("mlp_layer_types", values.one_of(BLOCKS), count)
    values.must_be("n_shared_experts", 1, "transformers' class has one shared expert")
    values.must_be("mlp_bias", False, "biases of the shared expert are not counted")
    layers = {kind: _layer(values, kind) for kind in dict.fromkeys([*order, after])}
    streams, hidden = values.size("hc_mult", high=1024), values.size(*HIDDEN)
    return Described(
        [layers[kind] for kind in order],
        extra_parameters=streams * streams * hidden + streams + 1,
        mtp=(layers[after],),
    )


def _order(values: Values, count: int) -> tuple[list[str], str]:
    """The kind of every layer, and of the one behind them."""
    listed = values.by_layer("layer_types", values.one_of(KINDS), count)
    ratios = values.list_or_none("compress_ratios", lambda name, value: values.whole(name, value, 0))
    if listed is not None:
        return listed, WINDOW
    if ratios is None:
        return [HEAVY if at < 2 or at % 2 == 0 else SPARSE for at in range(count)], WINDOW
    unknown = next((ratio for ratio in ratios if ratio not in RATIOS), None)
    if unknown is not None:
        raise values.error("compress_ratios", f"must hold {', '.join(map(str, RATIOS))} alone", unknown)
    if len(ratios) < count:
        raise values.error("compress_ratios", f"has {len(ratios)} entries, the model has {count} layers")
    order = [RATIOS[ratio] for ratio in ratios]
    return order[:count], order[count] if len(order) > count else WINDOW


def _layer(values: Values, kind: str) -> LayerSpec:
    heads, size, hidden = values.size(*HEADS), values.size("head_dim"), values.size(*HIDDEN)
    if kv_heads(values, heads) != 1:
        raise values.error("num_key_value_heads", "must be 1: keys and values are one head", kv_heads(values, heads))
    rank = values.size("q_lora_rank")
    rate = _rate(values, kind)
    compressor = _compressor(hidden, size, rate, 2 if kind == SPARSE else 1) if rate else 0
    streams = values.size("hc_mult", high=1024)
    mixes = (2 + streams) * streams
    attention = AttentionSpec(
        heads,
        1,
        size,
        reach=SLIDING,
        window=values.size("sliding_window"),
        qk_norm=True,
        qk_norm_weights=size,
        sinks=True,
        shared_kv=True,
        q_rank=rank,
        output_rank=values.size("o_lora_rank"),
        output_groups=values.size("o_groups"),
        indexer=_indexer(values, rank, rate) if kind == SPARSE else None,
        compression=rate,
    )
    moe = experts_block(values, ExpertRule(shared=True))
    # Around attention and around the experts: how the streams are collapsed, expanded and mixed.
    connections = 2 * (mixes * (streams * hidden + 1) + 3)
    return LayerSpec(joined(kind, EXPERTS), attention, moe=moe, extra=compressor + connections)


def _rate(values: Values, kind: str) -> int:
    """Tokens to a compressed key; 0 in layers with the window alone."""
    values.asked.update(("compress_rates", "compress_rate_csa", "compress_rate_hca"))
    if kind == WINDOW:
        return 0
    old = values.size_or_none(f"compress_rate_{kind}")
    nested = values.section("compress_rates", {})
    return old or nested.size_or_none(LONG_NAMES[kind]) or USUAL_RATES[kind]


def _compressor(hidden: int, size: int, rate: int, series: int) -> int:
    """Keys and weights of every token in so many series, a bias a place in the window, a norm."""
    return series * size * (2 * hidden + rate) + size


def _indexer(values: Values, rank: int, rate: int) -> IndexerSpec:
    heads, size, hidden = values.size("index_n_heads"), values.size("index_head_dim"), values.size(*HIDDEN)
    parameters = _compressor(hidden, size, rate, 2) + rank * heads * size + hidden * heads
    return IndexerSpec(heads, size, values.size("index_topk"), parameters)
