"""Every layer of a model, position by position: its mixer, and its MLP or experts.

Sources, of Megatron-LM main (d98e8a64) unless said otherwise: windows megatron/core/transformer/utils.py:531-547
(``--window-size`` counts the keys before a query's own); linear attention
megatron/core/models/gpt/experimental_attention_variant_module_specs.py:458-490 and
megatron/core/ssm/gated_delta_net/gdn.py:42-69; sparse attention
megatron/core/transformer/experimental_attention_variant/dsa.py:37-47, 1159-1204, 1580-1582; Mamba
megatron/core/ssm/mamba_mixer.py:169-271; which letter is which layer megatron/core/models/hybrid/hybrid_layer_specs.py.
MindSpeed-LLM master: mindspeed_llm/core/transformer/transformer_block.py:176-186 (``--full-attention-interval``),
mindspeed_llm/tasks/models/transformer/qwen3_next_full_attention.py:152-210 (its full attention has a gate),
mindspeed_llm/core/transformer/custom_dot_product_attention.py:280-282 (``--sliding-window``),
mindspeed_llm/core/ssm/mamba_mixer.py:20-36 (sizes of Mamba that are fixed in Megatron).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from taylor.parsers.megatron import hybrid
from taylor.parsers.megatron.frequency import nth_layers
from taylor.parsers.megatron.hybrid import HybridLayers
from taylor.parsers.megatron.kinds import empty_positions, has_experts, layer_positions, tested_positions
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.register.layers import (
    GATED_DELTA,
    SLIDING,
    AttentionSpec,
    IndexerSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import ModelSpec
from taylor.register.pattern import pattern_of

WINDOW, WINDOW_FREQ = "window-size", "window-attn-skip-freq"
VARIANT, LINEAR_FREQ, FULL_INTERVAL = (
    "experimental-attention-variant",
    "linear-attention-freq",
    "full-attention-interval",
)
LINEAR_VARIANTS = ("gdn", "gated_delta_net")
"""Values of ``--experimental-attention-variant`` that are gated delta nets, the second an older name of the first."""
SLIDING_NAME, LINEAR_NAME = "-sliding", "gdn"
"""Mixer in the name of a layer kind: a window (at the end of the mixer's name), linear attention."""


def kind_names(layers: Sequence[LayerSpec]) -> list[str]:
    """The kind of every layer."""
    return [layer.name for layer in layers]


def as_model(plain: ModelSpec, layers: Sequence[LayerSpec], mtp: Sequence[LayerSpec] | None = None) -> ModelSpec:
    """A model with the given layers: `plain` itself where it says the same, else one with kinds and a pattern.

    Parameters
    ----------
    plain : ModelSpec
        The model's usual sizes, without a pattern.
    layers : sequence of LayerSpec
        Its body layers in order.
    mtp : sequence of LayerSpec, optional
        The layers of one MTP module; the last body layer where not given, as Megatron takes it (Megatron-LM main
        gpt_builders.py:66-85).
    """
    first = next((at for at, layer in enumerate(layers) if layer.moe is not None), len(layers))
    plain = usual = plain.replace(n_layers=len(layers))
    if plain.moe is not None:
        plain = plain.replace(moe=replace(plain.moe, first_dense=first) if first < len(layers) else None)
    order = [kind for kind, count in plain.body_counts.items() for _ in range(count)]
    if mtp is None and all(
        layer == usual.layer(kind).replace(name=layer.name) for layer, kind in zip(layers, order, strict=True)
    ):
        return plain
    module = (layers[-1],) if mtp is None else tuple(mtp)
    kinds = {layer.name: layer for layer in (*layers, *(module if plain.mtp_layers else ()))}
    moe = None if plain.moe is None else replace(plain.moe, first_dense=0)
    return plain.replace(
        moe=moe,
        kinds=tuple(kinds.values()),
        pattern=pattern_of(kind_names(layers)),
        mtp_kinds=tuple(kind_names(module)) if plain.mtp_layers else (),
    )


_POST_NORMS = 4
"""Norms of a layer under ``--post-norm``: before and behind its mixer, before and behind its MLP or experts
(MindSpeed-LLM 1.0.RC3 modellink/core/transformer/transformer_layer.py:125-127, 173-175)."""


def decoder_layers(flags: Flags, attention: AttentionSpec, mlp: MlpSpec, moe: MoeSpec | None) -> list[LayerSpec]:
    """The layers of a model whose layers each have a mixer, and an MLP or experts; empty positions left out.

    Parameters
    ----------
    attention, mlp, moe
        What its attention, its dense MLP and its experts are where nothing says otherwise.
    """
    positions = layer_positions(flags)
    experts = has_experts(flags) if moe is not None else [False] * positions
    mixers = _mixers(flags, attention, positions)
    empty = empty_positions(flags)
    layers = []
    for at in range(positions):
        if at in empty:
            continue
        mixer = mixers[at].replace(norms=_POST_NORMS) if flags.has("post-norm") else mixers[at]
        if experts[at]:
            layers.append(mixer.replace(name=f"{mixer.name}+moe", moe=moe))
        else:
            layers.append(mixer.replace(name=f"{mixer.name}+dense", mlp=mlp))
    return layers


def hybrid_layers(
    flags: Flags, pattern: HybridLayers, attention: AttentionSpec, mlp: MlpSpec, moe: MoeSpec | None
) -> tuple[list[LayerSpec], list[LayerSpec]]:
    """The layers of a hybrid model, one for each letter, and those of one of its MTP modules."""
    letters = pattern.letters
    windowed = windowed_layers(flags, len(letters))
    made = {letter: _of_letter(flags, letter, attention, mlp, moe) for letter in set(letters + pattern.mtp)}
    layers = [
        _in_window(flags, made[letter]) if inside and letter == hybrid.ATTENTION else made[letter]
        for letter, inside in zip(letters, windowed, strict=True)
    ]
    return layers, [made[letter] for letter in pattern.mtp]


_LETTERS = {
    "mamba": hybrid.MAMBA,
    LINEAR_NAME: hybrid.GATED_DELTA_NET,
    "attn": hybrid.ATTENTION,
    "mla-dsa": hybrid.SPARSE,
    "mla": hybrid.LATENT,
    "dense": hybrid.MLP,
    "moe": hybrid.EXPERTS,
}


def _of_letter(flags: Flags, letter: str, attention: AttentionSpec, mlp: MlpSpec, moe: MoeSpec | None) -> LayerSpec:
    name = next(kind for kind, each in _LETTERS.items() if each == letter)
    if letter == hybrid.MAMBA:
        return LayerSpec(name, mamba=_mamba(flags))
    if letter == hybrid.GATED_DELTA_NET:
        return LayerSpec(name, linear=_gated_delta_net(flags))
    if letter == hybrid.MLP:
        return LayerSpec(name, mlp=mlp)
    if letter == hybrid.EXPERTS:
        if moe is None:
            raise flags.error("num-experts", f"is missing: a layer of the pattern is {hybrid.EXPERTS}")
        return LayerSpec(name, moe=moe)
    if letter == hybrid.SPARSE:
        attention = replace(attention, indexer=_indexer(flags, attention))
    return LayerSpec(name, attention)


def _mixers(flags: Flags, attention: AttentionSpec, positions: int) -> list[LayerSpec]:
    """Token mixer of every position, as a layer without an MLP."""
    name = "attn" if attention.latent is None else "mla"
    variant = flags.text(VARIANT, default=None)
    of_qwen3_next = any("qwen3_next_spec" in word for word in flags.words("spec"))
    if of_qwen3_next or flags.integer(FULL_INTERVAL, default=0, low=0):
        attention = replace(attention, gate=attention.n_heads * attention.head_dim)
    full = LayerSpec(name, attention)
    shared: list[bool] = [False] * positions
    reused = full
    if variant == "dsa":
        indexer = _indexer(flags, attention)
        full = LayerSpec(f"{name}-dsa", replace(attention, indexer=indexer))
        without = replace(indexer, n_heads=0, parameters=0)
        reused = LayerSpec(f"{name}-dsa-reused", replace(attention, indexer=without))
        every = flags.integer("dsa-indexer-topk-freq", default=1)
        offset = max(1, flags.integer("dsa-indexer-skip-topk-offset", default=0, low=0))
        shared = [max(at - offset, 0) % every != 0 for at in range(1, positions + 1)]
    linear, windowed = linear_layers(flags, positions), windowed_layers(flags, positions)
    delta = LayerSpec(LINEAR_NAME, linear=_gated_delta_net(flags)) if any(linear) else full
    result = []
    for at in range(positions):
        if linear[at]:
            result.append(delta)
        elif shared[at]:
            result.append(reused)
        else:
            result.append(_in_window(flags, full) if windowed[at] else full)
    return result


def linear_layers(flags: Flags, positions: int) -> list[bool]:
    """Return whether attention is linear at each position."""
    variant = flags.text(VARIANT, default=None)
    if variant in LINEAR_VARIANTS:
        linear = nth_layers(flags, LINEAR_FREQ, positions, nth=False)
        if linear is None:
            raise flags.error(LINEAR_FREQ, f"is missing beside --{VARIANT} {variant}")
        return linear
    interval = flags.integer(FULL_INTERVAL, default=0, low=0)
    if interval < 2:
        return [False] * positions
    return [(number + 1) % interval != 0 for number in tested_positions(flags, positions)]


def windowed_layers(flags: Flags, positions: int) -> list[bool]:
    """Return whether the attention of each position sees a window only."""
    window = _window(flags)
    if window is None:
        return [False] * positions
    if not flags.has(WINDOW):
        return [True] * positions
    return nth_layers(flags, WINDOW_FREQ, positions, nth=False) or [True] * positions


def _window(flags: Flags) -> int | None:
    """Keys that a query sees where a window is given, its own included; None where all before it."""
    before = flags.integer("sliding-window", default=None, high=MAX_SIZE)
    if flags.has(WINDOW):
        text = flags.text(WINDOW)
        sides = re.fullmatch(r"\(?\s*(-?\d{1,9})\s*,\s*(-?\d{1,9})\s*\)?", text)
        if sides is None:
            raise flags.error(WINDOW, "must be two whole numbers", text, "write keys before and behind, as in 127,0")
        before = int(sides[1])
    return None if before is None or before < 0 else before + 1


def _in_window(flags: Flags, layer: LayerSpec) -> LayerSpec:
    assert layer.attention is not None
    seen = replace(layer.attention, reach=SLIDING, window=_window(flags))
    return layer.replace(name=layer.name + SLIDING_NAME, attention=seen)


def _mamba(flags: Flags) -> MambaSpec:
    """Mamba-2. MindSpeed-LLM alone has flags for the taps (4) and for the inner width in hidden sizes (2; there 1)."""
    head: int = flags.integer("mamba-head-dim", default=64, high=MAX_SIZE)
    heads = flags.integer("mamba-num-heads", default=None, high=MAX_SIZE)
    if heads is None:
        times = flags.integer("mamba-expand", default=1 if _of_mindspeed(flags) else 2, high=64)
        inner = times * flags.integer("hidden-size", high=MAX_SIZE)
        if inner % head:
            raise flags.error("mamba-head-dim", f"must divide the inner width {inner}", head)
        heads = inner // head
    return MambaSpec(
        inner=heads * head,
        n_heads=heads,
        state=flags.integer("mamba-state-dim", default=128, high=MAX_SIZE),
        n_groups=flags.integer("mamba-num-groups", default=8, high=MAX_SIZE),
        conv_kernel=flags.integer("mamba-d-conv", default=4, high=64),
    )


def _of_mindspeed(flags: Flags) -> bool:
    """Return whether ``--spec`` names a stack of MindSpeed-LLM's."""
    return any("mindspeed_llm" in word for word in flags.words("spec"))


def _gated_delta_net(flags: Flags) -> LinearAttentionSpec:
    return LinearAttentionSpec(
        GATED_DELTA,
        key_heads=flags.integer("linear-num-key-heads", default=16, high=MAX_SIZE),
        value_heads=flags.integer("linear-num-value-heads", default=32, high=MAX_SIZE),
        key_head_dim=flags.integer("linear-key-head-dim", default=128, high=MAX_SIZE),
        value_head_dim=flags.integer("linear-value-head-dim", default=128, high=MAX_SIZE),
        conv_kernel=flags.integer("linear-conv-kernel-dim", "mamba-d-conv", default=4, high=64),
    )


def _indexer(flags: Flags, attention: AttentionSpec) -> IndexerSpec:
    """The indexer of sparse attention: queries from the latent query, one key, its LayerNorm, a weight a head."""
    if attention.latent is None:
        raise flags.error(VARIANT, "wants latent attention", "dsa", "add --multi-latent-attention")
    heads: int = flags.integer("dsa-indexer-n-heads", high=MAX_SIZE)
    width: int = flags.integer("dsa-indexer-head-dim", high=MAX_SIZE)
    hidden: int = flags.integer("hidden-size", high=MAX_SIZE)
    query = hidden if attention.latent.q_lora_rank is None else attention.latent.q_lora_rank
    parameters = query * heads * width + hidden * width + 2 * width + hidden * heads
    return IndexerSpec(heads, width, flags.integer("dsa-indexer-topk", high=MAX_SIZE), parameters)
