"""Weights that ms-swift freezes where all others train.

Sources: modelscope/ms-swift 3602360a swift/megatron/arguments/megatron_args.py:450-474, 1086-1098 (``freeze_vit`` and
``freeze_aligner`` true), swift/megatron/utils/utils.py:176-182 (``full`` alone),
swift/utils/transformers_utils.py:70-130 (a part of all parameters from the first on; names by their beginning, of which
the trained ones win). A pipeline's stages number their layers from 0 each. A frozen embedding's result takes a gradient
all the same (modelscope/mcore-bridge f020e479 src/mcore_bridge/model/gpt_model.py:212-214), which passes through every
layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from taylor.cost_model.job.parameters import embedding_parameters, layer_parameters, total_parameters
from taylor.parsers.frozen import frozen_outside, frozen_vision
from taylor.parsers.swift.options import FORM, is_on
from taylor.parsers.text.flags import Flags
from taylor.register.adapters import EMBEDDING, HEAD
from taylor.register.frozen import layers_in_order, with_frozen_layers
from taylor.register.model import ModelSpec

_RATIO, _FROZEN, _TRAINED = "freeze-parameters-ratio", "freeze-parameters", "trainable-parameters"
_PIPELINE = "pipeline-model-parallel-size"
_ENDS = {EMBEDDING: "embedding.word_embeddings.weight", HEAD: "output_layer.weight"}
_IN_LAYER = ("self_attention.linear_proj.weight", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight")


def with_frozen(model: ModelSpec, options: Flags, notes: list[str]) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model as the options train it, and the parts outside its layers that are frozen (`TrainingRules.frozen`).

    Raises
    ------
    InputError
        When a part of a layer is frozen, layers are in a pipeline, or nothing trains.
    """
    vision = frozen_vision(model, notes, freezes=not options.has("freeze-vit") or is_on(options, "freeze-vit"))
    ratio = float(options.number(_RATIO, default=0.0))
    stages = int(options.integer(_PIPELINE, default=1, high=4096))
    one_stage = f"write {FORM.written(_PIPELINE)} 1"
    if 0 < ratio < 1 and stages > 1:  # megatron_args.py:473
        raise options.error(_RATIO, "freezes layers of a pipeline, which ms-swift refuses", cure=one_stage)
    given = [name for name in (_FROZEN, _TRAINED) if options.has(name)]
    full = options.text("tuner-type" if options.has("tuner-type") else "train-type", default="full") == "full"
    if not full or not (ratio or given) or any(kind.frozen for kind in model.kinds):
        return model, vision
    names = [
        *_ENDS.values(),
        *(f"decoder.layers.{at}.{name}" for at in range(model.n_layers) for name in _IN_LAYER),
    ]
    frozen = set(_first(model, ratio, notes)) | set(_beginning(options, _FROZEN, names))
    trained = set(names) - frozen | set(_beginning(options, _TRAINED, names))
    ends = [end for end, name in _ENDS.items() if name in trained]
    if model.tied_embedding:
        ends = list(_ENDS) if EMBEDDING in ends else []
    trains = [_trains(options, at, trained, given) for at in range(model.n_layers)]
    if not any(trains) and not ends:
        raise options.error(next(iter(given), _RATIO), "leaves nothing that trains", cure="freeze less")
    if not all(trains) and stages > 1:
        problem = "freezes layers of a pipeline, whose stages number them from 0 each"
        raise options.error(next(iter(given), _RATIO), problem, cure=one_stage)
    result = with_frozen_layers(model, trains, below=True)
    outside = frozen_outside(result, ends, notes)
    return result, (*(part for part in outside if part in _ENDS), *vision)


def _first(model: ModelSpec, ratio: float, notes: list[str]) -> Sequence[str]:
    """Names of the first parameters, up to a part of all; a layer is frozen where it is whole."""
    if not ratio:
        return ()
    wanted = ratio * total_parameters(model)
    sizes = [embedding_parameters(model), *(layer_parameters(model, kind) for kind in layers_in_order(model))]
    whole = sum(size <= wanted for size in accumulate(sizes))
    notes.append(f"the first {max(0, whole - 1)} layers are frozen whole; what is frozen of the next counts as trained")
    layers = [f"decoder.layers.{at}.{name}" for at in range(whole - 1) for name in _IN_LAYER]
    return [_ENDS[EMBEDDING], *layers] if whole else ()


def _beginning(options: Flags, flag: str, names: Sequence[str]) -> list[str]:
    """Names that begin as one of the option's values."""
    given = options.by_name.get(flag)
    starts = () if given is None else tuple(word.text for word in given.values if word.text)
    return [name for name in names if name.startswith(starts)] if starts else []


def _trains(options: Flags, at: int, trained: set[str], given: Sequence[str]) -> bool:
    own = [f"decoder.layers.{at}.{name}" in trained for name in _IN_LAYER]
    if any(own) and not all(own):
        cure = f"name whole layers, as decoder.layers.{at}."
        raise options.error(given[0], f"freezes a part of layer {at}, which is not modelled", cure=cure)
    return all(own)
