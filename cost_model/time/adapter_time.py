"""Time of a layer's low-rank adapters (`cost_model.job.adapters`); scalars and arrays alike."""

from __future__ import annotations

from typing import NamedTuple

from taylor.cost_model.job.adapters import adapter_work
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens, routed_slots
from taylor.cost_model.network.collectives import gather_ms
from taylor.cost_model.time.speed import Speed
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


class AdapterTime(NamedTuple):
    """Times of one layer's adapters for one micro-batch on one device, ms."""

    forward: Quantity
    backward: Quantity


NO_ADAPTERS = AdapterTime(0.0, 0.0)


def adapter_time(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, device: DeviceSpec, speed: Speed
) -> AdapterTime:
    """Times of the adapters of one layer of a kind (or of an MTP module's layers), ms.

    Their GEMMs run in 16 bits, forward once and backward twice, and so do the transfers that join their results over
    TP. A frozen matrix in fewer than 16 bits is written in 16 before each of its uses (QLoRA, arXiv:2305.14314 §3).
    """
    plain = Speed.of(device, rules.trained, in_layer=True)
    tokens = micro_batch_tokens(degrees, rules)
    forward: Quantity = 0.0
    backward: Quantity = 0.0
    for layer in model.layers_of(kind):
        slots: Quantity = 0.0 if layer.moe is None else routed_slots(layer.moe, degrees, rules)
        work = adapter_work(model, layer, degrees, rules, tokens, slots)
        # A product of few columns reads and writes far more than it multiplies.
        once = plain.product(work.flops, work.moved_bytes, 0.0)
        again = plain.product(work.again_flops, 0.0, 0.0)
        norms = plain.product(work.forward_flops, 0.0, 0.0) + speed.bytes(work.forward_bytes)
        gathered = gather_ms(work.gathered_bytes, degrees.tp, 1, device, speed.network)
        forward = forward + once + again + norms + speed.bytes(work.element_bytes) + gathered
        backward = backward + 2 * once + again + speed.bytes(work.gradient_element_bytes) + gathered
    return AdapterTime(forward, backward)
