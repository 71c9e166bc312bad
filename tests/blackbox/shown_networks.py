"""Hidden networks with the laws of their small runs: ring attention, dense layers, modules, sharded weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from benchmarks.second_campaign import SecondNetwork
from benchmarks.second_cluster.cluster import second_cluster
from benchmarks.standin_cluster import Block
from benchmarks.standin_titan import TitanCluster, titan_cluster
from benchmarks.standin_titan_run import log_text, write_titan_run
from benchmarks.titan_campaign import TitanNetwork
from benchmarks.tune_campaign import CARDS, Network
from taylor.blackbox.small_runs import SEARCHABLE, SmallRun, plan_small_runs
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws

MODULES = ("core_attn", "moe", "moe_act", "mlp")
_KEPT = ("MatMulV2", "FlashAttentionScore", "GroupedMatmul", "MoePermute", "Add")
_MOST_ALIKE = 2


class ShardedNetwork(TitanNetwork):
    """A network of fewer operators, whose weights FSDP shards; its small runs are read without their files."""

    def write(self, run: SmallRun, place: Path) -> None:
        """See `Network.write`."""
        place.mkdir(exist_ok=True)
        steps = range(3, 3 + run.steps)
        took, most = write_titan_run(self.cluster, run.setting, place / "profile", steps)
        (place / "run.log").write_text(log_text(self.cluster, run.setting, 6, took, most, run.setting.mbs, 1))


def _thinned(block: Block) -> Block:
    """A block with the first operators of some types, and all collectives."""
    seen, names = list[str](), {""}
    for task in block.forward:
        if task.kind in _KEPT and seen.count(task.kind) < _MOST_ALIKE:
            seen.append(task.kind)
            names.add(task.name)
    forward, backward = (
        tuple(task for task in tasks if task.name in names) for tasks in (block.forward, block.backward)
    )
    return replace(block, forward=forward, backward=backward)


def sharded_cluster() -> TitanCluster:
    """A dense layer in front of layers with experts."""
    whole = titan_cluster(8)
    layers = {name: _thinned(whole.blocks[name]) for name in ("layer", "dense")}
    return replace(whole, blocks={**whole.blocks, **layers})


def network_of(name: str, folder: Path) -> Network:
    """A network: ``ring`` (attention, no experts), ``experts`` (behind dense layers), ``sharded`` (weights)."""
    if name == "sharded":
        return ShardedNetwork(sharded_cluster(), folder, 8)
    return SecondNetwork(cast(Any, second_cluster({"ring": 2, "experts": 13}[name])), folder)


def laws_of(network: Network, modules: tuple[str, ...]) -> TunedLaws:
    """The laws of its small runs."""
    planned = plan_small_runs(network.sizes, CARDS, SEARCHABLE, None, modules).runs
    shown = [ShownRun(one.name, one.setting, network.start(one), one.again) for one in planned]
    return TunedLaws(shown, network.launcher, network.sizes, network.options(False))
