"""A timeline as a still picture (PNG or SVG) for papers and chat."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.report.palette import HATCHES, LINES, RECOMPUTE, ink, shade
from taylor.report.timeline import DIRECTION_NAMES, DrawingWindow, Timeline, drawing_windows, window_shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")

CHINESE_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei",
    "Microsoft YaHei", "SimHei", "PingFang SC", "Heiti SC",
)  # fmt: skip

MOST_CURVES = 8
"""Most memory curves that are drawn: those of the heaviest stages."""

ROW_INCHES, LEAST_INCHES, MOST_INCHES = 0.30, 1.5, 16.0
WIDTH_INCHES, WIDE_INCHES, MANY_TASKS = 14.0, 20.0, 500
"""Number of tasks above which a drawing is wider, so that micro-batch numbers fit their blocks."""


def refuse_format(path: Path) -> str:
    """Format that a picture's suffix names.

    Raises
    ------
    InputError
        When it is none of `FORMATS`.
    """
    kind = path.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise InputError(
            "must end in " + ", ".join(f".{name}" for name in FORMATS), file=path, field="picture", value=path.suffix
        )
    return kind


def write_picture(timeline: Timeline, path: str | Path) -> Path:
    """Draw a timeline: rows over time, under it memory against the limit where it is known.

    A big job is drawn as warm-up, a window of the steady state, and cool-down. The file's suffix selects the format.

    Raises
    ------
    InputError
        When the suffix is none of `FORMATS`, or the file cannot be written.
    """
    return write_figure(lambda: picture_figure(timeline), path)


def write_figure(draw: Callable[[], Figure], path: str | Path) -> Path:
    """Write what a function draws; the file's suffix selects the format.

    Raises
    ------
    InputError
        When the suffix is none of `FORMATS`, or the file cannot be written.
    """
    return write_atomic(path, figure_bytes(draw, refuse_format(Path(path))))


def picture_bytes(timeline: Timeline, kind: str) -> bytes:
    """Picture of a timeline as the content of a file of one of `FORMATS`."""
    return figure_bytes(lambda: picture_figure(timeline), kind)


def figure_bytes(draw: Callable[[], Figure], kind: str) -> bytes:
    """What a function draws as the content of a file of one of `FORMATS`."""
    with drawing_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box says so in the picture
        buffer = io.BytesIO()
        draw().savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def picture_figure(timeline: Timeline) -> Figure:
    """Picture of a timeline, for a notebook."""
    from matplotlib.figure import Figure

    with drawing_style():
        figure = Figure(figsize=_size(timeline), layout="constrained")
        _draw(figure, timeline.in_ms())
    return figure


def drawing_style() -> AbstractContextManager[None]:
    """Context with the fonts; names come from files: no mathematics is read into them, and an SVG's text stays text.

    A `matplotlibrc` of the working folder sets nothing.
    """
    from matplotlib import rc_context, rcParamsDefault

    usual: dict[Any, Any] = {name: value for name, value in rcParamsDefault.items() if name != "backend"}
    return rc_context({
        **usual,
        "text.parse_math": False, "svg.fonttype": "none", "hatch.linewidth": 0.5, "font.size": 9,
        "font.family": _fonts(),
    })  # fmt: skip


def _fonts() -> list[str]:
    """Matplotlib's font, and fonts of this machine for Chinese file names."""
    from matplotlib.font_manager import fontManager

    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(name for name in CHINESE_FONTS if name in installed)]


def _size(timeline: Timeline) -> tuple[float, float]:
    rows = min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * timeline.rows))
    return _width(timeline), rows + 1.4 + (2.4 if timeline.memory else 0.0)


def _width(timeline: Timeline) -> float:
    return WIDE_INCHES if len(timeline) > MANY_TASKS else WIDTH_INCHES


def _draw(figure: Any, timeline: Timeline) -> None:
    from matplotlib.ticker import MaxNLocator

    views = drawing_windows(timeline)
    shares = window_shares(views)
    rows = min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * timeline.rows))
    grid = figure.add_gridspec(
        2 if timeline.memory else 1,
        len(views),
        width_ratios=shares,
        height_ratios=[rows, 2.2] if timeline.memory else [1],
    )
    used: set[tuple[int, int]] = set()
    for at, view in enumerate(views):
        axes = figure.add_subplot(grid[0, at])
        per_unit = (_width(timeline) - 1.6) * shares[at] / max(view.end - view.begin, 1e-12)
        _rows(axes, timeline, view, per_unit, label=at == 0, used=used)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=max(3, round(12 * shares[at]))))
        if len(views) > 1:
            axes.set_title(view.name, fontsize=10)
        if at == len(views) // 2 and not timeline.memory:
            axes.set_xlabel(_time_label(timeline))
    figure.suptitle(timeline.heading, fontsize=11)
    if timeline.memory:
        _memory(figure.add_subplot(grid[1, :]), timeline)
    _legend(figure, timeline, used)


