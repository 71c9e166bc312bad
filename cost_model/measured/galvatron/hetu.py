"""Hetu-Galvatron's cost model of a layer, of embedding and head, as it is, weaknesses included.

Hetu-Galvatron cea12ff galvatron/core/cost_model/components/layer_cost.py, embedding_lmhead_cost.py. Known weaknesses:
context parallelism leaves the time of a layer as it is, ZeRO-3 gathers parameters in the forward alone, a layer whose
dp is 1 reduces no gradients although Ulysses makes replicas of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from taylor.cost_model.measured.cost_table import (
    CostRow,
    CostSetting,
    EndCost,
    EndCosts,
    Layout,
    MemorySettings,
    hidden_mib,
    layer_activation_mib,
    of_ways,
    samples_of,
)
from taylor.cost_model.measured.galvatron.inputs import GalvatronInputs, MessageLines
from taylor.cost_model.measured.hardware import ALL_REDUCE, ALL_TO_ALL, HardwareProfile
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy
from taylor.cost_model.measured.profiles import LayerMemory, OtherMemory

BACKWARD = 2.0
"""A backward over its forward (`bct_fct_coe`, search_engine.py:475)."""
SHARD_MARGIN = 0.003
"""Assumed size of ZeRO's buffers as a fraction of the states."""
FEWEST_SIZES = 8
"""Message sizes that a line asks for (galvatron/utils/config_utils.py:155)."""


