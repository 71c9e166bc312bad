"""All schemas by name: their models, the shipped files, and the check of a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.near import did_you_mean

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


def made_schemas() -> dict[str, dict[str, Any]]:
    """Schemas as the models have them now, by name: what the shipped files must be."""
    from pydantic import BaseModel, TypeAdapter

    from taylor.schemas import answers, request, result

    models = [
        each
        for module in (answers, result)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, BaseModel) and "schema_" in each.model_fields
    ]
    made = {
        each.model_fields["schema_"].annotation.__args__[0]: each.model_json_schema(by_alias=True)  # type: ignore[union-attr]
        for each in models
    }
    made["taylor.memory/1"] = answers.MemoryFile.model_json_schema(by_alias=True)
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
