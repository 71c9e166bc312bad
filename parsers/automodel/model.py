"""The model of a recipe: by its Hugging Face name, or by a configuration class with its fields.

Sources are lines of NVIDIA-NeMo/Automodel 36044ad3; nemo_automodel is left out of their paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.flag_table import MORE, UnmodelledFlag
from taylor.parsers.huggingface.model import model_types, read_model
from taylor.parsers.named_model import named_model
from taylor.parsers.text.fields import Fields
from taylor.register.model import ModelSpec
from taylor.register.overrides import overridden

PATH = "pretrained_model_name_or_path"
_BUILDERS = re.compile(r"(?:NeMo)?Auto(?:Model)\w*\.(?:from_pretrained|from_config)$")
_CONFIG_CLASS = re.compile(r"\b(?:transformers\.)?models\.(\w+)\.\w+\.\w+Config$")
DEPTH = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Names of the number of MTP modules (components/models/qwen3_5_moe/model.py:255-262)."""
_TRAINS_MTP = re.compile(r"nemotron-3|qwen3\.5|step-3|deepseek-v4|hy3|minimax-m3|ling-")
"""Models whose class has MTP modules: components/models/{nemotron_v3,qwen3_5,qwen3_5_moe,step3p7,deepseek_v4,hy_v3,
minimax_m3_vl,ling_v2}; the others load a checkpoint without."""
_SIZES = {
    "num_hidden_layers": "n_layers",
    "hidden_size": "hidden",
    "vocab_size": "vocab",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "ffn_hidden",
    "head_dim": "head_dim",
}
"""Sizes that a file may state beside a name, and our names of them."""


def read_trained(
    top: Fields, register_path: Path | None, notes: list[str], unmodelled: list[UnmodelledFlag]
) -> ModelSpec:
    """The model that a recipe trains.

    Raises
    ------
    InputError
        When it is built by a function of its own, or not known.
    """
    section = top.section("model")
    target = str(section.raw("_target_") or "")
    if target and _BUILDERS.search(target) is None:
        cure = "name a model of Hugging Face, as NeMoAutoModelForCausalLM.from_pretrained takes it"
        raise section.error("_target_", "builds a model of its own, whose parts are not read", target[:100], cure)
    config = section.raw("config")
    parts: list[Fields] = [section]
    if isinstance(config, Mapping):
        parts.append(section.section("config"))
    if section.has("text_config"):
        parts.append(section.section("text_config"))
    model = _named(section, config, register_path, notes)
    if model is None:
        model = _described(section.section("config"), top.file, notes)
    else:
        for part in parts:
            model = _resized(model, part)
    return _with_depth(model, parts, unmodelled)


def _named(section: Fields, config: Any, register_path: Path | None, notes: list[str]) -> ModelSpec | None:
    """The model by its name; None where a configuration class states all of it."""
    name, field = section.raw(PATH), section.path(PATH)
    if name is None and isinstance(config, str):
        name, field = config, section.path("config")
    if name is None and isinstance(config, Mapping):
        inner = section.section("config")
        name, field = inner.raw(PATH, "name_or_path"), inner.path(PATH)
        if name is None:
            return None
    if name is None:
        raise section.error(PATH, "is missing", cure="name the model")
    model, remarks = named_model(str(name), section.file, field, register_path)
    notes += remarks
    return model


def _described(config: Fields, file: Path, notes: list[str]) -> ModelSpec:
    """The model of a configuration class, whose module is named like its ``model_type``."""
    target = str(config.raw("_target_") or "")
    named = _CONFIG_CLASS.search(target)
    kind = named[1] if named is not None else ""
    if kind not in model_types():
        cure = f"state {PATH}, or a class of transformers.models whose kind is known"
        raise config.error("_target_", "is no configuration class that can be counted", shortened(target, 100), cure)
    fields = {name: value for name, value in config.data.items() if name != "_target_"}
    model, remarks = read_model({**fields, "model_type": kind}, file)
    notes += remarks
    return model


def _resized(model: ModelSpec, part: Fields) -> ModelSpec:
    """The model with the sizes that a section states beside its name.

    Raises
    ------
    InputError
        When a size cannot be changed.
    """
    for name, own in _SIZES.items():
        value = part.raw(name)
        if value is None or value == getattr(model, own):
            continue
        try:
            model = overridden(model, {name: value})
        except InputError as error:
            raise part.error(name, error.problem, value, "leave it out, or register the model") from None
    return model


def _with_depth(model: ModelSpec, parts: list[Fields], unmodelled: list[UnmodelledFlag]) -> ModelSpec:
    """The model with its MTP modules: those that the file states, else those of a class that trains them."""
    for part in parts:
        for name in DEPTH:
            if part.has(name):
                depth = part.integer(name, low=0, high=16)
                if depth and not model.mtp_layers:
                    why = f"{model.name} is registered without the MTP modules that it asks for"
                    flag = UnmodelledFlag(part.path(name), str(depth), MORE, MORE, None, why)
                    unmodelled.append(flag)
                    return model
                return model.replace(mtp_layers=depth)
    return model if _TRAINS_MTP.search(model.name) else model.replace(mtp_layers=0)
