"""Costs from measured tables under the rules by which frameworks truly work.

What differs from Galvatron's own models: ZeRO splits over all replicas, Ulysses and context ranks included; ZeRO-3
gathers parameters for the backward too, each time beside the computation; a ring of context ranks passes keys and
values on beside attention, and a layer of such ranks takes less time; Ulysses sends queries, keys, values and outputs,
as much of each as a rank holds; gradients are reduced once a step or in every micro-batch as the setting says; a change
of layout moves what a rank lacks, over measured bandwidth; the head's time is the last stage's. The GEMMs of a split
layer are taken to lose no efficiency: profiles at one way do not measure that.
"""

from __future__ import annotations

from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import (
    MIB,
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
from taylor.cost_model.measured.hardware import ALL_REDUCE, ALL_TO_ALL, HardwareProfile, overlapped_ms
from taylor.cost_model.measured.laws import ModelLaws
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy

EXPOSED_FORWARD, EXPOSED_BACKWARD, HIDDEN_BACKWARD = 4, 2, 4
"""Halves of an all-reduce of a tensor parallel layer: before and after its two blocks; again in the backward, where
those beside the GEMMs of weights and inputs are overlapped (Megatron-LM d98e8a64
megatron/core/tensor_parallel/layers.py, `LinearWithGradAccumulationAndAsyncCommunication`)."""


@dataclass(frozen=True)
class MeasuredSettings:
    """Figures that profiles lack.

    Parameters
    ----------
    backward_ratio : float
        A backward over its forward, without recompute.
    embedding_share : float
        The embedding's fraction of the time of embedding, head and loss.
    host_mib_a_ms : float or None
        Bandwidth to the host's memory, MiB a ms; None: not measured, and nothing is sent there.
    memory : MemorySettings or None
        None: as the framework's planner, 1 GiB of context and 20 % (Hetu) or 30 % (Paddle) of a limit above
        20 GiB for the allocator.
    """

    backward_ratio: float = 2.0
    embedding_share: float = 0.0
    host_mib_a_ms: float | None = None
    memory: MemorySettings | None = None


@dataclass(frozen=True)
class MeasuredCosts:
    """A `CostProvider` on measured tables.

    Parameters
    ----------
    laws : ModelLaws
    hardware : HardwareProfile
    settings : MeasuredSettings
    """

    laws: ModelLaws
    hardware: HardwareProfile
    settings: MeasuredSettings = MeasuredSettings()
    name: str = "taylor"

    @property
    def kinds(self) -> tuple[str, ...]:
        """See `CostProvider`."""
        return tuple(self.laws.layer)

    @property
    def memory(self) -> MemorySettings:
        """See `CostProvider`."""
        share = {"hetu": 0.2, "paddle": 0.3}[self.laws.rules.name]
        return self.settings.memory or MemorySettings(1024.0, share, 21 * 1024 - 1)

    def layer(self, kind: str, strategy: LayerStrategy, setting: CostSetting) -> CostRow:
        """See `CostProvider`."""
        if strategy.ep > 1 or strategy.expert_tp > 1:
            raise InputError(
                "splits experts, which no profile of Galvatron measures",
                field="strategy",
                value=strategy.name,
                cure="plan it with the estimate",
            )
        samples = samples_of(strategy, setting)
        memory = self.laws.layer_memory(kind, setting.tokens)
        time = self.laws.layer[kind]
        share = samples / strategy.ways / strategy.cp
        compute = time.ms(share, setting.tokens)
        attention = time.attention_ms(share, setting.tokens)
        forward_shown, backward_shown, backward_hidden = self._tensor_ms(strategy, samples, setting)
        ratio = self.settings.backward_ratio
        ring = self._ring_ms(strategy, samples, setting)
        forward = compute + forward_shown + self._beyond(attention, ring)
        backward = self._beside(ratio * compute, backward_hidden) + backward_shown
        backward += self._beyond(ratio * attention, 2 * ring)
        if strategy.recompute:
            backward += forward
        activation = layer_activation_mib(memory, strategy, setting) * samples / strategy.cp
        working = 0.0
        if strategy.recompute:
            plain = layer_activation_mib(memory, strategy.replace(recompute=False), setting)
            working += plain * samples / strategy.cp
        host = 0.0
        if strategy.offload:
            moved = self._host_ms(activation)
            forward, backward = self._beside(forward, moved), self._beside(backward, moved)
            working, host, activation = working + activation, activation, 0.0
        parameters = memory.parameter_mib / self.laws.rules.parameter_bytes / strategy.tp
        forward, backward, tail = self._replicated(strategy, setting, parameters, forward, backward)
        if strategy.zero == 3 and strategy.replicas > 1:
            working += parameters * (self.laws.rules.per_parameter.weights + self.laws.rules.per_parameter.gradients)
        return CostRow(
            forward_s=forward / 1e3,
            backward_s=backward / 1e3,
            tail_s=tail / 1e3,
            states_mib=parameters * self._kept(strategy, setting),
            activation_mib=activation,
            kind=kind,
            strategy=strategy,
            layout=Layout.of(strategy, setting.sequence_parallel),
            working_mib=working,
            host_mib=host,
        )

    def ends(self, strategy: EndStrategy, setting: CostSetting) -> EndCosts:
        """See `CostProvider`."""
        if setting.stages == 1:
            return EndCosts(self._end("alone", strategy, setting, 1.0, 2))
        share = self.settings.embedding_share
        return EndCosts(
            self._end("first", strategy, setting, share, 1), self._end("last", strategy, setting, 1 - share, 1)
        )

    def layout_change_s(self, before: Layout, after: Layout, setting: CostSetting) -> float:
        """See `CostProvider`."""
        whole = hidden_mib(setting.micro_batch, setting)
        return (self._moved_ms(before, after, whole) + self._moved_ms(after, before, whole)) / 1e3

    def handover_s(self, layout: Layout, setting: CostSetting) -> float:
        """See `CostProvider`."""
        if setting.stages == 1:
            return 0.0
        part = hidden_mib(setting.micro_batch, setting) / layout.batch_ways / layout.sequence_ways
        return part / self.hardware.transfer(setting.stages) / 1e3

    def _end(self, end: str, strategy: EndStrategy, setting: CostSetting, share: float, gathers: int) -> EndCost:
        """Embedding and head on one stage; each gathers its input or scatters its output once a direction."""
        samples = samples_of(strategy, setting)
        memory = self.laws.end_memory(end, setting.tokens)
        compute = share * self.laws.other.ms(samples / strategy.ways / strategy.cp, setting.tokens)
        tensor = 0.0
        if strategy.tp > 1:
            message = hidden_mib(samples, setting) / strategy.cp
            tensor = gathers * self.hardware.times(ALL_REDUCE, strategy.tp).between_ms(message) / 2
        rules = self.laws.rules
        states = of_ways(memory.states_mib, strategy.tp, "model_states")
        parameters = states / rules.states_of_parameters / rules.parameter_bytes
        forward, backward = compute + tensor, self.settings.backward_ratio * compute + tensor
        forward, backward, tail = self._replicated(strategy, setting, parameters, forward, backward)
        activation = of_ways(memory.activation_mib, strategy.ways, "activation") * samples / strategy.cp
        return EndCost(
            forward / 1e3, backward / 1e3, tail / 1e3, parameters * self._kept(strategy, setting), activation
        )

    def _replicated(
        self, strategy: EndStrategy, setting: CostSetting, parameters: float, forward: float, backward: float
    ) -> tuple[float, float, float]:
        """Forward, backward and tail with the collectives among replicas, ms; `parameters` in Mi."""
        replicas = strategy.replicas
        if replicas == 1:
            return forward, backward, 0.0
        # An all-gather or reduce-scatter of X moves (R − 1) / R · X over the bus, an all-reduce twice that.
        a_mib = (replicas - 1) / replicas / self.hardware.bandwidth(replicas, strategy.tp == 1)
        per_parameter = self.laws.rules.per_parameter
        gather, reduction = parameters * per_parameter.weights * a_mib, parameters * per_parameter.reduced * a_mib
        if strategy.zero == 0:
            reduction *= 2
        gathered = gather if strategy.zero == 3 else 0.0
        plain = self._beside(backward, gathered)
        reducing = self._beside(backward, gathered + reduction)
        forward = self._beside(forward, gathered)
        # Under ZeRO-2 updated weights come back before the next step.
        back = gather if strategy.zero == 2 else 0.0
        if setting.reduce_every_micro_batch or setting.micro_batches == 1:
            return forward, reducing, back
        return forward, plain, reducing - plain + back

    def _kept(self, strategy: EndStrategy, setting: CostSetting) -> float:
        """Bytes of states a parameter."""
        return self.laws.rules.per_parameter.kept(
            strategy.zero,
            strategy.replicas,
            several=setting.micro_batches > 1,
            every=setting.reduce_every_micro_batch,
        )

    def _tensor_ms(self, strategy: LayerStrategy, samples: int, setting: CostSetting) -> tuple[float, float, float]:
        """Collectives among a layer's ways, ms: of the forward, of the backward, and overlapped in the backward."""
        message = hidden_mib(samples, setting) / strategy.cp
        if strategy.tp > 1:
            each = self.hardware.times(ALL_REDUCE, strategy.tp).between_ms(message) / 2
            if setting.sequence_parallel:
                return each * EXPOSED_FORWARD, each * EXPOSED_BACKWARD, each * HIDDEN_BACKWARD
            return each * EXPOSED_FORWARD, 0.0, each * HIDDEN_BACKWARD  # Two all-reduces each way.
        if strategy.sp > 1:
            times, part = self.hardware.times(ALL_TO_ALL, strategy.sp), message / strategy.sp
            each = 2 * times.between_ms(part) + 2 * times.between_ms(part * setting.kv_share)
            return each, each, 0.0
        return 0.0, 0.0, 0.0

    def _ring_ms(self, strategy: LayerStrategy, samples: int, setting: CostSetting) -> float:
        """Keys and values once around the ring of context ranks, ms."""
        if strategy.cp == 1:
            return 0.0
        width = setting.hidden * setting.kv_share / strategy.ways
        block = 2 * samples * setting.tokens / strategy.cp * width * setting.bytes / MIB
        return (strategy.cp - 1) * block / self.hardware.bandwidth(strategy.cp, strategy.ways == 1)

    def _moved_ms(self, before: Layout, after: Layout, whole_mib: float) -> float:
        """One change of layout, ms: every rank fetches what it lacks of its part."""
        parts = after.batch_ways * after.sequence_ways
        common = max(before.batch_ways, after.batch_ways) * max(before.sequence_ways, after.sequence_ways)
        lacking = whole_mib / parts * (1 - parts / common)
        if lacking <= 0:
            return 0.0
        return lacking / self.hardware.bandwidth(common // parts, True)

    def _host_ms(self, mib: float) -> float:
        if self.settings.host_mib_a_ms is None:
            raise InputError(
                "is missing, and activations that go to the host need it",
                field="host_mib_a_ms",
                cure="measure the link to the host, or plan without offload",
            )
        return mib / self.settings.host_mib_a_ms

    def _beside(self, compute: float, communication: float) -> float:
        """A computation with a communication beside it, ms."""
        return overlapped_ms(compute, communication, self.hardware.slowdown()) if communication > 0 else compute

    def _beyond(self, compute: float, communication: float) -> float:
        """Time that a communication adds to a computation beside it, ms."""
        return self._beside(compute, communication) - compute
