"""Cost of keeping a layer's activations on the devices of another pipeline stage.

torchtitan's open pull request 4764 does it (torchtitan/models/kimi_k3/pp_balance.py of its branch, 080f4420): the
stages named as sources park each tensor that a forward saves on one other stage, whose devices reserve a pool for the
whole step; a stage that parks cannot hold the pool (``install_pp_balance``). Tensors come back when their backward
needs them (``pack``, ``unpack``), and each copy waits for its transfer (``transfer_sync_write``). Here a layer's
transfer runs beside the computation of one layer, as with offload and as BPipe has it (Kim et al., ICML 2023); the
excess is added. Rank i of a stage keeps its tensors on rank i of the lender, which computes no slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from taylor.cost_model.choices.module_choices import ModuleCost
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.offload import OFFLOADED, offloaded_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.network.collectives import send_ms
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.pipeline.plan import NONE
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


@dataclass(frozen=True)
class LendingCosts:
    """Costs of the choices by what is lent; `link` is the link to the lender, `host_mib` the memory there.

    Parameters
    ----------
    everything : ModuleCost
        All that a layer keeps.
    overlapped : ModuleCost
        The most of the tensors of `OFFLOADED` whose transfer the layer's forward overlaps.
    """

    everything: ModuleCost
    overlapped: ModuleCost


def lending_costs(
    model: ModelSpec,
    kind: str,
    strategy: Strategy,
    rules: TrainingRules,
    device: DeviceSpec,
    pairs: Sequence[tuple[int, int]],
) -> LendingCosts:
    """Costs of lending in a layer of a kind.

    Parameters
    ----------
    pairs : sequence of (stage, lender)
        The slowest of their links counts for all.
    """
    distance = device.devices_per_node if any(leaves_node(pair, strategy, device) for pair in pairs) else 1
    network = Speed.of(device, rules).network
    time = layer_time(model, kind, strategy, rules, device)
    forward, backward = float(time.forward), float(time.backward)
    kept = float(activation_bytes(model, kind, NONE, strategy, rules))

    def link_ms(lent: float) -> float:
        return float(send_ms(lent, distance, device, network)) if lent else 0.0

    def cost(lent: float) -> ModuleCost:
        link = link_ms(lent)
        exposed = max(0.0, link - forward) / forward, max(0.0, link - backward) / forward
        return ModuleCost(*exposed, link / forward, (kept - lent) / MIB, lent / MIB)

    tensors = [float(offloaded_bytes(model, kind, (part,), strategy, rules)) for part in OFFLOADED]
    sums = (sum(some) for some in product(*((0.0, one) for one in tensors)))
    return LendingCosts(cost(kept), cost(max(lent for lent in sums if lent <= kept and link_ms(lent) <= forward)))


def leaves_node(pair: tuple[int, int], strategy: Strategy, device: DeviceSpec) -> bool:
    """Return whether some rank of a stage lies in another node than its partner; ranks follow stage after stage."""
    ranks = strategy.dp * strategy.cp * strategy.tp
    nodes = ([(stage * ranks + rank) // device.devices_per_node for rank in range(ranks)] for stage in pair)
    return any(a != b for a, b in zip(*nodes, strict=True))
