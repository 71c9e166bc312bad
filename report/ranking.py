"""A ranking of strategies on a terminal: a line a candidate, then the facts of the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from taylor.cost_model.errors.known_error import NEIGHBOUR_ERROR
from taylor.pipeline_solver.model.solution import CUT_OFF, FEASIBLE, OPTIMAL, OVER_LIMIT
from taylor.report.compress import (
    compress,
    compress_grid,
    hours_text,
    in_gib,
    number,
    parse_json,
    rate_text,
    strategy_text,
)

STATUS_STYLE = {OPTIMAL.value: "green", FEASIBLE.value: "yellow", CUT_OFF.value: "dim"}

WIDE = 100
"""Columns of a window from which on a row has the micro-batches and wider gaps."""

_PLANNED = (OPTIMAL.value, FEASIBLE.value)

NOT_CERTAIN = "it is unknown whether it fits"
AT_RISK = "exceeds the risk"
"""Answer on a plan within the memory of its devices with more risk than the job may have."""

MOST_CERTAIN = 99
"""Largest probability that is named, %."""
"""Start of a row's certainty where unmodelled flags may change the answer."""

LISTED_REASONS = 5
"""Candidates without a plan whose reasons are printed; the table has all."""

MEASURED = "parsed"
"""Start of the ratios' source in a row that was measured."""

if TYPE_CHECKING:
    import pandas as pd

    Rows = pd.DataFrame | Sequence[Mapping[str, Any]]


def ranking_table(rows: Rows, *, limit: int | None = None, width: int) -> Table:
    """Ranking with one line a candidate, from 80 columns on; rows keep their order, best first.

    Parameters
    ----------
    rows : DataFrame or sequence of mappings
        Columns of ``test_result_*.csv``. Missing ones are left empty.
    limit : int, optional
        Most candidates shown; the caption has their total number. The baseline is always shown.
    width : int
        Columns of the window.

    Returns
    -------
    rich.table.Table
        Step time in ms, tokens a second, gain over the baseline, peak of the fullest stage and its limit in GiB,
        and the proof: ``proven``, a gap, or ``≥ 26,048``, the least step time in ms of any plan.
    """
    records = _records(rows)
    shown = _shown(records, limit)
    mixed = _is_mixed(records)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2 if width >= WIDE + 10 * mixed else 1))
    hidden = len(records) - len(shown)
    if hidden:
        table.caption = f"{len(shown)} of {len(records)} rows; all are in the CSV"
        table.caption_justify = "left"
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("strategy")
    table.add_column("step ms", justify="right", no_wrap=True)
    table.add_column("tokens/s", justify="right", no_wrap=True)
    table.add_column("gain", justify="right", no_wrap=True)
    table.add_column("peak GiB", justify="right", no_wrap=True)
    table.add_column("proof", no_wrap=True)
    if mixed:
        table.add_column("times", no_wrap=True)
    for place, row in shown:
        cells: list[str | Text] = [
            "own" if _is_own(row) else str(place),
            Text(_strategy(row, width)),
            step_text(row),
            _thousands(row.get("tokens_per_second")),
            _gain(row),
            _peak(row),
            _proof(row),
        ]
        times = ["meas." if _is_measured(row) else "est."] if mixed else []
        table.add_row(*cells, *times, style="bold" if _is_own(row) else "")
    return table


def step_text(row: Mapping[str, Any]) -> str:
    """Step time in ms; in body-layer forwards (``u``) when the real time is not known."""
    cost, objective = number(row.get("cost")), number(row.get("objective"))
    if cost is not None:
        return f"{cost:,.1f}"
    return f"{objective:.3f} u" if objective is not None else "-"


def note_lines(rows: Rows) -> list[str]:
    """Notes below the columns: the meaning of the marks, and why candidates have no plan."""
    records = _records(rows)
    lines = []
    if _is_mixed(records):
        lines.append("times: meas. by profiles or the given table, est. by the analytical model (column ratio_source)")
    if any(_is_own(row) for row in records):
        lines.append("own: the plan in the file, by the same memory and times; gain is over it")
    if any(row.get("status") == CUT_OFF.value for row in records):
        lines.append("≥: not among the best, no plan takes fewer ms; --prove all proves every row")
    lines += tie_lines(records)
    failed = [row for row in records if number(row.get("objective")) is None and row.get("reason")]
    lines += [f"{_strategy(row, WIDE)}: {row.get('status')}: {row.get('reason')}" for row in failed[:LISTED_REASONS]]
    if len(failed) > LISTED_REASONS:
        lines.append(f"and {len(failed) - LISTED_REASONS} more without a plan; the CSV says why")
    return lines


