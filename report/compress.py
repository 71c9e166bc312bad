"""Long lists as short text: ``14×4,3`` for fourteen fours and a three."""

from __future__ import annotations

import json
import math
from itertools import groupby
from pathlib import PurePath
from typing import Any, Mapping, Sequence


def compress(values: Sequence[object]) -> str:
    """Runs of equal values as ``TIMES×VALUE``; `` | `` separates rows of a nested list.

    A nested list of one row is written as that row alone.
    """
    if values and isinstance(values[0], (list, tuple)):
        return " | ".join(compress(row) for row in values)  # type: ignore[arg-type]
    runs = ((value, len(list(group))) for value, group in groupby(map(str, values)))
    return ",".join(f"{times}×{value}" if times > 1 else value for value, times in runs)


def parse_json(value: object) -> Any:
    """Data of a JSON cell; the value itself when it is data already; None when it is empty or broken."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def compress_grid(value: object) -> str:
    """Short text of a grid [vpp][pp], a list, or a mapping of mode to grid; empty when there is none.

    Modes that recompute nothing are omitted as long as another one is there.
    """
    data = parse_json(value)
    if isinstance(data, Mapping):
        shown = {mode: grid for mode, grid in data.items() if _any(grid)} or dict(list(data.items())[:1])
        names = list(shown) != ["full"]
        return "; ".join(f"{mode} {compress(grid)}" if names else compress(grid) for mode, grid in shown.items())
    return compress(data) if isinstance(data, (list, tuple)) else ""


def in_gib(values: object) -> list[str]:
    """MiB figures as GiB text with one decimal."""
    data = parse_json(values)
    return [f"{float(value) / 1024:.1f}" for value in data] if isinstance(data, (list, tuple)) else []


def number(value: object) -> float | None:
    """Cell as a finite number, else None."""
    try:
        figure = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return figure if math.isfinite(figure) else None


def gap_text(gap: object) -> str:
    """Gap as per cent, with ``<0.01 %`` for one that is smaller but not closed."""
    value = number(gap)
    if value is None:
        return "-"
    return "0 %" if value <= 1e-6 else "<0.01 %" if value < 1e-4 else f"{value:.2%}".replace("%", " %")


def strategy_text(row: Mapping[str, Any]) -> str:
    """Strategy of a row as ``DP16 TP4 PP16 EP8 m64``, or its file's name where it has no degrees.

    Degrees of 1 are omitted, except DP, TP and PP.
    """
    always = ("dp", "tp", "pp")
    parts = []
    for name in ("dp", "tp", "pp", "ep", "cp", "ulysses", "vpp", "mbs"):
        degree = number(row.get(name))
        if degree is not None and (degree != 1 or name in always):
            parts.append(f"{name.upper()}{degree:.0f}")
    micro_batches = number(row.get("micro_batches"))
    text = " ".join(parts + ([f"m{micro_batches:.0f}"] if micro_batches is not None else []))
    return text or file_stem(row.get("file"))


def file_stem(value: object) -> str:
    """Name of a candidate's file without folder and suffix; empty when there is none."""
    return PurePath(value).stem if isinstance(value, str) else ""


def _any(data: object) -> bool:
    return any(map(_any, data)) if isinstance(data, (list, tuple)) else bool(data)


def rate_text(rate: float) -> str:
    """A rate with three digits at least: ``0.0412``, ``12.5``, ``1,024``."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def hours_text(hours: float) -> str:
    """A time in hours, or in minutes below one."""
    return f"{hours:,.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
