"""Intervals of estimated steps: their classes, their record, and their fit to sets left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.accuracy_page import PAGE, Accuracy, page, residuals
from benchmarks.interval_fit import Residual, Settings, covered, fit, left_out
from taylor.cost_model.errors.step_interval import (
    DENSE_LAYERS,
    EXPERT_LAYERS,
    RECURRENT_LAYERS,
    SPARSE_LAYERS,
    WHOLE,
    ClassError,
    JobClass,
    StepErrors,
    job_class,
    recorded_errors,
    step_error,
)
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.register.registry import Registry

DENSE = JobClass(DENSE_LAYERS, True, False, "megatron", (4096.0, 4096.0, 64.0, 4096.0))
EXPERTS = JobClass(EXPERT_LAYERS, True, False, "megatron", (4096.0, 4096.0, 64.0, 4096.0))


def synthetic(seed: int, job: JobClass, spread: float, sets: int, prefix: str, common: float = 0.0) -> list[Residual]:
    """Residuals of sets of ten rows: normal, with a part common to a set and a bias."""
    draw = np.random.default_rng(seed)
    return [
        Residual(float(0.05 + shift + draw.normal(0.0, spread)), f"{prefix} {one}", job)
        for one in range(sets)
        for shift in [draw.normal(0.0, common)]
        for _ in range(10)
    ]


@pytest.mark.parametrize("common", [0.0, 0.1])
def test_nine_of_ten_further_steps_lie_in_intervals_fitted_to_other_sets_and_misses_lie_on_both_sides(
    common: float,
) -> None:
    errors, _ = fit(synthetic(1, DENSE, 0.1, 24, "fit", common))
    fresh = synthetic(2, DENSE, 0.1, 200, "fresh", common)
    known = errors.of(DENSE)
    share = sum(covered(one.log_ratio, known) for one in fresh) / len(fresh)
    low = sum(one.log_ratio < math.log(known.lower()) for one in fresh) / len(fresh)
    assert 0.86 <= share <= 0.97 and 0.01 <= low <= 0.09 and 0.01 <= 1 - share - low <= 0.09


def test_sets_left_out_lie_in_their_intervals_as_often_as_stated() -> None:
    rows = synthetic(3, DENSE, 0.05, 16, "dense", 0.05) + synthetic(4, EXPERTS, 0.3, 16, "experts", 0.1)
    known = left_out(rows, Settings())
    for job in (DENSE, EXPERTS):
        mine = [covered(row.log_ratio, one) for row, one in zip(rows, known, strict=True) if row.job is job]
        assert 0.82 <= sum(mine) / len(mine) <= 0.99


def test_a_class_of_wide_errors_has_the_wider_interval_even_where_it_rests_on_one_set() -> None:
    rows = synthetic(5, DENSE, 0.05, 20, "dense")
    wide, narrow = synthetic(6, EXPERTS, 0.3, 20, "experts"), synthetic(6, EXPERTS, 0.3, 1, "one")
    many, few = fit(rows + wide)[0], fit(rows + narrow)[0]
    assert many.of(DENSE).above < many.of(EXPERTS).above
    assert few.of(DENSE).above < few.classes[WHOLE].above < few.of(EXPERTS).above


def test_a_fit_that_leaves_a_set_out_does_not_change_with_that_set_s_errors() -> None:
    rows = synthetic(7, DENSE, 0.1, 12, "set")
    moved = [Residual(9.0, row.fold, row.job) if row.fold == "set 0" else row for row in rows]
    before, after = left_out(rows, Settings()), left_out(moved, Settings())
    assert before[:10] == after[:10] and before[10:] != after[10:]


def test_a_job_of_no_recorded_class_has_the_width_of_the_class_around_it() -> None:
    errors = StepErrors(
        {WHOLE: ClassError(0.2, 0.4, 0.1, 9, 90), DENSE_LAYERS: ClassError(0.1, 0.2, 0.05, 5, 50)},
    )
    assert errors.found(DENSE).above == 0.2 and errors.found(EXPERTS).above == 0.4


def test_flags_and_sizes_beyond_the_calibrated_rows_widen_an_interval() -> None:
    errors = StepErrors({WHOLE: ClassError(0.1, 0.2, 0.05, 5, 50)}, [(1024.0, 8192.0)] * 4, 0.1)
    near, far = DENSE, JobClass(DENSE_LAYERS, True, False, "megatron", (4096.0, 4096.0, 8192.0 * math.e, 4096.0))
    assert errors.distance(near.place) == pytest.approx(math.log(1024 / 64))
    assert errors.distance(far.place) == pytest.approx(1.0)
    inside = errors.of(JobClass(DENSE_LAYERS, True, False, "megatron"))
    deviations = math.hypot(math.log(1.2), 0.1 * 1.6448536269514722)
    assert errors.of(far).above == pytest.approx(math.expm1(deviations))
    assert inside.above == pytest.approx(0.2) and errors.of(near, flags=2).below > errors.of(near).below


@pytest.mark.parametrize(
    "name, layers",
    [
        ("llama3-70b", DENSE_LAYERS),
        ("qwen3-30b-a3b", EXPERT_LAYERS),
        ("nemotron-3-nano-30b-a3b", RECURRENT_LAYERS),
        ("qwen3-next-80b-a3b", RECURRENT_LAYERS),
        ("glm-5", SPARSE_LAYERS),
        ("gpt-oss-20b", SPARSE_LAYERS),
    ],
)
def test_a_job_s_class_follows_its_layers(name: str, layers: str) -> None:
    registry = Registry.load()
    job = job_class(registry.model(name), Strategy(8, 1, 1), TrainingRules(), registry.device("h100-80g"))
    assert job.layers == layers and job.measured_device and job.place[2] == 8


def test_steps_of_a_calibrated_device_have_a_narrow_interval() -> None:
    calibrated = JobClass(EXPERT_LAYERS, True, False, "megatron", calibrated=True)
    assert step_error(calibrated, 0).above < step_error(EXPERTS, 0).above


def test_the_page_on_accuracy_is_that_of_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(Accuracy.recorded()), (
        "run python -m benchmarks.accuracy_page --record"
    )


@pytest.mark.slow
def test_the_recorded_errors_are_those_of_the_recorded_rows() -> None:
    found = Accuracy.recorded()
    errors, settings = fit(residuals(found.judged))
    assert settings == found.settings and errors.classes == recorded_errors().classes


def test_nine_of_ten_recorded_steps_lie_in_the_intervals_of_fits_without_their_sets_with_misses_on_both_sides() -> None:
    rows = Accuracy.recorded().judged
    assert 0.85 <= sum(row.covered for row in rows) / len(rows) <= 0.95
    assert any(row.ratio < row.interval[0] for row in rows) and any(row.ratio > row.interval[1] for row in rows)
