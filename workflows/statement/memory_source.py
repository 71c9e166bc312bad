"""Obtains a configuration's memory profile from a file, dry-runs, an earlier run or the estimate, and logs which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import OutsideProgramError, WriteError
from taylor.base.files import write_atomic
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.fitting.fit import Observation, read_observations, write_observations
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.interface import DryRunBackend
from taylor.dryrun.measure import MAX_RUNS, measure_profile
from taylor.parsers.registry import launcher_of
from taylor.parsers.tables.memory_profile import memory_profile_text, read_memory_profile
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE
from taylor.register.device import DeviceSpec
from taylor.schemas.registry import MEMORY
from taylor.schemas.writing import check_text

MEMORY_INFO = Path("memory_info")
"""Folder, below the output folder, of the profiles that dry-runs measured."""

SPARE_RUNS = 3
"""Dry-runs of an exact backend beyond one an unknown: they show how far memory is from linear in the plan."""


def memory_info_path(config: TrainingConfig, output: Path) -> Path:
    """Path of the measured profile of this very configuration.

    The name contains a hash of everything that memory depends on (model, strategy, rules). The plan is not part of it:
    offset and recompute may change, the profile stays valid.
    """
    facts = [asdict(config.model), config.strategy.degrees(), asdict(config.rules), asdict(config.schedule)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return output / MEMORY_INFO / f"{config.path.stem}-{key}.json"


def observations_path(config: TrainingConfig, output: Path) -> Path:
    """Path of the peaks behind a measured profile."""
    return memory_info_path(config, output).with_suffix(".peaks.json")


def keep_measured(
    config: TrainingConfig, output: Path, profile: MemoryProfile, observations: Sequence[Observation]
) -> None:
    """Save a measured profile, and the peaks it rests on, for later runs; log where they cannot be."""
    try:
        write_observations(observations, observations_path(config, output))
        text = memory_profile_text(profile)
        check_text(MEMORY, text)
        write_atomic(memory_info_path(config, output), text)
    except WriteError as error:
        log.warning("the measured memory is not kept for a later run: %s", error)


def known_observations(config: TrainingConfig, output: Path) -> list[Observation]:
    """Peaks that earlier runs measured of this very configuration."""
    return read_observations(observations_path(config, output))


def obtain_memory(
    config: TrainingConfig,
    device: DeviceSpec,
    *,
    memory_file: Path | None,
    dryrun: bool,
    backend: DryRunBackend | None,
    output: Path,
    modes: Sequence[str] = (NONE, FULL),
    may_estimate: bool = True,
) -> MemoryProfile:
    """Memory profile to solve with; one log line names its source.

    A given file comes first, then dry-runs where they are wanted and can run. Without a dry-run, a profile that an
    earlier run measured for the same configuration comes next, and the estimate last.

    Parameters
    ----------
    backend : DryRunBackend or None
        Runs the dry-runs; None when none can run.
    modes : sequence of str
        Recompute modes whose activations the solve needs.
    may_estimate : bool
        Whether to fall back to the estimate when every dry-run failed.

    Raises
    ------
    InputError
        When the file is bad.
    OutsideProgramError
        When every dry-run failed, and `may_estimate` is off.
    """
    if memory_file is not None:
        folded = f", its static memory that of {config.schedule.name}'s stages, whose first has the head"
        profile = read_memory_profile(memory_file)
        limit = config.margin.below(profile.device_limit_mib)
        limit_text = f", limit {limit:,.0f} MiB" + (
            f" less a margin of {config.margin} included" if config.margin else ""
        )
        log.info("memory: profile %s%s%s", memory_file, limit_text, folded if config.schedule.v_shape else "")
        return replace(profile, device_limit_mib=limit)
    saved = memory_info_path(config, output)
    if dryrun and backend is not None:
        linear = LinearMemory(config, modes)
        most = len(linear.unknowns) + SPARE_RUNS if backend.exact else MAX_RUNS
        try:
            measured = measure_profile(
                linear,
                estimate_memory(config, device),
                backend,
                max_runs=most,
                probes=launcher_of(config).can_probe and not backend.exact,
            )
        except OutsideProgramError as error:
            if not may_estimate:
                raise
            log.warning("%s", error)
        else:
            limit = config.memory_limit_mib(device, MemorySource.DRY_RUN)
            profile = replace(measured.profile, every_flag=backend.every_flag, device_limit_mib=limit)
            keep_measured(config, output, profile, measured.observations)
            log.info("memory: measured by %d dry-runs, kept in %s", len(measured.observations), saved)
            return profile
    elif not dryrun and saved.is_file():
        log.info("memory: measured by an earlier run, %s", saved)
        limit = config.memory_limit_mib(device, MemorySource.SAVED)
        return replace(read_memory_profile(saved), source=MemorySource.SAVED, device_limit_mib=limit)
    log.info("memory: estimated by the analytical model")
    return estimate_memory(config, device)
