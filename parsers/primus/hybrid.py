"""Layers of Primus' own hybrid stacks as Megatron's pattern of letters.

Source: AMD-AGI/Primus fd1eeabb primus/backends/megatron/core/models/hybrid/hybrid_block.py:142-160, 219-246 (layers are
dealt by the share of attention, each mixer before an MLP), hybrid_mamba_mla_layer_specs.py:126-520 (the modules of each
stack), core/models/mamba/mamba_block.py:53-60 (Mamba alone).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from taylor.base.errors import InputError, shortened
from taylor.parsers.megatron.hybrid import GATED_DELTA_NET, HYBRID_BEFORE, LATENT, MAMBA, MLP
from taylor.parsers.primus.experiment import Experiment
from taylor.parsers.text.fields import MAX_LAYERS

OWN = "primus."
"""Prefix of the module of a stack of Primus' own."""
_PLAIN_MAMBA = "mamba_stack_spec"
_STACKS: Mapping[str, tuple[str, int | None]] = {
    "hybrid_stack_spec": (MAMBA, 1),
    "mamba_hybrid_stack_spec_no_te": (MAMBA, 2),
    "gdn_hybrid_stack_spec": (GATED_DELTA_NET, None),
    "gdn_hybrid_stack_spec_no_te": (GATED_DELTA_NET, None),
}
"""Stacks that are read: letter of the mixer beside latent attention, and the expansion of its Mamba
(hybrid_mamba_mla_layer_specs.py:126, 189, 247, 313)."""
REPLACED = frozenset({"spec", "hybrid_attention_ratio", "hybrid_mlp_ratio", "is_hybrid_model"})
"""Options that the pattern takes the place of."""


def own_stack(experiment: Experiment) -> str | None:
    """Name of the stack where it is one of Primus' own that deals its layers itself.

    Raises
    ------
    InputError
        When it is one whose layers are not known here.
    """
    spec = experiment.options.get("spec")
    if not isinstance(spec, list) or not spec or not str(spec[0]).startswith(OWN):
        return None
    name = str(spec[-1])
    if name not in (_PLAIN_MAMBA, *_STACKS):
        raise InputError(
            "builds layers of Primus' own, which are not modelled",
            file=experiment.file,
            field=experiment.place("spec"),
            value=shortened(" ".join(map(str, spec)), 120),
            cure=f"the stacks that are read are {', '.join(_STACKS)}",
        )
    return name


def stack_flags(experiment: Experiment, stack: str) -> dict[str, str]:
    """Megatron's flags, by name, for the layers of a stack.

    Raises
    ------
    InputError
        When the number of layers or the share of attention is none.
    """
    options = experiment.options
    if stack == _PLAIN_MAMBA:
        return {HYBRID_BEFORE: MAMBA * _layers(experiment)}
    letter, expand = _STACKS[stack]
    written = options.get("hybrid_layer_pattern") or options.get("hybrid_override_pattern")
    if isinstance(written, str):  # Attention is the stack's own, whatever the letter (hybrid_block.py:168-173).
        pattern = written.replace("*", LATENT).replace(MAMBA, letter)
    else:
        pattern = _dealt(experiment, letter)
    return {HYBRID_BEFORE: pattern} | ({} if expand is None else {"mamba-expand": str(expand)})


def _layers(experiment: Experiment) -> int:
    layers = experiment.options.get("num_layers")
    if isinstance(layers, int) and 2 <= layers <= MAX_LAYERS:
        return layers
    place, shown = experiment.place("num_layers"), shortened(str(layers), 40)
    raise InputError(f"must be a whole number from 2 to {MAX_LAYERS}", file=experiment.file, field=place, value=shown)


def _dealt(experiment: Experiment, letter: str) -> str:
    layers, share = _layers(experiment), experiment.options.get("hybrid_attention_ratio") or 0
    if not isinstance(share, (int, float)) or not math.isfinite(share) or not 0 <= share <= 1:
        raise InputError(
            "must be a number from 0 to 1",
            file=experiment.file,
            field=experiment.place("hybrid_attention_ratio"),
            value=shortened(str(share), 40),
        )
    pairs = layers // 2
    attention = int(pairs * share)
    others = pairs - attention
    one, other = LATENT + MLP, letter + MLP
    if attention == 0:
        return other * pairs
    if share <= 0.5:
        return (one + other * (others // attention)) * attention + other * (others % attention)
    return one * (attention - others) + (one + other) * others
