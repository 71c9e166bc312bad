"""A calibration's tables and its verdict, word by word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taylor.profiling.calibration.fit import TOGETHER, Calibration, Fitted, RunError
from taylor.register.registry import Registry
from taylor.report.calibration import MOST_RUNS, errors_table, figures_table, verdict
from tests.report_cases import block, printed

RUNS = (
    RunError("llama3-8b [tp4]", 1234.56, 0.2, 0.011, 0.053, False),
    RunError("qwen with a long name and much more of it", 98.7, -0.1, -0.25, None, True),
)
FIGURES = (
    Fitted("all speeds", ("efficiency",), 0.5, 0.43219, 0.4, 0.47, True),
    Fitted("fabric", ("fabric",), 25.0, 25.0, 20.0, 30.0, False),
    Fitted("latency", ("latency",), 5.0, 5.0, 2.0, 9.0, False),
)
FIT = Calibration(Registry.load().device("h100"), TOGETHER, FIGURES, RUNS, ())


def test_a_run_has_its_errors_before_and_after_the_fit_and_without_it():
    assert printed(errors_table(FIT), 60) == block(
        """
        run               measured ms  register     fitted  left out
        llama3-8b [tp4]       1,234.6   +20.0 %     +1.1 %    +5.3 %
        qwen with a long         98.7   -10.0 %  -25.0 % !         -
        name and much
        more of it
        errors of the estimate; left out: fitted without the runs of
        this job; !: contradicts the others
        """
    )
    assert printed(errors_table(FIT), 30) == block(
        """
         measure…  regi…  fitt…  left…
          1,234.6  +20.…  +1.1…  +5.3…
             98.7  -10.…  -25.…      -
        errors of the estimate; left
        out: fitted without the runs
        of this job; !: contradicts
        the others
        """
    )
    assert printed(errors_table(FIT), 120) == block(
        """
        run                                        measured ms  register     fitted  left out
        llama3-8b [tp4]                                1,234.6   +20.0 %     +1.1 %    +5.3 %
        qwen with a long name and much more of it         98.7   -10.0 %  -25.0 % !         -
        errors of the estimate; left out: fitted without the runs of this job; !: contradicts
        the others
        """
    )


def test_of_many_runs_the_worst_fitted_are_listed_in_their_order():
    runs = tuple(RunError(f"run {n}", 1.0, 0.0, (-1) ** n * 0.001 * n, None, False) for n in range(42))
    table = errors_table(replace(FIT, runs=runs))
    assert list(map(str, table.columns[0].cells)) == [f"run {n}" for n in range(2, 42)]
    assert str(table.caption).endswith("; 2 nearer runs are not listed")
    table = errors_table(replace(FIT, runs=runs[:MOST_RUNS]))
    assert table.row_count == MOST_RUNS and "not listed" not in str(table.caption)


def test_a_figure_has_its_interval_and_those_that_no_run_gives_are_named():
    assert printed(figures_table(FIT), 60) == block(
        """
        figure      register  fitted  95 % between
        all speeds       0.5  0.4322  0.4 and 0.47
        not given by these runs: fabric, latency
        """
    )
    assert printed(figures_table(FIT), 20) == block(
        """
        fig…  re…    95 % b…
        all…  0.5    0.4 an…
        not given by these
        runs: fabric,
        latency
        """
    )
    assert not figures_table(replace(FIT, figures=FIGURES[:1])).caption


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (RUNS, "2 measurements, all speeds together fitted: median error 15.0 % with the register, 13.1 % fitted, "
         "5.3 % for a run that is not in the fit."),
        (RUNS[1:], "1 measurements, all speeds together fitted: median error 10.0 % with the register, 25.0 % fitted."),
        ((), "0 measurements, all speeds together fitted: median error 0.0 % with the register, 0.0 % fitted."),
    ],
)  # fmt: skip
def test_the_verdict_has_the_median_errors(runs, expected):
    assert verdict(replace(FIT, runs=runs)) == expected
