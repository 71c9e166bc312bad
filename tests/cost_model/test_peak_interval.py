"""Errors of estimated peaks: recorded by class, fitted to sets left out, wide enough for sets that took no part."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from benchmarks.memory_page import PAGE, MemoryAccuracy, fitted, page
from benchmarks.memory_rows import OUT_OF_MEMORY, RAN, MemoryRow
from benchmarks.peak_fit import PeakResidual, fit, without_each
from taylor.cost_model.errors.known_error import FRAMEWORK_WIDTH
from taylor.cost_model.errors.peak_interval import PeakClass, PeakErrors, recorded_errors
from taylor.cost_model.errors.step_interval import DENSE_LAYERS, EXPERT_LAYERS, WHOLE, ClassError
from taylor.cost_model.profile import MemorySource
from taylor.parsers.read import read_config
from tests.conftest import ROOT

DENSE, EXPERTS = PeakClass("megatron", DENSE_LAYERS), PeakClass("megatron", EXPERT_LAYERS)


def drawn(spread: float, job: PeakClass, sets: int, rows: int, seed: int) -> list[PeakResidual]:
    """Residuals of a normal logarithm, each set with a share of the deviation in common."""
    random = np.random.default_rng(seed)
    return [
        PeakResidual(float(common + random.normal(0, spread)), f"{job}-{seed}-{number}", job)
        for number, common in enumerate(random.normal(0, spread, sets))
        for _ in range(rows)
    ]


def test_a_job_has_the_error_of_its_narrowest_recorded_class() -> None:
    one, other = (ClassError(0.1, above, 0.05, 3, 30) for above in (0.2, 0.04))
    errors = PeakErrors({WHOLE: one, "megatron": one, "megatron, dense": other})
    assert errors.of(DENSE).above == 0.04 and errors.of(EXPERTS).above == 0.2
    assert errors.of(DENSE).planned


def test_software_without_a_measured_peak_has_a_wider_error_than_all() -> None:
    errors = PeakErrors({WHOLE: ClassError(0.1, 0.1, 0.05, 3, 30)})
    found = errors.of(DENSE)
    far = FRAMEWORK_WIDTH * 1.6448536269514722
    assert found.above == pytest.approx(math.expm1(math.hypot(math.log1p(0.1), far)))


def test_intervals_of_fits_without_a_set_contain_about_nine_of_ten_of_its_rows() -> None:
    residuals = drawn(0.02, DENSE, 12, 20, 1) + drawn(0.08, EXPERTS, 12, 20, 2)
    errors, shrink = fit(residuals)
    others = without_each(residuals, shrink)
    for job in (DENSE, EXPERTS):
        mine = [one for one in residuals if one.job == job]
        within = 0
        for one in mine:
            known = others[one.fold].of(job)
            within += known.lower() <= math.exp(one.log_ratio) <= known.upper()
        assert 0.82 <= within / len(mine) <= 0.98
    assert errors.of(EXPERTS).above > 1.5 * errors.of(DENSE).above


def test_few_rows_never_show_a_narrower_error_than_the_class_around_them() -> None:
    residuals = drawn(0.05, EXPERTS, 10, 10, 3)
    residuals += [PeakResidual(0.0, "exact", PeakClass("torchtitan", DENSE_LAYERS)) for _ in range(5)]
    errors, _ = fit(residuals)
    assert errors.classes["torchtitan, dense"].above >= errors.classes[WHOLE].above - 1e-4


def test_a_row_that_a_flag_may_have_raised_shows_no_upper_end() -> None:
    residuals = drawn(0.02, DENSE, 8, 10, 4)
    raised = [PeakResidual(1.0, "raised", DENSE, open_above=True)] * 40
    assert fit(residuals)[0].of(DENSE).above == pytest.approx(fit([*residuals, *raised])[0].of(DENSE).above, rel=0.2)


def test_a_verdict_is_false_where_it_contradicts_what_happened() -> None:
    errors = PeakErrors({WHOLE: ClassError(0.05, 0.05, 0.02, 3, 30), "megatron": ClassError(0.05, 0.05, 0.02, 3, 30)})
    ran, failed = (
        MemoryRow("a", "a", DENSE, happened, peak_mib=peak, limit_mib=1000.0).judged(errors)
        for happened, peak in ((RAN, 1100.0), (OUT_OF_MEMORY, 900.0))
    )
    assert ran.false_misfit and ran.refused and not ran.false_fit
    assert failed.false_fit and not failed.false_misfit
    close = MemoryRow("a", "a", DENSE, RAN, peak_mib=980.0, limit_mib=1000.0).judged(errors)
    assert close.refused and not close.false_misfit


def test_dense_megatron_jobs_lose_about_a_twentieth_of_the_card() -> None:
    config = read_config(ROOT / "config" / "pretrain_llama3_70b.sh")
    known = config.memory_error(MemorySource.ESTIMATE)
    assert known is not None and 0.02 <= known.above <= 0.06
    assert recorded_errors().of(config.peak_class) == known


def test_the_page_on_memory_is_that_of_the_record() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(MemoryAccuracy.recorded()), (
        "run python -m benchmarks.memory_page --record"
    )


def test_the_recorded_errors_and_verdicts_are_those_of_the_recorded_rows() -> None:
    found = MemoryAccuracy.recorded()
    again = fitted(found.rows, found.without)
    assert again.errors.classes == recorded_errors().classes and again.shrink == found.shrink
    assert [row.verdict for row in again.rows] == [row.verdict for row in found.rows]


def test_no_job_that_ran_out_of_memory_is_said_to_fit_and_few_that_ran_not_to() -> None:
    rows = [row for row in MemoryAccuracy.recorded().rows if row.verdict]
    assert not any(row.false_fit for row in rows)
    assert sum(row.false_misfit for row in rows) <= 0.03 * sum(row.happened == RAN for row in rows)


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_readme_states_the_peaks_of_the_page(readme: str) -> None:
    every = re.search(r"^\| \*\*all\*\* \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert every is not None
    rows, _, median, _, largest, covered, _ = (cell.strip() for cell in every[1].split("|"))
    (line,) = (one for one in (ROOT / readme).read_text(encoding="utf-8").splitlines() if f"| {rows} " in one)
    assert re.findall(r"[\d.]+", line.rpartition("|")[0].rpartition("|")[0]) == [
        rows,
        median,
        largest.lstrip("+-"),
        covered,
    ]
