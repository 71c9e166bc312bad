"""DeepSeek-V4 as transformers configures it; its layers are those of `parsers.compressed`."""

from __future__ import annotations

from collections.abc import Collection

from taylor.parsers.compressed import HEAVY, RATIOS, SPARSE, WINDOW, CompressedLayers
from taylor.parsers.huggingface.attention import ExpertRule, experts_block, kv_heads
from taylor.parsers.huggingface.shape import EXPERTS, Described, joined
from taylor.parsers.huggingface.values import HEADS, HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS

KINDS = {
    "sliding_attention": WINDOW,
    "compressed_sparse_attention": SPARSE,
    "heavily_compressed_attention": HEAVY,
}
LONG_NAMES = {kind: name for name, kind in KINDS.items()}
USUAL_RATES = {SPARSE: 4, HEAVY: 128}
BLOCKS = {"moe": True, "hash_moe": True}


def deepseek_v4(values: Values) -> Described:
    """The layers; an MTP module has the kind that follows them in ``compress_ratios``, else the window."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    order, after = _order(values, count)
    values.by_layer("mlp_layer_types", values.one_of(BLOCKS), count)
    values.must_be("n_shared_experts", 1, "transformers' class has one shared expert")
    values.must_be("mlp_bias", False, "biases of the shared expert are not counted")
    kinds = list(dict.fromkeys([*order, after]))
    sizes, moe = _sizes(values, kinds), experts_block(values, ExpertRule(shared=True))
    layers = {kind: sizes.layer(joined(kind, EXPERTS), kind, _rate(values, kind), moe) for kind in kinds}
    return Described(
        [layers[kind] for kind in order],
        extra_parameters=sizes.extra_parameters,
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
        raise values.error("compress_ratios", f"must contain only {', '.join(map(str, RATIOS))}", unknown)
    if len(ratios) < count:
        raise values.error("compress_ratios", f"has {len(ratios)} entries, the model has {count} layers")
    order = [RATIOS[ratio] for ratio in ratios]
    return order[:count], order[count] if len(order) > count else WINDOW


def _sizes(values: Values, kinds: Collection[str]) -> CompressedLayers:
    heads = values.size(*HEADS)
    if kv_heads(values, heads) != 1:
        raise values.error("num_key_value_heads", "must be 1: keys and values are one head", kv_heads(values, heads))
    sparse = SPARSE in kinds
    return CompressedLayers(
        hidden=values.size(*HIDDEN),
        heads=heads,
        head_dim=values.size("head_dim"),
        window=values.size("sliding_window"),
        q_rank=values.size("q_lora_rank"),
        output_rank=values.size("o_lora_rank"),
        output_groups=values.size("o_groups"),
        index_heads=values.size("index_n_heads") if sparse else 0,
        index_dim=values.size("index_head_dim") if sparse else 0,
        index_top=values.size("index_topk") if sparse else 0,
        streams=values.size("hc_mult", high=1024),
    )


def _rate(values: Values, kind: str) -> int:
    """Tokens to a compressed key; 0 in layers with the window alone."""
    values.asked.update(("compress_rates", "compress_rate_csa", "compress_rate_hca"))
    if kind == WINDOW:
        return 0
    old = values.size_or_none(f"compress_rate_{kind}")
    nested = values.section("compress_rates", {})
    return old or nested.size_or_none(LONG_NAMES[kind]) or USUAL_RATES[kind]