def tie_lines(rows: Rows) -> list[str]:
    """Note on the candidates that are a tie with the best one; none where it is alone."""
    alike = tied_with_first(rows)
    if alike < 2:
        return []
    return [
        f"the first {alike} are a tie: their steps are predicted within {100 * NEIGHBOUR_ERROR:.0f} % of "
        "the best one's, and two estimates may be as far off from each other"
    ]


def tied_with_first(rows: Rows) -> int:
    """Number of candidates whose estimated step is a tie with the best one's, the best included."""
    return len(tied_rows(rows))


def tied_rows(rows: Rows) -> list[int]:
    """Places of the candidates whose estimated step is a tie with the best one's, the best included."""
    steps = {
        at: step
        for at, row in enumerate(_records(rows))
        if not _is_own(row) and row.get("status") in _PLANNED and not _is_measured(row)
        if (step := number(row.get("cost"))) is not None
    }
    most = (1 + NEIGHBOUR_ERROR) * min(steps.values(), default=math.inf)
    return [at for at, step in steps.items() if step <= most]


def plan_lines(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Plan of a row, as name and text: offset, recompute and peak memory by stage, runs as ``20×1``."""
    pairs = []
    for name in ("offset", "recompute"):
        if text := compress_grid(row.get(name)):
            pairs.append((name, _spaced(text)))
    if peaks := in_gib(row.get("peak_memory")):
        limits = in_gib(row.get("memory_limit"))
        pairs.append(("peak GiB", f"{_spaced(compress(peaks))} of {_spaced(compress(limits))}"))
    if isinstance(row.get("file"), str):
        pairs.append(("file", str(row["file"])))
    return pairs


def verdict_lines(rows: Rows) -> list[str]:
    """Three lines: which plan and how much faster than the baseline, does it fit, what the figures rest on."""
    records = _records(rows)
    best = next((row for row in records if not _is_own(row) and number(row.get("objective")) is not None), None)
    if best is None:
        return ["no candidate has a plan", "not known", _basis_line(records)]
    own = next((row for row in records if _is_own(row)), None)
    return [_best_line(best, own), _fit_line(best), _basis_line(records)]


def _best_line(best: Mapping[str, Any], own: Mapping[str, Any] | None) -> str:
    speed, gain = number(best.get("tokens_per_second")), number(best.get("gain"))
    line = f"{_strategy(best, WIDE)}, {_step_with_unit(best)} a step"
    line += "" if speed is None else f", {speed:,.0f} tokens/s"
    samples, epoch, run = (number(best.get(name)) for name in ("samples_per_second", "epoch_hours", "run_hours"))
    line += "" if samples is None else f", {rate_text(samples)} samples/s"
    line += "" if epoch is None else f", {hours_text(epoch)} an epoch"
    days = number(best.get("train_days"))
    line += "" if days is None else f", {days:,.1f} days of training"
    line += "" if run is None or days is not None else f", {hours_text(run)} for all steps"
    if own is None or gain is None:
        return f"{line}; the file has no plan to compare with"
    against = f"the plan in the file ({_strategy(own, WIDE)}, {_step_with_unit(own)})"
    line += f"; {abs(gain):.1f} % {'faster' if gain >= 0 else 'slower'} than {against}"
    fullest = _fullest(own)
    if own.get("status") == OVER_LIMIT.value and fullest is not None:
        free, stage, _ = fullest
        if free >= 0:
            return f"{line}, which {AT_RISK} that the job may have"
        return f"{line}, which is {-free:,.0f} MiB over its limit on stage {stage}"
    return line


def _step_with_unit(row: Mapping[str, Any]) -> str:
    return f"{step_text(row)} ms" if number(row.get("cost")) is not None else step_text(row)


def _fit_line(best: Mapping[str, Any]) -> str:
    found = _fullest(best)
    if found is None:
        return "not known"
    free, stage, limit = found
    share = f"{free / limit:.1%}".replace("%", " %")
    certainty = best.get("certainty")
    free_text = f"{free:,.0f} of {limit:,.0f} MiB ({share}) free on stage {stage}, the fullest"
    if isinstance(certainty, str) and certainty.startswith(NOT_CERTAIN):
        return f"{certainty}; predicted: {free_text}"
    line = f"{fits_text(number(best.get('risk')))}, {free_text}"
    return f"{line}; {certainty}" if isinstance(certainty, str) and certainty else line


def fits_text(risk: float | None) -> str:
    """Answer of a plan within its limits, with its probability where that is known."""
    if risk is None:
        return "fits"
    return f"fits with {percent_text(100 * (1 - risk))} probability"


def percent_text(percent: float) -> str:
    """Probability in words: no prediction is certain."""
    return f"{percent:.0f} %" if percent < MOST_CERTAIN else f"more than {MOST_CERTAIN} %"


def _basis_line(records: Sequence[Mapping[str, Any]]) -> str:
    candidates = [row for row in records if not _is_own(row)]
    measured = sum(_is_measured(row) for row in candidates)
    times = "measured" if measured else "estimated"
    if 0 < measured < len(candidates):
        times = f"measured for {measured} of {len(candidates)} candidates, the others estimated"
    memory = sorted({str(row["memory_source"]) for row in candidates if isinstance(row.get("memory_source"), str)})
    return f"times {times}; memory by {', '.join(memory) or 'nothing'}"


def _records(rows: Rows) -> list[Mapping[str, Any]]:
    records: list[Any] = list(rows) if isinstance(rows, Sequence) else rows.to_dict("records")
    return records


def _shown(records: Sequence[Mapping[str, Any]], limit: int | None) -> list[tuple[int, Mapping[str, Any]]]:
    """Rows to show, each with its place among the candidates."""
    place, shown = 0, []
    for row in records:
        place += not _is_own(row)
        if limit is None or place <= limit or _is_own(row):
            shown.append((place, row))
    return shown


def _is_own(row: Mapping[str, Any]) -> bool:
    return bool(number(row.get("own")))


def _is_measured(row: Mapping[str, Any]) -> bool:
    return str(row.get("ratio_source")).startswith(MEASURED)


def _is_mixed(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the times of some rows are measured and those of others are not."""
    return len({_is_measured(row) for row in records if isinstance(row.get("ratio_source"), str)}) > 1


def _strategy(row: Mapping[str, Any], width: int) -> str:
    text = strategy_text(row)
    return text if width >= WIDE else " ".join(part for part in text.split() if not part.startswith("m"))


def _thousands(value: object) -> str:
    figure = number(value)
    return "-" if figure is None else f"{figure:,.0f}"


def _gain(row: Mapping[str, Any]) -> str:
    gain = number(row.get("gain"))
    return "-" if gain is None or _is_own(row) else f"{gain:+.1f} %"


def _fullest(row: Mapping[str, Any]) -> tuple[float, int, float] | None:
    """Free memory of the fullest stage, MiB (negative: over), its number, its limit in MiB; None without peaks."""
    peaks, limits = parse_json(row.get("peak_memory")), parse_json(row.get("memory_limit"))
    if not isinstance(peaks, (list, tuple)) or not isinstance(limits, (list, tuple)) or not peaks:
        return None
    stages = enumerate(zip(peaks, limits, strict=False))
    return min((float(limit) - float(peak), stage, float(limit)) for stage, (peak, limit) in stages)


def _peak(row: Mapping[str, Any]) -> Text:
    found = _fullest(row)
    if found is None:
        return Text("-")
    free, _, limit = found
    return Text(f"{(limit - free) / 1024:.1f}/{limit / 1024:.1f}", style="red bold" if free < 0 else "")


def _proof(row: Mapping[str, Any]) -> Text:
    status, gap, bound = str(row.get("status") or "-"), number(row.get("gap")), number(row.get("bound_ms"))
    if _is_own(row):
        if str(row.get("reason")).startswith(AT_RISK):
            return Text(AT_RISK, style="yellow")
        return Text("too large", style="red bold") if status == OVER_LIMIT.value else Text("evaluated")
    if status == CUT_OFF.value and bound is not None:
        return Text(f"≥ {bound:,.0f}", style=STATUS_STYLE[status])
    if status == OPTIMAL.value:
        return Text("proven", style=STATUS_STYLE[status])
    if gap is not None:
        return Text(f"gap {gap:.2%}".replace("%", " %"), style=STATUS_STYLE.get(status, "red"))
    return Text(status, style=STATUS_STYLE.get(status, "red"))


def _spaced(text: str) -> str:
    return text.replace(",", ", ")
