"""Entries of ``layer_swap`` and ``op_swap`` as they are written, from what stood there before."""

from __future__ import annotations

import pytest

from taylor.parsers.mindformers.modules import Module
from taylor.parsers.mindformers.swap import CORE, LAYER, swap_entries

MODULES = {CORE: Module((), ("attention.flash_attention", "attention.core"))}
WORDS = [frozenset({LAYER}), frozenset({CORE}), frozenset(), frozenset({LAYER, CORE})]


@pytest.mark.parametrize(
    ("word", "old", "wanted"),
    [
        (LAYER, None, [{"backward_prefetch": 1, "layers": [0, 3]}]),
        (LAYER, {"backward_prefetch": 4, "layers": [7]}, [{"backward_prefetch": 4, "layers": [0, 3]}]),
        (CORE, None, [{"op_name": MODULES[CORE].patterns[0], "backward_prefetch": 1, "layers": [1, 3]}]),
        (
            CORE,
            [{"op_name": "x", "backward_prefetch": 2, "layers": True}, {"op_name": "y", "layers": [0]}],
            [{"op_name": "x", "backward_prefetch": 2, "layers": [1, 3]}],
        ),
        ("mlp", None, []),
    ],
)
def test_an_entry_keeps_what_stood_there_and_names_its_layers(word: str, old: object, wanted: object) -> None:
    assert swap_entries(WORDS, word, old, MODULES) == wanted
    assert MODULES[CORE].patterns[0] != MODULES[CORE].patterns[1]
