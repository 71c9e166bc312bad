"""A parsed config.json read to a `ModelSpec`, with what the reading assumed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.near import near_names
from taylor.base.shipped import shipped_table
from taylor.parsers.huggingface import bailing, convolutions, linear, mamba, own_layers, vision
from taylor.parsers.huggingface.dbrx import dbrx
from taylor.parsers.huggingface.decoders import DECODERS
from taylor.parsers.huggingface.deepseek_v4 import deepseek_v4
from taylor.parsers.huggingface.falcon_h1 import falcon_h1
from taylor.parsers.huggingface.gemma4 import gemma4
from taylor.parsers.huggingface.latent import LATENT_DECODERS, longcat_flash
from taylor.parsers.huggingface.shape import Described, model_of
from taylor.parsers.huggingface.step3 import step3
from taylor.parsers.huggingface.values import Values
from taylor.parsers.huggingface.without_effect import has_effect, is_shape
from taylor.register.model import ModelSpec
from taylor.register.tower import AUDIO, TowerSpec

Reader = Callable[[Values], Described]
Encoder = Callable[[Values, int], int]

TIED = ("tie_word_embeddings", "tie_embedding")
NESTED = ("text_config", "llm_config", "language_config")
"""Fields in which models of several kinds of input hold their language model; the first one present counts."""

READERS: dict[str, Reader] = {
    **{name: decoder.read for name, decoder in DECODERS.items()},
    **{name: decoder.read for name, decoder in LATENT_DECODERS.items()},
    "longcat_flash": longcat_flash,
    "lfm2": convolutions.lfm2,
    "lfm2_moe": convolutions.lfm2_moe,
    "qwen3_next": linear.qwen3_next,
    "qwen3_5_text": linear.qwen3_5,
    "qwen3_5_moe_text": linear.qwen3_5_moe,
    "kimi_linear": linear.kimi_linear,
    "minimax": linear.minimax,
    "jamba": mamba.jamba,
    "bamba": mamba.bamba,
    "granitemoehybrid": mamba.granite_hybrid,
    "nemotron_h": mamba.nemotron_h,
    "mamba": mamba.mamba,
    "falcon_mamba": mamba.mamba,
    "mamba2": mamba.mamba2,
    "gemma4_text": gemma4,
    "deepseek_v4": deepseek_v4,
    "mimo_v2_flash": own_layers.mimo_v2,
    "step3p5": own_layers.step3p7,
    "minimax_m3_vl_text": own_layers.minimax_m3,
    "hunyuan_v1_moe": own_layers.hunyuan_moe,
    "nemotron-nas": own_layers.nemotron_nas,
    "dbrx": dbrx,
    "falcon_h1": falcon_h1,
    "step3_text": step3,
    "bailing_moe_linear": bailing.ring_linear,
    "bailing_hybrid": bailing.bailing_hybrid,
}
"""By the ``model_type`` of the language model."""


@dataclass(frozen=True)
class ModelType:
    """Properties of a ``model_type``.

    Parameters
    ----------
    source : str
        The file that its defaults come from.
    like : str
        Another type whose reader and defaults it shares.
    defaults : mapping
        Its class's values of fields that the file leaves out; only those that the reader asks for.
    text : str
        For a model of several kinds of input: the type of its language model.
    vision : mapping
        Defaults of its encoder.
    encoder : str
        Rule that counts its encoder (`ENCODERS`).
    section : str
        The file's section on the encoder.
    counted : bool
        Transformers' class for causal language models has the encoder in it.
    """

    source: str
    like: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    vision: Mapping[str, Any] = field(default_factory=dict)
    encoder: str = ""
    section: str = "vision_config"
    counted: bool = True


ENCODERS: dict[str, Encoder] = {
    "qwen2_audio": vision.qwen2_audio,
    "qwen3_vl": vision.qwen3_vl,
    "siglip": vision.siglip,
    "gemma4": vision.gemma4,
    "step3p7": vision.step3p7,
}
TOWERS: dict[str, Callable[[Values, int], TowerSpec]] = {
    "qwen2_audio": vision.qwen2_audio_tower,
    "qwen3_vl": vision.qwen3_vl_tower,
    "siglip": vision.siglip_tower,
}
"""Rules that describe an encoder's layers."""


@lru_cache(maxsize=1)
def model_types() -> dict[str, ModelType]:
    """Every ``model_type`` that can be read."""
    path = Path(__file__).with_name("model_types.yaml")
    return {name: ModelType(**entry) for name, entry in shipped_table(path).items()}


