"""Layers whose cost or parameters are not known here: refused by name, for no figure would hold."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.parsers.text.flags import Flags

_OTHER_SPECS = {
    "gated_delta_product": "gated delta products in place of Mamba layers",
}
"""Words in ``--spec`` (Megatron-LM main megatron/core/models/hybrid/hybrid_layer_specs.py,
``gated_delta_product_stack_spec``)."""
_VARIANTS = ("gdn", "gated_delta_net", "dsa")
"""Values of ``--experimental-attention-variant`` that are read."""
_BY_LAYER = ("heterogeneous-layers-config-path", "heterogeneous-layers-config-encoded-json")


def refuse_other_layers(flags: Flags) -> None:
    """Refuse a model whose layers are not modelled.

    Raises
    ------
    InputError
        When a flag asks for such layers; says which.
    """
    spec = " ".join(flags.words("spec"))
    for word, layers in _OTHER_SPECS.items():
        if word in spec:
            raise _refused(flags, "spec", layers, spec)
    variant = flags.text("experimental-attention-variant", default=None)
    if variant is not None and variant not in _VARIANTS:
        raise _refused(flags, "experimental-attention-variant", f"attention of the variant {variant}", variant)
    for name in _BY_LAYER:
        if flags.has(name):
            raise _refused(flags, name, "layers that each have a form of their own", flags.text(name))


def _refused(flags: Flags, name: str, layers: str, value: str) -> InputError:
    return flags.error(
        name,
        f"asks for what is not modelled: {layers}",
        value,
        "give a model of attention, Mamba or gated delta net layers with an MLP or experts",
    )
