"""The report as one self-contained HTML page: ranking, trade-off, pipelines, memory, what was pruned."""

from __future__ import annotations

import html
import io
import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np
import pandas as pd

from taylor.base.files import write_atomic
from taylor.pipeline.schedule import BACKWARD
from taylor.report.compress import compress_grid, file_stem, in_gib, parse_json, strategy_text
from taylor.report.palette import COLOURS, LINES, RECOMPUTE, shade
from taylor.report.timeline import DIRECTION_NAMES, MemorySteps, Timeline, drawing_windows, window_shares

SHADES = 8
"""Shades of one colour for the interleaves; where there are more interleaves, some share a shade."""

CURVE_POINTS = 400
"""Points of a memory curve at most; a longer curve is drawn by the highest value of each stretch."""

FIRST_COLUMNS = (
    "dp",
    "tp",
    "pp",
    "ep",
    "cp",
    "vpp",
    "mbs",
    "micro_batches",
    "cost",
    "objective",
    "gap",
    "peak_memory",
    "offset",
    "recompute",
    "status",
    "solver",
    "time",
    "reason",
    "file",
)
"""Columns of the ranking table, in this order; the others are shown for the chosen candidate."""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'; base-uri 'none'">
<link rel="icon" href="data:,"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{css}</style></head><body>
<h1>{title}</h1>
{notes}
<section id="ranking"><h2>Ranking</h2><p class="soft">Best first. Click a heading to sort, a row to select; a column's
filter takes text, a list (8,16) or a comparison (&gt;=4). In lists 14×4,3 means fourteen fours and a three, one entry a
stage, | between interleaves.</p><div id="ranking-table"></div></section>
<section id="overview"><h2>Memory and step time</h2><div class="columns">
<div><h3>Every candidate (click a point to select)</h3><div id="trade-off" class="chart"></div></div>
<div><h3>How far from proven optimal</h3><div id="gaps" class="chart"></div></div></div></section>
<section id="chosen"><h2>Selected: <span id="chosen-name"></span></h2><p id="chosen-plan" class="soft"></p>
<div class="columns"><div><h3>Peak memory by stage</h3><div id="chosen-memory" class="chart"></div></div>
<div><h3>Layers and recompute by stage</h3><div id="chosen-layers" class="chart"></div></div></div>
<details open><summary>All its figures, as in the CSV</summary><dl id="chosen-facts" class="facts"></dl></details>
</section>
<section id="pipelines"><h2>Pipelines</h2><div class="bar"><label>draw <select id="plan-a"></select></label>
<label>beside <select id="plan-b"></select></label></div>{drawings}</section>
<section id="pruned"><h2>Pruned, and why</h2><div id="pruned-table"></div></section>
<script id="report-data" type="application/json">{data}</script>
<script>{table_script}</script>
<script>{plotly}</script>
<script>{chart_script}</script>
</body></html>
"""

DRAWING = """<div id="drawing-{0}"><h3 id="name-{0}"></h3><ul id="notes-{0}" class="notes soft"></ul>
<div id="pipeline-{0}" class="chart"></div><div class="columns"><div id="memory-{0}" class="chart"></div>
<div id="layers-{0}" class="chart"></div><div id="progress-{0}" class="chart"></div></div></div>
"""


def write_html_report(
    path: str | Path,
    ranking: pd.DataFrame,
    *,
    plans: Mapping[str, Timeline] | None = None,
    pruned: pd.DataFrame | None = None,
    progress: Mapping[str, Sequence[tuple[float, float | None, float | None]]] | None = None,
    title: str = "Taylor report",
    notes: Sequence[str] = (),
) -> Path:
    """Write the report page; it needs nothing but itself (no network, no other file).

    Parameters
    ----------
    ranking : DataFrame
        The columns of ``test_result_*.csv``, best first; ``offset``, ``recompute``, ``layers``,
        ``peak_memory`` and ``memory_limit`` hold JSON text. May be empty.
    plans : mapping of name to Timeline
        Pipelines to draw. A name equal to a row's ``file``, or to its stem, belongs to that row.
    pruned : DataFrame, optional
        What the search removed and why, any columns.
    progress : mapping of name to (seconds, objective, bound)
        How the solve of a plan (by its name in `plans`) went, in the solver's units.
    notes : sequence of str
        Paragraphs under the title: provenance, assumptions.

    Returns
    -------
    Path
        The file written (atomically).

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    data = report_data(ranking, plans or {}, pruned, progress or {})
    page = PAGE.format(
        title=html.escape(title),
        css=_asset("report.css"),
        notes="".join(f'<p class="note">{html.escape(note)}</p>' for note in notes),
        drawings=DRAWING.format("a") + DRAWING.format("b"),
        data=_embed(data),
        plotly=_plotly(),
        # The ranking is on the screen before the browser reads the megabytes of plotly.
        table_script=_asset("table.js") + _asset("ranking.js"),
        chart_script=_asset("charts.js") + _asset("report.js"),
    )
    return write_atomic(path, page)


