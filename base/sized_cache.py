"""A cache of a function's results that is bounded by their memory as well as by their number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

SMALL = 256
"""Bytes that an entry takes at the least."""


def sized_cache(most_entries: int, most_bytes: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the results last used of a function of hashable arguments; the newest one is kept whatever its size.

    Parameters
    ----------
    most_entries : int
    most_bytes : int
        Memory of arrays and bytes in results and arguments, together.
    """

    def cached(function: Callable[P, R]) -> Callable[P, R]:
        kept: OrderedDict[Any, tuple[R, int]] = OrderedDict()
        lock = Lock()

        def size_bytes() -> int:
            return sum(size for _, size in kept.values())

        @wraps(function)
        def answer(*args: P.args, **kwargs: P.kwargs) -> R:
            key = (args, tuple(kwargs.items()))
            with lock:
                if key in kept:
                    kept.move_to_end(key)
                    return kept[key][0]
            result = function(*args, **kwargs)
            with lock:
                kept[key] = (result, bytes_of(args) + bytes_of(result))
                while len(kept) > 1 and (len(kept) > most_entries or size_bytes() > most_bytes):
                    kept.popitem(last=False)
            return result

        return answer

    return cached


def bytes_of(value: Any) -> int:
    """Memory of the arrays and bytes in a value, and in the tuples in it."""
    if isinstance(value, tuple):
        return sum(map(bytes_of, value))
    return max(SMALL, len(value) if isinstance(value, (bytes, str)) else int(getattr(value, "nbytes", SMALL)))
