"""A stand-in for torchtitan: takes its command, reads the TOML, and leaves logs and traces as torchtitan does.

``python -m benchmarks.standin_titan_run N --nnodes 2 --nproc-per-node 8 … -m torchtitan.train --job.config_file FILE``
trains network N of `standin_titan`. What is written follows pytorch/torchtitan v0.2.2: log lines
torchtitan/train.py:354-362, components/metrics.py:460-470, distributed/parallel_dims.py:130-134; traces
torchtitan/tools/profiling.py:43-76.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.standin_cluster import PAGE, Stage, layer_names
from benchmarks.standin_machine import Task, group_of, sent_bytes
from benchmarks.standin_titan import TitanCluster, titan_cluster, titan_stage
from taylor.parsers.small_run import RunSetting

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Trace:
    """One rank's trace: a host that runs ahead, streams for operators and for weights."""

    def __init__(self, cluster: TitanCluster, run: RunSetting, place: int, draw: random.Random) -> None:
        self.cluster, self.run, self.draw = cluster, run, draw
        layers = run.layers // run.pp
        names = layer_names(run)[place * layers : (place + 1) * layers]
        self.stage: Stage = (
            *[("embedding", False)] * (place == 0), *((name, True) for name in names),
            *[("head", False)] * (place == run.pp - 1),
        )  # fmt: skip
        self.place = place
        self.events: list[dict[str, Any]] = []
        self.host = self.clock = self.link = self.started = self.reduced = 0.0
        self.number, self.thread = 0, 7
        self.total = self.most = cluster.start(run, self.stage)
        self.alive: dict[Any, tuple[int, int]] = {}
        self.open: list[tuple[str, float]] = []
        self.gathers: dict[int, float] = {}

    def noisy(self, ns: float) -> float:
        """A kernel's time as it is measured, ns: 3 % spread, and three in a thousand are two to six times as long."""
        slow = self.draw.uniform(2, 6) if self.draw.random() < 0.003 else 1.0
        return ns * max(0.5, self.draw.gauss(1, 0.03)) * slow

    def step(self, step: int) -> None:
        """One step of one micro-batch a stage."""
        begin, first = self.host, self.clock
        for key in [key for key in self.alive if key[0] == "shard"]:
            self._take(key, 0)  # The optimizer drops the gradients of the step before.
        run, micro = self.run, self.run.pp
        order = ["F"] * micro + ["B"] * micro if self.place == 0 else ["F", "B"] * micro
        done = {"F": 0, "B": 0}
        for what in order:
            if (what == "F" and self.place > 0) or (what == "B" and self.place < run.pp - 1):
                self._exchange("receive", 2, run.ranks // run.pp, self.cluster.hand_over_bytes(run), "pp")
            self.thread = 7 if what == "F" else 8
            number = done[what]
            events = (
                self.cluster.forward_events(run, self.stage, number, run.pp == 1 or number == 0)
                if what == "F"
                else self.cluster.backward_events(run, self.stage, number)
            )
            self._play(events, what == "B")
            done[what] += 1
            if (what == "F" and self.place < run.pp - 1) or (what == "B" and self.place > 0):
                self._exchange("send", 2, run.ranks // run.pp, self.cluster.hand_over_bytes(run), "pp")
        if run.pp > 1:
            self._play(self.cluster.end_events(run, self.stage), True)
        self.thread = 7
        self.clock = max(self.clock, self.link)
        # Norms of gradients are summed over all ranks.
        self._exchange("allReduce", max(2, run.dp * run.cp), run.tp, 4, "norm")
        for size in {sum(-(-size // ranks) for size, ranks, _ in self.cluster.groups(run, name))
                     for name, _ in self.stage}:  # fmt: skip
            self._kernel(
                "aten::_fused_adamw_", [(size,), (size,)], "float", 10_000 + self.cluster.machine.update * size
            )
        self.clock += 5_000
        self.elapsed = self.clock - first
        self.host += 10
        self._event("user_annotation", f"ProfilerStep#{step}", 7, begin, self.host - begin)
        self.host += 10
        self.started = self.link = self.clock

    def _play(self, events: Iterator[Any], backward: bool) -> None:
        self.gathers, self.started = {}, self.clock
        last = len(self.stage) - 1
        for one in events:
            self.host += 2
            word = one[0]
            if isinstance(word, tuple):
                self._take(word, one[1])
            elif word == "range":
                self.open.append((one[1], self.host))
            elif word == "end":
                name, begin = self.open.pop()
                self._event("user_annotation", name, self.thread, begin, self.host - begin)
            elif word == "collective":
                self._weights(one[1], one[2])
            elif word == "copy":
                at, into = one[1], one[2]
                if not into and at in self.gathers:
                    self.clock = max(self.clock, self.gathers[at])
                if not into:
                    self.started = self.clock
                if into and backward and at < last and self.run.pp == 1:
                    self.clock = max(self.clock, self.reduced)
                kind = "fsdp::chunk_cat" if into else "fsdp::split_with_sizes_copy"
                size = self.cluster.whole(self.run, self.stage[at][0])
                took = self.cluster.copy_ns(self.run, self.stage[at][0], into) - self.cluster.machine.gap
                self._kernel(kind, [(size,)], "c10::BFloat16", took)
            else:
                for task in self.cluster.tasks(one[1], self.run, one[2]):
                    self._task(task)

    def _weights(self, at: int, gather: bool) -> None:
        """A collective of FSDP on the stream of weights; the next group's waits for its turn."""
        name = self.stage[at][0]
        # A group is asked for when the group before it starts, gradients when their operators are done.
        self.link = max(self.link, self.started if gather else self.clock)
        for kind, ranks, stride, size in self.cluster.weight_collectives(self.run, name, gather):
            took = self.noisy(self.cluster.link_ns(kind, ranks, stride, size))
            self._collective(kind, ranks, stride, size, self.link, took, f"{ranks}x{stride}", 22)
            self.link += took
        if gather:
            self.gathers[at] = self.link
        else:
            self.reduced = self.link

    def _task(self, task: Task) -> None:
        machine, run = self.cluster.machine, self.run
        if task.group:
            self._exchange(task.kind, *group_of(task.group, run), task.sizes(run)[0][0], task.group)
            return
        *inputs, output = task.sizes(run)
        dtype = "float" if task.dtype == "FLOAT" else "c10::BFloat16"
        given = [""] * len(inputs)
        if "Loss" in task.kind:
            inputs, given = [*inputs, output], [*given, ""]
        name = "aten::mm" if task.kind.startswith("MatMul") else f"aten::{task.kind}"
        given.append(f"{output[0]}" if task.kind == "EmbeddingGrad" else "")
        self._kernel(name, inputs, dtype, machine.compute_ns(task, run), given)

    def _kernel(
        self, name: str, inputs: Sequence[tuple[int, ...]], dtype: str, ns: float, given: Sequence[str] = ()
    ) -> None:
        """An operator on the host and its kernel."""
        self.number += 1
        self._event("cpu_op", name, self.thread, self.host, 1, **{
            "External id": self.number, "Input Dims": [*map(list, inputs), []],
            "Input type": [*[dtype] * len(inputs), "Scalar"], "Concrete Inputs": [*given, ""],
        })  # fmt: skip
        self.host += 2
        took = self.noisy(ns)
        self._event("kernel", f"void {name.replace('::', '_')}_kernel<4>()", 0, self.clock, took,
                    **{"External id": self.number, "stream": 7, "device": 0})  # fmt: skip
        self.clock += took + self.cluster.machine.gap

    def _exchange(self, kind: str, ranks: int, stride: int, size: int, group: str) -> None:
        """A collective of the network, which its operators wait for."""
        steps, sent = sent_bytes(kind, ranks, size)
        took = self.noisy(self.cluster.machine.links[self.cluster.machine.link(ranks, stride)].ns(steps, sent))
        self._collective(kind, ranks, stride, size, self.clock, took, group, 20)
        self.clock += took + self.cluster.machine.gap

    def _collective(
        self, kind: str, ranks: int, stride: int, size: int, start: float, took: float, group: str, stream: int
    ) -> None:
        words = {"allGather": "_allgather_base", "reduceScatter": "_reduce_scatter_base", "allReduce": "allreduce",
                 "allToAll": "all_to_allv", "send": "send", "receive": "recv"}  # fmt: skip
        small = round(size / ranks) if kind in ("allGather", "reduceScatter") else size
        given, taken = (small, size) if kind == "allGather" else (size, small)
        self.number += 1
        self._event("cpu_op", "record_param_comms", self.thread, self.host, 1, **{
            "External id": self.number, "Input Dims": [[given], []], "Input type": ["c10::BFloat16", "Scalar"],
        })  # fmt: skip
        self.host += 2
        self._event("kernel", f"ncclDevKernel_{kind}(ncclDevComm*)", 0, start, took, **{
            "External id": self.number, "stream": stream, "device": 0, "Collective name": words[kind],
            "In msg nelems": given, "Out msg nelems": taken, "Group size": ranks, "dtype": "Byte",
            "Process Group Name": group, "Process Group Ranks": f"{ranks}:{stride}",
        })  # fmt: skip

    def _take(self, key: Any, size: int) -> None:
        """A tensor allocated, or given back where its size is 0."""
        self.host += 2
        if size:
            size = -(-size // PAGE) * PAGE
            self.number += 1
            self.alive[key] = size, self.number
            address = self.number
        else:
            size, address = self.alive.pop(key)
            size = -size
        self.total += size
        self.most = max(self.most, self.total)
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": self.thread,
             "ts": self.host / 1000, "args": {"Total Allocated": self.total, "Total Reserved": self.most, "Bytes": size,
                                              "Addr": address, "Device Id": 0, "Device Type": 1}}
        )  # fmt: skip

    def _event(self, category: str, name: str, thread: int, start: float, took: float, **given: object) -> None:
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": thread, "tid": thread,
                            "ts": start / 1000, "dur": took / 1000, "args": given})  # fmt: skip


def write_titan_run(cluster: TitanCluster, run: RunSetting, folder: Path, steps: Sequence[int]) -> tuple[float, int]:
    """Leave the traces of a run's stages; returns the time of a step, ms, and the most bytes of the first rank."""
    took, most = 0.0, 0
    for place in range(run.pp):
        trace = Trace(cluster, run, place, random.Random(f"{cluster.seed} {run} {place}"))
        trace.step(steps[0] - 1)
        trace.events.clear()
        trace.most = trace.total
        for step in steps:
            trace.step(step)
        rank = place * run.ranks // run.pp
        file = folder / f"iteration_{steps[-1] + 1}" / f"rank{rank}_trace.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        facts = {"schemaVersion": 1, "record_shapes": 1, "profile_memory": 1, "with_stack": 0,
                 "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": run.ranks}}  # fmt: skip
        file.write_text(json.dumps({**facts, "traceEvents": trace.events}))
        took = max(took, trace.elapsed / 1e6)
        most = most if place else trace.most
    return took, most