def report_data(
    ranking: pd.DataFrame,
    plans: Mapping[str, Timeline],
    pruned: pd.DataFrame | None,
    progress: Mapping[str, Sequence[tuple[float, float | None, float | None]]],
) -> dict[str, Any]:
    """What the page's script draws, as plain data.

    The rows are the CSV's own text, so that the page cannot show another figure than the CSV.
    """
    rows = _as_text(ranking)
    numeric = [str(name) for name in ranking.columns if pd.api.types.is_numeric_dtype(ranking[name])]
    present = [name for name in FIRST_COLUMNS if name in ranking.columns and any(row[name] for row in rows)]
    return {
        "rows": rows,
        "names": [strategy_text(row) for row in rows],
        "columns": present,
        "all_columns": [str(name) for name in ranking.columns],
        "numeric": [*numeric, "peak_memory"],
        "short": {
            "offset": [compress_grid(row.get("offset")) for row in rows],
            "recompute": [compress_grid(row.get("recompute")) for row in rows],
            "peak_memory": [_peak_text(row) for row in rows],
            "file": [file_stem(row.get("file")) for row in rows],
        },
        "in_ms": any(row.get("cost") for row in rows),
        "plan_of": [_plan_of(row, plans) for row in rows],
        "plans": {name: _plan_data(timeline, progress.get(name, ())) for name, timeline in plans.items()},
        "pruned": None
        if pruned is None
        else {
            "columns": [str(name) for name in pruned.columns],
            "rows": [list(row.values()) for row in _as_text(pruned)],
        },
        "palette": {
            "names": list(DIRECTION_NAMES),
            "shades": [
                [shade(COLOURS[kind], i, SHADES) for i in range(SHADES)] for kind in range(len(DIRECTION_NAMES))
            ],
            "recompute": COLOURS[RECOMPUTE],
            "lines": list(LINES),
        },
    }


def _as_text(frame: pd.DataFrame) -> list[dict[str, str]]:
    if frame.empty:
        return []
    text = pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype=str, keep_default_na=False)
    text.columns = [str(name) for name in frame.columns]
    return text.to_dict("records")  # type: ignore[return-value]


def _peak_text(row: Mapping[str, str]) -> str:
    """Peak of the heaviest stage with its limit and number; the page lists all stages for the chosen candidate."""
    peaks, limits = parse_json(row.get("peak_memory")), parse_json(row.get("memory_limit"))
    if not isinstance(peaks, list) or not peaks:
        return ""
    heaviest = max(range(len(peaks)), key=lambda stage: float(peaks[stage]))
    limit = f" of {in_gib(limits)[heaviest]}" if isinstance(limits, list) and len(limits) == len(peaks) else ""
    return f"{in_gib(peaks)[heaviest]}{limit}, stage {heaviest}"


def _plan_of(row: Mapping[str, str], plans: Mapping[str, Timeline]) -> str | None:
    file = row.get("file", "")
    return next((name for name in (file, file_stem(file)) if name and name in plans), None)


