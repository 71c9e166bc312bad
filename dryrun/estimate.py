"""The dry-run that runs nothing: the closed forms of the cost model."""

from __future__ import annotations

from cost_model.memory import memory_profile
from cost_model.profile import MemoryProfile
from parsers.training_config import TrainingConfig
from register.device import DeviceSpec


def device_limit_mib(config: TrainingConfig, device: DeviceSpec) -> float:
    """What one device may hold: the file's own limit, else what the device offers, MiB."""
    return float(device.usable_memory_mib if config.device_limit_mib is None else config.device_limit_mib)


def estimate_memory(config: TrainingConfig, device: DeviceSpec) -> MemoryProfile:
    """The memory profile of a configuration's strategy by the closed forms."""
    return memory_profile(
        config.model, config.strategy, config.rules, device_limit_mib(config, device), schedule=config.schedule
    )
