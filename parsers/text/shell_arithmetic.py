"""Integer arithmetic of ``$(( … ))``, evaluated without a shell."""

from __future__ import annotations

import re
from typing import Callable

_TOKEN = re.compile(r"\s*(\*\*|\d{1,18}|\$?\{?[A-Za-z_]\w*\}?|[-+*/%()])")
_MAX = 10**18


class _Unknown(Exception):
    pass


def evaluate_arithmetic(text: str, value_of: Callable[[str], int | None]) -> int | None:
    """The value of an expression of + - * / % and brackets; None when it is anything else.

    Parameters
    ----------
    text : str
        Text between the brackets.
    value_of : callable
        Value of a variable, None when unknown.
    """
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) > 200:
            return None
        tokens.append(match[1])
        at = match.end()
    try:
        value, rest = _sum(tokens, 0, value_of)
    except (_Unknown, IndexError):
        return None
    return value if rest == len(tokens) else None


def _sum(tokens: list[str], at: int, value_of: Callable[[str], int | None]) -> tuple[int, int]:
    value, at = _product(tokens, at, value_of)
    while at < len(tokens) and tokens[at] in "+-":
        other, after = _product(tokens, at + 1, value_of)
        value = _bounded(value + other if tokens[at] == "+" else value - other)
        at = after
    return value, at


def _product(tokens: list[str], at: int, value_of: Callable[[str], int | None]) -> tuple[int, int]:
    value, at = _atom(tokens, at, value_of)
    while at < len(tokens) and tokens[at] in ("*", "/", "%"):
        other, after = _atom(tokens, at + 1, value_of)
        if tokens[at] == "*":
            value = _bounded(value * other)
        elif other == 0:
            raise _Unknown
        else:
            # The shell truncates towards zero.
            quotient = abs(value) // abs(other) * (1 if (value < 0) == (other < 0) else -1)
            value = quotient if tokens[at] == "/" else value - quotient * other
        at = after
    return value, at


def _atom(tokens: list[str], at: int, value_of: Callable[[str], int | None]) -> tuple[int, int]:
    token = tokens[at]
    if token == "(":
        value, at = _sum(tokens, at + 1, value_of)
        if tokens[at] != ")":
            raise _Unknown
        return value, at + 1
    if token in "+-":
        value, after = _atom(tokens, at + 1, value_of)
        return (value if token == "+" else -value), after
    if token.isdigit():
        return int(token), at + 1
    name = token.strip("${}")
    known = value_of(name) if re.fullmatch(r"[A-Za-z_]\w*", name) else None
    if known is None:
        raise _Unknown
    return known, at + 1


def _bounded(value: int) -> int:
    if abs(value) > _MAX:
        raise _Unknown
    return value
