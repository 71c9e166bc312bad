"""Tensors that ``swap_config`` moves to the host, layer by layer.

``layer_swap`` names layers whose activations are all moved, ``op_swap`` operators or cells by pattern whose results
are; with neither, the results of attention's fused kernel in every layer (r1.5.0
mindformers/modules/transformer/transformer.py:208-330, ``TransformerSwapConfig``; models/utils.py, ``set_swap``).
What runs again is not moved (``_check_swap_recompute_conflict``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taylor.cost_model.memory.offload import CORE_RESULT, WHOLE_LAYER
from taylor.parsers.mindformers.modules import Module, matches

LAYER, CORE = "layer", "core_attention"
SWAP_PARTS = {LAYER: WHOLE_LAYER, CORE: CORE_RESULT}
"""Tensors moved under each word."""

LAYER_SWAP, OP_SWAP = ("swap_config", "layer_swap"), ("swap_config", "op_swap")
_USUAL = {"op_name": r".*\.flash_attention", "layers": True}


@dataclass(frozen=True)
class Swap:
    """The words of `SWAP_PARTS` that hold in each layer, and the keys that say no more than that."""

    words: tuple[frozenset[str], ...]
    keys: tuple[str, ...]


def read_swap(data: Mapping[str, Any], layers: int, modules: Mapping[str, Module]) -> Swap | None:
    """Tensors that a file moves to the host; None where none has a known cost, or the form states no layers.

    An operator other than attention's core has no known cost: ``op_swap`` then stays among the keys that no figure has.
    """
    section = data.get("swap_config")
    if not isinstance(section, Mapping) or section.get("swap") is not True:
        return None
    whole, operators = section.get("layer_swap"), section.get("op_swap")
    if whole is None and operators is None:
        operators = [_USUAL]
    of_layers, of_operators = _entries(whole), _entries(operators)
    if of_layers is None or of_operators is None:
        return None
    moved: list[set[str]] = [set() for _ in range(layers)]
    for entry in of_layers:
        _mark(moved, entry.get("layers"), LAYER)
    priced = True
    for entry in of_operators:
        names = entry.get("op_name")
        for name in names if isinstance(names, list) else [names]:
            if CORE in modules and isinstance(name, str) and any(matches(name, path) for path in modules[CORE].paths):
                _mark(moved, entry.get("layers"), CORE)
            else:
                priced = False
    if not any(moved):
        return None
    keys = ["swap_config.layer_swap", *(["swap_config.op_swap", "swap_config.swap"] if priced else [])]
    return Swap(tuple(frozenset({LAYER} if LAYER in words else words) for words in moved), tuple(keys))


def swap_entries(words: Sequence[frozenset[str]], word: str, old: Any, modules: Mapping[str, Module]) -> Any:
    """An entry of ``layer_swap`` or ``op_swap`` that moves a word in the layers where it holds."""
    layers = [index for index, in_layer in enumerate(words) if word in in_layer]
    given = (_entries(old) or [{}])[0]
    name = {} if word == LAYER else {"op_name": given.get("op_name", modules[CORE].patterns[0])}
    return [{**name, "backward_prefetch": given.get("backward_prefetch", 1), "layers": layers}] if layers else []


def _entries(value: Any) -> list[Mapping[str, Any]] | None:
    """The entries of either list; None where one is in no known form."""
    entries = [] if value is None else [value] if isinstance(value, Mapping) else value
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    whole = all(isinstance(entry.get("layers"), bool) or _are_places(entry.get("layers")) for entry in entries)
    return entries if whole else None


def _are_places(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(at, int) and not isinstance(at, bool) for at in value)


def _mark(moved: list[set[str]], layers: Any, word: str) -> None:
    for index, words in enumerate(moved):
        if layers is True or (isinstance(layers, list) and index in layers):
            words.add(word)
