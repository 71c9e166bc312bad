"""Plain data for the scripts of a page: the ranking's rows as in the CSV, and every drawn plan."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any

import numpy as np
import pandas as pd

from taylor.pipeline.plan import FULL, SELECT, kind_of
from taylor.pipeline.schedule import BACKWARD
from taylor.report.compress import compress_grid, file_stem, in_gib, parse_json, strategy_text
from taylor.report.memory_parts import MemoryParts
from taylor.report.palette import COLOURS, LINES, PARTS, RECOMPUTE, ink, shade
from taylor.report.ranking import tied_rows
from taylor.report.slices import IDLE_MARK, MARKS, RECOMPUTE_MARK, slice_marks
from taylor.report.timeline import DIRECTION_NAMES, MemorySteps, Timeline, drawing_windows, window_shares

SHADES = 8
"""Virtual stages with a shade of their own; where there are more, some have the same."""

CURVE_POINTS = 240
"""Most points of a memory curve; a longer curve is drawn by the highest value of each stretch."""

OVERVIEW_SLICES = 1200
"""Slices in which the whole step of a big job is drawn."""

FIRST_COLUMNS = (
    "own",
    "dp",
    "tp",
    "pp",
    "ep",
    "cp",
    "vpp",
    "mbs",
    "micro_batches",
    "cost",
    "gain",
    "tokens_per_second",
    "tokens_per_second_per_device",
    "mfu",
    "mfu_precision",
    "peak_memory",
    "risk",
    "gap",
    "status",
    "smallest_change",
    "ratio_source",
    "offset",
    "recompute",
    "solver",
    "time",
    "reason",
    "file",
)
"""Columns of the ranking table, in this order; the others appear for the chosen candidate."""

FEW = 4
FINE, COARSE = 6, 5
"""Digits of a task's times, of the length of their window: where a page draws up to `FEW` plans, and where it draws
more and leaves out the flows between tasks; a pixel is about a thousandth.
"""

Course = Sequence[tuple[float, float | None, float | None]]
"""Progress of a solve: seconds, best step time and proven bound in the solver's units."""


def page_data(
    ranking: pd.DataFrame,
    plans: Mapping[str, Timeline],
    parts: Mapping[str, MemoryParts],
    pruned: pd.DataFrame | None,
    progress: Mapping[str, Course],
) -> dict[str, Any]:
    """Data that the page's scripts draw.

    The rows are the CSV's text, so that the page cannot show another figure than the CSV.
    """
    rows = _as_text(ranking)
    numeric = [str(name) for name in ranking.columns if pd.api.types.is_numeric_dtype(ranking[name])]
    first = FIRST_COLUMNS if any(row.get("cost") for row in rows) else (*FIRST_COLUMNS[:9], "objective", *FIRST_COLUMNS)
    present = [name for name in dict.fromkeys(first) if name in ranking.columns and _has_information(name, rows)]
    return {
        "rows": rows,
        "names": [strategy_text(row) for row in rows],
        "columns": present,
        "all_columns": [str(name) for name in ranking.columns],
        "numeric": [*numeric, "peak_memory"],
        "short": {
            "offset": [compress_grid(row.get("offset")).replace(",", ", ") for row in rows],
            "recompute": [compress_grid(row.get("recompute")).replace(",", ", ") for row in rows],
            "peak_memory": [_peak_text(row) for row in rows],
            "file": [file_stem(row.get("file")) for row in rows],
        },
        "tied": tied_rows(ranking),
        "in_ms": any(row.get("cost") for row in rows),
        "plan_of": [_plan_of(row, plans) for row in rows],
        "plans": {
            name: _plan_data(timeline, parts.get(name), progress.get(name, ()), FINE if len(plans) <= FEW else COARSE)
            for name, timeline in plans.items()
        },
        "pruned": None
        if pruned is None
        else {
            "columns": [str(name) for name in pruned.columns],
            "rows": [list(row.values()) for row in _as_text(pruned)],
        },
        "palette": _palette(max([1, *(int(one.interleave.max(initial=0)) + 1 for one in plans.values())])),
    }


