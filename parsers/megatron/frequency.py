"""Layers of a kind, as Megatron's frequency flags state them: a number, or a list such as ``([1]*3+[0])*12``.

Megatron takes as a list what holds ``[``, made of numbers, lists, ``+``, ``*`` and brackets, and lets Python work it
out (Megatron-LM core 0.9 to main, megatron/training/arguments.py, ``moe_freq_type``; main :245-253
``_eval_pattern``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.flags import Flags

_TOKEN = re.compile(r"\d{1,6}|[\[\](),+*]")
_MAX_DEPTH = 20


def read_list(flags: Flags, name: str, layers: int) -> list[bool] | None:
    """A frequency flag that is a list, one entry a layer; None where it is a number or absent.

    Parameters
    ----------
    layers : int
        Required number of entries.

    Raises
    ------
    InputError
        When the value is no such list, or has another number of entries.
    """
    text = flags.text(name, default="")
    if "[" not in text:
        return None
    cure = "write one as ([0]*3+[1]*58)"
    try:
        found = _FrequencyReader(text).value()
    except _NoList:
        raise flags.error(name, "must be a list of 0 and 1", text, cure) from None
    if len(found) != layers:
        raise flags.error(name, f"names {len(found)} layers; the model has {layers}", text)
    return [bool(entry) for entry in found]


def read_number(flags: Flags, name: str) -> int | None:
    """A frequency flag that is a number, not 0; None where it is absent."""
    found: int | None = flags.integer(name, default=None, low=-MAX_LAYERS, high=MAX_LAYERS)
    if found == 0:
        raise flags.error(name, "must not be 0", 0, "use 1 for every layer")
    return found


def list_text(entries: Sequence[bool]) -> str:
    """Entries as such a list; a block that repeats all through is written once."""
    bits = [int(entry) for entry in entries]
    for period in range(1, len(bits) // 2 + 1):
        if len(bits) % period == 0 and bits == bits[:period] * (len(bits) // period):
            return f"({_runs(bits[:period])})*{len(bits) // period}" if period > 1 else f"({_runs(bits)})"
    return f"({_runs(bits)})"


def _runs(bits: Sequence[int]) -> str:
    return "+".join(f"[{bit}]*{len(list(same))}" for bit, same in groupby(bits))


class _NoList(Exception):
    """The text is no list of 0 and 1."""


class _FrequencyReader:
    """Evaluates a sum of products of lists and numbers, as Python would."""

    def __init__(self, text: str) -> None:
        plain = re.sub(r"[\s\"']", "", text)
        self.tokens = _TOKEN.findall(plain)
        self.at = 0
        if "".join(self.tokens) != plain:
            raise _NoList

    def value(self) -> list[int]:
        found = self._sum(0)
        if self.at != len(self.tokens) or not isinstance(found, list) or not set(found) <= {0, 1}:
            raise _NoList
        return found

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, token: str) -> bool:
        if self._next() != token:
            return False
        self.at += 1
        return True

    def _sum(self, depth: int) -> list[int] | int:
        total = self._product(depth)
        while self._take("+"):
            other = self._product(depth)
            if isinstance(total, list) and isinstance(other, list):
                total = [*total, *other]
            elif isinstance(total, int) and isinstance(other, int):
                total = total + other
            else:
                raise _NoList
            _bounded(total)
        return total

    def _product(self, depth: int) -> list[int] | int:
        total = self._atom(depth)
        while self._take("*"):
            other = self._atom(depth)
            if isinstance(total, int) and isinstance(other, int):
                total = total * other
            elif isinstance(total, list) and isinstance(other, int):
                total = _repeated(total, other)
            elif isinstance(total, int) and isinstance(other, list):
                total = _repeated(other, total)
            else:
                raise _NoList
            _bounded(total)
        return total

    def _atom(self, depth: int) -> list[int] | int:
        if depth > _MAX_DEPTH:
            raise _NoList
        if self._take("("):
            inside = self._sum(depth + 1)
            if not self._take(")"):
                raise _NoList
            return inside
        if self._take("["):
            entries: list[int] = []
            while not self._take("]"):
                entry = self._sum(depth + 1)
                if not isinstance(entry, int) or not (self._take(",") or self._next() == "]"):
                    raise _NoList
                entries.append(entry)
            return entries
        token = self._next()
        if not token.isdigit():
            raise _NoList
        self.at += 1
        return int(token)


def _repeated(entries: list[int], times: int) -> list[int]:
    if len(entries) * times > MAX_LAYERS:
        raise _NoList
    return entries * times


def _bounded(value: list[int] | int) -> None:
    if (len(value) if isinstance(value, list) else value) > MAX_LAYERS:
        raise _NoList


def nth_layers(flags: Flags, name: str, layers: int, *, nth: bool) -> list[bool] | None:
    """One entry a layer: those of a list, else whether a layer's number, from 1, is a multiple of N.

    Parameters
    ----------
    nth : bool
        Value for every Nth layer; the others are the opposite.

    Raises
    ------
    InputError
        When the flag is neither a number nor such a list.
    """
    listed = read_list(flags, name, layers)
    if listed is not None:
        return listed
    every = read_number(flags, name)
    return None if every is None else [(at % every == 0) is nth for at in range(1, layers + 1)]
