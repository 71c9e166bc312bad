"""Chains of sets of modules: the one that is taken, against every chain there is."""

from __future__ import annotations

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from taylor.cost_model.choices.nested_choices import Point, _area, _stairs, is_chain, lowest_chain


def mix(points: list[Point], time: float) -> float:
    """The least memory that one of the points, and two of them together, reach in a mean time, added up."""
    reached = [mib for at, mib in points if at <= time]
    alone = min(reached)
    for (a, x), (b, y) in combinations(sorted(points), 2):
        if a <= time <= b and a < b:
            reached.append(x + (y - x) * (time - a) / (b - a))
    return alone + min(reached)


def chains(words: tuple[str, ...]) -> list[list[tuple[str, ...]]]:
    """All chains of sets, those with gaps too."""
    sets = [one for size in range(1, len(words) + 1) for one in combinations(words, size)]
    found: list[list[tuple[str, ...]]] = [[]]
    for one in sets:
        found += [[*chain, one] for chain in found if not chain or set(chain[-1]) < set(one)]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_chain_has_a_lower_front(seed: int) -> None:
    """Costs that nearly add up, and some sets that cannot be: means over all times of what a mix of choices keeps."""
    rng = np.random.default_rng(seed)
    words = ("a", "b", "c", "d")[: rng.integers(1, 5)]
    time, freed = rng.uniform(0.1, 1, 4), rng.uniform(0.0, 10, 4)
    noise = {one: rng.uniform(0.9, 1.1) for size in range(5) for one in combinations(words, size)}
    ends = ((0.0, 50.0), (4.0, 2.0))
    barred = set(rng.choice(["a", "b", "c", "d"], 2, replace=False)) if seed % 2 else {"none"}

    def point(one: tuple[str, ...]) -> Point:
        places = [words.index(word) for word in one]
        return float(time[places].sum() * noise[one]), float(50 - freed[places].sum() * noise[one])

    def allowed(one: tuple[str, ...]) -> bool:
        return not barred <= set(one)

    found = lowest_chain(words, point, ends, allowed)
    assert is_chain(found) and all(map(allowed, found))
    assert all(set(a) < set(b) for a, b in pairwise(found))
    at = np.linspace(0, 4, 401)

    def mean(chain: list[tuple[str, ...]]) -> float:
        points = [*ends, *map(point, chain)]
        return float(np.mean([mix(points, one) for one in at]))

    # The mean over times is the area, but for its grid.
    assert mean(found) <= min(mean(one) for one in chains(words) if all(map(allowed, one))) * (1 + 2e-3)


@pytest.mark.parametrize("seed", range(20))
def test_the_areas_of_a_front_are_those_under_its_mixes_and_its_single_points(seed: int) -> None:
    """The memory of a mix has its corners at the points' times; that of single points is the same between two."""
    rng = np.random.default_rng(seed)
    points = [(float(at), float(mib)) for at, mib in zip(rng.integers(0, 9, 8), rng.uniform(0, 10, 8), strict=True)]
    times = sorted({at for at, _ in points})
    alone = [min(mib for at, mib in points if at <= time) for time in times]
    mixed = [
        min(
            x if a == b else x + (y - x) * (time - a) / (b - a)
            for (a, x), (b, y) in product(points, points)
            if a <= time <= b and (a < b or x == y)
        )
        for time in times
    ]
    lengths = np.diff(times)
    assert _area(points) == pytest.approx(lengths @ (np.array(mixed[1:]) + mixed[:-1]) / 2)
    assert _stairs(points) == pytest.approx(lengths @ alone[:-1])


def test_a_chain_goes_through_the_sets_that_it_must_hold() -> None:
    costs = {"a": (1.0, 9.0), "b": (5.0, 1.0), "c": (1.0, 5.0)}

    def point(one: tuple[str, ...]) -> Point:
        return sum(costs[word][0] for word in one), 50 - sum(costs[word][1] for word in one)

    free = lowest_chain(("a", "b", "c"), point, ((0.0, 50.0), (9.0, 5.0)), lambda _: True)
    assert free == [("a",), ("a", "c"), ("a", "b", "c")]
    bound = lowest_chain(("a", "b", "c"), point, ((0.0, 50.0), (9.0, 5.0)), lambda _: True, [("b",), ("b", "c")])
    assert ("b",) in bound and ("b", "c") in bound and is_chain(bound)
    assert not is_chain([("a",), ("b", "c")]) and is_chain([]) and is_chain([("a", "b"), ("a",)])
