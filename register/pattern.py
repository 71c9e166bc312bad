"""The order of a model's layers as text: ``3 attn+dense, 5 x (3 gdn+moe, 1 attn+moe); 1 gdn+moe``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

MAX_PATTERN_LAYERS = 20_000
"""Layers that a pattern may spell out, so that a short text cannot ask for endless memory."""

_KIND = r"[^\s;,()]+(?:\([^\s;,()]*\)[^\s;,()]*)*"
_PART = re.compile(rf"\s*(?:(\d{{1,5}})\s*x\s*\(((?:[^()]|\([^()]*\))*)\)|((?:\d{{1,5}}\s+)?{_KIND}))\s*(?:[;,]|$)")
_RUN = re.compile(rf"(?:(\d{{1,5}})\s+)?({_KIND})")


@lru_cache(maxsize=1024)
def kinds_in_order(pattern: str) -> tuple[str, ...]:
    """The kind of every layer.

    Parameters
    ----------
    pattern : str
        Runs such as ``3 gdn+moe`` (``gdn+moe`` is one of them), separated by commas or semicolons; repeats are written
        once, as in ``5 x (3 gdn+moe, 1 attn+moe)``. A kind's name may have words in brackets, as in
        ``attn(g8)+dense(x5.25)``.

    Raises
    ------
    ValueError
        When the text is no such pattern, or names no layer or too many.
    """
    result: list[str] = []
    at = 0
    while at < len(pattern):
        part = _PART.match(pattern, at)
        if part is None or part.end() == at:
            raise ValueError(f"no pattern of layers from `{pattern[at : at + 40]}` on")
        if part[3] is not None:
            result += _run(part[3])
        else:
            block = [kind for run in part[2].split(",") for kind in _run(run)]
            if int(part[1]) * len(block) > MAX_PATTERN_LAYERS:
                raise ValueError(f"the pattern names more than {MAX_PATTERN_LAYERS} layers")
            result += block * int(part[1])
        if len(result) > MAX_PATTERN_LAYERS:
            raise ValueError(f"the pattern names more than {MAX_PATTERN_LAYERS} layers")
        at = part.end()
    if not result:
        raise ValueError("the pattern names no layer")
    return tuple(result)


def pattern_of(kinds: Sequence[str]) -> str:
    """The kinds as such a text, repeats written once; `kinds_in_order` gives them back."""
    runs = [(kind, len(list(same))) for kind, same in groupby(kinds)]
    parts: list[str] = []
    plain: list[str] = []
    at = 0
    while at < len(runs):
        period, times = _repetition(runs, at)
        if times > 1:
            if plain:
                parts.append(", ".join(plain))
                plain = []
            inside = ", ".join(f"{count} {kind}" for kind, count in runs[at : at + period])
            parts.append(f"{times} x ({inside})")
            at += period * times
        else:
            plain.append(f"{runs[at][1]} {runs[at][0]}")
            at += 1
    if plain:
        parts.append(", ".join(plain))
    return "; ".join(parts)


def whole_period(kinds: Sequence[str]) -> int:
    """Layers of the shortest block that the whole order repeats; all of them where nothing repeats all through."""
    order = tuple(kinds)
    for period in range(1, len(order) // 2 + 1):
        if len(order) % period == 0 and order == order[:period] * (len(order) // period):
            return period
    return len(order)


def _run(text: str) -> list[str]:
    run = _RUN.fullmatch(text.strip())
    if run is None:
        raise ValueError(f"`{text.strip()[:40]}` is no run of layers such as `3 gdn+moe`")
    count = int(run[1] or 1)
    if count > MAX_PATTERN_LAYERS:
        raise ValueError(f"the pattern names more than {MAX_PATTERN_LAYERS} layers")
    return [run[2]] * count


def _repetition(runs: list[tuple[str, int]], start: int) -> tuple[int, int]:
    """Runs of the block that repeats from here on, and how often it does; the block that covers most."""
    best = (1, 1)
    for period in range(2, (len(runs) - start) // 2 + 1):
        block, times = runs[start : start + period], 1
        while runs[start + period * times : start + period * (times + 1)] == block:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
