"""Memory of a stage's card as each of torch's counters and the card's own one report it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from taylor.cost_model.communicators import HCCL
from taylor.cost_model.memory import stage_breakdown
from taylor.cost_model.workspaces import allocated_mib, outside_mib, reserved_mib
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.device import DeviceSpec


@dataclass(frozen=True)
class CardMemory:
    """Peak of one stage, MiB.

    Parameters
    ----------
    allocated_mib : float
        Tensors: ``torch.cuda.max_memory_allocated``.
    reserved_mib : float
        What torch's allocator took of the card: ``torch.cuda.max_memory_reserved``.
    card_mib : float
        That and what lies outside the allocator, the context and the buffers of communication: nvidia-smi, npu-smi.
    counter : str
        The card's own one.
    """

    allocated_mib: float
    reserved_mib: float
    card_mib: float
    counter: str = "nvidia-smi"

    @property
    def sentence(self) -> str:
        """The three figures with the counters that they compare with."""
        return (
            f"{self.card_mib:,.0f} MiB ({self.counter}), {self.reserved_mib:,.0f} of them reserved by torch's "
            f"allocator (max_memory_reserved), {self.allocated_mib:,.0f} allocated (max_memory_allocated)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {name: round(value, 3) for name, value in asdict(self).items() if name != "counter"}


def card_memory(config: TrainingConfig, plan: PipelinePlan, device: DeviceSpec) -> tuple[CardMemory, ...] | None:
    """The figures of every stage by the analytical model, [pp]; None where reserved memory is not modelled.

    Parameters
    ----------
    config : TrainingConfig
        With the virtual stages and the schedule of the plan, which has recompute modes of a file alone.
    """
    model, rules, found = config.model, config.rules, []
    for stage in stage_breakdown(model, config.strategy, rules, plan, config.schedule):
        reserved = reserved_mib(stage, model, rules, device)
        if reserved is None:
            return None
        card = reserved + outside_mib(stage, model, config.strategy, rules, device)
        counter = "npu-smi" if device.collectives == HCCL else "nvidia-smi"
        found.append(CardMemory(allocated_mib(stage, model, rules, device), reserved, card, counter))
    return tuple(found)
