"""The entries of a MindFormers file that describe the model, and what holds where they are silent."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.shipped import shipped_table
from taylor.parsers.text.fields import Fields


def model_section(top: Fields, notes: list[str]) -> tuple[Fields, Fields, bool]:
    """The model's entries and its experts', and whether the file is of the mcore generation.

    An entry comes from ``model.model_config`` (or ``moe_config``), else from the Hugging Face config.json of
    ``pretrained_model_dir``, else from the defaults of the model's config class, as in MindFormers.

    Raises
    ------
    InputError
        When the model's size stands in a config.json that is not there, or that file is wrong.
    """
    section = _over_hugging_face(top, notes)
    mcore = _is_mcore(top, section)
    defaults = _class_defaults(section, mcore)
    model = section.over(defaults.get("values", {}))
    if mcore or not top.has("moe_config"):
        return model, model, mcore
    return model, top.section("moe_config").over(defaults.get("moe", {})), mcore


def note_defaults(sections: tuple[Fields, ...], notes: list[str]) -> None:
    """Say which values a model got from its class, once everything has been asked for."""
    filled = {name: value for section in sections for name, value in section.filled.items()}
    if filled:
        listed = ", ".join(f"{name} {value}" for name, value in filled.items())
        notes.append(f"the file leaves these to the model's class in MindFormers: {listed}")


def _over_hugging_face(top: Fields, notes: list[str]) -> Fields:
    section = top.section("model").section("model_config")
    folder = top.raw("pretrained_model_dir")
    if not isinstance(folder, str) or not folder:
        return section  # The missing sizes are then named one by one.
    tried = [Path(folder) / "config.json"]
    if not tried[0].is_absolute():
        tried.insert(0, top.file.parent / tried[0])
    found = next((path for path in tried if os.path.isfile(path)), None)
    if found is None:
        if section.has("num_layers", "num_hidden_layers", "n_layer") and section.has("hidden_size"):
            notes.append(f"pretrained_model_dir {folder} has no config.json here: nothing is taken from it")
            return section
        raise top.error(
            "pretrained_model_dir",
            "the model's size is not in this file and that folder has no config.json",
            folder,
            "name the folder of the Hugging Face model, or write num_hidden_layers, hidden_size, … under "
            "model.model_config",
        )
    try:
        base = json.loads(read_text(found, limit_bytes=2**20))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {error}", file=found) from None
    if not isinstance(base, dict):
        raise InputError("must be a JSON object", file=found)
    notes.append(f"what this file does not say of the model is read from {found}")
    return section.over(base)


def _is_mcore(top: Fields, section: Fields) -> bool:
    if top.has("use_legacy"):
        return not bool(top.boolean("use_legacy"))
    return section.has("num_hidden_layers", "model_type", "architectures") and not section.has("num_layers")


def _class_defaults(section: Fields, mcore: bool) -> dict[str, Any]:
    table = _table()["mcore" if mcore else "legacy"]
    found = table.get(str(section.raw("model_type" if mcore else "type")), {})
    return dict(found)


@cache
def _table() -> dict[str, Any]:
    return dict(shipped_table(Path(__file__).with_name("classes.yaml")))
