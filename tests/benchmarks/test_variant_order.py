"""Pairs of variants of one job in their measured order."""

from __future__ import annotations

from benchmarks.variant_order import Variant, VariantOrder, variant_order


def test_pairs_count_by_job_and_ties_apart() -> None:
    runs = [Variant("a", 1.0, 2.0), Variant("a", 2.0, 3.0), Variant("a", 2.01, 9.0), Variant("a", 3.0, 2.5)]
    # 1-2, 1-2.01 and 1-3 are right, 2-2.01 is a tie, 2-3 and 2.01-3 are wrong.
    assert variant_order([*runs, Variant("b", 0.5, 99.0)]) == VariantOrder(3, 1, 2)


def test_equal_predictions_of_unlike_runs_are_no_order() -> None:
    assert variant_order([Variant("a", 1.0, 2.0), Variant("a", 2.0, 2.0)]) == VariantOrder(0, 0, 1)


def test_the_share_leaves_ties_out() -> None:
    assert str(VariantOrder(3, 2, 1)).startswith("75% of 4 pairs of variants in the measured order (2 measured")
    assert str(VariantOrder(0, 1, 0)).startswith("no pair")
