"""Models of which a part of the layers is frozen while others train whole.

A frozen layer has no gradients, no optimizer states and no weight gradients, and its GEMMs save no input. Below the
first part that trains no gradient is made at all: torch records nothing there, keeps nothing and runs no backward
(PyTorch v2.9 docs/source/notes/autograd.rst, "Locally disabling gradient computation").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taylor.register.layers import PASSED, UNREACHED, LayerSpec
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.pattern import kinds_in_order, pattern_of

_NAMES = {PASSED: "passed", UNREACHED: "frozen"}


def layers_in_order(model: ModelSpec) -> tuple[str, ...]:
    """Kind of every body layer."""
    if model.pattern:
        return kinds_in_order(model.pattern)
    return tuple(kind for kind, count in model.body_counts.items() for _ in range(count))


def with_frozen_layers(model: ModelSpec, trains: Sequence[bool], *, below: bool) -> ModelSpec:
    """The model with kinds of their own for layers that do not train: ``dense+frozen``, or ``dense+passed`` for those
    that a gradient passes through.

    Parameters
    ----------
    trains : sequence of bool [n_layers]
        Body layers whose weights train, in model order.
    below : bool
        The embedding, or another part in front of the layers, trains.

    Raises
    ------
    ValueError
        When `trains` has another number of entries than the model has layers.
    """
    if len(trains) != model.n_layers:
        raise ValueError(f"model {model.name} has {model.n_layers} layers, and {len(trains)} are said to train or not")
    if all(trains):
        return model
    order = layers_in_order(model)
    names: list[str] = []
    kinds: dict[str, LayerSpec] = {kind: replace(model.layer(kind), name=kind) for kind in model.mtp_kinds}
    reached = below
    for kind, own in zip(order, trains, strict=True):
        reached = reached or own
        frozen = "" if own else PASSED if reached else UNREACHED
        name = f"{kind}+{_NAMES[frozen]}" if frozen else kind
        kinds[name] = _frozen(replace(model.layer(kind), name=name), frozen)
        names.append(name)
    return model.replace(pattern=pattern_of(names), kinds=tuple(kinds.values()))


def _frozen(layer: LayerSpec, frozen: str) -> LayerSpec:
    """A layer and its second half."""
    return replace(layer, frozen=frozen, then=None if layer.then is None else _frozen(layer.then, frozen))


def trained_counts(model: ModelSpec) -> tuple[int, int]:
    """Body layers that train, and those that do not."""
    frozen = sum(count for kind, count in model.body_counts.items() if model.layer(kind).frozen)
    return model.n_layers - frozen, frozen


def without_frozen(model: ModelSpec) -> ModelSpec:
    """The model before `with_frozen_layers`, all of whose layers train."""
    if not any(kind.frozen for kind in model.kinds):
        return model
    order = [_trained_name(model.layer(kind)) for kind in kinds_in_order(model.pattern)]
    if set(order) <= {DENSE, MOE} and not model.mtp_kinds:
        return model.replace(pattern="", kinds=())
    kinds = {_trained_name(kind): _frozen(replace(kind, name=_trained_name(kind)), "") for kind in model.kinds}
    return model.replace(pattern=pattern_of(order), kinds=tuple(kinds.values()))


def _trained_name(layer: LayerSpec) -> str:
    return layer.name.removesuffix(f"+{_NAMES[layer.frozen]}") if layer.frozen else layer.name
