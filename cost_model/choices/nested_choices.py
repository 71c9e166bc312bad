"""Choices by module of which each holds all of the next one's modules, as counts from a chunk's first layer ask.

Where a file says of every module how many of a chunk's first layers it runs again in, the sets of modules along a
chunk only shrink. With choices of one chain of sets any counts of them can be written, in every chunk separately. Costs
of modules nearly add up, so the best sets for a given memory nearly form such a chain by themselves: by rising time
over memory freed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise, permutations

Point = tuple[float, float]
"""Time and MiB kept."""


def lowest_chain(
    words: Sequence[str],
    point: Callable[[tuple[str, ...]], Point],
    ends: tuple[Point, Point],
    allowed: Callable[[tuple[str, ...]], bool],
    through: Sequence[tuple[str, ...]] = (),
) -> list[tuple[str, ...]]:
    """The chain of sets with the lowest front, by rising size.

    A chunk's layers mix choices, but it has few of them: the front of all mixes and that of single choices count alike.

    Parameters
    ----------
    words : sequence of str
        Elements of the sets; few, for every order of them is tried.
    point : callable
        Time and memory of a set, its words in the order of `words`.
    ends : (Point, Point)
        With no module, and with the whole layer recomputed.
    allowed : callable
        Returns whether the modules of a set can run again together.
    through : sequence of tuples of str
        Sets that the chain must contain, by rising size, each in the next.
    """
    place = {word: index for index, word in enumerate(words)}

    def in_order(chosen: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted(chosen, key=place.__getitem__))

    kept = [in_order(one) for one in through]
    best: tuple[float, list[tuple[str, ...]]] | None = None
    for order in permutations(words):
        sets = [in_order(order[:size]) for size in range(1, len(order) + 1)]
        if any(one not in sets for one in kept):
            continue
        sets = [one for one in sets if one in kept or allowed(one)]
        front = _undominated([(point(one), one) for one in sets], ends, kept)
        points = [*ends, *(at for at, _ in front)]
        area = _area(points) + _stairs(points)
        if best is None or area < best[0] * (1 - 1e-12):
            best = area, [one for _, one in front]
    return [] if best is None else best[1]


def is_chain(sets: Sequence[Sequence[str]]) -> bool:
    """Return whether of any two sets one contains the other."""
    by_size = sorted((frozenset(one) for one in sets), key=len)
    return all(a <= b for a, b in pairwise(by_size))


def _undominated(
    found: list[tuple[Point, tuple[str, ...]]], ends: tuple[Point, Point], kept: Sequence[tuple[str, ...]]
) -> list[tuple[Point, tuple[str, ...]]]:
    """The sets that no other, nor one of the ends, is as good as in both, or that must stay."""
    distinct = []
    for at, one in found:
        others = [*ends, *(other for other, name in found if name != one)]
        beaten = any(o[0] <= at[0] and o[1] <= at[1] * (1 + 1e-9) for o in others)
        if one in kept or not beaten:
            distinct.append((at, one))
    return distinct


def _area(points: Sequence[Point]) -> float:
    """Under the lower convex hull of points, between the least and the largest time."""
    hull: list[Point] = []
    for at in sorted(set(points)):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], at):
            hull.pop()
        hull.append(at)
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(hull))


def _stairs(points: Sequence[Point]) -> float:
    """Under the least memory of a single point within each time, between the least and the largest time."""
    ordered = sorted(points)
    least = accumulate((mib for _, mib in ordered), min)
    return sum((b[0] - a[0]) * mib for (a, b), mib in zip(pairwise(ordered), least, strict=False))


def _turns_down(a: Point, b: Point, c: Point) -> bool:
    return (b[0] - a[0]) * (c[1] - a[1]) <= (b[1] - a[1]) * (c[0] - a[0])
