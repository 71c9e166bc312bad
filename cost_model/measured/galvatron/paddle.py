"""The cost model of Galvatron's port to Paddle, as it is, weaknesses included.

paddle-galvatron b0bdd07 paddlenlp/experimental/galvatron/cost_model/time_cost_model.py and memory_cost_model.py. It
differs from Hetu's in what it reduces (fp32 gradients), in the number of collectives, in the states (18 bytes a
parameter, gradients kept whole while they are accumulated), and in a second way to overlap. Known weaknesses in
addition to Hetu's: where ranks of TP and DP are as many, half the backward is taken to overlap nothing; every layer
pays a 24th of the transfers between stages; embedding and head look up no measured size; with Ulysses at embedding and
head, the first stage's message is half of what it sends.
"""

from __future__ import annotations

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
from taylor.cost_model.measured.profiles import PADDLE, LayerMemory, OtherMemory

BACKWARD = 2.0
COLLECTIVES = 4
"""Collectives of a layer, halves of an all-reduce or all-to-alls (`tp_comm_num`)."""
TRANSFER_LAYERS = 24
"""Layers that it spreads the transfers between stages over, whatever the model has (`dummy_layernum`)."""


@dataclass(frozen=True)
class PaddleCosts:
    """A `CostProvider` that gives the figures of Galvatron's port to Paddle.

    Parameters
    ----------
    inputs : GalvatronInputs
        Of the setting's sequence length.
    hardware : HardwareProfile
    by_bandwidth : bool
        Tensor parallel collectives are timed by the bandwidth of all-reduces (``--sp_space tp``), not by their
        measured times.
    """

    inputs: GalvatronInputs
    hardware: HardwareProfile
    by_bandwidth: bool = False
    name: str = "galvatron"
    memory: MemorySettings = MemorySettings(reserved_share=0.3, reserved_above_mib=21 * 1024 - 1)

    @cached_property
    def _messages(self) -> MessageLines:
        return MessageLines(self.hardware, 2)

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
        tensor = self._tensor_ms(strategy, samples, setting)
        replicas = strategy.replicas
        message = 2 * (replicas - 1) / replicas * memory.parameter_mib / strategy.tp
        price = self._price(replicas)
        reduced = self._reduced(strategy, message, price, backward) if strategy.dp > 1 else backward
        gather = message * 0.5 * price if strategy.zero == 3 else 0.0
        transfer = self._transfer_ms(samples, setting) / TRANSFER_LAYERS / 2
        return CostRow(
            forward_s=(compute + tensor / 2 + gather + transfer) / 1e3,
            backward_s=(backward + tensor / 2 + transfer) / 1e3,
            tail_s=(reduced - backward) / 1e3,
            states_mib=self._states(memory, strategy, setting),
            activation_mib=layer_activation_mib(memory, strategy, setting) * samples,
            kind=kind,
            strategy=strategy,
            layout=Layout.of(strategy, setting.sequence_parallel),
        )

    def ends(self, strategy: EndStrategy, setting: CostSetting) -> EndCosts:
        """See `CostProvider`."""
        inputs = self.inputs
        if setting.stages == 1:
            return EndCosts(self._end(strategy, setting, inputs.end("alone"), 1.0, 2, 2.0))
        # `gradient_type_divide_param_type * (first, … * last)` repeats the pair instead of doubling its first.
        first = 1.0 if strategy.sp > 1 else 2.0
        return EndCosts(
            self._end(strategy, setting, inputs.end("first"), 0.5, 1, first),
            self._end(strategy, setting, inputs.end("last"), 0.5, 1, 2.0),
        )

    def layout_change_s(self, before: Layout, after: Layout, setting: CostSetting) -> float:
        """See `CostProvider`: its step time leaves them out."""
        return 0.0

    def handover_s(self, layout: Layout, setting: CostSetting) -> float:
        """See `CostProvider`: the layers have it."""
        return 0.0

    def _end(
        self,
        strategy: EndStrategy,
        setting: CostSetting,
        memory: OtherMemory,
        share: float,
        gathers: int,
        double: float,
    ) -> EndCost:
        samples = samples_of(strategy, setting)
        compute = share * self.inputs.other.ms(samples / strategy.ways)
        replicas = strategy.replicas
        states = of_ways(memory.states_mib, strategy.tp, "model_states")
        message = double * states / PADDLE.states_of_parameters * self._price(replicas) * (replicas - 1) / replicas
        tensor = gathers * self._end_tensor_ms(strategy, samples, setting)
        gather = 0.5 * message if strategy.zero == 3 else 0.0
        slow = self.hardware.slowdown()

        def beside(communication: float, computation: float) -> float:
            return max(communication, communication + (computation * slow - communication) / slow)

        without = beside(gather, compute * BACKWARD)
        once = setting.micro_batches == 1
        return EndCost(
            forward_s=(beside(gather, compute) + tensor) / 1e3,
            backward_s=without / 1e3,
            tail_s=(beside(gather + 0.5 * message, compute * BACKWARD) - without) / 1e3,
            # Their states count as ZeRO-3's under every ZeRO (dynamic_programming.py, `sharding_stage=3`).
            states_mib=states * (7 / 9 if once else 1.0) * _share(strategy.replace(zero=3), once),
            activation_mib=of_ways(memory.activation_mib, strategy.ways, "activation") * samples,
        )

    def _end_tensor_ms(self, strategy: EndStrategy, samples: int, setting: CostSetting) -> float:
        """An all-gather at one end, ms; by the line alone, for its look-up asks for bytes among degrees."""
        if strategy.tp == 1:
            return 0.0
        message = hidden_mib(samples, setting)
        if self.by_bandwidth:
            return (strategy.tp - 1) / strategy.tp * message / self.hardware.bandwidth(strategy.tp, True)
        slope, start = self._messages.line(ALL_REDUCE, strategy.tp)
        return (slope * message + start) / 2

    def _tensor_ms(self, strategy: LayerStrategy, samples: int, setting: CostSetting) -> float:
        """Collectives of forward and backward, ms."""
        ways = strategy.ways
        if ways == 1:
            return 0.0
        message = hidden_mib(samples, setting)
        if self.by_bandwidth:  # 4 all-reduces; its factor for recompute is computed and dropped.
            return 2 * (ways - 1) / ways * message * COLLECTIVES / self.hardware.bandwidth(ways, True)
        if strategy.tp > 1:
            each = self._messages.ms(ALL_REDUCE, ways, message) / 2
        else:
            each = self._messages.ms(ALL_TO_ALL, ways, message)
        return each * COLLECTIVES * (1.5 if strategy.recompute else 1.0)

    def _reduced(self, strategy: LayerStrategy, message: float, price: float, backward: float) -> float:
        """A backward with the reduction of gradients beside it, ms."""
        if strategy.ways == 1 or strategy.ways < strategy.ways * strategy.dp // 2:
            return self._beside(message, price, backward)
        return backward / 2 + self._beside(message, price, backward / 2)

    def _beside(self, message: float, price: float, backward: float) -> float:
        slow = self.hardware.slowdown()
        reduction, compute = message * price * slow, backward * slow
        if reduction > compute:
            return compute + (message - compute / (price * slow)) * price
        return reduction + backward - reduction / slow

    def _price(self, replicas: int) -> float:
        return 0.0 if replicas == 1 else 1.0 / self.hardware.bandwidth(replicas, True)

    def _transfer_ms(self, samples: int, setting: CostSetting) -> float:
        if setting.stages == 1:
            return 0.0
        return setting.stages * 2 * hidden_mib(samples, setting) / self.hardware.transfer(setting.stages)

    def _states(self, memory: LayerMemory, strategy: LayerStrategy, setting: CostSetting) -> float:
        once = setting.micro_batches == 1
        whole = memory.parameter_mib / strategy.tp * (7 if once else 9)
        return whole * _share(strategy, once)


def _share(strategy: EndStrategy, once: bool) -> float:
    """Fraction of the states that a rank keeps: weights take 2 of 18 bytes, accumulated gradients 4, the rest 12."""
    shard = 1 / strategy.replicas
    if strategy.zero == 0:
        return 1.0
    if once:
        return shard if strategy.zero == 3 else 1 / 7 + 6 / 7 * shard
    return 2 / 9 + 7 / 9 * shard if strategy.zero == 3 else 1 / 3 + 2 / 3 * shard
