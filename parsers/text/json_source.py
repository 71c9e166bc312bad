"""JSON opened safely: bounded, with every name once, no deeper than a configuration is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text

MAX_BYTES = 4 * 2**20
"""A configuration with a thousand layers listed block by block is a tenth of it."""
MAX_DIGITS = 30


def read_json(file: Path, expected: str) -> Any:
    """Content of a JSON file, unchecked.

    Parameters
    ----------
    expected : str
        Expected kind of file, with its article, for messages: ``a config.json``.

    Raises
    ------
    InputError
        When the file is missing, too large, no JSON, or names a field twice.
    """
    text = read_text(file, limit_bytes=MAX_BYTES).removeprefix("\ufeff")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise InputError("stands twice", file=file, field=name, cure="keep one")
            found[name] = value
        return found

    def whole(digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            raise InputError(f"contains a number of {len(digits)} digits", file=file, value=digits, cure="shorten it")
        return int(digits)

    try:
        return json.loads(text, object_pairs_hook=once, parse_int=whole)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(
            f"is no valid JSON ({where}: {error.msg})", file=file, cure="correct the syntax there"
        ) from None
    except RecursionError:
        raise InputError("is nested too deep", file=file, cure=f"is it {expected}?") from None
