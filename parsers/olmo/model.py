"""The model of an OLMo-core configuration: its ``TransformerConfig`` as plain data.

Sources are lines of allenai/OLMo-core fa6c5014; src/olmo_core is left out of their paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.register.layers import SLIDING, AttentionSpec, LayerSpec, LinearAttentionSpec, MlpSpec, MoeSpec
from taylor.register.model import ModelSpec
from taylor.register.pattern import pattern_of

BLOCKS = (
    "default",
    "reordered_norm",
    "peri_norm",
    "moe",
    "moe_reordered_norm",
    "moe_hybrid",
    "moe_hybrid_reordered_norm",
)
"""Types of blocks that are read (nn/transformer/config.py:100-148): the place of a norm changes no size."""
_FOUR_NORMS = ("peri_norm",)
_GDN = ("expand_v", "allow_neg_eigval", "n_v_heads")
"""Settings that mark a gated delta net (nn/attention/recurrent.py:324-376)."""
_ALL_TOKENS = -1


def read_model(top: Fields, name: str) -> ModelSpec:
    """The model.

    Raises
    ------
    InputError
        When a size is missing or wrong, or a layer is of a kind that is not read.
    """
    model = top.section("model")
    if model.raw("name") not in (None, "default", "moe"):
        raise model.error("name", "is a type of model that is not read", model.raw("name"), "plan one of type default")
    hidden = model.integer("d_model", high=MAX_SIZE)
    layers = model.integer("n_layers", high=MAX_LAYERS)
    if model.raw("block_overrides"):
        cure = "write the model's config.json of Hugging Face and plan that with -hf"
        raise model.error("block_overrides", "makes layers of other kinds, which are not read", cure=cure)
    kinds: dict[str, LayerSpec] = {}
    names = []
    for at, block in enumerate(_blocks_in_order(model, layers)):
        layer = _layer(block, hidden, at, layers)
        kinds.setdefault(layer.name, layer)
        names.append(layer.name)
    usual = next((each for each in kinds.values() if each.attention), next(iter(kinds.values())))
    attention = usual.attention or AttentionSpec(1, 1, hidden)
    mlp, moe = usual.mlp, usual.moe
    head = model.section("lm_head")
    if head.raw("bias"):
        raise head.error("bias", "is a bias of the head, which is not read", True)
    return ModelSpec(
        name=name,
        n_layers=layers,
        hidden=hidden,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_dim=attention.head_dim,
        ffn_hidden=mlp.width if mlp else moe.expert_hidden if moe else 0,
        vocab=model.integer("vocab_size", high=MAX_SIZE),
        tied_embedding=bool(model.boolean("tie_word_embeddings", default=False)),
        qk_norm=attention.qk_norm,
        moe=moe,
        kinds=tuple(kinds.values()),
        pattern=pattern_of(names),
    )


def _blocks_in_order(model: Fields, layers: int) -> list[Fields]:
    """The block of every layer: one for all, or named ones by a pattern that repeats (config.py:2005-2067)."""
    pattern = model.raw("block_pattern")
    section = model.section("block")
    if pattern is None:
        return [section] * layers
    if not isinstance(pattern, list) or not pattern or not all(isinstance(each, str) for each in pattern):
        raise model.error("block_pattern", "must list names of blocks", str(pattern)[:80])
    missing = next((each for each in pattern if not section.raw(each)), None)
    if missing is not None:
        raise section.error(missing, "is named by block_pattern and missing", cure="add it, or correct the pattern")
    named = {each: section.section(each) for each in dict.fromkeys(pattern)}
    return [named[pattern[at % len(pattern)]] for at in range(layers)]


def _layer(block: Fields, hidden: int, at: int, layers: int) -> LayerSpec:
    """The layer at a place of the model."""
    kind = block.text("name", default="default")
    if kind not in BLOCKS:
        raise block.error("name", "is a type of block that is not read", kind, f"use {', '.join(BLOCKS)}")
    mixer = block.section("sequence_mixer" if block.has("sequence_mixer") else "attention")
    mlp, moe = _blocks(block, kind)
    ends = f"{'+dense' if mlp else ''}{'+moe' if moe else ''}"
    norms = 4 if kind in _FOUR_NORMS else None
    if any(mixer.has(name) for name in _GDN) or mixer.raw("type") == "gated_delta_net":
        return LayerSpec(f"gdn{ends}", linear=_delta_net(mixer, hidden), mlp=mlp, moe=moe, norms=norms)
    attention, window = _attention(mixer, hidden), _window(mixer, at, layers)
    if window != _ALL_TOKENS:
        attention = replace(attention, reach=SLIDING, window=window)
        return LayerSpec(f"attn-{window}{ends}", attention, mlp=mlp, moe=moe, norms=norms)
    return LayerSpec(f"attn{ends}", attention, mlp=mlp, moe=moe, norms=norms)


def _delta_net(mixer: Fields, hidden: int) -> LinearAttentionSpec:
    """nn/attention/recurrent.py:324-376."""
    heads = mixer.integer("n_heads", default=16)
    size = mixer.integer("head_dim", default=hidden // heads, high=MAX_SIZE)
    wide = mixer.number("expand_v", default=2.0, low=0.01, high=64.0)
    return LinearAttentionSpec(
        "gdn",
        heads,
        mixer.integer("n_v_heads", default=heads),
        size,
        int(size * wide),
        conv_kernel=mixer.integer("conv_size", default=4, high=64),
    )


def _attention(mixer: Fields, hidden: int) -> AttentionSpec:
    """nn/attention/__init__.py:179-240; the norm of queries and keys runs over all heads but for one option."""
    if mixer.raw("type") not in (None, "attention"):
        raise mixer.error("type", "is a mixer that is not read", mixer.raw("type"), "plan a model with attention alone")
    if mixer.raw("name") not in (None, "default", "fused"):
        raise mixer.error("name", "is a type of attention that is not read", mixer.raw("name"))
    heads = mixer.integer("n_heads", default=16)
    groups = mixer.integer("n_kv_heads", default=heads)
    if heads % groups or (not mixer.has("head_dim") and hidden % heads):
        raise mixer.error("n_heads", "must divide the width, and be a multiple of n_kv_heads", heads)
    size = mixer.integer("head_dim", default=hidden // heads, high=MAX_SIZE)
    bias = bool(mixer.boolean("bias", default=True))
    normed = bool(mixer.raw("qk_norm"))
    whole = normed and not mixer.boolean("use_head_qk_norm", default=False)
    gate = mixer.raw("gate")
    if gate:
        raise mixer.error("gate", "is a gate on the context, which is not read")
    return AttentionSpec(
        heads,
        groups,
        size,
        bias=bias,
        output_bias=bias,
        qk_norm=normed,
        qk_norm_weights=(heads + groups) * size if whole else None,
    )


def _blocks(block: Fields, kind: str) -> tuple[MlpSpec | None, MoeSpec | None]:
    mlp = moe = None
    if block.raw("feed_forward"):
        section = block.section("feed_forward")
        mlp = MlpSpec(section.integer("hidden_size", high=MAX_SIZE), True, bool(section.boolean("bias", default=True)))
    if block.raw("feed_forward_moe"):
        section = block.section("feed_forward_moe")
        shared = section.section("shared_mlp") if section.raw("shared_mlp") else None
        moe = MoeSpec(
            section.integer("num_experts", default=1),
            section.section("router").integer("top_k", default=1),
            section.integer("hidden_size", default=256, high=MAX_SIZE),
            n_shared=int(shared is not None),
            shared_hidden=None if shared is None else shared.integer("hidden_size", high=MAX_SIZE),
        )
        if moe.top_k > moe.n_experts:
            raise section.section("router").error("top_k", f"is above the {moe.n_experts} experts", moe.top_k)
    if mlp is None and moe is None:
        raise block.error("feed_forward", "is missing", cure="give it, or feed_forward_moe")
    if mlp is not None and moe is not None and "hybrid" not in kind:
        raise block.error("feed_forward_moe", "stands beside feed_forward in a block of another type", kind)
    return mlp, moe


def _window(mixer: Fields, at: int, layers: int) -> int:
    """Window of a layer, -1 for all tokens (nn/attention/__init__.py:101-146)."""
    if not mixer.raw("sliding_window"):
        return _ALL_TOKENS
    section = mixer.section("sliding_window")
    pattern = section.raw("pattern")
    if not isinstance(pattern, list) or not pattern or not all(_is_window(each) for each in pattern):
        raise section.error("pattern", "must list windows, -1 for all tokens", str(pattern)[:80])
    first = section.boolean("force_full_attention_on_first_layer", default=True)
    last = section.boolean("force_full_attention_on_last_layer", default=True)
    if (first and at == 0) or (last and at == layers - 1):
        return _ALL_TOKENS
    return int(pattern[(at - first) % len(pattern)])


def _is_window(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (value == _ALL_TOKENS or 0 < value < MAX_SIZE)


def capacity_of(data: Mapping[str, Any]) -> float | None:
    """Capacity factor of experts that drop tokens; None where they drop none (nn/moe/moe.py:59-76)."""
    block = data.get("model", {}).get("block", {})
    chosen = block.get("feed_forward_moe") if isinstance(block, Mapping) else None
    if not isinstance(chosen, Mapping) or chosen.get("name", "default") == "dropless":
        return None
    factor = chosen.get("capacity_factor")
    return float(factor) if isinstance(factor, (int, float)) and factor > 0 else None