def read_model(data: Any, file: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model that a parsed config.json describes.

    Parameters
    ----------
    data : mapping
        Content of the file.
    file : Path
        Named in errors; the model is called like it, or like its folder where it is a ``config.json``.

    Returns
    -------
    ModelSpec
        Parameters are those that transformers' class for causal language models builds, MTP modules left out.
    tuple of str
        What was assumed, or is not modelled.

    Raises
    ------
    InputError
        When its model type is not known, a value is wrong, or a field changes the shape in an unknown way.
    """
    if not isinstance(data, Mapping):
        raise InputError("must be a model's configuration", file=file, value=data, cure="is it a config.json?")
    kind = _model_type(data, file, "model_type")
    nested = next((name for name in NESTED if isinstance(data.get(name), Mapping)), None)
    known = model_types().get(kind, ModelType(""))
    notes: list[str] = []
    inner, prefix, text_type, where = data, "", kind, "model_type"
    if known.text:
        text_type = known.text
        inner, prefix = (data[nested], nested) if nested is not None else (data, "")
    elif nested is not None:
        inner, prefix, where = data[nested], nested, f"{nested}.model_type"
        text_type = _model_type(inner, file, where)
        notes.append(f"model type {kind} is read for its language model ({text_type}) alone: the rest is not counted")
    entry = _known(text_type, file, where)
    outer = Values(data, file, kind, known.defaults)
    values = Values(inner, file, text_type, entry.defaults, prefix)
    found = READERS[entry.like or text_type](values)
    tied = _tied(values, outer, bool(known.encoder) and known.counted)
    model = model_of(_name_of(file), values, found, tied)
    if known.encoder:
        model = _with_encoder(model, known, outer, notes)
    elif known.text and data.get("vision_config") is not None:
        notes.append(f"the vision encoder of model type {kind} is neither counted nor modelled")
    return model, tuple([*notes, *values.notes, *_left_over(values, outer), *_quantized(outer, values)])


@lru_cache(maxsize=1)
def _known_fields() -> frozenset[str]:
    """Fields that some model type has: a file may hold them for no use."""
    return frozenset(name for each in model_types().values() for name in each.defaults)


def _model_type(data: Mapping[str, Any], file: Path, name: str) -> str:
    kind = data.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise InputError(
            "must name the kind of model",
            file=file,
            field=name,
            value=kind,
            cure="is it a config.json of Hugging Face?",
        )
    return kind


def _known(kind: str, file: Path, name: str) -> ModelType:
    known = model_types()
    if kind in known:
        return known[kind]
    near = near_names(kind, known, alike=0.7)
    hint = f"those like it are {', '.join(near)}; " if near else ""
    cure = f"{hint}register the model in YAML (docs/models.md) and name it with --model"
    raise InputError("is no model type that can be counted", file=file, field=name, value=kind, cure=cure)


def _name_of(file: Path) -> str:
    stem = file.name.removesuffix(".json")
    return file.parent.name or stem if stem == "config" else stem


def _tied(values: Values, outer: Values, whole: bool) -> bool:
    """Return whether head and embedding are one.

    A model that is built `whole`, encoder and all, goes by the outer field; a language model by its own, and by the
    outer one where its own is not given.
    """
    inner = values.flag(*TIED)
    if whole or (outer.has(*TIED) and not values.has(*TIED)):
        return outer.flag(*TIED)
    return inner


def _with_encoder(model: ModelSpec, known: ModelType, outer: Values, notes: list[str]) -> ModelSpec:
    """The model with its encoder's parameters, or a note that they are left out."""
    given = outer.data.get(known.section) is not None
    if not known.counted and not given:
        return model
    section = outer.section(known.section, known.vision)
    parameters = ENCODERS[known.encoder](section, model.hidden)
    what = known.section.removesuffix("_config")
    hint = "" if given else f" (the file has no {known.section}: its class's own is taken)"
    if not known.counted:
        notes.append(f"its {what} encoder of {parameters:,} parameters is not planned: only the text model is trained")
        return model
    tower = TOWERS[known.encoder](section, model.hidden) if known.encoder in TOWERS else None
    priced = "" if tower is None else f" without {'--audio_seconds' if tower.kind == AUDIO else '--images'}"
    notes.append(
        f"its {what} encoder's {parameters:,} parameters are counted{hint}, its activations are not modelled{priced}"
    )
    return model.replace(extra_parameters=model.extra_parameters + parameters, tower=tower)


def _left_over(values: Values, outer: Values) -> list[str]:
    """Fields that nothing read and that may mean something.

    Raises
    ------
    InputError
        When one of them is a size of the language model that no model type is known to have.
    """
    for name, value in values.data.items():
        if (
            name not in outer.asked | values.asked | _known_fields()
            and has_effect(name, value)
            and is_shape(name, value)
        ):
            cure = f"take it out where the model of type {values.model_type} ignores it, or register the model"
            raise values.error(name, "is a size that no model type is known to have", value, cure)
    names = [
        each.path(name)
        for each in ([values] if values.data is outer.data else [outer, values])
        for name, value in each.data.items()
        if name not in outer.asked | values.asked and has_effect(name, value)
    ]
    if not names:
        return []
    return [f"fields not read; the model's shape is planned without them: {', '.join(sorted(names))}"]


def _quantized(outer: Values, values: Values) -> list[str]:
    for each in (outer, values):
        config = each.data.get("quantization_config")
        if isinstance(config, Mapping):
            method = str(config.get("quant_method", "of an unnamed method"))[:40]
            return [f"quantization_config ({method}) is of the checkpoint: training is planned in its own precision"]
    return []
