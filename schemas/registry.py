"""All schemas by name: their models, the shipped files, and the check of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.near import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

FILES = Path(__file__).parent / "files"
"""Folder of the shipped schemas: ``result.1.json`` is that of ``taylor.result/1``."""

PREFIX = "taylor."
"""Beginning of the name of every schema."""


def names() -> list[str]:
    """Names of all schemas, as ``taylor.result/1``."""
    return sorted(f"{PREFIX}{file.stem.replace('.', '/')}" for file in FILES.glob("*.json"))


def schema_text(name: str) -> str:
    """Text of a schema; `name` is ``taylor.result/1``, ``result/1`` or ``result``.

    Raises
    ------
    InputError
        When there is none of this name.
    """
    known = names()
    full = name if name.startswith(PREFIX) else PREFIX + name
    found = [each for each in known if each == full or each.partition("/")[0] == full]
    if not found:
        short = [each.removeprefix(PREFIX).partition("/")[0] for each in known]
        raise InputError("is no schema", field="NAME", value=name, cure=did_you_mean(name, short))
    return read_text(file_of(max(found, key=_version)))


def _version(name: str) -> int:
    return int(name.partition("/")[2])


MEMORY = "taylor.memory/1"
"""Schema of a memory profile, whose file has no key for it."""


def models(module: str) -> dict[str, type[BaseModel]]:
    """Models of the documents of a module, ``result`` or ``answers``, by schema."""
    named = vars(import_module(f"taylor.schemas.{module}")).values()
    found = {
        each.model_fields["schema_"].annotation.__args__[0]: each
        for each in named
        if "schema_" in getattr(each, "model_fields", ())
    }
    return found | ({MEMORY: import_module("taylor.schemas.answers").MemoryFile} if module == "answers" else {})


@cache
def model_of(name: str) -> type[BaseModel]:
    """Model of a document."""
    return models("result").get(name) or models("answers")[name]


def made_schemas() -> dict[str, dict[str, Any]]:
    """Schemas as the models have them now, by name: what the shipped files must be."""
    from pydantic import TypeAdapter

    from taylor.schemas import request

    every = models("answers") | models("result")
    made = {name: each.model_json_schema(by_alias=True) for name, each in every.items()}
    made[request.REQUEST] = TypeAdapter(request.Request).json_schema(by_alias=True)
    named = {name: {"$schema": DRAFT, "$id": name, **schema} for name, schema in made.items()}
    return dict(sorted(named.items()))


DRAFT = "https://json-schema.org/draft/2020-12/schema"


def file_of(name: str) -> Path:
    """Shipped file of a schema."""
    return FILES / f"{name.removeprefix(PREFIX).replace('/', '.')}.json"


@cache
def shipped(name: str) -> Mapping[str, Any]:
    """A shipped schema as data.

    Raises
    ------
    InputError
        When there is none of this name.
    """
    return dict(json.loads(schema_text(name)))