def _palette(interleaves: int) -> dict[str, Any]:
    shades = [
        [[shade(kind, v, n) for v in range(n)] for kind in range(len(DIRECTION_NAMES))]
        for n in range(1, min(interleaves, SHADES) + 1)
    ]
    fills = {fill for of_count in shades for of_kind in of_count for fill in of_kind}
    return {
        "names": list(DIRECTION_NAMES),
        # shades[virtual stages − 1][kind][virtual stage]
        "shades": shades,
        "recompute": COLOURS[RECOMPUTE],
        "lines": list(LINES),
        "parts": list(PARTS),
        "marks": {mark: kind for kind, mark in MARKS.items()} | {RECOMPUTE_MARK: RECOMPUTE},
        "idle": IDLE_MARK,
        "modes": [FULL, SELECT],
        "dark": sorted(fill for fill in fills if ink(fill) == "#ffffff"),
    }


def _has_information(name: str, rows: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a column has information: it is neither empty nor a degree that is 1 everywhere."""
    values = {row[name] for row in rows} - {""}
    return bool(values) and not (name in ("cp", "vpp", "mbs", "ep") and values == {"1"})


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


def _plan_data(timeline: Timeline, parts: MemoryParts | None, progress: Course, digits: int) -> dict[str, Any]:
    shown = timeline.in_ms()
    unit = "units" if shown.unit_ms is None else "ms"
    windows = drawing_windows(shown)
    # A dry-run is inspected task by task; the page begins with the warm-up.
    closely = windows[0].end if shown.dryrun else -np.inf
    plan, bubble = timeline.plan, timeline.bubble
    return {
        "title": timeline.title,
        "rows": list(timeline.row_names),
        "unit": unit,
        "tasks": len(timeline),
        "begin": _short(shown.begin),
        "end": _short(shown.finish),
        "span": f"{shown.span:,.3f} {unit}",
        "interleaves": min(SHADES, int(timeline.interleave.max(initial=0)) + 1),
        "windows": [
            {
                "name": window.name,
                "begin": window.begin,
                "end": window.end,
                "share": share,
                "tasks": _tasks(shown.window(window.begin, window.end), window.begin, window.end, digits),
            }
            for window, share in zip(windows, window_shares(windows), strict=True)
        ],
        "overview": slice_marks(shown, range(shown.rows), shown.begin, shown.finish, OVERVIEW_SLICES)
        if len(windows) > 1
        else [],
        "memory": [
            _curve(steps, closely) | {"limit": steps.limit_mib, "peak": steps.peak_mib} for steps in shown.memory
        ],
        "host": [_curve(steps, closely) | {"peak": steps.peak_mib} for steps in shown.host],
        "dryrun": [_curve(steps, closely) | {"peak": steps.peak_mib} for steps in shown.dryrun],
        "marks": [list(mark) for mark in shown.marks],
        "layers": [] if plan is None else [[kind_of(run), grid] for run, grid in plan.layers.items()],
        "recompute": {} if plan is None else dict(plan.recompute),
        "parts": None
        if parts is None
        else {"source": parts.source, "mib": {k: [round(v) for v in mib] for k, mib in parts.mib.items()}},
        "bubble": None
        if bubble is None
        else {name: getattr(bubble, name) for name in ("total", "ideal", "imbalance", "recompute", "communication")},
        "notes": list(timeline.notes),
        "progress": [list(point) for point in progress],
    }


def _tasks(part: Timeline, begin: float, end: float, digits: int) -> dict[str, list[Any]]:
    # This number of digits of the window's length, however late in a measurement it lies.
    places = digits - 1 - floor(log10(max(end - begin, 1e-300)))
    starts, ends = part.start.clip(begin, end), part.end.clip(begin, end)
    # The recompute part comes first: the window's start cuts it first.
    recompute = ((part.start + part.recompute).clip(begin, end) - starts) * (part.direction == BACKWARD)
    lanes = [int(part.lane[part.stage == row].max(initial=0)) + 1 for row in range(part.rows)]
    return {
        "row": part.stage.tolist(),
        "kind": part.direction.tolist(),
        "interleave": part.interleave.tolist(),
        "micro_batch": part.micro_batch.tolist(),
        "split": part.split.tolist() if part.split.max(initial=0) > 0 else [],
        # Omitted where the page's script can derive it: names and lanes are half of a big page.
        "lane": part.lane.tolist() if max(lanes, default=1) > 1 else [],
        "lanes": [lanes[row] for row in part.stage] if max(lanes, default=1) > 1 else [],
        "name": part.task_names() if part.labels else [],
        "flows": part.flows.tolist() if digits >= FINE else [],
        "start": [round(value, places) for value in starts.tolist()],
        "end": [round(value, places) for value in ends.tolist()],
        "recompute": [round(value, places) for value in recompute.tolist()],
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
