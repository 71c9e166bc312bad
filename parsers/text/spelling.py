"""Names that are one letter from a known one: most likely misspelled."""

from __future__ import annotations

from collections.abc import Iterable

_SHORTEST = 4
"""Letters that a name has at least; shorter ones are often a letter apart and both meant."""


def one_letter_apart(a: str, b: str) -> bool:
    """Return whether one letter is added, left out or replaced, or two neighbours are swapped.

    Digits do not count: ``beta1`` and ``beta2`` are two names.
    """
    if a == b or abs(len(a) - len(b)) > 1:
        return False
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    rest_a, rest_b = a[start:], b[start:]
    if len(a) != len(b):
        longer, shorter = (rest_a, rest_b) if len(a) > len(b) else (rest_b, rest_a)
        return longer[1:] == shorter and not longer[0].isdigit()
    if rest_a[1:] == rest_b[1:]:
        return not (rest_a[0].isdigit() and rest_b[0].isdigit())
    return rest_a[:2] == rest_b[1::-1] and rest_a[2:] == rest_b[2:]


def likely_meant(name: str, known: Iterable[str]) -> str | None:
    """The first known name that is one letter from an unknown one; None where there is none."""
    if len(name) < _SHORTEST:
        return None
    return next((other for other in known if len(other) >= _SHORTEST and one_letter_apart(name, other)), None)
