"""Values set in the text of a JSON file; the rest stays byte for byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

_BLANK = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def edit_json(text: str, wanted: Mapping[tuple[str, ...], object]) -> str:
    """Set values of objects in objects.

    A value that is already the one wanted stays as it is written. A new name becomes the first of its object.

    Parameters
    ----------
    text : str
        Valid JSON whose top is an object.
    wanted : mapping of names to value
        By the names from the top, the new value as plain data.

    Raises
    ------
    KeyError
        When an object that a value shall be set in is not there.
    """
    for names, value in wanted.items():
        text = _with_value(text, names, value)
    return text


def _with_value(text: str, names: tuple[str, ...], value: object) -> str:
    start = _behind_blanks(text, 0)
    for name in names[:-1]:
        start = dict(_members(text, start))[name]
        if text[start] != "{":
            raise KeyError(name)
    place = dict(_members(text, start)).get(names[-1])
    if place is not None:
        now, end = _DECODER.raw_decode(text, place)
        same = now == value and type(now) is type(value)
        return text if same else text[:place] + json.dumps(value) + text[end:]
    first = _behind_blanks(text, start + 1)
    entry = f"{json.dumps(names[-1])}: {json.dumps(value)}"
    rest = "" if text[first] == "}" else "," + (text[start + 1 : first] or " ")
    return text[:first] + entry + rest + text[first:]


def _members(text: str, start: int) -> Iterator[tuple[str, int]]:
    """Names of the object that begins at `start`, each with the place of its value."""
    place = _behind_blanks(text, start + 1)
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place)
        place = _behind_blanks(text, _behind_blanks(text, place) + 1)
        yield name, place
        place = _behind_blanks(text, _DECODER.raw_decode(text, place)[1])
        if text[place] == ",":
            place = _behind_blanks(text, place + 1)


def _behind_blanks(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    assert found is not None  # it matches everywhere
    return found.end()
