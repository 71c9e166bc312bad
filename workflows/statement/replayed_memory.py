"""A configuration's memory from logs of earlier dry-runs of the baseline: the estimate, moved onto their peaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.interface import DryRun
from taylor.dryrun.replay import ReplayBackend
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec

FIELD = "-dryrun_data_dir"


def replayed_memory(config: TrainingConfig, device: DeviceSpec, folder: Path) -> MemoryProfile:
    """Estimate with the static memory of its first, middle and last stages set so that logged peaks are met.

    Logs of one plan cannot distinguish a layer's memory from the static memory of a stage; so layers and activations
    stay the estimate's. Of several middle stages the one that needs most decides; stages without a log move as the
    others.

    Parameters
    ----------
    folder : Path
        Logs of the configuration's own strategy and plan (the even plan where it has none).

    Raises
    ------
    InputError
        When there is no such folder, or no log of this strategy has a peak.
    """
    plan = config.plan or config.even_plan(config.strategy)
    stages = config.strategy.pp
    (result,) = ReplayBackend(folder).measure([DryRun(config, config.strategy, plan, tuple(range(stages)))])
    estimated = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
    apart = {
        peak.stage: peak.peak_mib - estimated[peak.stage].total for peak in result.stages if peak.peak_mib is not None
    }
    if not apart:
        raise InputError(
            f"has no peak of this configuration's strategy: {result.stages[0].failure}",
            file=folder,
            field=FIELD,
            cure="name logs as rank_N.log, or as …DPx_TPx_PPx_EPx…/rank_N.log",
        )
    profile = estimate_memory(config, device)
    most = max(apart.values())
    first, last = apart.get(0, most), apart.get(stages - 1, most)
    middle = max((value for stage, value in apart.items() if 0 < stage < stages - 1), default=most)
    if stages == 1:  # `MemoryProfile.static_mib` adds them up
        last = middle = 0.0
    log.info(
        "memory: estimated by the analytical model, and moved by %+.0f to %+.0f MiB onto the peaks of %d of %d stages "
        "in %s",
        min(apart.values()),
        most,
        len(apart),
        stages,
        folder,
    )
    return replace(
        profile,
        static_first_mib=max(0.0, profile.static_first_mib + first),
        static_middle_mib=max(0.0, profile.static_middle_mib + middle),
        static_last_mib=max(0.0, profile.static_last_mib + last),
        source=MemorySource.REPLAY,
    )
