"""Peaks of runs, and stages that ran out of memory, correct the memory model by no more than they determine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.peak_correction import SeenPeak, correction_of, median_beyond

KNOWN = KnownError(0.03, 0.08, 0.02)


def seen(stage: int, kept: float, real: float, *, fixed: float = 10_000.0, at_least: bool = False) -> SeenPeak:
    """A stage with a predicted peak of `fixed` + `kept` and a real one."""
    return SeenPeak(stage, fixed, kept, real, at_least)


def test_one_measured_stage_corrects_itself_alone() -> None:
    found = correction_of([seen(1, 4000.0, 16_310.0)], 4, KNOWN)
    assert found.extra_mib == (0.0, 2310.0, 0.0, 0.0) and found.kept_factor == 1.0


def test_a_stage_that_needs_less_than_predicted_is_planned_with_less() -> None:
    assert correction_of([seen(0, 4000.0, 13_500.0)], 2, KNOWN).extra_mib == (-500.0, 0.0)


def test_stages_that_deviate_alike_move_those_that_were_not_measured() -> None:
    found = correction_of([seen(0, 8000.0, 19_000.0), seen(2, 4000.0, 15_100.0)], 4, KNOWN)
    assert found.extra_mib == (1000.0, 1050.0, 1100.0, 1050.0)


def test_stages_that_deviate_in_both_directions_move_no_other() -> None:
    found = correction_of([seen(0, 8000.0, 19_000.0), seen(2, 4000.0, 13_000.0)], 4, KNOWN)
    assert found.extra_mib == (1000.0, 0.0, -1000.0, 0.0)


def test_a_factor_on_kept_activations_is_found_where_peaks_grow_with_them() -> None:
    kept = [8000.0, 6000.0, 4000.0, 2000.0]
    rows = [seen(s, k, 10_000.0 + 700.0 + 1.2 * k) for s, k in enumerate(kept) if s != 1]
    found = correction_of(rows, 4, KNOWN)
    assert found.kept_factor == pytest.approx(1.2)
    assert found.extra_mib == pytest.approx([700.0] * 4)
    assert found.peak_mib(seen(1, kept[1], 0.0)) == pytest.approx(10_700.0 + 1.2 * 6000.0)


def test_two_peaks_determine_no_factor() -> None:
    rows = [seen(s, k, 10_000.0 + 1.5 * k) for s, k in enumerate((8000.0, 2000.0))]
    assert correction_of(rows, 2, KNOWN).kept_factor == 1.0


@pytest.mark.parametrize("number", range(20))
def test_every_measured_stage_has_its_peak_under_the_correction(number: int) -> None:
    rng = np.random.default_rng(number)
    rows = [
        seen(s, float(rng.uniform(0, 9000)), float(rng.uniform(8000, 30_000)), fixed=float(rng.uniform(1000, 20_000)))
        for s in range(int(rng.integers(1, 8)))
    ]
    found = correction_of(rows, 9, KNOWN)
    for row in rows:
        assert found.peak_mib(row) == pytest.approx(row.mib)
    assert len(set(found.extra_mib[len(rows) :])) == 1


def test_of_several_runs_of_a_stage_none_is_predicted_below_its_peak() -> None:
    rows = [seen(0, 4000.0, 15_000.0), seen(0, 6000.0, 17_800.0)]
    found = correction_of(rows, 1, KNOWN)
    assert all(found.peak_mib(row) >= row.mib - 1e-6 for row in rows)
    assert min(found.peak_mib(row) - row.mib for row in rows) == pytest.approx(0.0)


def test_a_stage_that_ran_out_of_memory_does_not_fit_again() -> None:
    row = seen(1, 4000.0, 16_310.0, at_least=True)
    for known in (KNOWN, None):
        found = correction_of([row], 4, known)
        assert found.peak_mib(row) > row.mib and found.extra_mib[0] == 0.0


def test_a_stage_that_was_predicted_to_run_out_teaches_nothing() -> None:
    assert correction_of([seen(1, 4000.0, 13_000.0, at_least=True)], 2, KNOWN).extra_mib == (0.0, 0.0)


@pytest.mark.parametrize("predicted", [900.0, 970.0, 999.0])
def test_the_planned_peak_is_the_median_of_drawn_peaks_above_the_card_s_memory(predicted: float) -> None:
    deviation = math.log1p(KNOWN.above) / 1.6448536269514722  # 95 % of a normal distribution lie below it
    drawn = predicted * np.exp(deviation * np.random.default_rng(7).standard_normal(4_000_000))
    above = drawn[drawn >= 1000.0]
    assert median_beyond(predicted, 1000.0, KNOWN) == pytest.approx(float(np.median(above)), rel=2e-3)


def test_a_peak_far_beyond_the_known_error_is_planned_just_above_what_was_seen() -> None:
    assert 1000.0 < median_beyond(400.0, 1000.0, KNOWN) < 1005.0
