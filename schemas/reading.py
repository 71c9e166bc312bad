"""Requests and documents read from outside, checked against their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from taylor.base.errors import InputError, shortened
from taylor.base.near import did_you_mean
from taylor.schemas.request import BY_COMMAND, FORMS, REQUEST, Asked

CURE = "taylor schema request describes it"


def read_request(data: Mapping[str, Any], file: str | Path | None = None) -> Asked:
    """Request in outside data.

    Raises
    ------
    InputError
        With the field at fault, and the value found.
    """
    if data.get("schema", REQUEST) != REQUEST:
        problem = "is no schema of requests that this version reads"
        raise InputError(problem, file=file, field="schema", value=data["schema"], cure=f"use {REQUEST}")
    command = data.get("command")
    if not isinstance(command, str) or command not in BY_COMMAND:
        cure = did_you_mean(shortened(str(command)), BY_COMMAND)
        raise InputError("is no command of a request", file=file, field="command", value=command, cure=cure)
    try:
        return BY_COMMAND[command].model_validate(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        known = first["type"] != "extra_forbidden"
        field = ".".join(str(part) for part in first["loc"] if part != "[key]") or None
        fields = [one for one in BY_COMMAND[command].model_fields if one not in ("schema_", "command")]
        found = {} if field is None else {"value": first.get("input")}
        cure = CURE if known else f"{did_you_mean(field or '', fields)} {CURE}"
        problem = first["msg"].removeprefix("Value error, ") if known else f"is no field of the command {command}"
        if first["type"] == "string_pattern_mismatch":
            problem = f"is not {FORMS[first['ctx']['pattern']]}"
        raise InputError(problem, file=file, field=field, cure=cure, **found) from None