def _plan_data(timeline: Timeline, progress: Sequence[tuple[float, float | None, float | None]]) -> dict[str, Any]:
    shown = timeline.in_ms()
    unit = "units" if shown.unit_ms is None else "ms"
    layers: dict[str, list[int]] = {}
    recompute: dict[str, list[int]] = {}
    if timeline.plan is not None:
        layers = {
            kind: [sum(column) for column in zip(*grid, strict=True)] for kind, grid in timeline.plan.by_kind().items()
        }
        recompute = {
            mode: [sum(column) for column in zip(*grid, strict=True)] for mode, grid in timeline.plan.recompute.items()
        }
    bubble = timeline.bubble
    windows = drawing_windows(shown)
    # Task by task is what a dry-run is looked at for; the page begins with the warm-up.
    closely = windows[0].end if shown.dryrun else -np.inf
    return {
        "title": timeline.title,
        "rows": list(timeline.row_names),
        "unit": unit,
        "tasks": len(timeline),
        "span": f"{shown.span:,.3f} {unit}",
        "windows": [
            {
                "name": window.name,
                "begin": window.begin,
                "end": window.end,
                "share": share,
                "tasks": _tasks(shown.window(window.begin, window.end), window.begin, window.end),
            }
            for window, share in zip(windows, window_shares(windows), strict=True)
        ],
        "memory": [
            _curve(steps, closely) | {"limit": steps.limit_mib, "peak": steps.peak_mib} for steps in shown.memory
        ],
        "dryrun": [_curve(steps, closely) | {"peak": steps.peak_mib} for steps in shown.dryrun],
        "marks": [list(mark) for mark in shown.marks],
        "layers": layers,
        "recompute": recompute,
        "bubble": None
        if bubble is None
        else {name: getattr(bubble, name) for name in ("total", "ideal", "imbalance", "recompute", "communication")},
        "notes": list(timeline.notes),
        "progress": [list(point) for point in progress],
    }


def _tasks(part: Timeline, begin: float, end: float) -> dict[str, list[Any]]:
    starts, ends = part.start.clip(begin, end), part.end.clip(begin, end)
    # What the window cuts off at the left is cut from the recompute part first: it is the leading one.
    recompute = ((part.start + part.recompute).clip(begin, end) - starts) * (part.direction == BACKWARD)
    lanes = [int(part.lane[part.stage == row].max(initial=0)) + 1 for row in range(part.rows)]
    return {
        "row": part.stage.tolist(),
        "kind": part.direction.tolist(),
        "interleave": part.interleave.tolist(),
        "micro_batch": part.micro_batch.tolist(),
        "split": part.split.tolist() if part.split.max(initial=0) > 0 else [],
        # Left out where the page's script can say it itself: names and lanes are half of a big page.
        "lane": part.lane.tolist() if max(lanes, default=1) > 1 else [],
        "lanes": [lanes[row] for row in part.stage] if max(lanes, default=1) > 1 else [],
        "name": part.task_names() if part.labels else [],
        "start": [_short(value) for value in starts.tolist()],
        "end": [_short(value) for value in ends.tolist()],
        "recompute": [_short(value) for value in recompute.tolist()],
    }


def _curve(steps: MemorySteps, closely: float) -> dict[str, list[float]]:
    """Points of a curve: all of them up to the time `closely`, from there on the highest of each stretch."""
    times, values = steps.time.tolist(), steps.mib.tolist()
    if len(times) > CURVE_POINTS:
        whole = int(np.searchsorted(steps.time, closely, side="right"))
        size = max(1, -(-(len(times) - whole) // CURVE_POINTS))
        kept = list(zip(times[:whole], values[:whole], strict=True))
        kept += [(times[i], max(values[i : i + size])) for i in range(whole, len(times), size)]
        kept.append((times[-1], values[-1]))
        times, values = [time for time, _ in kept], [value for _, value in kept]
    return {"time": [_short(value) for value in times], "mib": [round(value, 1) for value in values]}


def _short(value: float) -> float:
    # Seven digits: a millionth of a step is far below a pixel.
    return float(f"{value:.7g}")


def _embed(data: object) -> str:
    """JSON that is safe inside a script element, whatever its texts say."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _asset(name: str) -> str:
    return (resources.files("taylor.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())
