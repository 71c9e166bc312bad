"""Published runs that did run, by the memory that is told for them."""

from __future__ import annotations

import pytest

from benchmarks.measured_runs import MEASURED, measured_runs, summary

needs_runs = pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured runs lie outside the repository")


@needs_runs
def test_runs_that_ran_are_told_to_fit_and_large_ones_are_met_within_four_percent() -> None:
    runs, refused = measured_runs(MEASURED)
    assert refused == []
    table = summary(runs).set_index("set")
    assert table.loc["all", "false «does not fit»"] <= 0.03 * len(runs)
    assert table.loc["all", "false «fits»"] == 0
    assert table.loc["megatron-ci-large", "median error %"] <= 4.0
