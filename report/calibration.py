"""A calibration for the terminal: every run's error, every figure with its interval, the verdict."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from taylor.profiling.calibration.fit import Calibration

MOST_RUNS = 40
"""Runs that are listed; of more, those with the largest errors."""


def errors_table(fit: Calibration) -> Table:
    """One line a run: the measured figure, and the errors before the fit, in the fit and without the run."""
    runs = sorted(fit.runs, key=lambda run: -abs(run.fitted))[:MOST_RUNS]
    kept = {id(run) for run in runs}
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("run", overflow="fold")
    for heading in ("measured ms", "register", "fitted", "left out"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in fit.runs:
        if id(run) not in kept:
            continue
        left = "-" if run.left_out is None else _percent(run.left_out)
        fitted = _percent(run.fitted) + (" !" if run.contradicts else "")
        table.add_row(Text(run.name), f"{run.measured_ms:,.1f}", _percent(run.before), fitted, left)
    caption = "errors of the estimate; left out: fitted without the runs of this job; !: contradicts the others"
    more = f"; {len(fit.runs) - MOST_RUNS} nearer runs are not listed" if len(fit.runs) > MOST_RUNS else ""
    table.caption, table.caption_justify = caption + more, "left"
    return table


def figures_table(fit: Calibration) -> Table:
    """One line a figure that the runs determine: before, fitted, and its 95 % interval."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("figure", no_wrap=True)
    for heading in ("register", "fitted", "95 % between"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in fit.figures:
        if one.from_runs:
            table.add_row(one.name, f"{one.before:.4g}", f"{one.value:.4g}", f"{one.least:.4g} and {one.largest:.4g}")
    open_figures = ", ".join(one.name for one in fit.figures if not one.from_runs)
    table.caption, table.caption_justify = (f"not given by these runs: {open_figures}" if open_figures else ""), "left"
    return table


def verdict(fit: Calibration) -> str:
    """Quality of the fit, in a sentence."""
    before, fitted, left = (fit.median_error(which) for which in ("before", "fitted", "left_out"))
    promised = "" if left is None else f", {100 * left:.1f} % for a run that is not in the fit"
    return (
        f"{len(fit.runs)} measurements, {fit.moved} fitted: median error {100 * (before or 0):.1f} % with the "
        f"register, {100 * (fitted or 0):.1f} % fitted{promised}."
    )


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %"
