"""Memory of a whole search from a few dry-runs, or from the logs of earlier ones, with a table of the runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from taylor.base.console import log
from taylor.base.files import write_atomic
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.memory.breakdown import best_case_peak_mib, stage_breakdown
from taylor.dryrun.fitting.grey_box import (
    CorrectedPeaks,
    Measurement,
    estimate_of,
    family_of,
    plan_to_measure,
)
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunBackend, StagePeak
from taylor.dryrun.replay import ReplayBackend
from taylor.nd_search.encoder import peaks_with_encoder
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE
from taylor.register.device import DeviceSpec

MAX_RUNS = 100
"""Most dry-runs of one search."""
LOOSENED = 1.3
"""Fraction of the limit, by the estimate, up to which a strategy is worth a dry-run: the estimate may be high."""
BEYOND = 1.02
"""Fraction of the limit that a stage which ran out of memory is assumed to need."""
PLAN_CSV = "dryrun_plan.csv"


def measured_peaks(
    config: TrainingConfig,
    device: DeviceSpec,
    options: SearchOptions,
    rules_path: Path | None,
    backend: DryRunBackend,
    output: Path,
) -> CorrectedPeaks | None:
    """Dry-run the strategies that say most about the rest, and write which they were.

    Strategies that differ in EP alone form a family; of each, the smallest and the largest EP are run
    (stage: the heaviest of the even plan by the estimate), fastest families first, up to `MAX_RUNS`.

    Returns
    -------
    CorrectedPeaks or None
        For the search; None when no run gave a peak.
    """
    limit = options.device_limit_mib or config.memory_limit_mib(device)
    loose = search(config, device, replace(options, device_limit_mib=LOOSENED * limit), rules_path)
    families: dict[tuple[int, ...], list[Strategy]] = {}
    for index in np.argsort(loose.estimated_ms, kind="stable")[:20_000].tolist():
        strategy = loose.candidates.row(index)
        families.setdefault(family_of(strategy), []).append(strategy)
    mode = NONE if options.recompute == NONE else FULL
    runs: list[DryRun] = []
    for members in families.values():
        chosen = {min(s.ep for s in members), max(s.ep for s in members)}
        picked = {s.ep: s for s in reversed(members) if s.ep in chosen}
        if len(runs) + len(picked) > MAX_RUNS:
            break
        # One stage for both, so that they lie on one line; the fewest experts' ranks are the heaviest.
        stage = _heaviest_stage(config, picked[min(picked)], mode)
        runs += [
            DryRun(config, picked[ep], plan_to_measure(config, picked[ep], mode), (stage,)) for ep in sorted(picked)
        ]
    results = backend.measure(runs)
    measurements, rows = [], []
    for run, result in zip(runs, results, strict=True):
        assert run.plan is not None
        peak = result.stages[0]
        estimate = estimate_of(config, run.strategy, run.plan, peak.stage)
        rows.append(_row(run.strategy, peak, estimate, families[family_of(run.strategy)]))
        if peak.peak_mib is not None:
            measurements.append(Measurement(run.strategy, peak.stage, peak.peak_mib, estimate))
    path = _write(rows, output)
    if not measurements:
        log.warning("memory: every dry-run failed (%s), so it is estimated", path)
        return None
    corrected = CorrectedPeaks(best_case_peak_mib, config, measurements, mode, backend.name)
    log.info(
        "memory: %d of %d dry-runs speak for %d strategies (%s)",
        len(measurements),
        len(runs),
        sum(map(len, families.values())),
        path,
    )
    return corrected


def replayed_peaks(
    config: TrainingConfig,
    device: DeviceSpec,
    options: SearchOptions,
    rules_path: Path | None,
    folder: Path,
    output: Path,
) -> CorrectedPeaks:
    """Peaks from the logs of earlier dry-runs: a strategy that has logs takes theirs.

    Raises
    ------
    InputError
        When the folder is missing or has no log.
    """
    replay = ReplayBackend(folder)
    limit = options.device_limit_mib or config.memory_limit_mib(device)
    loose = search(config, device, replace(options, device_limit_mib=100 * limit), rules_path)
    measurements, rows = [], []
    for strategy in loose.candidates:
        if not any(each.of(strategy) and (each.degrees or strategy == config.strategy) for each in replay.logs):
            continue
        peak = replay.strategy_peak(strategy)
        assert peak is not None
        rows.append(_row(strategy, peak, None, [strategy]))
        if peak.peak_mib is not None:
            measurements.append(Measurement(strategy, peak.stage, peak.peak_mib))
        elif peak.failure == OUT_OF_MEMORY:
            measurements.append(Measurement(strategy, peak.stage, BEYOND * limit))
    path = _write(rows, output)
    failed = sum(1 for each in replay.logs if each.failure)
    if failed:
        first = next(each for each in replay.logs if each.failure)
        cause = f"{first.path}: {first.failure}"
        log.warning("%d of %d logs give no peak; the first: %s", failed, len(replay.logs), cause)
    if not measurements:
        log.warning("%s: no log is of a strategy that is searched, so memory is estimated", folder)
    else:
        log.info("memory: %d strategies by %d logs of %s (%s)", len(measurements), len(replay.logs), folder, path)
    return CorrectedPeaks(peaks_with_encoder(config, device), config, measurements, source="replay")


def _heaviest_stage(config: TrainingConfig, strategy: Strategy, mode: str) -> int:
    plan = plan_to_measure(config, strategy, mode)
    schedule = config.schedule_for(strategy.vpp)
    stages = stage_breakdown(config.model, strategy, config.rules, plan, schedule)
    return max(range(len(stages)), key=lambda stage: stages[stage].total)


def _row(strategy: Strategy, peak: StagePeak, estimate: float | None, decides: Sequence[Strategy]) -> dict[str, object]:
    return {
        **{name: int(getattr(strategy, name)) for name in ("dp", "tp", "pp", "ep", "cp", "vpp", "mbs")},
        "stage": peak.stage,
        "measured_mib": peak.peak_mib,
        "estimate_mib": None if estimate is None else round(estimate, 1),
        "source": peak.source,
        "failure": peak.failure,
        "last_lines": " | ".join(peak.lines),
        "decides_ep": " ".join(str(ep) for ep in sorted({other.ep for other in decides})),
        "seconds": peak.seconds,
        "cached": int(peak.cached),
        "log": "" if peak.log is None else str(peak.log),
    }


def _write(rows: Sequence[dict[str, object]], output: Path) -> Path:
    return write_atomic(output / PLAN_CSV, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
