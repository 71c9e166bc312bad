"""Small systems whose fit, doubt and spread are worked out by other formulas."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from taylor.dryrun.fitting import fit as fitting
from taylor.dryrun.fitting.fit import DOUBT, PRIOR_SPREAD, USUAL_SCATTER, MemoryFit, Observation, agree
from taylor.dryrun.fitting.linear_memory import _between
from taylor.dryrun.fitting.margins import next_margins
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from tests.dryrun.fitting.test_fit import case
from tests.dryrun.fitting.test_margins import LIMITS, NONE_YET, measured

PLAN = PipelinePlan({"dense": ((1,),)}, {})


def fit_with(residual, unknowns=2):
    names = tuple(f"u{number}" for number in range(unknowns))
    return MemoryFit(names, np.ones(unknowns), np.zeros(unknowns), np.array(residual), 0.0, 1.0, ())


def rows(count, peak=1000.0):
    return [Observation(PLAN, 0, peak)] * count


def test_rows_of_others_agree_as_the_f_distribution_says():
    own = [0.01, -0.01, 0.02, 0.005, -0.015]
    for new in ([0.01], [0.02, -0.03], [0.05, 0.08, 0.02], [0.2], [0.12, 0.1]):
        for before in (own, [0.5 * each for each in own], [3 * each for each in own]):
            mine, others = sum(each**2 for each in before), sum(each**2 for each in new)
            statistic = (others / len(new)) / (mine / (len(before) - 2))
            chance = stats.f.sf(statistic, len(new), len(before) - 2)
            told = agree(fit_with(before), fit_with([*before, *new]), rows(len(before)))
            assert told == (chance >= DOUBT), (new, before)


def test_where_nothing_is_left_to_judge_by_rows_agree():
    assert agree(fit_with([0.1]), fit_with([0.1, 9.0]), rows(1))
    assert agree(fit_with([0.1, 0.1]), fit_with([0.1, 0.1, 9.0]), rows(2))
    assert agree(fit_with([0.1] * 4), fit_with([0.1] * 4), rows(4))
    # Residuals fell although rows came: nothing speaks against them.
    assert agree(fit_with([0.1] * 4), fit_with([0.01] * 5), rows(4))


def test_peaks_in_whole_mib_scatter_by_a_third_of_one_at_the_least():
    exact = [0.0] * 5
    for peak in (10.0, 1000.0, 0.01):
        least = 5 * (0.3 / max(peak, 1.0)) ** 2
        for factor in (1.0, 5.0, 12.0, 20.0, 40.0):
            new = factor * np.sqrt(least / 3)
            chance = stats.f.sf(new**2 / (least / 3), 1, 3)
            assert agree(fit_with(exact), fit_with([*exact, new]), rows(5, peak)) == (chance >= DOUBT)


MATRIX = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [1.0, 3.0]])


@pytest.mark.parametrize("weights", [np.ones(5), np.array([1.0, 4.0, 1.0, 2.0, 0.5])])
def test_scatter_is_what_residuals_leave_for_each_row_beyond_the_unknowns(weights):
    values = np.array([0.6, 0.5])
    squares = [w * (1 - row @ values) ** 2 for w, row in zip(weights, MATRIX, strict=True)]
    assert fitting._scatter(MATRIX, weights, values) == pytest.approx(
        (sum(squares) / (sum(weights) / 5) / 3) ** 0.5, rel=1e-12
    )
    assert fitting._scatter(MATRIX[:2], weights[:2], values) == USUAL_SCATTER
    assert fitting._scatter(MATRIX[:3], np.ones(3), values) == pytest.approx(
        sum((1 - row @ values) ** 2 for row in MATRIX[:3]) ** 0.5, rel=1e-12
    )


def test_a_coefficient_leans_on_its_prior_until_its_own_rows_tell_it_to_a_twentieth():
    # One row each, of unlike size, and a third that sees the scatter: variances of a diagonal system by hand.
    for sizes in ([1.0, 1.0], [1.0, 0.02], [0.05, 0.3], [5.0, 0.001]):
        matrix = np.vstack([np.diag(sizes), np.diag(sizes)])
        values = np.array([0.9 / sizes[0], 1.02 / sizes[1]])
        scatter = (2 * (0.1**2 + 0.02**2) / 2) ** 0.5
        errors = [scatter / (size * 2**0.5) for size in sizes]
        expected = [
            scatter / PRIOR_SPREAD if error > 0.05 * value else 0.0 for error, value in zip(errors, values, strict=True)
        ]
        assert fitting._pull(matrix, np.ones(4), values) == pytest.approx(expected, rel=1e-9)
    sure = np.vstack([np.eye(2)] * 2)
    assert fitting._pull(sure, np.ones(4), np.array([1.0, 1.0])).tolist() == [0.0, 0.0]
    # What no row holds leans on the prior whatever the others say.
    alone = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    first, second = fitting._pull(alone, np.ones(3), np.array([0.999, 1.0]))
    assert first == 0.0 and second > 0.0


def test_open_directions_are_those_that_no_row_crosses():
    singular, directions = fitting._open_directions(np.zeros((0, 3)))
    assert singular.tolist() == [0.0, 0.0, 0.0] and directions.tolist() == np.eye(3).tolist()
    singular, directions = fitting._open_directions(np.array([[3.0, 0.0, 0.0], [0.0, 0.0, 4.0]]))
    assert singular == pytest.approx([4.0, 3.0, 0.0]) and np.abs(directions) == pytest.approx(np.array([[0, 1, 0]]))
    _, directions = fitting._open_directions(np.array([[1.0, 1.0]]))
    assert np.abs(directions @ np.array([1.0, -1.0])) == pytest.approx(2**0.5) and len(directions) == 1


def test_a_fit_that_is_told_says_how_sure_each_value_is():
    memory = SimpleNamespace(unknowns=("a", "b"))
    values, scale = np.array([5.0, 40.0]), np.array([10.0, 50.0])
    for weights in (np.ones(5), np.array([1.0, 4.0, 1.0, 2.0, 0.5])):
        told = fitting._report(memory, MATRIX, weights, values, scale)
        residual = 1 - MATRIX @ np.array([0.5, 0.8])
        assert told.residual == pytest.approx(residual) and told.undetermined == ()
        assert told.scatter == pytest.approx((residual @ residual / 3) ** 0.5)
        a, b, c = (sum(weights * MATRIX[:, i] * MATRIX[:, j]) for i, j in ((0, 0), (0, 1), (1, 1)))
        spread = (np.array([c, a]) / (a * c - b * b)) ** 0.5
        sigma = (sum(weights * residual**2) / 3) ** 0.5
        assert told.standard_error == pytest.approx(sigma * spread * scale)
        eigen = np.linalg.eigvalsh(MATRIX.T @ MATRIX)
        assert told.condition == pytest.approx((eigen[1] / eigen[0]) ** 0.5)
    few = fitting._report(memory, MATRIX[:2], np.ones(2), values, scale)
    assert few.scatter == float("inf") and few.standard_error.tolist() == [np.inf, np.inf]
    half = fitting._report(memory, np.array([[2.0, 0.0]] * 3), np.ones(3), values, scale)
    assert half.undetermined == ("b",) and half.standard_error[1] == np.inf and half.condition == pytest.approx(1.0)
    # Three rows, one direction told: two are left over for the scatter.
    assert half.scatter == pytest.approx(0.0) and half.standard_error[0] == pytest.approx(0.0)
    off = fitting._report(memory, np.array([[1.0, 0.0]] * 3), np.ones(3), values, scale)
    assert off.scatter == pytest.approx((3 * 0.25 / 2) ** 0.5)
    assert off.standard_error[0] == pytest.approx(off.scatter / 3**0.5 * 10)


def test_a_fit_is_described_by_its_residuals():
    told = fit_with([0.03, -0.04, 0.0], 1).describe()
    assert "3 stage peaks, 1 coefficients, residual 2.89 % (largest 4.00 %), condition 1" in told
    assert "residual 0.00 % (largest 0.00 %)" in fit_with([], 1).describe()
    assert fit_with([0.1] * 2).caution == float("inf")
    assert fit_with([0.1] * 7).caution == pytest.approx((5 / stats.chi2.ppf(0.01, 5)) ** 0.5)


def test_a_mode_that_was_not_measured_keeps_its_place_between_those_that_were():
    before = {NONE: 100.0, FULL: 20.0, SELECT: 60.0}
    assert _between(before, {NONE: 80.0, FULL: 40.0}, SELECT) == pytest.approx(60.0)
    assert _between(before, {NONE: 10.0, FULL: 40.0}, SELECT) == pytest.approx(25.0)
    assert _between(before | {SELECT: 500.0}, {NONE: 80.0, FULL: 40.0}, SELECT) == 80.0
    assert _between(before | {SELECT: 1.0}, {NONE: 80.0, FULL: 40.0}, SELECT) == 40.0
    # Without a span, all that may be kept is.
    assert _between({NONE: 20.0, FULL: 20.0, SELECT: 20.0}, {NONE: 80.0, FULL: 40.0}, SELECT) == 80.0
    assert _between({NONE: 20.0, FULL: 21.0, SELECT: 20.0}, {NONE: 80.0, FULL: 40.0}, SELECT) == 80.0
    assert _between(before, {NONE: 0.25, FULL: 0.25}, SELECT) == 0.25
    assert _between({NONE: 100.0, FULL: 20.0, SELECT: 40.0}, {NONE: 1.0, FULL: 0.5}, SELECT) == pytest.approx(0.625)


def test_two_stages_have_no_middle_one_and_keep_the_smaller_end_for_it():
    memory, prior = case("pretrain_llama2_7b", pp=2)
    values = memory.coefficients(prior)
    for first, last in ((3000.0, 2000.0), (2000.0, 3000.0)):
        values[memory.unknowns.index("static.first")] = first
        values[memory.unknowns.index("static.last")] = last
        told = memory.profile(values, prior, "here")
        assert (told.static_first_mib, told.static_middle_mib, told.static_last_mib) == (first, 2000.0, last)
    with pytest.raises(ValueError):
        memory.profile(values[:-1], prior, "here")


def test_a_margin_below_one_mib_is_kept_as_it_is():
    fitted = np.array([900.0, 980.0, 700.0, 990.0])
    told = next_margins(fitted, measured(900.0, 980.25, 650.0, 980.0), LIMITS, NONE_YET, 2)
    assert told.tolist() == [0.25] * 4
    assert next_margins(fitted, measured(900.0, 970.0, 650.0, 980.0), LIMITS, NONE_YET, 3).tolist() == [0.0] * 4
