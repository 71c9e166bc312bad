"""Integer arithmetic of ``$(( … ))``, evaluated without a shell."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Callable

_TOKEN = re.compile(r"\s*(\*\*|&&|\|\||[<>=!]=|\d{1,18}|\$?\{?[A-Za-z_]\w*\}?|[-+*/%()<>?:])")
_MAX = 10**18
_COMPARISONS: tuple[Mapping[str, Callable[[int, int], bool]], ...] = (
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
)


class _Unknown(Exception):
    pass


def evaluate_arithmetic(text: str, value_of: Callable[[str], int | None]) -> int | None:
    """The value of an expression of + - * / %, comparisons, && || ?: and brackets; None when it is anything else.

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
        value, rest = _choice(tokens, 0, value_of)
    except (_Unknown, IndexError):
        return None
    return value if rest == len(tokens) else None


def _choice(tokens: list[str], at: int, value_of: Callable[[str], int | None]) -> tuple[int, int]:
    """``condition ? one : other``; both sides are evaluated, so that both must be known."""
    value, at = _logical(tokens, at, value_of)
    if at >= len(tokens) or tokens[at] != "?":
        return value, at
    one, at = _choice(tokens, at + 1, value_of)
    if tokens[at] != ":":
        raise _Unknown
    other, at = _choice(tokens, at + 1, value_of)
    return (one if value else other), at


def _logical(tokens: list[str], at: int, value_of: Callable[[str], int | None]) -> tuple[int, int]:
    """``||`` over ``&&`` over comparisons."""
    value, at = _both(tokens, at, value_of)
    while at < len(tokens) and tokens[at] == "||":
        other, at = _both(tokens, at + 1, value_of)
        value = int(bool(value) or bool(other))
    return value, at


def _both(tokens: list[str], at: int, value_of: Callable[[str], int | None]) -> tuple[int, int]:
    value, at = _compared(tokens, at, value_of)
    while at < len(tokens) and tokens[at] == "&&":
        other, at = _compared(tokens, at + 1, value_of)
        value = int(bool(value) and bool(other))
    return value, at


def _compared(tokens: list[str], at: int, value_of: Callable[[str], int | None], loosest: int = 0) -> tuple[int, int]:
    """``==`` and ``!=`` over ``<``, ``>``, ``<=`` and ``>=``, which bind tighter."""
    if loosest == len(_COMPARISONS):
        return _sum(tokens, at, value_of)
    value, at = _compared(tokens, at, value_of, loosest + 1)
    while at < len(tokens) and tokens[at] in _COMPARISONS[loosest]:
        compare = _COMPARISONS[loosest][tokens[at]]
        other, at = _compared(tokens, at + 1, value_of, loosest + 1)
        value = int(compare(value, other))
    return value, at


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
        value, at = _choice(tokens, at + 1, value_of)
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
