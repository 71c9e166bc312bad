"""A device's figures, and what the fit says of runs, by formulas written down here again."""

from __future__ import annotations

import math
from dataclasses import replace
from math import hypot, sqrt
from statistics import median
from typing import Any

import numpy as np
import pytest

from taylor.cost_model.errors.known_error import DEVICE_WIDTH
from taylor.cost_model.time.speed import ASSUMED_EFFICIENCY
from taylor.profiling.calibration.figures import COST, CREDIT, FIGURES, OPERANDS, OPERANDS_MOST, SHARE, Figures
from taylor.profiling.calibration.fit import (
    ALL,
    REGISTER,
    Calibration,
    Measured,
    RunError,
    _Fit,
    _noise,
    _simplest,
    calibrate,
)
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry

H100 = Registry.load().device("h100-80g")
COSTLY = replace(H100, efficiency={**H100.efficiency, "softmax_flops": 30.0, "layer_us": 9990.0})
ASSUMED = {**ASSUMED_EFFICIENCY, **H100.efficiency}
NARROW = ("fp8", "fp8_block", "mxfp8", "nvfp4")
BESIDE = {
    **{name: tuple(f"{name}_{kind}" for kind in NARROW) for name in ("matmul", "operands", "results")},
    "attention": ("attention_backward", "attention_wide_backward", "scan", "delta_scan"),
    "memory": tuple(f"cast_{kind}" for kind in NARROW),
}
"""Figures of other types and directions that runs of one cannot determine, and that move with it."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("device", [H100, COSTLY], ids=["as registered", "with costs"])
def test_a_point_moves_shares_together_and_alone_credits_alone_and_adds_costs(device: DeviceSpec, seed: int) -> None:
    point = np.random.default_rng(seed).normal(0, (0.3, 3.0)[seed % 2], 1 + len(FIGURES))
    found = Figures(device).values(point)
    known = {**ASSUMED_EFFICIENCY, **device.efficiency}
    wanted = dict(known)
    for place, figure in enumerate(FIGURES):
        alone = figure.width * point[place + 1]
        for key in [*figure.keys, *(each for name in figure.keys for each in BESIDE.get(name, ()) if each in known)]:
            if figure.kind == COST:
                wanted[key] = min(max(device.efficiency.get(key, 0.0) + alone, 0.0), figure.most)
            else:
                both = alone + (DEVICE_WIDTH * point[0] if figure.kind == SHARE else 0.0)
                most = 10.0 if key.removeprefix("expert_").startswith(("operands", "results")) else figure.most
                wanted[key] = min(known[key] * math.exp(both), most)
    assert found == pytest.approx(wanted)
    assert dict(Figures(device).at(point).efficiency) == found


def test_nothing_moves_further_than_four_deviations_and_no_credit_beyond_all_of_a_time() -> None:
    figures = Figures(H100)
    least, largest = figures.bounds()
    assert figures.size == len(least) == len(largest) == 1 + len(FIGURES)
    assert (least[0], largest[0]) == (-4.0, 4.0)
    start = figures.start()
    for at, figure in enumerate(FIGURES, 1):
        assert least[at] == (0.0 if figure.kind == COST else -4.0)
        if figure.kind == CREDIT:
            assert ASSUMED[figure.keys[0]] * math.exp(figure.width * largest[at]) == pytest.approx(1.0)
        else:
            assert largest[at] == 4.0
        assert start[at] == pytest.approx(min(max(0.0, least[at] + 0.05), largest[at] - 0.05))
    assert start[0] == 0.0


@pytest.mark.parametrize("at", range(1, 1 + len(FIGURES)))
def test_an_interval_is_that_of_the_sum_of_both_moves(at: int) -> None:
    """Moves of all speeds and of a figure, with their covariance; 1.96 deviations are 95 %."""
    draw = np.random.default_rng(at)
    size = 1 + len(FIGURES)
    mixed = draw.normal(0, 0.4, (size, size))
    spread, point = mixed @ mixed.T, draw.normal(0, 0.5, size)
    figure, figures = FIGURES[at - 1], Figures(H100)
    a, b = (DEVICE_WIDTH if figure.kind == SHARE else 0.0), figure.width
    deviation = math.sqrt(a * a * spread[0, 0] + 2 * a * b * spread[0, at] + b * b * spread[at, at])
    value = figures.values(point)[figure.keys[0]]
    if figure.kind == COST:
        low, high = max(value - 1.96 * deviation, 0.0), min(value + 1.96 * deviation, figure.most)
    else:
        most = OPERANDS_MOST if figure.keys[0] in OPERANDS else figure.most
        low, high = value * math.exp(-1.96 * deviation), min(value * math.exp(1.96 * deviation), most)
    learned = 1 - deviation / math.hypot(a, b)
    assert figures.interval(point, spread, at) == pytest.approx((value, low, high, learned))
    # Of a figure that is known exactly everything was learned.
    assert figures.interval(point, np.zeros((size, size)), at) == pytest.approx((value, value, value, 1.0))


def flat(name: str, ms: float, job: Any, predicted: float, flags: tuple[str, ...] = ()) -> Measured:
    """A run of which the model says the same on every device."""
    return Measured(name, ms, lambda device: predicted, job, flags)


def notes_of(*measured: Measured, contradicts: int = -1) -> list[str]:
    """What the fit says of runs, one of which may contradict the others by 25 %."""
    errors = [RunError(run.name, run.ms, 0.0, 0.25, None, at == contradicts) for at, run in enumerate(measured)]
    return _Fit(measured, Figures(H100)).notes(errors)


def test_one_job_and_two_tell_little_and_three_enough() -> None:
    runs = [flat(str(job), 10.0, job, 10.0) for job in range(3)]
    assert "one job determines" in notes_of(runs[0])[0] and "one job determines" in notes_of(runs[0], runs[0])[0]
    assert "two jobs determine" in notes_of(*runs[:2])[0]
    assert notes_of(*runs) == []


@pytest.mark.parametrize(("ms", "told"), [(104.9, False), (105.0, False), (105.1, True), (94.0, True)])
def test_the_same_job_measured_apart_by_more_than_a_twentieth_is_told(ms: float, told: bool) -> None:
    runs = [flat("first", 100.0, 0, 1.0), flat("second", ms, 0, 1.0), flat("c", 1.0, 1, 1.0), flat("d", 9.0, 2, 1.0)]
    low, high = ("first", "second") if ms > 100 else ("second", "first")
    notes = notes_of(*runs)
    assert [note.startswith(f"{low} and {high} are the same job") for note in notes] == [True] * told
    if told:
        assert notes[0].endswith(f"took {min(ms, 100):,.0f} and {max(ms, 100):,.0f} ms")


def test_a_run_that_contradicts_is_named_with_its_flags() -> None:
    runs = [flat(name, 1.0, name, 1.0, ("flag",) if name == "b" else ()) for name in "abc"]
    assert notes_of(*runs, contradicts=0) == ["a contradicts the others: the fit is +25 % off"]
    assert notes_of(*runs, contradicts=1) == [
        "b contradicts the others: the fit is +25 % off; not modelled of it: flag"
    ]


def test_the_noise_that_is_seen_is_that_of_half_of_the_runs() -> None:
    fit = _Fit([flat("a", 1.0, 0, 1.0)], Figures(H100))
    errors = np.array([0.01, -0.02, 0.5, 0.03])
    seen = 1.4826 * median(abs(math.log(1 + error)) for error in errors)
    assert fit.seen_noise(errors) == pytest.approx(seen)
    assert fit.seen_noise(errors[:3]) == pytest.approx(1.4826 * abs(math.log(0.98)))
    assert fit.seen_noise(errors[:2]) == 0.0


def test_a_median_error_is_of_the_runs_that_have_one() -> None:
    errors = [(0.1, -0.2, None), (-0.3, 0.1, 0.5), (0.2, 0.0, -0.1)]
    runs = tuple(RunError(str(at), 1.0, *each, False) for at, each in enumerate(errors))
    found = Calibration(H100, ALL, (), runs, ())
    assert [found.median_error(which) for which in ("before", "fitted", "left_out")] == [0.2, 0.1, 0.3]
    assert Calibration(H100, ALL, (), runs[:1], ()).median_error("left_out") is None


def power(key: str, weight: float, ms: float, job: int) -> Measured:
    """A run whose time goes with a power of one share."""
    return Measured(f"{key} {job}", ms, lambda device: (device.efficiency[key] / ASSUMED[key]) ** -weight * 10.0, job)


def test_slopes_and_left_out_runs_are_those_of_the_linear_model() -> None:
    """Products and attention alone: the logarithm of a time is linear in a point, with slopes that are known."""
    runs = [power("matmul", 1.0, 11.0, 0), power("matmul", 1.0, 10.5, 1), power("attention", 0.5, 9.0, 2)]
    fit = _Fit(runs, Figures(H100))
    size = fit.figures.size
    rows = np.zeros((3, size))
    for row, (at, weight) in zip(rows, [(1, 1.0), (1, 1.0), (2, 0.5)], strict=True):
        row[0], row[at] = -weight * DEVICE_WIDTH, -weight * FIGURES[at - 1].width
    point = np.zeros(size)
    point[:3] = 0.1, -0.2, 0.3
    # Costs move one way alone: their slopes are nothing here in any case.
    assert fit.slopes(point) == pytest.approx(rows, abs=1e-9)
    assert fit.ratios(point) == pytest.approx(10 * np.exp(rows @ point) / fit.ms)
    errors = np.log(10 * np.exp(rows @ point) / fit.ms)
    weights = 1 / (0.03**2 * np.sqrt(1 + (errors / 0.03) ** 2))
    for together in (False, True):
        used = rows * np.array([1.0] + [0.0 if together else 1.0] * (size - 1))
        found = fit.left_out(point, together)
        for one in range(3):
            others = [other for other in range(3) if other != one]
            # Least squares of the others' errors and of the point itself, stacked.
            stacked = np.concatenate([np.sqrt(weights[others])[:, None] * used[others], np.eye(size)])
            right = np.concatenate([-np.sqrt(weights[others]) * errors[others], -point])
            step = np.linalg.lstsq(stacked, right, rcond=None)[0]
            least, largest = fit.figures.bounds()
            there = np.clip(point + step, least, largest)
            assert found[one] == pytest.approx(10 * math.exp(rows[one] @ there) / fit.ms[one] - 1)


@pytest.mark.parametrize("moved", [ALL, REGISTER, "all speeds together"])
def test_a_figure_is_told_where_the_runs_make_it_a_tenth_surer(moved: str) -> None:
    runs = [power("matmul", 1.0, 11.0, 0), power("attention", 1.0, 9.0, 1)]
    fit = _Fit(runs, Figures(H100))
    point = np.zeros(fit.figures.size)
    rows, errors = fit.slopes(point), np.log(fit.ratios(point))
    if moved != ALL:
        rows[:, 1:] = 0.0
    spread = np.linalg.inv(rows.T @ np.diag(fit._weights(errors)) @ rows + np.eye(len(point)))
    for at, figure in enumerate(fit.fitted_figures(point, moved), 1):
        value, least, largest, learned = fit.figures.interval(point, spread, at)
        assert (figure.value, figure.least, figure.largest) == pytest.approx((value, least, largest))
        assert figure.before == ASSUMED[figure.keys[0]]
        assert figure.from_runs == (learned > 0.1 and moved != REGISTER)
    names = [figure.name for figure in fit.fitted_figures(point, moved) if figure.from_runs]
    assert ("GEMMs" in names) == (moved != REGISTER)


def test_a_fit_finds_the_least_of_the_soft_loss_and_of_what_is_known() -> None:
    """Of one figure that moves alone: a scan of the point in steps of a thousandth."""
    runs = [power("matmul", 1.0, 12.0, 0), power("matmul", 1.0, 10.4, 1), power("matmul", 1.0, 11.0, 2)]
    fit = _Fit(runs, Figures(H100))
    places = np.arange(-3999, 4000) / 1000
    errors = np.log(10 * np.exp(-FIGURES[0].width * places[:, None]) / fit.ms) / 0.03
    loss = (2 * (np.sqrt(1 + errors**2) - 1)).sum(axis=1) + places**2
    found = fit.solve([1])
    assert found[1] == pytest.approx(places[loss.argmin()], abs=5e-3)
    assert np.count_nonzero(found) == 1


def runs(*flags: tuple[str, ...], jobs: int = 9) -> list[Measured]:
    """Measured runs that ask for some flags."""
    return [Measured(str(at), 1.0, lambda device: 1.0, at % jobs, each) for at, each in enumerate(flags)]


def test_a_flag_that_few_runs_have_makes_their_time_less_sure() -> None:
    """3 % of every run, 6 % of a job alone, and 10 % a flag that no more than half of the runs share."""
    one, two = hypot(0.03, 0.1), hypot(0.03, 0.1 * sqrt(2))
    found = _noise(runs(("a", "b"), ("a",), ("a", "c", "d"), ("b",)))
    # a: three of four; b: two of four, a half; c and d: one each.
    assert found.tolist() == pytest.approx([one, 0.03, two, one])
    assert _noise(runs(("a",), ())).tolist() == pytest.approx([0.03, 0.03])
    assert _noise(runs(("a",), (), ())).tolist() == pytest.approx([one, 0.03, 0.03])
    assert _noise(runs((), (), jobs=1)).tolist() == pytest.approx([0.06, 0.06])


@pytest.mark.parametrize(("left_out", "chosen"), [(0.79, REGISTER), (0.8, "all figures"), (0.9, "all figures")])
def test_the_register_stays_where_it_is_a_fifth_better_than_the_fit(left_out: float, chosen: str) -> None:
    assert _simplest({REGISTER: left_out, "all speeds together": 0.95, "all figures": 1.0}) == chosen


@pytest.mark.parametrize(("jobs", "moved"), [(5, ALL), (6, REGISTER)])
def test_jobs_choose_among_fits_from_six_on(jobs: int, moved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taylor.profiling.calibration.fit._simplest", lambda errors: REGISTER)
    runs_of_jobs = [power("matmul", 1.0, 11.0, job) for job in range(jobs)]
    assert calibrate([*runs_of_jobs, replace(runs_of_jobs[0], name="once more")], H100).moved == moved
