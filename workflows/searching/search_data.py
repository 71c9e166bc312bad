"""A search of strategies as plain data: those chosen, those pruned and why, and the verdict on the first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taylor.cost_model.profile import MemorySource
from taylor.nd_search.emit import candidate_frame, pruned_frame
from taylor.report.compress import strategy_text
from taylor.workflows.ranking.ranking_data import ranking_data
from taylor.workflows.searching.search import StrategySearch, StrategySearchOptions
from taylor.workflows.showing.fit import risk_of
from taylor.workflows.showing.verdict_data import Rival, VerdictFacts, figures_fit
from taylor.workflows.statement.options import Origin

if TYPE_CHECKING:
    from taylor.workflows.searching.layerwise_refine import Refinement

DEGREES = ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs", "micro_batches")


def search_data(
    done: StrategySearch, options: StrategySearchOptions, origin: Origin, refinement: Refinement | None = None
) -> dict[str, Any]:
    """The chosen strategies of a search, the fastest first, with the ranking where they were solved."""
    result, config = done.result, done.config
    frame = candidate_frame(result)
    rows = [_candidate(dict(row), done) for row in frame[frame["chosen"] == 1].to_dict("records")]
    ranking = done.ranking
    return {
        "file": str(config.path),
        "model": config.model.name,
        "device": done.device.name,
        "world_size": int(result.candidates.row(0).world_size),
        "counts": {name: int(count) for name, count in result.counts.items()},
        "limit_mib": float(result.device_limit_mib),
        "verdict": _verdict(done, rows, origin) if rows else None,
        "candidates": rows,
        "pruned": [
            {name: int(value) if name == "removed" else str(value) for name, value in row.items()}
            for row in pruned_frame(result).to_dict("records")
        ],
        "ranking": None if ranking is None else ranking_data(ranking, options.margin, origin, options.register_path),
        "refined": None if refinement is None else [one.to_dict() for one in refinement.every],
        "files": {role: str(path) for role, path in done.files.items()} | dict(refinement.files if refinement else ()),
    }


def _candidate(row: dict[str, Any], done: StrategySearch) -> dict[str, Any]:
    config, peak, limit = done.config, float(row["peakMem"]), float(done.result.device_limit_mib)
    known = config.memory_error(MemorySource.ESTIMATE) if row["source"] == MemorySource.ESTIMATE else None
    return {
        "strategy": strategy_text(row),
        "degrees": {name: int(row[name]) for name in DEGREES},
        "step_ms": float(row["estimated_ms"]),
        "step_source": str(row["step_source"]),
        "peak_mib": peak,
        "peak_without_recompute_mib": float(row["peakMemNoRecompute"]),
        "heaviest_stage": int(row["heaviest_stage"]),
        "recompute": str(row["recompute"]),
        "memory_source": str(row["source"]),
        "risk": risk_of(known, peak, config.margin.around(limit, known)),
    }


def _verdict(done: StrategySearch, rows: list[dict[str, Any]], origin: Origin) -> dict[str, Any]:
    best, config = rows[0], done.config
    known = config.memory_error(MemorySource.ESTIMATE) if best["memory_source"] == MemorySource.ESTIMATE else None
    solution, fit = figures_fit([best["peak_mib"]], [float(done.result.device_limit_mib)], config, known)
    second = Rival(rows[1]["strategy"], rows[1]["step_ms"]) if len(rows) > 1 else None
    facts = VerdictFacts(
        config, done.device, fit, solution, known, best["step_ms"], True, runner_up=second, origin=origin
    )
    data = facts.to_dict()
    # The table has the heaviest stage alone.
    data["tight_stages"] = [{**one, "stage": best["heaviest_stage"]} for one in data["tight_stages"]]
    return data
