"""Layers that LLaMA-Factory's ``finetuning_type: freeze`` trains; everything else is frozen.

Sources: hiyouga/LLaMA-Factory ff6d4d12 src/llamafactory/model/adapter.py:54-140 (``_setup_freeze_tuning``),
src/llamafactory/v1/plugins/model_plugins/peft.py:206-290 (``get_freeze_model``: the same without LLaMA Pro). A positive
number of layers are the last ones, a negative one the first ones; embedding, head and final norm are frozen unless
``freeze_extra_modules`` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from taylor.base.errors import shortened
from taylor.parsers.frozen import frozen_outside
from taylor.parsers.text.fields import Fields
from taylor.parsers.trainer.adapters import names_of
from taylor.parsers.trainer.settings import switch
from taylor.register.adapters import EMBEDDING, HEAD, SAVED_NAMES
from taylor.register.frozen import with_frozen_layers
from taylor.register.layers import PASSED
from taylor.register.model import ModelSpec

LAYERS, MODULES, EXTRA = "freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules"
_USUAL, _MOST = 2, 20_000
_NORM = ("norm", "final_layernorm", "ln_f")


class PartlyFrozen(NamedTuple):
    """A model of which a part trains, and the parts outside its layers that do not (`TrainingRules.frozen`)."""

    model: ModelSpec
    frozen: tuple[str, ...]


def partly_frozen(fields: Fields, model: ModelSpec, notes: list[str], *, reached: bool = False) -> PartlyFrozen:
    """The model as the settings train it.

    Parameters
    ----------
    reached : bool
        A gradient is made for the embedding's result though it is frozen, and so passes through every layer.

    Raises
    ------
    InputError
        When a part of each layer trains, or nothing does, or a value is wrong.
    """
    modules = names_of(fields.raw(MODULES)) or ["all"]
    if modules != ["all"]:
        shown, cure = shortened(", ".join(modules), 60), "write all, or leave it out"
        raise fields.error(MODULES, "trains a part of each layer, which is not modelled", shown, cure)
    ends = _ends(fields, model)
    trains = _trains(fields, model.n_layers)
    if not any(trains) and not ends:
        raise fields.error(LAYERS, "trains no layer", fields.raw(LAYERS), "name a number of layers other than 0")
    result = with_frozen_layers(model, trains, below=reached or EMBEDDING in ends or trains_norms(fields))
    return PartlyFrozen(result, frozen_outside(result, ends, notes))


def trains_norms(fields: Fields) -> bool:
    """Return whether the norms of all layers train: ``norm`` is a part of their names too (adapter.py:130)."""
    return "norm" in names_of(fields.raw(EXTRA))


def passes_frozen(model: ModelSpec) -> bool:
    """Return whether a gradient passes through frozen layers."""
    return any(kind.frozen == PASSED for kind in model.kinds)


def _ends(fields: Fields, model: ModelSpec) -> tuple[str, ...]:
    found = []
    for name in names_of(fields.raw(EXTRA)):
        if name in _NORM:
            continue  # A few thousand parameters.
        end = SAVED_NAMES.get(name)
        if end is None:
            problem = "trains a module that is neither embedding nor head, which is not modelled"
            raise fields.error(EXTRA, problem, shortened(name, 60), f"known are {', '.join((*SAVED_NAMES, *_NORM))}")
        found.append(end)
    if model.tied_embedding and found:
        return (EMBEDDING, HEAD)
    return tuple(dict.fromkeys(found))


def _trains(fields: Fields, layers: int) -> Sequence[bool]:
    number = int(fields.integer(LAYERS, default=_USUAL, low=-_MOST, high=_MOST))
    if switch(fields, "use_llama_pro"):
        if number <= 0 or layers % number:
            problem = f"must divide the model's {layers} layers where use_llama_pro spreads them"
            raise fields.error(LAYERS, problem, number, "write a divisor of the layers")
        stride = layers // number
        return [(at + 1) % stride == 0 for at in range(layers)]
    return [at >= layers - number if number > 0 else at < -number for at in range(layers)]
