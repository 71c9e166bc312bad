"""Hidden networks whose weights FSDP shards as in torchtitan: memory tensor by tensor, steps stream by stream.

Networks and machines are those of `standin_build`; `standin_titan_run` writes what a run leaves. FSDP follows its
source, apart from the product: torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, which buffers are
allocated and freed where, under which ranges, and what waits for what; under stages
torch/distributed/pipelining/stage.py:844-847, 1173-1191.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_cluster import PAGE, Cluster, Stage, _forward, _last, layer_names, stage_order
from benchmarks.standin_machine import sent_bytes
from taylor.parsers.small_run import RunSetting

STORED, GATHERED, REDUCED = 4, 2, 4
"""Bytes of an element: of a shard and its gradient, while gathered, while reduced."""
STATES = 12
"""fp32 weights and Adam's two moments."""
NETWORKS = (
    (3, "", "llama3", "8B", (32, 1, 0)),
    (5, "", "llama3", "70B", (80, 1, 0)),
    (11, "", "qwen3", "14B", (40, 1, 0)),
    (13, "", "qwen3", "4B", (36, 1, 0)),
    (14, "", "qwen3", "1.7B", (28, 1, 0)),
    (17, "", "llama3", "405B", (126, 1, 0)),
    (4, "", "qwen3", "debugmodel_moe", (8, 64, 0)),
    (6, "shared", "qwen3", "debugmodel_moe", (8, 64, 0)),
    (4, "dense", "deepseek_v3", "16B", (27, 64, 1)),
    (8, "dense", "deepseek_v3", "16B", (27, 64, 1)),
)
"""Seed and variant of the hidden network, the flavour that it stands behind, and that flavour's layers, experts and
dense layers in front."""


