"""Layers that are no full attention with an MLP or experts: refused by name, for no figure would hold."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.parsers.megatron.flags import Flags

_OFF = ("", "0", "0.0", "1", "none", "None")
_ALWAYS = {
    "hybrid-layer-pattern": "Mamba layers",
    "hybrid-override-pattern": "Mamba layers",
    "is-hybrid-model": "Mamba layers",
    "hybrid-attention-ratio": "Mamba layers",
    "full-attention-interval": "linear attention in all layers but every few",
}
"""Flags that change what a layer is, unless their value says «off»."""
_BY_VALUE = {
    "experimental-attention-variant": {"gated_delta": "linear attention (gated delta net)"},
    "export-model-type": {"HybridModel": "Mamba layers", "MambaModel": "Mamba layers"},
    "spec": {
        "longcat": "two attentions a layer (LongCat)",
        "mamba": "Mamba layers",
        "hybrid": "Mamba layers",
        "qwen3_next": "linear attention (gated delta net)",
    },
}
"""Flags that do so where their value holds a word."""


def refuse_other_layers(flags: Flags) -> None:
    """Refuse a model whose layers are not modelled.

    Raises
    ------
    InputError
        When a flag asks for such layers; says which.
    """
    for name, flag in flags.by_name.items():
        value = " ".join(word.text for word in flag.values)
        if name in _ALWAYS and (value not in _OFF or not flag.values):
            raise _refused(flags, name, _ALWAYS[name], value)
        for part, layers in _BY_VALUE.get(name, {}).items():
            if part in value:
                raise _refused(flags, name, layers, value)


def _refused(flags: Flags, name: str, layers: str, value: str) -> InputError:
    return flags.error(
        name,
        f"asks for what is not modelled: {layers}",
        value,
        "give a model whose layers are full attention and an MLP or experts",
    )
