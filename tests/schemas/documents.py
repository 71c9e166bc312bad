"""Check of a JSON document against the shipped schema that it names."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from taylor.schemas.registry import shipped


@cache
def validator(name: str) -> Draft202012Validator:
    """Validator of a shipped schema."""
    schema = shipped(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check(document: dict[str, Any] | str) -> dict[str, Any]:
    """Return a document, once it is valid JSON and valid under its schema."""
    found: dict[str, Any] = json.loads(document, parse_constant=_refuse) if isinstance(document, str) else document
    assert next(iter(found)) == "schema", "the schema is the first key"
    found_errors = validator(found["schema"]).iter_errors(found)
    errors = [f"{'.'.join(map(str, one.absolute_path))}: {one.message[:300]}" for one in found_errors]
    assert not errors, (found["schema"], errors[:5])
    return found


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")
