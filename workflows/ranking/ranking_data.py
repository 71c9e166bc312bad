"""A ranking as plain data: its rows, and the verdict on the best of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import MemorySource, RatioSource
from taylor.report.compress import strategy_text
from taylor.workflows.ranking.rank import Ranking
from taylor.workflows.ranking.rank_table import DEGREES, SPEED
from taylor.workflows.showing.verdict_data import Rival, VerdictFacts, figures_fit
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import Origin
from taylor.workflows.statement.stated_file import read_for

NESTED = ("offset", "layers", "recompute", "peak_memory", "memory_limit")
"""Cells that are JSON."""

FIGURES = ("gap", "bound_ms", "free_mib", "risk", *SPEED)
WORDS = ("status", "reason", "solver", "certainty", "memory_source", "ratio_source", "file")


def ranking_data(
    ranking: Ranking, margin: MemoryMargin, origin: Origin, register: Path | None = None
) -> dict[str, Any]:
    """All of a ranking as plain data, the best candidate first.

    Parameters
    ----------
    margin : MemoryMargin
        Memory that every device keeps free.
    register : Path, optional
        Folder of the user's registrations.
    """
    records: Any = ranking.table.to_dict("records")
    rows = [row_data(row) for row in records]
    solved = [row for row in rows if not row["own"] and row["step_ms"] is not None and row["layers"] is not None]
    files = {"ranking": ranking.csv, "report": ranking.report, "run": ranking.folder}
    return {
        "model": ranking.model or None,
        "device": ranking.device or None,
        "ranks": ranking.ranks or None,
        "verdict": _verdict(ranking, solved, rows, margin, origin, register) if solved else None,
        "rows": rows,
        "files": {role: str(path) for role, path in files.items() if path is not None},
    }


def row_data(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the ranking; what it lacks is None."""
    nested = {name: json.loads(row[name]) if isinstance(row.get(name), str) else None for name in NESTED}
    gain = _plain(row.get("gain"))
    return {
        "strategy": strategy_text(row),
        "degrees": {name: _whole(row.get(name)) for name in (*DEGREES, "sp")},
        "step_ms": _plain(row.get("cost")),
        **{name: _plain(row.get(name)) for name in (*WORDS, *FIGURES)},
        "fullest_stage": _whole(row.get("fullest_stage")),
        "own": bool(_plain(row.get("own"))),
        "gain": None if gain is None else gain / 100.0,
        **nested,
    }


def _verdict(
    ranking: Ranking,
    solved: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    margin: MemoryMargin,
    origin: Origin,
    register: Path | None,
) -> dict[str, Any]:
    best, own = solved[0], next((row for row in rows if row["own"] and row["step_ms"] is not None), None)
    config = read_for(Path(best["file"]), register, margin=margin)
    source = MemorySource(best["memory_source"]) if best["memory_source"] else MemorySource.ESTIMATE
    known = config.memory_error(source)
    solution, fit = figures_fit(best["peak_memory"] or (), best["memory_limit"] or (), config, known)
    return VerdictFacts(
        config,
        choose_device(config, ranking.device or None, register).spec,
        fit,
        solution,
        known,
        best["step_ms"],
        best["ratio_source"] in (None, str(RatioSource.ESTIMATE.value)),
        None,
        None if own is None else Rival("the plan in the file", own["step_ms"]),
        Rival(solved[1]["strategy"], solved[1]["step_ms"]) if len(solved) > 1 else None,
        origin,
    ).to_dict()


def _whole(value: Any) -> int | None:
    known = _plain(value)
    return None if known is None else int(known)


def _plain(value: Any) -> Any:
    """A cell as JSON holds it; None where it is empty."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (bool, int, float, str)) else None
