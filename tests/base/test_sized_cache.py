"""A cache bounded by memory."""

from __future__ import annotations

import numpy as np

from taylor.base.sized_cache import sized_cache


def test_the_results_last_used_are_kept_within_the_memory_and_the_newest_whatever_its_size() -> None:
    made: list[tuple[int, int]] = []

    @sized_cache(3, 10_000)
    def zeros(length: int, number: int = 0) -> np.ndarray:
        made.append((length, number))
        return np.zeros(length, dtype=np.int8)

    first, second = zeros(3_000, 1), zeros(3_000, 2)
    assert zeros(3_000, 1) is first and zeros(3_000, 2) is second and len(made) == 2
    zeros(3_000, 1)
    zeros(4_000, 3)  # above the memory with the others: the second was used longest ago
    assert zeros(3_000, 1) is first and len(made) == 3
    zeros(3_000, 2)
    assert len(made) == 4
    large = zeros(50_000)
    assert zeros(50_000) is large and len(made) == 5
    zeros(3_000, 1)
    assert len(made) == 6


def test_no_more_results_are_kept_than_entries() -> None:
    made: list[int] = []

    @sized_cache(2, 10**9)
    def same(number: int) -> int:
        made.append(number)
        return number

    for number in (1, 2, 3, 2, 3, 1):
        assert same(number) == number
    assert made == [1, 2, 3, 1]