def log_text(
    cluster: TitanCluster, run: RunSetting, steps: int, step_ms: float, most: int, local: int, rounds: int
) -> str:
    """What the first rank prints, under torchrun's ``--tee 3``."""
    draw = random.Random(f"{cluster.seed} {run} log")
    head = "[rank0]:[titan] 2026-01-15 10:20:30,123 - root - INFO - "
    shard = run.dp // run.replicas
    lines = [
        f"{head}Building device mesh with parallelism: pp={run.pp}, dp_replicate={run.replicas}, dp_shard={shard}, "
        f"cp={run.cp}, tp={run.tp}, ep={run.ep}, etp={run.tp if run.ep > 1 else 1}",
    ]
    names = [name for name, _ in titan_stage(run, True)]
    layers = run.layers // run.pp
    for at, name in enumerate(names[: 1 + layers + (run.pp == 1)]):
        for parameter, size in cluster.blocks[name].parameters:
            plain = parameter.split("layers.0.")[-1].removeprefix("module.")
            where = {"embedding": "tok_embeddings", "head": "output"}.get(name, f"layers.{at - 1}")
            lines.append(f"[rank0]:taylor: parameter {where}.{plain} {size.of(run)}")
    lines.append(
        f"{head}Trainer is initialized with local batch size {local}, global batch size {local * run.dp * rounds}, "
        f"gradient accumulation steps {rounds}, sequence length {run.seq}, total steps {steps} (warmup 1)"
    )
    for step in range(1, steps + 1):
        took = step_ms * draw.gauss(1, 0.005) * (3 if step == 1 else 1) / 1000
        tps = local * rounds * run.seq / (took * run.pp * run.cp * run.tp)
        lines.append(
            f"{head}step: {step:2}  loss: {12.0 / step:8.5f}  grad_norm: {1.0:7.4f}  "
            f"memory: {most * 1.03 / 2**30:5.2f}GiB({50:.2f}%)  tps: {round(tps):,}  "
            f"tflops: {1.0:,.2f}  mfu: {1.0:.2f}%"
        )
    return "\n".join([*lines, f"{head}Training completed"]) + "\n"


