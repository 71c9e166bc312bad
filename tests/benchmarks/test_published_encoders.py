"""The comparison of published jobs with an encoder: when a row counts as worse, and what it prints."""

from __future__ import annotations

from benchmarks.published_encoders import Row


def test_a_row_is_worse_where_the_first_stage_takes_longer_than_a_layout_that_fits() -> None:
    good = Row("job", 100.0, True, 90.0, 85.0, 95.0, 80.0, 0.02)
    assert good.never_worse and good.best == 80.0
    assert good.cells() == ["job", "100", "90 (+10.0 %)", "85 (+15.0 %)", "95 (+5.0 %)", "80 (+20.0 %)", "2.0 %"]
    worse = Row("job", 100.0, True, 101.0, None, None, 80.0, None)
    assert not worse.never_worse and worse.cells()[3] == "none"
    # One that does not fit is no rival.
    assert Row("job", 100.0, False, 101.0, None, None, None, None).never_worse
