"""Suggestions for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMED = 24
"""Names that are listed where none is near; a longer list is unreadable."""


def near_names(name: str, known: Iterable[str], *, at_most: int = 3, alike: float = 0.6) -> list[str]:
    """The known names that are nearly the given one, the nearest first; capitals, ``_`` and ``-`` count alike.

    Parameters
    ----------
    alike : float
        Least fraction of letters that two names have in common, in (0, 1].
    """
    by_letters: dict[str, list[str]] = {}
    for each in known:
        by_letters.setdefault(_plain(each), []).append(each)
    near = difflib.get_close_matches(_plain(name), by_letters, n=at_most, cutoff=alike)
    return [each for letters in near for each in by_letters[letters]][:at_most]


def did_you_mean(name: str, known: Iterable[str], *, alike: float = 0.6) -> str:
    """The cure of an unknown name: those near it, else all (up to a readable number)."""
    names = list(known)
    near = near_names(name, names, alike=alike)
    if near:
        return f"did you mean {' or '.join((', '.join(near[:-1]), near[-1])) if near[1:] else near[0]}?"
    further = len(names) - MOST_NAMED
    return f"known are {', '.join(names[:MOST_NAMED])}" + (f" and {further} more" if further > 0 else "")


def _plain(name: str) -> str:
    return "-".join(str(name).lower().replace("_", "-").split())
