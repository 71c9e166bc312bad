"""The options of a YAML whose values name each other, as OmegaConf writes it: ``${section.key}``, ``${..key}``.

Source: omegaconf 2.3 docs/source/usage.rst, «Variable interpolation».
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taylor.parsers.nested_keys import leaves
from taylor.parsers.policy.options import option
from taylor.parsers.text.flags import Flag
from taylor.parsers.text.shell_words import Char, Word

MISSING = "???"
_MOST_STEPS, _LONGEST = 40, 2000
"""Interpolations in one value, characters of a value."""
_INNER = re.compile(r"\$\{([^${}]*)\}")

Resolver = Callable[[str, Sequence[str]], "str | None"]
"""The value of a function of the tool's own with its arguments; None where it is none."""


def _none(function: str, parts: Sequence[str]) -> str | None:
    return None


def interpolated(data: Mapping[str, Any], computed: Resolver = _none) -> list[Flag]:
    """Every option with its interpolations resolved; what they leave open is marked as unknown."""
    texts = dict(leaves(data))
    flags = []
    for name, text in texts.items():
        known = _resolved(name, text, texts, computed) if "${" in text else text
        unknown = known is None or known == MISSING
        shown = text if known is None else known
        flags.append(option(name, Word(tuple(Char(char, None, unknown=unknown) for char in shown))))
    return flags


def _resolved(name: str, text: str, texts: Mapping[str, str], computed: Resolver) -> str | None:
    """A text with its interpolations; None where one is none that is known here."""
    for _ in range(_MOST_STEPS):
        match = _INNER.search(text)
        if match is None:
            return text
        value = _value(name, match[1].strip(), texts, computed)
        if value is None or len(text) + len(value) > _LONGEST:
            return None
        text = text[: match.start()] + value + text[match.end() :]
    return None


def _value(name: str, inside: str, texts: Mapping[str, str], computed: Resolver) -> str | None:
    function, colon, rest = inside.partition(":")
    if colon:
        return computed(function, [part.strip() for part in rest.split(",")])
    if inside.startswith("."):
        dots = len(inside) - len(inside.lstrip("."))
        above = name.split(".")[:-dots]
        inside = ".".join([*above, inside[dots:]])
    return None if inside == name else texts.get(inside)