def _rows(
    axes: Axes, timeline: Timeline, view: DrawingWindow, per_unit: float, *, label: bool, used: set[tuple[int, int]]
) -> None:
    from matplotlib.collections import PolyCollection

    part = timeline.window(view.begin, view.end)
    interleaves = _interleaves(timeline)
    lanes = np.array([int(timeline.lane[timeline.stage == row].max(initial=0)) + 1 for row in range(timeline.rows)])
    height = 0.84 / lanes[part.stage] if len(part) else np.zeros(0)
    low = part.stage - 0.42 + part.lane * height
    kinds = [(int(d), int(v)) for d, v in np.unique(np.stack([part.direction, part.interleave], axis=1), axis=0)]
    shapes = [(kind, np.flatnonzero((part.direction == kind[0]) & (part.interleave == kind[1]))) for kind in kinds]
    if (part.recompute > 0).any():
        shapes.append(((RECOMPUTE, 0), np.flatnonzero(part.recompute > 0)))
    for (kind, interleave), index in shapes:
        begin = part.start[index]
        end = begin + part.recompute[index] if kind == RECOMPUTE else part.end[index]
        a, b = begin.clip(view.begin, view.end), end.clip(view.begin, view.end)
        y0, y1 = low[index], low[index] + height[index]
        corners = np.stack([np.stack([a, y0], 1), np.stack([b, y0], 1), np.stack([b, y1], 1), np.stack([a, y1], 1)], 1)
        colour = shade(kind, interleave, interleaves)
        axes.add_collection(
            PolyCollection(
                list(corners), facecolor=colour, edgecolor=_edge(colour, kind), linewidth=0.35, hatch=HATCHES.get(kind)
            )
        )
        used.add((kind, max(0, interleave)))
    _numbers(axes, part, view, low + height / 2, height, interleaves, per_unit)
    for time, name in timeline.marks:
        if view.begin <= time <= view.end:
            axes.axvline(time, color="#444444", linestyle=":", linewidth=0.9)
            axes.annotate(name, (time, -0.55), fontsize=7, annotation_clip=False, va="bottom")
    axes.set_xlim(view.begin, view.end)
    axes.set_ylim(timeline.rows - 0.45, -0.55)
    every = max(1, round(timeline.rows / (MOST_INCHES / 0.16)))
    ticks = list(range(0, timeline.rows, every))
    axes.set_yticks(ticks, [timeline.row_names[row] for row in ticks] if label else [""] * len(ticks))
    axes.tick_params(axis="y", length=0, labelsize=8 if timeline.rows <= 48 else 6)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _numbers(
    axes: Axes, part: Timeline, view: DrawingWindow, middle: Any, height: Any, interleaves: int, per_unit: float
) -> None:
    """Micro-batch numbers in blocks that are wide enough for them; `per_unit` is inches a unit of time."""
    begins = np.maximum(view.begin, part.start + part.recompute)
    ends = np.minimum(view.end, part.end)
    digits = np.char.str_len(part.micro_batch.astype(str))
    roomy = (ends - begins) * per_unit >= 0.075 * digits + 0.03
    for task in np.flatnonzero(roomy & (part.micro_batch >= 0) & (height >= 0.3)).tolist():
        colour = shade(int(part.direction[task]), int(part.interleave[task]), interleaves)
        axes.text(
            (begins[task] + ends[task]) / 2,
            middle[task],
            str(part.micro_batch[task]),
            ha="center",
            va="center",
            fontsize=6.5,
            color=ink(colour),
            clip_on=True,
        )


def _memory(axes: Axes, timeline: Timeline) -> None:
    peaks = [steps.peak_mib for steps in timeline.memory]
    known = [row for row in range(timeline.rows) if len(timeline.memory[row].time)]
    drawn = sorted(sorted(known, key=lambda row: -peaks[row])[:MOST_CURVES])
    styles = ("-", "--", "-.", ":")
    for at, row in enumerate(drawn):
        steps = timeline.memory[row]
        axes.step(
            [*steps.time.tolist(), timeline.finish],
            [v / 1024 for v in [*steps.mib.tolist(), steps.mib[-1]]],
            where="post",
            linewidth=1.1,
            color=LINES[at % len(LINES)],
            linestyle=styles[at % len(styles)],
            label=timeline.row_names[row],
        )
    limits = [steps.limit_mib for steps in timeline.memory if steps.limit_mib is not None]
    for limit in sorted(set(limits)):
        axes.axhline(limit / 1024, color="#b2182b", linestyle=(0, (6, 2)), linewidth=1.4, label="limit")
    axes.set_ylim(0, 1.1 * max([*peaks, *limits, 1.0]) / 1024)
    axes.set_xlim(timeline.begin, timeline.finish)
    left_out = f" ({len(drawn)} heaviest of {len(known)})" if len(drawn) < len(known) else ""
    axes.set_ylabel("memory, GiB")
    axes.set_xlabel(_time_label(timeline))
    axes.set_title(f"memory over the whole step{left_out}", fontsize=9, loc="left")
    axes.grid(axis="y", linewidth=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, frameon=False)


def _legend(figure: Any, timeline: Timeline, used: set[tuple[int, int]]) -> None:
    from matplotlib.patches import Patch

    interleaves = _interleaves(timeline)
    handles = []
    for kind, interleave in sorted(used, key=lambda one: (one[0] == RECOMPUTE, one)):
        name = "recompute (in the backward)" if kind == RECOMPUTE else DIRECTION_NAMES[kind]
        if interleaves > 1 and kind in (FORWARD, BACKWARD, WEIGHT_GRADIENT):
            name += f", chunk {interleave}"
        colour = shade(kind, interleave, interleaves)
        handles.append(
            Patch(facecolor=colour, edgecolor=_edge(colour, kind), hatch=HATCHES.get(kind), label=name, linewidth=0.5)
        )
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(7, len(handles)), fontsize=8, frameon=False
        )


def _edge(colour: str, kind: int) -> str:
    # A hatch takes the colour of the edge: white shows on dark fills.
    return "#ffffff" if kind in HATCHES and ink(colour) == "#ffffff" else "#222222"


def _time_label(timeline: Timeline) -> str:
    return "time, units of one body layer's forward" if timeline.unit_ms is None else "time, ms"


def _interleaves(timeline: Timeline) -> int:
    return int(timeline.interleave.max(initial=0)) + 1
