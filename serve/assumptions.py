"""What an answer of the page rests on, by name: each can be changed on the page or is stated as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec


def assumptions(config: TrainingConfig, device: DeviceSpec, software: Sequence[str]) -> dict[str, Any]:
    """Framework, precision, optimizer, schedule and the rest as plain data; bytes are those of one parameter.

    Parameters
    ----------
    software : sequence of str
        Features of the software that the question names.
    """
    rules, strategy = config.rules, config.strategy
    narrow = rules.narrow
    return {
        "framework": rules.framework.name,
        "precision": f"bf16, {narrow.name}" if narrow is not None else rules.precision,
        "gradient_bytes": rules.gradient_bytes,
        "moments_bytes": rules.moments_bytes,
        "optimizer_ranks": strategy.op,
        "sequence_parallel": bool(strategy.sp) and strategy.tp > 1,
        "flash_attention": rules.flash_attention,
        "schedule": config.schedule.name,
        "software": list(software),
        "limit_mib": device.usable_memory_mib if config.device_limit_mib is None else config.device_limit_mib,
        "risk": config.margin.stated_risk,
    }