@dataclass(frozen=True)
class HetuCosts:
    """A `CostProvider` that gives Hetu-Galvatron's figures.

    Parameters
    ----------
    inputs : GalvatronInputs
        Of the setting's sequence length.
    hardware : HardwareProfile
    layers : mapping of kind to int
        Layers of the model: each bears an equal part of the transfers between stages.
    """

    inputs: GalvatronInputs
    hardware: HardwareProfile
    layers: Mapping[str, int]
    name: str = "galvatron"
    memory: MemorySettings = MemorySettings(context_mib=1024.0, reserved_share=0.2, reserved_above_mib=21 * 1024 - 1)

    @cached_property
    def _messages(self) -> MessageLines:
        return MessageLines(self.hardware, FEWEST_SIZES)

    @property
    def kinds(self) -> tuple[str, ...]:
        """See `CostProvider`."""
        return tuple(self.inputs.layer)

    def layer(self, kind: str, strategy: LayerStrategy, setting: CostSetting) -> CostRow:
        """See `CostProvider`; `CostRow.tail_s` is what the reduction of gradients adds to one backward."""
        samples = samples_of(strategy, setting)
        memory = self.inputs.memory[kind]
        compute = self.inputs.layer[kind].ms(samples / strategy.ways)
        backward = compute * BACKWARD + (compute if strategy.recompute else 0.0)
        forward_tensor, backward_tensor = self._tensor_ms(strategy, samples, setting)
        message, price = self._gradients(strategy, memory, setting)
        # A layer alone on its data parallel rank pays for no reduction, Ulysses or not (layer_cost.py:198-209).
        hidden = backward if strategy.dp == 1 else self._beside(message, price, backward)
        gather = message * 0.5 * price if strategy.zero == 3 else 0.0
        transfer = self._transfer_ms(samples, setting) / self.layers[kind] / 2
        return CostRow(
            forward_s=(compute + forward_tensor + gather + transfer) / 1e3,
            backward_s=(backward + backward_tensor + transfer) / 1e3,
            tail_s=(hidden - backward) / 1e3,
            states_mib=4 * memory.parameter_mib / strategy.tp * state_share(strategy, setting),
            activation_mib=layer_activation_mib(memory, strategy, setting) * samples,
            kind=kind,
            strategy=strategy,
            layout=Layout.of(strategy, setting.sequence_parallel),
        )

    def ends(self, strategy: EndStrategy, setting: CostSetting) -> EndCosts:
        """See `CostProvider`."""
        inputs = self.inputs
        if setting.stages == 1:
            # Embedding and head are both on the stage: two all-gathers.
            return EndCosts(self._end(strategy, setting, inputs.end("alone"), 1.0, 2))
        return EndCosts(
            self._end(strategy, setting, inputs.end("first"), 0.5, 1),
            self._end(strategy, setting, inputs.end("last"), 0.5, 1),
        )

    def layout_change_s(self, before: Layout, after: Layout, setting: CostSetting) -> float:
        """See `CostProvider`: its step time leaves them out."""
        return 0.0

    def handover_s(self, layout: Layout, setting: CostSetting) -> float:
        """See `CostProvider`: the layers have it."""
        return 0.0

    def _end(
        self, strategy: EndStrategy, setting: CostSetting, memory: OtherMemory, share: float, gathers: int
    ) -> EndCost:
        samples = samples_of(strategy, setting)
        compute = share * self.inputs.other.ms(samples / strategy.ways / strategy.cp)
        replicas = strategy.replicas
        price = self._price(replicas, strategy.tp) * (replicas - 1) / replicas
        states = of_ways(memory.states_mib, strategy.tp, "model_states")
        message = states / 4 * (0.5 if setting.half else 1.0) * price
        tensor = 0.0
        if strategy.tp > 1:
            tensor = gathers * self._gather_ms(strategy.tp, hidden_mib(samples, setting))
        gather = 0.5 * message if strategy.zero == 3 else 0.0
        without, with_reduction = gather, gather + 0.5 * message
        backward = self._beside_compute(without, compute * BACKWARD)
        return EndCost(
            forward_s=(self._beside_compute(gather, compute) + tensor) / 1e3,
            backward_s=backward / 1e3,
            tail_s=(self._beside_compute(with_reduction, compute * BACKWARD) - backward) / 1e3,
            states_mib=states * state_share(strategy, setting),
            activation_mib=of_ways(memory.activation_mib, strategy.ways, "activation") * samples,
        )

    def _tensor_ms(self, strategy: LayerStrategy, samples: int, setting: CostSetting) -> tuple[float, float]:
        """Collectives of the forward and of the backward, ms: 4 and 2 all-gathers, or 2 and 2 all-to-alls."""
        if strategy.ways == 1:
            return 0.0, 0.0
        message = hidden_mib(samples, setting)
        if strategy.tp > 1:
            each, forward, backward = self._gather_ms(strategy.tp, message), 4, 2
        else:
            each, forward, backward = self._messages.ms(ALL_TO_ALL, strategy.sp, message), 2, 2
        again = (forward + backward) / 2 if strategy.recompute else 0.0
        return each * forward, each * (backward + again)

    def _gather_ms(self, ways: int, mib: float) -> float:
        """An all-gather: half the all-reduce of the whole tensor."""
        return self._messages.ms(ALL_REDUCE, ways, mib) * 0.5

    def _price(self, replicas: int, tp: int) -> float:
        """ms a MiB of an all-reduce's bus volume; ranks of one layer's TP lie between its replicas."""
        return 0.0 if replicas == 1 else 1.0 / self.hardware.bandwidth(replicas, tp == 1)

    def _gradients(self, strategy: LayerStrategy, memory: LayerMemory, setting: CostSetting) -> tuple[float, float]:
        """Bus volume of a layer's gradients, MiB, and its cost, ms a MiB."""
        replicas = strategy.replicas
        whole = memory.parameter_mib / strategy.tp * (0.5 if setting.half else 1.0)
        return 2 * (replicas - 1) * (whole / replicas), self._price(replicas, strategy.tp)

    def _beside(self, message_mib: float, price: float, backward_ms: float) -> float:
        """A backward with a reduction beside it, both slowed down while both run, ms."""
        slow = self.hardware.slowdown()
        reduction, compute = message_mib * price * slow, backward_ms * slow
        if reduction > compute:
            return compute + (message_mib - compute / (price * slow)) * price
        return reduction + (backward_ms - reduction / slow)

    def _beside_compute(self, communication_ms: float, compute_ms: float) -> float:
        """A communication that only slows the computation beside it, ms (embedding_lmhead_cost.py:197-209)."""
        slow = self.hardware.slowdown()
        if compute_ms * slow > communication_ms:
            return communication_ms + (compute_ms * slow - communication_ms) / slow
        return communication_ms

    def _transfer_ms(self, samples: int, setting: CostSetting) -> float:
        """Transfers between stages, forth and back, which it spreads over the layers, ms."""
        if setting.stages == 1:
            return 0.0
        message = setting.stages * 2 * hidden_mib(samples, setting)
        return message / self.hardware.transfer(setting.stages)


def state_share(strategy: EndStrategy, setting: CostSetting) -> float:
    """Fraction of the states that a rank keeps under its ZeRO stage (layer_cost.py:281-293)."""
    shard = 1 / strategy.replicas + SHARD_MARGIN
    if strategy.zero == 0 or strategy.replicas == 1:  # Its strategies have no ZeRO then (strategy_utils.py:46).
        return 1.0
    copy = 1 / 8 if setting.half else 1 / 4  # Parameters in half or full precision, over all states.
    if setting.micro_batches == 1:
        return shard if strategy.zero == 3 else (1 - copy) * shard + copy
    if not setting.reduce_every_micro_batch:  # Gradients stay whole until the step's end.
        kept = copy if strategy.zero == 3 else 2 * copy
        return (1 - kept) * shard + kept
    # 5/4: gradients are accumulated in fp32; without half precision they were that before.
    if strategy.zero == 3:
        return shard * 5 / 4
    return ((1 - copy) * shard + copy) * (5 / 4 if setting.half else 1.0)
