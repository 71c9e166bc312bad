"""Where a configuration's memory profile comes from, and what is said about it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

from base.console import log
from base.errors import InputError
from cost_model.profile import MemoryProfile
from dryrun.estimate import estimate_memory
from parsers.memory_profile import read_memory_profile
from parsers.training_config import TrainingConfig
from register.device import DeviceSpec

MEMORY_INFO = Path("memory_info")
"""Folder, below the output folder, of the profiles that dry-runs measured."""


def memory_info_path(config: TrainingConfig, output: Path) -> Path:
    """Where the measured profile of this very configuration is kept.

    The name holds a hash of everything that memory depends on (model, strategy, rules), not of
    the plan: offset and recompute may change, the profile stays.
    """
    facts = [asdict(config.model), asdict(config.strategy), asdict(config.rules), asdict(config.schedule)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return output / MEMORY_INFO / f"{config.path.stem}-{key}.json"


def obtain_memory(
    config: TrainingConfig,
    device: DeviceSpec,
    *,
    memory_file: Path | None,
    dryrun: bool,
    backend: str,
    output: Path,
) -> MemoryProfile:
    """The memory profile to solve with; says in one log line which one it is.

    A given file goes first. Without a dry-run, a profile that an earlier run measured for the same
    configuration comes next, and the estimate last.

    Raises
    ------
    InputError
        When the file is bad, or a backend is asked for that cannot run here.
    """
    if memory_file is not None:
        log.info("memory: profile %s", memory_file)
        return read_memory_profile(memory_file)
    saved = memory_info_path(config, output)
    if not dryrun and saved.is_file():
        log.info("memory: measured by an earlier run, %s", saved)
        return replace(read_memory_profile(saved), source="saved")
    require_backend(backend)
    if dryrun and backend == "auto":
        log.info("memory: estimated by closed forms (no dry-run can run here)")
    else:
        log.info("memory: estimated by closed forms")
    return estimate_memory(config, device)


def require_backend(backend: str) -> None:
    """Refuse a dry-run backend that this installation does not have."""
    if backend not in ("auto", "estimate"):
        raise InputError(
            "this dry-run backend is not available in this version",
            field="--dryrun_backend",
            value=backend,
            cure="use auto or estimate, or give measured memory with -memory",
        )