def run_of(data: dict[str, Any], ranks: int) -> tuple[RunSetting, int, int]:
    """Setting, local batch and rounds of a file on some ranks; a flavour is one that the module beside it makes."""
    degrees, training = data["parallelism"], data["training"]
    name, *changes = data["model"]["flavor"].split("@")
    if changes and "trace_memory" not in os.environ.get("PYTHONPATH", ""):
        raise KeyError(data["model"]["flavor"])
    cut = {word: int(number) for word, _, number in (change.partition("=") for change in changes)}
    tp, cp, pp, ep = (degrees.get(f"{kind}_parallel_degree", 1) for kind in ("tensor", "context", "pipeline", "expert"))
    replicas = degrees.get("data_parallel_replicate_degree", 1)
    shard = degrees.get("data_parallel_shard_degree", -1)
    shard = ranks // (tp * cp * pp * replicas) if shard < 0 else shard
    # torchtitan/distributed/parallel_dims.py:53-59
    assert replicas * shard * cp * tp * pp == ranks, (degrees, ranks)
    assert ep == 1 or degrees.get("expert_tensor_parallel_degree", 1) in (1, tp)
    assert (shard * cp) % ep == 0 and training["seq_len"] % (tp * 2 * cp) == 0
    dp, local = replicas * shard, training["local_batch_size"]
    batch = training.get("global_batch_size", local * dp)
    assert batch % (local * dp) == 0
    mbs = degrees.get("pipeline_parallel_microbatch_size", 1) if pp > 1 else local
    run = RunSetting(tp, cp, ep, mbs, training["seq_len"], cut.get("experts", 0), cut.get("layers", 0), pp, dp,
                     dense=cut.get("dense", 0), replicas=replicas)  # fmt: skip
    return run, local, batch // (local * dp)


