"""The config.json that OLMo-core saves with a checkpoint, as plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from taylor.base.errors import InputError
from taylor.base.files import read_text

_MOST_BYTES = 2**22
_DEEPEST = 60
CLASS = "_CLASS_"


def read_saved(path: Path) -> tuple[dict[str, Any], str]:
    """The configuration, and a name for its model.

    Raises
    ------
    InputError
        When it is missing, too large or too deep, or no JSON.
    """

    def whole(number: str) -> int:
        return int(number) if len(number) <= 20 else refuse(number)

    def refuse(number: str) -> NoReturn:
        raise InputError("contains a number with more digits than any size has", file=path, value=number[:40])

    try:
        data = json.loads(read_text(path, limit_bytes=_MOST_BYTES), parse_int=whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        cure = "correct the syntax there"
        raise InputError(f"is not valid JSON ({place}): {error.msg}", file=path, cure=cure) from None
    except RecursionError:
        raise InputError(f"is nested more than {_DEEPEST} deep", file=path) from None
    if not isinstance(data, dict):
        raise InputError("is no configuration: it has no names and values", file=path)
    kept = {key: _named(data[key], path) for key in ("model", "train_module", "data_loader") if key in data}
    return kept, str(data.get("run_name") or path.parent.name or "olmo")[:80]


def _named(value: Any, path: Path, depth: int = 0, above: str = "") -> Any:
    """The values without the names of classes, but for the optimizer's (src/olmo_core/config.py:73, 129)."""
    if depth > _DEEPEST:
        raise InputError(f"is nested more than {_DEEPEST} deep", file=path)
    if isinstance(value, dict):
        left_out = () if above == "optim" else (CLASS,)
        return {key: _named(item, path, depth + 1, key) for key, item in value.items() if key not in left_out}
    return [_named(item, path, depth + 1) for item in value] if isinstance(value, list) else value
