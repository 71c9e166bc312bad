"""Rules of model types: the window of each layer's softmax attention, and the layers that have experts.

A file that lists its layers (``layer_types``, ``mlp_layer_types``) goes before its model type's rule.
"""

from __future__ import annotations

from collections.abc import Callable

from taylor.parsers.huggingface.values import Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import CHUNKED, FULL_REACH, SLIDING

Rule = Callable[[Values, int], list[str]]
"""A reach for every layer, from the configuration and the number of layers."""
Placement = Callable[[Values, int], list[bool]]
"""Presence of experts, for every layer."""

REACHES = {
    "full_attention": FULL_REACH,
    "attention": FULL_REACH,
    "global_attention": FULL_REACH,
    "sliding_attention": SLIDING,
    "chunked_attention": CHUNKED,
}
"""Names in ``layer_types`` (transformers 5.23.0, configuration_utils.py, ALLOWED_LAYER_TYPES)."""
BLOCKS = {"dense": False, "mlp": False, "sparse": True, "moe": True}
"""Names in ``mlp_layer_types``; whether such a layer has experts."""


def all_full(values: Values, layers: int) -> list[str]:
    """Every layer sees everything."""
    return [FULL_REACH] * layers


def all_sliding(values: Values, layers: int) -> list[str]:
    """Every layer has the window, where there is one (Mistral)."""
    return [SLIDING] * layers


def switched_sliding(values: Values, layers: int) -> list[str]:
    """Every layer has the window, where it is switched on (Qwen3-MoE)."""
    return [SLIDING if values.flag("use_sliding_window") else FULL_REACH] * layers


def late_sliding(values: Values, layers: int) -> list[str]:
    """The window from layer ``max_window_layers`` on, where it is switched on (Qwen2)."""
    on, first = values.flag("use_sliding_window"), values.size("max_window_layers", low=0, high=MAX_LAYERS)
    return [SLIDING if on and at >= first else FULL_REACH for at in range(layers)]


def later_sliding(values: Values, layers: int) -> list[str]:
    """The window from layer ``max_window_layers`` on (dots.llm1)."""
    first = values.size("max_window_layers", low=0, high=MAX_LAYERS)
    return [SLIDING if at >= first else FULL_REACH for at in range(layers)]


def early_alternating(values: Values, layers: int) -> list[str]:
    """The window in every other layer before ``max_window_layers``, where it is switched on (Qwen2-MoE)."""
    on, last = values.flag("use_sliding_window"), values.size("max_window_layers", low=0, high=MAX_LAYERS)
    return [SLIDING if on and at < last and (at + 1) % 2 else FULL_REACH for at in range(layers)]


SWITCHED = (late_sliding, switched_sliding, early_alternating)
"""Rules of model types whose window ``use_sliding_window`` switches on, listed layers included."""


def full_every(period: int, *fields: str) -> Rule:
    """The window in all layers but every n-th; a field of the file gives another period."""

    def rule(values: Values, layers: int) -> list[str]:
        step = values.size_or_none(*fields, low=0, high=MAX_LAYERS) if fields else period
        step = period if step is None else step
        return [SLIDING if step and (at + 1) % step else FULL_REACH for at in range(layers)]

    return rule


def full_first_of(period: int) -> Rule:
    """Full attention in the first of every n layers, the window in the others."""
    return lambda values, layers: [SLIDING if at % period else FULL_REACH for at in range(layers)]


def mimo(values: Values, layers: int) -> list[str]:
    """``hybrid_layer_pattern``, 1 for the window, else full attention first and every sixth layer (MiMo-V2)."""
    listed = values.by_layer("hybrid_layer_pattern", values.zero_or_one, layers)
    if listed is None:
        listed = [bool(at and (at + 1) % 6) for at in range(layers)]
    return [SLIDING if each else FULL_REACH for each in listed]


def without_positions(reach: str, switch: str | None = None) -> Rule:
    """Layers by whether they have rotary positions (``no_rope_layers`` holds 1 for those that do).

    Llama 4's layers with positions are chunked; SmolLM3's without them have the window, where it is switched on.
    """

    def rule(values: Values, layers: int) -> list[str]:
        step = values.size_or_none("no_rope_layer_interval", high=MAX_LAYERS) or 4
        listed = values.by_layer("no_rope_layers", values.zero_or_one, layers) or None
        rotary = listed if listed is not None else [(at + 1) % step != 0 for at in range(layers)]
        if switch is None:
            return [reach if each else FULL_REACH for each in rotary]
        on = values.flag(switch)
        return [reach if on and not each else FULL_REACH for each in rotary]

    return rule


