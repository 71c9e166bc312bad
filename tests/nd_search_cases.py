"""Jobs that the strategy-search tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.device import DeviceSpec, LinkTier
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec

LINKS = (LinkTier("domain", 196.0, 8), LinkTier("fabric", 25.0))
DEVICE = DeviceSpec("card", 65536, 55296, {"bf16": 376.0}, 1600.0, LINKS)

DEEPSEEK_V3 = ModelSpec(
    "deepseek-v3",
    61,
    7168,
    128,
    128,
    128,
    18432,
    129280,
    mla=MlaSpec(512, 64, 128, 128, 1536),
    moe=MoeSpec(256, 8, 2048, n_shared=1, first_dense=3),
    mtp_layers=1,
)
LLAMA2_7B = ModelSpec("llama2-7b", 32, 4096, 32, 32, 128, 11008, 32000)


OWN_STRATEGY = Strategy(16, 4, 16, 8, op=16, micro_batches=64)
OWN_RULES = TrainingRules()


def job(
    model: ModelSpec = DEEPSEEK_V3,
    strategy: Strategy = OWN_STRATEGY,
    rules: TrainingRules = OWN_RULES,
    **changes: Any,
) -> TrainingConfig:
    """A job as a file would give it; DeepSeek-V3 on 1,024 cards unless told otherwise.

    It has no risk, so that predicted peaks are compared with the stated limit itself.
    """
    settled: dict[str, Any] = {"schedule": ScheduleSpec(), "plan": None, "device_limit_mib": 55296.0}
    settled |= {"margin": MemoryMargin(risk=0.0), **changes}
    return TrainingConfig(Path("job.yaml"), "mindformers", model, strategy, rules, **settled)
