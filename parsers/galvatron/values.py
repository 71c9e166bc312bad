"""Values and keys of Galvatron's files, checked on entry: names that follow a pattern, finite numbers, lists."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.json_source import read_json

MOST = 2.0**50
"""Largest time, size or bandwidth that is taken."""
MAX_RANKS = 2**20
EXPECTED = "a profile of Galvatron"

WHOLE = r"(\d{1,9})"
LAYERS = r"layernum\[?(\d{1,6}(?:[,_]\d{1,6}){0,7})\]?"
"""Layer numbers by kind: ``layernum[2]`` and ``layernum2``, ``layernum[2,4]`` and ``layernum2_4``."""
SEQUENCE = r"seq\[?(\d{1,9}(?:[,_]\d{1,9}){0,7})\]?"
SHAPE = rf"bsz{WHOLE}_{SEQUENCE}"


def read_table(file: Path) -> dict[str, Any]:
    """The names and values of a JSON file.

    Raises
    ------
    InputError
        When the file cannot be read, is no JSON, or holds no object.
    """
    data = read_json(file, EXPECTED)
    return table(data, file)


def table(data: Any, file: Path, field: str | None = None) -> dict[str, Any]:
    """A mapping of names to values.

    Raises
    ------
    InputError
        When it is none.
    """
    if not isinstance(data, dict):
        raise InputError("must be a JSON object of names and values", file=file, field=field, value=data)
    return data


def number(value: Any, file: Path, field: str, unit: str, *, zero: bool = False) -> float:
    """A finite number above 0, or from 0 on.

    Parameters
    ----------
    unit : str
        For the message: ``ms``.

    Raises
    ------
    InputError
        When it is none.
    """
    right = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not right or value > MOST or value < 0 or (value == 0 and not zero):
        what = "0 or more" if zero else "above 0"
        raise InputError(
            f"must be a finite number {what} ({unit})", file=file, field=field, value=value, cure="measure it again"
        )
    return float(value)


def whole(digits: str, file: Path, field: str, what: str, high: int = MAX_RANKS) -> int:
    """A number inside a key, at least 1.

    Raises
    ------
    InputError
        When it is 0 or too large.
    """
    found = int(digits)
    if not 1 <= found <= high:
        raise InputError(f"names {found} {what}", file=file, field=field, cure=f"write 1 to {high}")
    return found


def wholes(text: str, file: Path, field: str, what: str, high: int) -> tuple[int, ...]:
    """Numbers inside a key, apart by a comma or an underscore."""
    return tuple(whole(digits, file, field, what, high) for digits in re.split("[,_]", text))


def layer_numbers(text: str, file: Path, field: str) -> tuple[int, ...]:
    """Layers by kind."""
    return wholes(text, file, field, "layers", MAX_LAYERS)


def matches(
    data: Mapping[str, Any], pattern: re.Pattern[str], file: Path, form: str
) -> Iterator[tuple[str, re.Match[str], Any]]:
    """Every entry, its name matched by a pattern.

    Parameters
    ----------
    form : str
        Form of the names, for the message.

    Raises
    ------
    InputError
        When a name does not match.
    """
    for key, value in data.items():
        found = pattern.fullmatch(key)
        if found is None:
            raise InputError("is no key of such a profile", file=file, field=key, cure=f"its keys are {form}")
        yield key, found, value


def refuse_contradiction(old: float | None, new: float, file: Path, field: str, needed: str) -> None:
    """Refuse a second, different figure for what was read before, under another spelling or in another file.

    Raises
    ------
    InputError
        When the two differ.
    """
    if old is not None and not math.isclose(old, new, rel_tol=1e-9):
        raise InputError(
            f"contradicts {old!r}, which was read for the same measurement ({needed})",
            file=file,
            field=field,
            value=new,
            cure="keep the one that was measured last",
        )
