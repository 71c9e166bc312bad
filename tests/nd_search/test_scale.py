"""A search of every dimension over 1,024 ranks builds, judges and prunes a space of hundreds of thousands."""

from __future__ import annotations

from benchmarks.nd_search import measure


def test_every_step_of_a_large_search_leaves_fewer_strategies_and_twenty_are_chosen() -> None:
    row = measure(1024, 1024, "ascend-910b", 55296.0)
    built, legal, sensible, fitting = (row[name] for name in ("built", "legal", "sensible", "fitting"))
    assert built > 100_000
    assert built > legal > sensible > fitting > row["chosen"] == 20