def stages_of(data: dict[str, Any], run: RunSetting) -> list[Stage]:
    """The blocks of every stage of a whole job's file."""
    again = data["activation_checkpoint"]["mode"] == "full"
    names = layer_names(run)
    parts = data["parallelism"].get("module_fqns_per_model_part")
    counts = [sum(one.startswith("layers.") for one in part) for part in parts] if parts else [run.layers]
    found, first = [], 0
    for at, count in enumerate(counts):
        layers = [(name, again) for name in names[first : first + count]]
        found.append((*[("embedding", False)] * (at == 0), *layers, *[("head", False)] * (at == len(counts) - 1)))
        first += count
    return found


def train(words: Sequence[str]) -> str:
    """Train as asked; returns what the first rank prints."""
    number, *words = words
    given = {word: words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("--")}
    ranks = int(given["--nnodes"]) * int(given["--nproc-per-node"])
    data = tomllib.loads(Path(given["--job.config_file"]).read_text())
    cluster = titan_cluster(int(number))
    run, local, rounds = run_of(data, ranks)
    steps, profiling = data["training"]["steps"], data["profiling"]
    if not profiling["enable_profiling"]:
        job = cluster.job
        run = run.replace(layers=job.layers, experts=job.experts, dense=job.dense)
        stages = stages_of(data, run)
        took = cluster.titan_step_ns(run, stages, run.dp * local * rounds) / 1e6
        micro = local // run.mbs * rounds
        most = cluster.played_peak(run, stages[0], min(micro, run.pp), micro)
    else:
        assert data["activation_checkpoint"]["mode"] == "full"
        active, every = profiling["profiler_active"], profiling["profile_freq"]
        assert every == steps and profiling["profiler_warmup"] + active <= every
        folder = Path(data["job"]["dump_folder"]) / profiling["save_traces_folder"]
        run = run.replace(experts=run.experts or 1)
        took, most = write_titan_run(cluster, run, folder, range(steps - active, steps))
    return log_text(cluster, run, steps, took, most, local, rounds)


def main() -> None:
    """Train, and leave a line of what was started."""
    with open("started.txt", "a") as stream:
        stream.write(f"{Path(sys.argv[-1]).parent.name}\n")
    print(train(sys.argv[1:]))


if __name__ == "__main__":
    main()
