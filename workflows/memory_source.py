"""Obtains a configuration's memory profile from a file, dry-runs, an earlier run or the estimate, and says which."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError, OutsideProgramError
from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.dataset import ensure_dataset
from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.fitting.fit import Observation, read_observations, write_observations
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.interface import DryRunBackend
from taylor.dryrun.launch import Starter
from taylor.dryrun.measure import MAX_RUNS, PROBE_STAGES, measure_profile
from taylor.dryrun.mindspore_backend import MindsporeBackend
from taylor.dryrun.torch_backend import TorchBackend, require_torch, torch_version
from taylor.parsers.registry import launcher_of
from taylor.parsers.tables.memory_profile import read_memory_profile, write_memory_profile
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE
from taylor.register.device import DeviceSpec
from taylor.workflows.options import DryRunOptions

MEMORY_INFO = Path("memory_info")
"""Folder, below the output folder, of the profiles that dry-runs measured."""

DRYRUNS = Path("dryrun")
"""Folder, below the output folder, of the dry-runs' files, logs and results."""

SPARE_RUNS = 3
"""Dry-runs of an exact backend beyond one an unknown: they tell how far memory is from linear in the plan."""


def open_backend(
    options: DryRunOptions, config: TrainingConfig, output: Path
) -> AbstractContextManager[DryRunBackend | None]:
    """The backend that dry-runs go to, as a context; None in it when memory has to be estimated.

    What ``auto`` came to is said in one line.

    Raises
    ------
    InputError
        When the backend asked for cannot run here.
    """
    if options.backend == "estimate":
        return nullcontext(None)
    if options.backend == "torch":
        require_torch()
        log.info("dry-runs: by torch %s on fake tensors, %d stages at once", torch_version(), options.parallel_num)
        return TorchBackend(
            output / DRYRUNS / "torch",
            parallel=options.parallel_num,
            timeout_s=options.timeout_s,
            retries=options.retries,
        )
    starter = Starter.find(launcher_of(config), options.mindformers, options.env_json, options.register_path)
    why_not = _why_not(starter, options, config)
    if why_not:
        log.info("dry-runs: none can run here (%s), so memory is estimated", why_not)
        return nullcontext(None)
    log.info("dry-runs: by %s with %s", starter.tools.program or f"bash {config.path}", starter.tools.interpreter)
    if options.env_json is not None and options.env_json.is_file():
        log.info("dry-runs: environment of %s", options.env_json)
    return MindsporeBackend(
        starter,
        output / DRYRUNS,
        _dataset_keys(starter, options, config),
        parallel=options.parallel_num,
        timeout_s=options.timeout_s,
        retries=options.retries,
    )


def _dataset_keys(starter: Starter, options: DryRunOptions, config: TrainingConfig) -> dict[str, object]:
    """The entries that make a dry-run read the small data set, which is written where it is missing."""
    if options.small_dataset is None or not starter.launcher.dataset_keys(""):
        return {}
    strategy = config.strategy
    # Probes have as many micro-batches as stages.
    batch = strategy.dp * strategy.mbs * config.micro_batch_interleave * max(strategy.micro_batches, PROBE_STAGES[-1])
    dataset = ensure_dataset(options.small_dataset, config.rules.seq_length, config.model.vocab, starter, batch)
    return {} if dataset is None else starter.launcher.dataset_keys(str(dataset))


def _why_not(starter: Starter, options: DryRunOptions, config: TrainingConfig) -> str:
    """Why MindSpore cannot be used; raises where it was asked for and there is nothing to start."""
    asked, program = options.backend == "mindspore", starter.launcher.program
    if program is None:
        # A file that starts itself is only run where the user asked for it.
        return "" if asked else f"{config.path.name} starts itself; --dryrun_backend mindspore runs it"
    if starter.tools.program is None:
        place = options.mindformers if options.mindformers is not None else "the flag's default"
        if asked:
            raise InputError(
                f"no {program.file} there",
                field=program.flags,
                value=str(place),
                cure=f"name {program.file} or its folder, or use --dryrun_backend estimate",
            )
        return f"no {program.file} at {place}"
    if not asked and starter.mindspore_version() is None:
        return f"{starter.tools.interpreter} has no mindspore"
    return ""


def memory_info_path(config: TrainingConfig, output: Path) -> Path:
    """Where the measured profile of this very configuration is kept.

    The name holds a hash of everything that memory depends on (model, strategy, rules), not of
    the plan: offset and recompute may change, the profile stays.
    """
    facts = [asdict(config.model), asdict(config.strategy), asdict(config.rules), asdict(config.schedule)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return output / MEMORY_INFO / f"{config.path.stem}-{key}.json"


def observations_path(config: TrainingConfig, output: Path) -> Path:
    """Where the peaks behind a measured profile are kept."""
    return memory_info_path(config, output).with_suffix(".peaks.json")


def keep_measured(
    config: TrainingConfig, output: Path, profile: MemoryProfile, observations: Sequence[Observation]
) -> Path:
    """Keep a measured profile, and the peaks it rests on, for later runs."""
    write_observations(observations, observations_path(config, output))
    return write_memory_profile(profile, memory_info_path(config, output))


def known_observations(config: TrainingConfig, output: Path) -> list[Observation]:
    """The peaks that earlier runs measured of this very configuration."""
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
    """The memory profile to solve with; says in one log line which one it is.

    A given file goes first, then dry-runs where they are wanted and can run. Without a dry-run, a
    profile that an earlier run measured for the same configuration comes next, and the estimate last.

    Parameters
    ----------
    backend : DryRunBackend or None
        Where dry-runs go; None when none can run.
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
        log.info("memory: profile %s", memory_file)
        return read_memory_profile(memory_file)
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
            keep_measured(config, output, measured.profile, measured.observations)
            log.info("memory: measured by %d dry-runs, kept in %s", len(measured.observations), saved)
            return measured.profile
    elif not dryrun and saved.is_file():
        log.info("memory: measured by an earlier run, %s", saved)
        limit = estimate_memory(config, device).device_limit_mib
        return replace(read_memory_profile(saved), source="saved", device_limit_mib=limit)
    log.info("memory: estimated by closed forms")
    return estimate_memory(config, device)