@dataclass(frozen=True)
class TitanCluster(Cluster):
    """A hidden network whose weights FSDP shards."""

    name: str = ""
    flavour: str = ""

    def __hash__(self) -> int:
        return hash((self.seed, self.facts["variant"], self.name, self.flavour))

    # Weights -----------------------------------------------------------------------------------------------------

    def groups(self, run: RunSetting, block: str) -> list[tuple[int, int, int]]:
        """(elements, ranks, distance of their numbers) of each group of FSDP in a block."""
        dense, expert = self.blocks[block].elements(run)
        shards = run.dp * run.cp // run.replicas
        if run.ep == 1 or not expert:
            return [(dense + expert, shards, run.tp)]
        return [(dense, shards, run.tp), (expert, shards // run.ep, run.tp * run.ep)]

    def whole(self, run: RunSetting, block: str) -> int:
        """Elements of a block on a rank while its weights are gathered."""
        return sum(elements for elements, _, _ in self.groups(run, block))

    def shard(self, run: RunSetting, block: str) -> int:
        """Elements of a block that a rank keeps."""
        return sum(-(-elements // ranks) for elements, ranks, _ in self.groups(run, block))

    def link_ns(self, kind: str, ranks: int, stride: int, size: float) -> float:
        """Time of a collective without noise."""
        if ranks < 2:
            return 0.0
        steps, sent = sent_bytes(kind, ranks, round(size))
        return self.machine.links[self.machine.link(ranks, stride)].ns(steps, sent)

    def weight_collectives(self, run: RunSetting, block: str, gather: bool) -> list[tuple[str, int, int, int]]:
        """(kind, ranks, distance, bytes) of what gathers a block's weights, or reduces its gradients."""
        found = []
        for elements, ranks, stride in self.groups(run, block):
            if gather:
                found.append(("allGather", ranks, stride, GATHERED * elements))
                continue
            found.append(("reduceScatter", ranks, stride, REDUCED * elements))
            if run.replicas > 1:
                found.append(("allReduce", run.replicas, run.tp * (run.dp * run.cp // run.replicas),
                              REDUCED * elements // ranks))  # fmt: skip
        return [one for one in found if one[1] > 1]

    def weights_ns(self, run: RunSetting, block: str, gather: bool) -> float:
        """Time of those together."""
        return sum(self.link_ns(*one) for one in self.weight_collectives(run, block, gather))

    def copy_ns(self, run: RunSetting, block: str, into: bool) -> float:
        """Weights taken out of the gathered buffer, or gradients into the one that is reduced."""
        moved = self.whole(run, block) * (GATHERED + (REDUCED if into else GATHERED))
        return 3000 + moved / 900 + self.machine.gap

    def start(self, run: RunSetting, stage: Stage) -> int:
        """Bytes that a rank holds before a step."""
        return self.rest + STATES * sum(self.shard(run, name) for name, _ in stage)

    # Memory: (tensor, bytes, whether FSDP's); 0 bytes where it is given back ---------------------------------------

    def forward_events(self, run: RunSetting, stage: Stage, batch: int, gathers: bool) -> Iterator[Any]:
        """A forward pass: ("range", name), ("end",), ("block", name), (key, bytes)."""
        ends = (stage[0][0] == "embedding", stage[-1][0] == "head")
        keeps = run.pp > 1
        if not ends[0]:
            yield (batch, -1, "out"), self.hand_over_bytes(run)
        alive: Any = None
        for at, (name, again) in enumerate(stage):
            width = GATHERED * self.whole(run, name)
            if gathers:
                yield "range", f"FSDP::pre_forward ({at})"
                yield "range", f"FSDP::all_gather ({at})"
                yield ("gathered", at), width
                yield "collective", at, True
                yield ("end",)
                if alive:
                    yield alive, 0
                yield "range", f"FSDP::all_gather_copy_out ({at})"
                yield ("weights", at), width
                yield "copy", at, False
                yield ("end",)
                alive = ("gathered", at)
                yield ("end",)
            yield "tasks", name, False
            outputs = self.outputs(name, run, False)
            logits = max(
                (place for place, (task, _) in enumerate(outputs) if task.kind.startswith("MatMul")), default=-1
            )
            for key, size in _forward(at, outputs, again):
                yield (batch, *key), size
                if alive and name == "head" and key[1] == str(logits) and size:
                    # The model's forward pass ends before the loss.
                    yield "range", "FSDP::post_forward (root)"
                    yield alive, 0
                    yield ("end",)
                    alive = None
            if gathers and not keeps and name != "head":
                yield "range", f"FSDP::post_forward ({at})"
                yield ("weights", at), 0
                yield ("end",)
        if alive:
            yield "range", "FSDP::post_forward (root)"
            yield alive, 0
            yield ("end",)
        if not ends[1]:
            yield (batch, len(stage) - 1, "out"), 0

    def backward_events(self, run: RunSetting, stage: Stage, batch: int) -> Iterator[Any]:
        """A backward pass in the same words."""
        ends = (stage[0][0] == "embedding", stage[-1][0] == "head")
        gradient: Any = None
        if not ends[1]:
            gradient = (batch, len(stage), "din")
            yield gradient, self.hand_over_bytes(run)
        for at in range(len(stage) - 1, -1, -1):
            name = stage[at][0]
            if run.pp == 1:
                yield from self._gathered_again(run, stage, at)
            weights = list[Any]()
            gradient = yield from self._own_backward(run, stage, at, batch, gradient, weights)
            if gradient and name == "embedding":
                yield gradient, 0
                gradient = None
            if at > 0 or not ends[0]:
                yield (batch, at - 1, "out"), 0
            yield "range", f"FSDP::post_backward ({at})"
            if run.pp > 1:
                yield ("summed", at), REDUCED * self.whole(run, name)
            else:
                yield ("weights", at), 0
                if at < len(stage) - 1:
                    yield ("reduced", at + 1), 0
                yield from self._reduced(run, at, name)
            yield ("end",)
            for key in weights:
                yield key, 0
        if ends[1]:
            yield (batch, len(stage) - 1, "out"), 0
        if gradient:
            yield gradient, 0
        if run.pp == 1:
            yield "range", "FSDP::post_backward (root)"
            yield ("reduced", 0), 0
            yield ("end",)

    def _gathered_again(self, run: RunSetting, stage: Stage, at: int) -> Iterator[Any]:
        """A block's weights, asked for before; those of the block in front are asked for now."""
        yield "range", f"FSDP::pre_backward ({at})"
        if stage[at][0] != "head":
            yield "range", f"FSDP::all_gather_copy_out ({at})"
            yield ("weights", at), GATHERED * self.whole(run, stage[at][0])
            yield "copy", at, False
            yield ("end",)
            yield ("gathered", at), 0
        if at:
            yield "range", f"FSDP::all_gather ({at - 1})"
            yield ("gathered", at - 1), GATHERED * self.whole(run, stage[at - 1][0])
            yield "collective", at - 1, True
            yield ("end",)
        yield ("end",)

    def _own_backward(
        self, run: RunSetting, stage: Stage, at: int, batch: int, gradient: Any, weights: list[Any]
    ) -> Generator[Any, None, Any]:
        """A block's own tensors; returns the gradient that it hands on, and lists those of its weights."""
        name, again = stage[at]
        forward = self.outputs(name, run, False)
        if again:
            yield "tasks", name, False
            for key, size in _forward(at, forward, False, "again "):
                yield (batch, *key), size
            yield (batch, at, "again out"), 0
        yield "tasks", name, True
        experts = [size.of(run) for parameter, size in self.blocks[name].parameters if "experts.w" in parameter]
        for number, (task, size) in enumerate(self.outputs(name, run, True)):
            if task.kind == "GroupedMatmulGrad":
                weights.append((batch, at, f"experts {number}"))
                yield weights[-1], GATHERED * experts.pop()
            if size and task.kind.endswith("Acc"):
                weights.append((batch, at, f"weight {number}"))
                yield weights[-1], size
            elif size:
                before, gradient = gradient, (batch, at, f"gradient {number}")
                yield gradient, size
                if before:
                    yield before, 0
            for freed, (one, _) in enumerate(forward):
                if one.kept and one.name == task.frees and freed != _last(forward):
                    yield (batch, at, f"{'again ' if again else ''}{freed}"), 0
        return gradient

    def _reduced(self, run: RunSetting, at: int, name: str) -> Iterator[Any]:
        yield ("reduced", at), REDUCED * self.whole(run, name)
        yield "copy", at, True
        yield ("shard", at), STORED * self.shard(run, name)
        yield "collective", at, False

    def end_events(self, run: RunSetting, stage: Stage) -> Iterator[Any]:
        """All gradients of a stage reduced, after its last micro-batch."""
        for at, (name, _) in reversed(list(enumerate(stage))):
            yield "range", f"FSDP::post_backward ({at})"
            yield ("weights", at), 0
            yield from self._reduced(run, at, name)
            yield ("summed", at), 0
            yield ("reduced", at), 0
            yield ("end",)

    def played_peak(self, run: RunSetting, stage: Stage, in_flight: int, micro: int) -> int:
        """The most bytes of a rank: as many forward passes as are in flight, a backward pass, and the same again."""
        return _played_peak(self, run, stage, in_flight, min(micro, 2 if run.pp == 1 else in_flight + 1))

    # Time --------------------------------------------------------------------------------------------------------

    def both_ns(self, run: RunSetting, stage: Stage) -> float:
        """Both passes of one micro-batch of a whole model, without noise."""
        clock, link, started = 0.0, 0.0, 0.0
        for name, _ in stage:
            link = max(link, started) + self.weights_ns(run, name, True)
            started = max(clock, link)
            clock = started + self.copy_ns(run, name, False) + self.pass_ns(name, run, False)
        reducing = 0.0
        link = started = clock
        for at in range(len(stage) - 1, -1, -1):
            name, again = stage[at]
            begin = clock
            if at < len(stage) - 1:
                gathered = max(link, started) + self.weights_ns(run, name, True)
                begin = max(clock, gathered)
                link = max(gathered, clock) + self.weights_ns(run, stage[at + 1][0], False)
                reducing = link
                begin += self.copy_ns(run, name, False)
            started = begin
            clock = max(begin + self.pass_ns(name, run, True, again), reducing) + self.copy_ns(run, name, True)
        return max(clock, link) + self.weights_ns(run, stage[0][0], False)

    def update_ns(self, run: RunSetting, stage: Stage) -> float:
        """The optimizer's step."""
        return 20_000 + self.machine.update * sum(self.shard(run, name) for name, _ in stage)

    def late_ns(self, run: RunSetting, stage: Stage) -> float:
        """The first forward pass of a stage, which waits for its weights."""
        clock = link = started = 0.0
        for name, _ in stage:
            link = max(link, started) + self.weights_ns(run, name, True)
            started = max(clock, link)
            clock = started + self.copy_ns(run, name, False) + self.pass_ns(name, run, False)
        return clock

    def titan_step_ns(self, run: RunSetting, stages: Sequence[Stage], batch: int) -> float:
        """A step of a plan of one chunk a stage, without noise."""
        micro = batch // (run.dp * run.mbs)
        if run.pp == 1:
            return micro * self.both_ns(run, stages[0]) + self.update_ns(run, stages[0])
        times = [self.stage_ns(run, stage) for stage in stages]
        lag = self.machine.collective_ns("send", "pp", self.hand_over_bytes(run), run)
        orders = [stage_order(at, run, micro) for at in range(run.pp)]
        ends: dict[tuple[str, int, int], float] = {}
        clocks, places, moved = [0.0] * run.pp, [0] * run.pp, True
        while moved:
            moved = False
            for at in range(run.pp):
                while places[at] < len(orders[at]):
                    what, _, number = orders[at][places[at]]
                    source = at - 1 if what == "F" else at + 1
                    ready = 0.0 if not 0 <= source < run.pp else ends.get((what, source, number))
                    if ready is None:
                        break
                    took = times[at][what == "B"]
                    if what == "F" and number == 0:
                        took = self.late_ns(run, stages[at])
                    clocks[at] = max(clocks[at], ready + (lag if 0 <= source < run.pp else 0.0)) + took
                    ends[what, at, number] = clocks[at]
                    places[at], moved = places[at] + 1, True
        return max(
            clock + self.update_ns(run, stage) + sum(
                self.weights_ns(run, name, False) + self.copy_ns(run, name, True) for name, _ in stage
            )
            for clock, stage in zip(clocks, stages, strict=True)
        )  # fmt: skip


@lru_cache(maxsize=20_000)
def _played_peak(cluster: TitanCluster, run: RunSetting, stage: Stage, in_flight: int, micro: int) -> int:
    alive: dict[Any, int] = {}
    now = most = cluster.start(run, stage)

    def play(events: Iterator[Any]) -> None:
        nonlocal now, most
        for one in events:
            if not isinstance(one[0], tuple):
                continue
            key, size = one
            if size:
                before = alive.get(key, 0)  # A gradient is added to the one that is there.
                alive[key] = -(-size // PAGE) * PAGE
                now += alive[key] - before
                most = max(most, now)
            else:
                now -= alive.pop(key)

    done = 0
    for number in range(micro):
        play(cluster.forward_events(run, stage, number, run.pp == 1 or number == 0))
        if number + 1 >= in_flight:
            play(cluster.backward_events(run, stage, done))
            done += 1
    for number in range(done, micro):
        play(cluster.backward_events(run, stage, number))
    if run.pp > 1:
        play(cluster.end_events(run, stage))
    gaps = random.Random(f"{cluster.seed} {run} {len(stage)} {in_flight}").uniform(0, 0.01)
    return round(most * (1 + gaps))


def titan_cluster(number: int) -> TitanCluster:
    """One of `NETWORKS`, with a job for it."""
    seed, variant, name, flavour, (layers, experts, dense) = NETWORKS[number]
    found = hidden_cluster(seed, variant)
    draw = random.Random(f"{number} titan")
    ranks = draw.choice((64, 128, 256))
    job = found.job.replace(
        tp=8, cp=1, pp=1, dp=ranks // 8, ep=8 if experts > 1 else 1, mbs=1, seq=8192, layers=layers, experts=experts,
        dense=dense,
    )  # fmt: skip
    values = {field: getattr(found, field) for field in Cluster.__dataclass_fields__}
    own = TitanCluster(**{**values, "job": job, "batch": ranks * 2, "hidden_reduction": False}, name=name,
                       flavour=flavour)  # fmt: skip
    stage = titan_stage(job, True)
    return replace(own, machine=replace(own.machine, limit=1.15 * own.played_peak(job, stage, 1, 2)))


def titan_stage(run: RunSetting, again: bool) -> Stage:
    """The whole model."""
    return (("embedding", False), *((name, again) for name in layer_names(run)), ("head", False))


TOML = """\
# My own job.
[job]
dump_folder = "./outputs"

[model]
name = "{cluster.name}"
flavor = "{cluster.flavour}"

[training]
local_batch_size = {job.mbs}
global_batch_size = {cluster.batch}
seq_len = {job.seq}
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_shard_degree = {job.dp}
tensor_parallel_degree = {job.tp}
expert_parallel_degree = {job.ep}

[checkpoint]
enable = true
"""


def toml_text(cluster: TitanCluster) -> str:
    """The user's file."""
    return TOML.format(cluster=cluster, job=cluster.job)
