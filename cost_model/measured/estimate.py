"""The analytical model as a source of costs by strategy, for models and devices without profiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import embedding_parameters, head_parameters, layer_parameters
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.measured.cost_table import (
    MIB,
    CostRow,
    CostSetting,
    EndCost,
    EndCosts,
    Layout,
    MemorySettings,
    hidden_mib,
    samples_of,
)
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.backward_workspace import gradient_workspace_bytes
from taylor.cost_model.memory.statics import embedding_state_bytes, head_state_bytes, layer_state_bytes, logits_bytes
from taylor.cost_model.network.collectives import gather_ms, ring_bandwidth, send_ms
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import head_time, layer_time
from taylor.pipeline.plan import FULL, NONE
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


@dataclass(frozen=True)
class EstimatedCosts:
    """A `CostProvider` on the analytical model.

    Parameters
    ----------
    model : ModelSpec
    rules : TrainingRules
        Of the job; sequence length and sharding are the setting's and the strategy's.
    device : DeviceSpec
    """

    model: ModelSpec
    rules: TrainingRules
    device: DeviceSpec
    name: str = "estimate"

    @property
    def kinds(self) -> tuple[str, ...]:
        """See `CostProvider`."""
        return tuple(self.model.kind_counts)

    @property
    def memory(self) -> MemorySettings:
        """See `CostProvider`; the device's usable memory has no more to keep."""
        overhead = self.rules.overhead_mib
        return MemorySettings(self.rules.framework.statics.overhead_mib if overhead is None else overhead)

    def layer(self, kind: str, strategy: LayerStrategy, setting: CostSetting) -> CostRow:
        """See `CostProvider`."""
        if strategy.offload:
            raise InputError(
                "sends activations to the host, which the estimate does not know",
                field="strategy",
                value=strategy.name,
                cure="plan without offload",
            )
        degrees, rules = self._job(strategy, setting)
        degrees = degrees.replace(ep=strategy.ep)
        time = layer_time(self.model, kind, degrees, rules, self.device)
        again = float(time.recompute[FULL]) if strategy.recompute else 0.0
        kept = activation_bytes(self.model, kind, FULL if strategy.recompute else NONE, degrees, rules)
        rebuilt = activation_bytes(self.model, kind, NONE, degrees, rules) if strategy.recompute else 0.0
        workspace = gradient_workspace_bytes(self.model, kind, degrees, rules)
        return CostRow(
            forward_s=float(time.forward) / 1e3,
            backward_s=(float(time.backward) + again) / 1e3,
            tail_s=self._tail_s(layer_parameters(self.model, kind), strategy, rules),
            states_mib=float(layer_state_bytes(self.model, kind, degrees, rules).total) / MIB,
            activation_mib=float(kept) / MIB,
            kind=kind,
            strategy=strategy,
            layout=Layout.of(strategy, setting.sequence_parallel),
            working_mib=float(rebuilt + workspace) / MIB,
        )

    def ends(self, strategy: EndStrategy, setting: CostSetting) -> EndCosts:
        """See `CostProvider`."""
        degrees, rules = self._job(strategy, setting)
        head_ms, embedding_ms = (float(each) for each in head_time(self.model, degrees, rules, self.device))
        parts = (embedding_state_bytes, head_state_bytes)
        embedding_mib, head_mib = (float(part(self.model, degrees, rules).total) / MIB for part in parts)
        logits_mib = float(logits_bytes(self.model, degrees, rules)) / MIB
        of_head = self._tail_s(head_parameters(self.model), strategy, rules)
        of_embedding = self._tail_s(embedding_parameters(self.model), strategy, rules)
        first = EndCost(embedding_ms / 1e3, embedding_ms / 1e3, of_embedding, embedding_mib, 0.0)
        last = EndCost(head_ms / 1e3, 2 * head_ms / 1e3, of_head, head_mib, logits_mib)
        if setting.stages > 1:
            return EndCosts(first, last)
        tied = self.model.tied_embedding
        return EndCosts(
            EndCost(
                first.forward_s + last.forward_s,
                first.backward_s + last.backward_s,
                first.tail_s + (0.0 if tied else last.tail_s),
                first.states_mib + last.states_mib,
                last.activation_mib,
            )
        )

    def layout_change_s(self, before: Layout, after: Layout, setting: CostSetting) -> float:
        """See `CostProvider`."""
        whole = hidden_mib(setting.micro_batch, setting) * MIB
        parts = [each.batch_ways * each.sequence_ways for each in (before, after)]
        common = max(before.batch_ways, after.batch_ways) * max(before.sequence_ways, after.sequence_ways)
        share = Speed.of(self.device, self.rules).network
        moved = 0.0
        for own in parts:
            lacking = whole / own * (1 - own / common)
            moved += lacking / float(ring_bandwidth(max(common // own, 1), 1, self.device) * share * 1e6)
        return moved / 1e3

    def handover_s(self, layout: Layout, setting: CostSetting) -> float:
        """See `CostProvider`."""
        if setting.stages == 1:
            return 0.0
        part = hidden_mib(setting.micro_batch, setting) * MIB / layout.batch_ways / layout.sequence_ways
        distance = layout.batch_ways * layout.sequence_ways * layout.copies
        return float(send_ms(part, distance, self.device, Speed.of(self.device, self.rules).network)) / 1e3

    def _job(self, strategy: EndStrategy, setting: CostSetting) -> tuple[Strategy, TrainingRules]:
        """The job in which every layer would be spread as this one."""
        degrees = Strategy(
            dp=strategy.dp,
            tp=strategy.tp,
            pp=setting.stages,
            cp=strategy.cp * strategy.sp,
            op=strategy.replicas if strategy.zero else 1,
            sp=setting.sequence_parallel and strategy.tp > 1,
            mbs=samples_of(strategy, setting),
            micro_batches=setting.micro_batches,
        )
        rules = self.rules.replace(
            seq_length=setting.tokens,
            parallel_optimizer=strategy.zero > 0,
            gradient_shard=strategy.zero == 2 and setting.reduce_every_micro_batch,
            parameter_shard=strategy.zero == 3,
            ulysses_degree=strategy.sp,
        )
        return degrees, rules

    def _tail_s(self, parameters: float, strategy: EndStrategy, rules: TrainingRules) -> float:
        """Reduction of gradients, and return of weights, for a number of parameters, s; ZeRO-3's are in the layer."""
        if strategy.zero == 3 or strategy.replicas == 1:
            return 0.0
        back = rules.compute_bytes if strategy.zero else rules.gradient_bytes
        volume = parameters / strategy.tp * (rules.gradient_bytes + back)
        share = Speed.of(self.device, rules).network
        taken: Any = gather_ms(volume, np.int64(strategy.replicas), strategy.tp, self.device, share)
        return float(taken) / 1e3