def listed_reaches(values: Values, layers: int, rule: Rule) -> list[str]:
    """The reach of every layer as the file lists it, else by its type's rule, whatever the window."""
    listed = values.by_layer("layer_types", values.one_of(REACHES), layers)
    return listed if listed is not None else rule(values, layers)


def reaches_of(values: Values, layers: int, rule: Rule) -> list[str]:
    """The reach of every layer; a window that is left out, null or switched off is none."""
    found = listed_reaches(values, layers, rule)
    if rule in SWITCHED and not values.flag("use_sliding_window"):
        return [FULL_REACH if each == SLIDING else each for each in found]
    windows = {FULL_REACH: None, SLIDING: window_of(values, SLIDING), CHUNKED: window_of(values, CHUNKED)}
    return [each if windows[each] is not None else FULL_REACH for each in found]


def window_of(values: Values, reach: str) -> int | None:
    """Tokens of the window or the chunk; None for full attention."""
    if reach == FULL_REACH:
        return None
    names = ("attention_chunk_size",) if reach == CHUNKED else ("sliding_window", "attention_window_size")
    return values.size_or_none(*names)


def everywhere(values: Values, layers: int) -> list[bool]:
    """Experts in every layer."""
    return [True] * layers


def after_first(values: Values, layers: int) -> list[bool]:
    """``first_k_dense_replace`` dense layers first.

    DeepSeek's own code then has experts in every ``moe_layer_freq``-th layer, transformers in all: 1 is the same.
    """
    values.must_be("moe_layer_freq", 1, "with another step DeepSeek's code and transformers disagree")
    first = values.size_or_none("first_k_dense_replace", low=0, high=MAX_LAYERS) or 0
    return [at >= first for at in range(layers)]


def after_dense(field: str) -> Placement:
    """As many dense layers first as a field says."""

    def rule(values: Values, layers: int) -> list[bool]:
        first = values.size(field, low=0, high=MAX_LAYERS)
        return [at >= first for at in range(layers)]

    return rule


def after_layer(first: int) -> Placement:
    """The first n layers are dense."""
    return lambda values, layers: [at >= first for at in range(layers)]


def every_step(values: Values, layers: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer that ``mlp_only_layers`` does not name (Qwen)."""
    step = values.size("decoder_sparse_step", high=MAX_LAYERS)
    dense = values.list_or_none("mlp_only_layers", lambda name, value: values.whole(name, value, 0, MAX_LAYERS)) or []
    return [at not in dense and (at + 1) % step == 0 for at in range(layers)]


def ernie_span(values: Values, layers: int) -> list[bool]:
    """Every ``moe_layer_interval``-th layer from ``moe_layer_start_index`` to ``moe_layer_end_index``, -1 the last."""
    first = values.size("moe_layer_start_index", low=0, high=MAX_LAYERS)
    last = values.size("moe_layer_end_index", low=-1, high=MAX_LAYERS)
    step = values.size("moe_layer_interval", high=MAX_LAYERS)
    last = layers - 1 if last == -1 else last
    return [(at + 1) % step == 0 and first <= at <= last for at in range(layers)]


def llama4_steps(values: Values, layers: int) -> list[bool]:
    """The layers of ``moe_layers``, else every ``interleave_moe_layer_step``-th."""
    listed = values.list_or_none("moe_layers", lambda name, value: values.whole(name, value, 0, MAX_LAYERS))
    step = values.size("interleave_moe_layer_step", low=0, high=MAX_LAYERS)
    if listed is not None:
        return [at in listed for at in range(layers)]
    return [bool(step) and (at + 1) % step == 0 for at in range(layers)]


def frequency_list(values: Values, layers: int) -> list[bool]:
    """``moe_layer_freq`` as a list with 1 for experts (MiMo-V2, MiniMax-M3), else all but the first layer."""
    if isinstance(values.data.get("moe_layer_freq"), list):
        return values.by_layer("moe_layer_freq", values.zero_or_one, layers) or []
    return [at > 0 for at in range(layers)]


def experts_of(values: Values, layers: int, rule: Placement) -> list[bool]:
    """Return whether every layer has experts."""
    listed = values.by_layer("mlp_layer_types", values.one_of(BLOCKS), layers)
    return listed if listed is not None else rule(values, layers)
