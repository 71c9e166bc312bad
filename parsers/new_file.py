"""A training file made for a model alone: what a launcher's writer is given, and how its file is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from taylor.register.layers import LayerSpec
from taylor.register.model import MTP, ModelSpec
from taylor.register.pattern import kinds_in_order

TRAIN_STEPS = 1000
"""Steps of a new file: the user's data settles how many there are in the end."""

_FIELDS = ("hidden", "vocab", "tied_embedding", "norm_bias", "extra_parameters")
"""Parts of a model beside its layers."""


@dataclass(frozen=True)
class NewJob:
    """A job that no file states yet.

    Parameters
    ----------
    seq_length, global_batch : int
        Tokens a sample and samples a step.
    ranks, per_node : int
        Devices of the job, and of a host.
    software : mapping of str to object
        Flags or keys of the software's features, in the framework's words (`NewFile.settings`).
    """

    model: ModelSpec
    seq_length: int
    global_batch: int
    ranks: int
    per_node: int
    software: Mapping[str, object] = field(default_factory=dict)

    @property
    def dp(self) -> int:
        """Data parallelism of the file as it is made: the most that the batch can be dealt to."""
        return math.gcd(self.ranks, self.global_batch)

    @property
    def rest(self) -> int:
        """Ranks of one replica of the file as it is made."""
        return self.ranks // self.dp


@dataclass(frozen=True)
class NewFile:
    """Maker of one framework's file from a model alone.

    Parameters
    ----------
    name, title : str
        Name of the framework in ``--framework`` and in messages.
    suffix : str
        Of its files.
    text : callable
        Makes the file of a job; raises `InputError` where it knows no such model.
    on_ascend : bool
        It is one of those that are assumed on Ascend devices; else elsewhere.
    trains_mtp : bool
        It trains a model's MTP modules.
    features : mapping
        Flags or keys that switch a feature of the software on, by the feature's name and its value
        (`parsers.software.FEATURES`); None for a flag that takes no value.
    """

    name: str
    title: str
    suffix: str
    text: Callable[[NewJob], str]
    on_ascend: bool = False
    trains_mtp: bool = True
    features: Mapping[str, Mapping[str, Mapping[str, object]]] = field(default_factory=dict)

    def settings(self, asked: Mapping[str, str]) -> dict[str, object]:
        """Flags or keys of some features, each of which the framework has."""
        return {flag: to for name, value in asked.items() for flag, to in self.features[name][value].items()}


def difference(asked: ModelSpec, written: ModelSpec) -> str | None:
    """The first thing in which a written model differs from the one asked for; None where they are the same.

    Names, how a shape is recorded (shared experts by their number or by their width) and the groups that a router
    chooses among, which not every reader asks for, do not count.
    """
    for name in _FIELDS:
        if getattr(asked, name) != getattr(written, name):
            return f"{name.replace('_', ' ')} {getattr(asked, name)} would become {getattr(written, name)}"
    if bool(asked.learned_positions) != bool(written.learned_positions):
        return "learned positions"
    theirs, ours = _layers(written), _layers(asked)
    if len(theirs) != len(ours):
        return f"{len(ours)} layers would become {len(theirs)}"
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if first := _layer_difference(one, other):
            return f"layer {at}: {first}"
    if asked.mtp_layers != written.mtp_layers:
        return f"{asked.mtp_layers} MTP modules would become {written.mtp_layers}"
    if asked.mtp_layers and _module(asked) != _module(written):
        return "the layers of an MTP module"
    return None


def _layers(model: ModelSpec) -> list[LayerSpec]:
    if model.pattern:
        return [_plain(model.layer(kind)) for kind in kinds_in_order(model.pattern)]
    return [_plain(model.layer(kind)) for kind, count in model.body_counts.items() for _ in range(count)]


def _module(model: ModelSpec) -> list[LayerSpec]:
    return [_plain(layer) for layer in model.layers_of(MTP)]


def _plain(layer: LayerSpec) -> LayerSpec:
    """A layer without what says nothing of its sizes, in one way to say the rest."""
    attention, moe = layer.attention, layer.moe
    if attention is not None:
        attention = replace(
            attention,
            v_head_dim=None if attention.v_width == attention.qk_width else attention.v_head_dim,
            head_dim=attention.qk_width,
            n_kv_heads=attention.n_heads if attention.latent else attention.n_kv_heads,
            qk_norm_weights=None if attention.qk_norm_weights == 2 * attention.head_dim else attention.qk_norm_weights,
        )
    if moe is not None:
        width = moe.shared_width
        moe = replace(
            moe, first_dense=0, n_shared=int(width > 0), shared_hidden=width or None, n_groups=1, top_groups=1
        )
    then = None if layer.then is None else _plain(layer.then)
    return layer.replace(name="", attention=attention, moe=moe, norms=layer.norm_count, then=then)


def _layer_difference(one: LayerSpec, other: LayerSpec) -> str | None:
    """The first field in which two layers differ, down to the part that has it."""
    if type(one.mixer) is not type(other.mixer):
        return f"no flag or key makes its {_mixer(one)}"
    if (one.then is None) is not (other.then is None):
        return "no flag or key makes its second half"
    pair: tuple[Any, Any] = (one, other)
    for part in fields(pair[0]):
        here, there = (getattr(each, part.name) for each in pair)
        if here == there:
            continue
        if here is None or there is None or not hasattr(here, "__dataclass_fields__") or type(here) is not type(there):
            return f"{part.name.replace('_', ' ')} {_short(here)} would become {_short(there)}"
        inner = next(each for each in fields(here) if getattr(here, each.name) != getattr(there, each.name))
        values = (getattr(each, inner.name) for each in (here, there))
        return f"{part.name} {inner.name.replace('_', ' ')} " + " would become ".join(map(_short, values))
    return None


def _mixer(layer: LayerSpec) -> str:
    if layer.mixer is None:
        return "block without attention"
    return "softmax attention" if layer.attention else "Mamba" if layer.mamba else "linear attention"


def _short(value: object) -> str:
    return type(value).__name__ if hasattr(value, "__dataclass_fields__") else str(value)
