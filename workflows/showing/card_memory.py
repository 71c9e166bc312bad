"""Memory of a stage's card as each of torch's counters and the card's own one report it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.communicators import HCCL
from taylor.cost_model.memory.workspaces import allocated_mib, outside_mib, reserved_mib
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.towers import tower_mib


@dataclass(frozen=True)
class CardMemory:
    """Peak of one stage, MiB.

    Parameters
    ----------
    allocated_mib : float
        Tensors: ``torch.cuda.max_memory_allocated``.
    reserved_mib : float or None
        What torch's allocator took of the card: ``torch.cuda.max_memory_reserved``; None where that is not modelled.
    card_mib : float
        That and what lies outside the allocator, the context and the buffers of communication: nvidia-smi, npu-smi.
    counter : str
        The card's own one.
    """

    allocated_mib: float
    reserved_mib: float | None
    card_mib: float
    counter: str = "nvidia-smi"

    @property
    def sentence(self) -> str:
        """The three figures with the counters that they compare with."""
        reserved = "no model of what torch's allocator reserves beyond them (max_memory_reserved)"
        if self.reserved_mib is not None:
            reserved = f"{self.reserved_mib:,.0f} of them reserved by torch's allocator (max_memory_reserved)"
        return (
            f"{self.card_mib:,.0f} MiB of the card ({self.counter}), {self.allocated_mib:,.0f} of them allocated "
            f"(max_memory_allocated), {reserved}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        stated = {name: value for name, value in asdict(self).items() if name != "counter"}
        return {name: None if value is None else round(value, 3) for name, value in stated.items()}


def card_memory(config: TrainingConfig, plan: PipelinePlan, device: DeviceSpec) -> tuple[CardMemory, ...] | None:
    """The figures of every stage by the analytical model, [pp]; None under another allocator than torch's.

    Parameters
    ----------
    config : TrainingConfig
        With the virtual stages and the schedule of the plan, which has recompute modes of a file alone.
    """
    model, rules, found = config.model, config.rules, []
    if not rules.framework.torch_allocator:
        return None
    counter = "npu-smi" if device.collectives == HCCL else "nvidia-smi"
    for stage in stage_breakdown(model, config.strategy, rules, plan, config.schedule):
        allocated, reserved = allocated_mib(stage, model, rules, device), reserved_mib(stage, model, rules, device)
        card = stage.total
        if reserved is not None:
            card = reserved + outside_mib(stage, model, config.strategy, rules, device)
        more = tower_mib(config, device, stage.stage)
        found.append(CardMemory(allocated + more, None if reserved is None else reserved + more, card + more, counter))
    return tuple(found)
