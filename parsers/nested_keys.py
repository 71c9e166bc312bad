"""The keys of a YAML or TOML file as a table of keys names them, and those that no figure takes into account."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from taylor.parsers.flag_table import FlagTable, UnmodelledFlag

LONGEST_VALUE = 80
"""Characters of a value that a message shows."""
_OFF = ("false", "0", "0.0", "none", "off", "disabled")


def leaves(data: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every key that holds a value, by its dotted path, with the value as text.

    A list is one value. A key without a value (nothing, an empty text, list or mapping, the word None) counts
    as absent, as it does for the readers. A list of nothing but zeros and ``False`` is written ``false``.
    """
    for key, value in data.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            yield from leaves(value, name)
        elif (text := _text(value)) is not None:
            yield name, text


def unmodelled_keys(
    table: FlagTable, data: Mapping[Any, Any], facts: Collection[str] = (), without: Collection[str] = ()
) -> tuple[UnmodelledFlag, ...]:
    """The keys of a file whose effect is in none of the figures, in the file's order.

    An unknown section is named once, not key by key.

    Parameters
    ----------
    data : mapping
        The whole file.
    facts : collection of str
        Facts of the job, as the table's ``needs`` name it: ``@experts``.
    without : collection of str
        Sections at the top that the launcher does not use for this file.
    """
    given = [(name, text) for name, text in leaves(data) if name.partition(".")[0] not in without]
    switched_on = {name for name, text in given if text.lower() not in _OFF}
    known = [pair for pair in given if table.find(pair[0]) is not None]
    found = {each.name: each for each in table.unmodelled(known, in_force={*switched_on, *facts})}
    sections = {name[:at] for name in table.rows for at, letter in enumerate(name) if letter == "."}
    named: dict[str, UnmodelledFlag] = {}
    for name, text in given:
        if name in found:
            named[name] = found[name]
        elif table.find(name) is None:
            unknown = _highest_unknown(name, sections)
            value = text if unknown == name else None
            named.setdefault(unknown, table.unknown(unknown, value, sections=sections))
    return tuple(named.values())


def _highest_unknown(name: str, sections: Collection[str]) -> str:
    """The key itself, or the highest section above it that the table does not have."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        above = ".".join(parts[:end])
        if above not in sections:
            return above
    return name


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, (str, list)) and not value):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        if _is_nothing(value):
            return "false"
        value = json.dumps(value, default=str)
    text = str(value)
    if text.strip().lower() in ("", "none"):
        return None
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def _is_nothing(value: Any) -> bool:
    return all(map(_is_nothing, value)) if isinstance(value, list) else value is False or value == 0
