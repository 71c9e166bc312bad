"""Files that a small run on the second cluster leaves: torch_npu's profiles and Megatron-LM's log.

Operators of two streams begin in an order that changes from run to run; memory beside other streams is given back late.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.second_cluster.cluster import LATE, Again, Passes, SecondCluster, Stage, late, order_of
from benchmarks.second_cluster.machine import NODE, Clock, bytes_sent, group_ranks
from benchmarks.second_cluster.program import Alloc, Event, Exchange, Free, Kernel, Ready, Wait
from taylor.parsers.small_run import RunSetting

EPOCH = 1_790_000_000.0
KERNELS = [
    "Step Id", "Device_id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core",
    "Start Time(us)", "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible",
    "Input Shapes", "Input Data Types", "Input Formats", "Output Shapes", "Output Data Types", "Output Formats",
    "Context ID",
]  # fmt: skip
MEMORY = [
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
    "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream Ptr", "Device Type",
]  # fmt: skip
HCOM = {
    "allGather": "hcom_allGather_",
    "reduceScatter": "hcom_reduceScatter_",
    "allReduce": "hcom_allReduce_",
    "allToAll": "hcom_alltoallv_",
    "send": "hcom_send_",
    "receive": "hcom_receive_",
}


@dataclass(frozen=True)
class Line:
    """A line of kernel_details.csv, times in ns."""

    start: float
    took: float
    kernel: Kernel | None
    exchange: Exchange | None
    waited: float = 0.0


def small_stage(run: RunSetting, at: int, again: Again = True) -> Stage:
    """Blocks of a stage of a small run, whose layers all run again, or the same modules of each."""
    each = run.layers // run.pp
    names = ["dense" if number < run.dense else "layer" for number in range(at * each, (at + 1) * each)]
    ends = [("embedding", False)] * (at == 0), [("head", False)] * (at == run.pp - 1)
    return (*ends[0], *((name, again) for name in names), *ends[1])


class SmallRank:
    """The first rank of a stage of a small run."""

    def __init__(self, cluster: SecondCluster, run: RunSetting, at: int, draw: random.Random, again: Again) -> None:
        self.cluster, self.run, self.at, self.draw = cluster, run, at, draw
        self.stage = small_stage(run, at, again)
        self.clock = Clock(cluster.machine, run, draw, cluster.slow_node if run.ranks > NODE else 0.0)
        self.reduced = 0.0

    def step(self) -> list[Line]:
        """Kernels and collectives of a step."""
        lines: list[Line] = []
        begin = self.clock.now
        first, last = self.at == 0, self.at == self.run.pp - 1
        flying: list[Passes] = []
        hand_over = self.cluster.hand_over_bytes(self.run)
        done = 0
        for backward, _, _ in order_of(self.at, self.run, self.run.pp):
            if (not backward and not first) or (backward and not last):
                lines.append(self._exchanged(Exchange("send", "pp", hand_over), "receive"))
            if not backward:
                flying.append(Passes(self.cluster.design, self.run, self.stage, (first, last)))
                flying[-1].forward()
                lines += self._played(flying[-1].rank.events, False)
            else:
                passes = flying.pop(0)
                turn = len(passes.rank.events)
                passes.backward()
                done += 1
                lines += self._played(passes.rank.events[turn:], done == self.run.pp)
            if (not backward and not last) or (backward and not first):
                lines.append(self._exchanged(Exchange("send", "pp", hand_over)))
        self.clock.now = max(self.clock.now, self.reduced)
        lines += self._updated()
        self.elapsed = self.clock.now - begin
        return sorted(lines, key=lambda line: line.start)

    def _played(self, events: Iterable[Event], reduces: bool) -> list[Line]:
        lines = []
        for one in events:
            if isinstance(one, Kernel):
                lines.append(Line(*self.clock.kernel(one), one, None))
            elif isinstance(one, Exchange):
                lines.append(self._exchanged(one))
            elif isinstance(one, Wait):
                self.clock.wait()
            elif isinstance(one, Ready) and reduces:
                group = "edp" if ".experts." in one.parameter else "dp"
                if group_ranks(group, self.run)[0] > 1:
                    lines.append(self._reduced(one.parameter, group))
        return lines

    def _exchanged(self, one: Exchange, kind: str = "") -> Line:
        start, took, waited = self.clock.exchange(one)
        return Line(start, took, None, Exchange(kind, one.group, one.buffer) if kind else one, waited)

    def _reduced(self, parameter: str, group: str) -> Line:
        size = 4 * self._size(parameter)
        start = max(self.clock.now, self.reduced) + self.cluster.machine.pause
        took = self.clock.noisy(self.cluster.exchange_ns("reduceScatter", group, size, self.run))
        self.reduced = start + took
        return Line(start, took, None, Exchange("reduceScatter", group, size, True))

    def _size(self, parameter: str) -> int:
        each = (self.cluster.design.parameters(name, self.run) for name, _ in self.stage)
        return next(sizes[parameter] for sizes in each if parameter in sizes)

    def _updated(self) -> list[Line]:
        lines = []
        fixed, each = self.cluster.update
        counts = dict(zip(("dp", "edp"), self.cluster.elements(self.run, self.stage), strict=True))
        for group, elements in counts.items():
            if not elements:
                continue
            shard = elements // group_ranks(group, self.run)[0]
            took = self.clock.noisy(fixed / sum(map(bool, counts.values())) + each * shard)
            kernel = Kernel("ApplyAdamWV2", ((shard,), (shard,)), (shard,), "FLOAT")
            lines.append(Line(self.clock.now + self.cluster.machine.pause, took, kernel, None))
            self.clock.now = lines[-1].start + took
        for name, _ in self.stage:
            for parameter, size in self.cluster.design.parameters(name, self.run).items():
                group = "edp" if ".experts." in parameter else "dp"
                if group_ranks(group, self.run)[0] > 1:
                    lines.append(self._exchanged(Exchange("allGather", group, 2 * size)))
        return lines


def write_profile(
    cluster: SecondCluster, run: RunSetting, folder: Path, steps: Iterable[int], start: int = 0, again: Again = True
) -> float:
    """Leave the profiles of the first rank of each stage; returns the time of the last step, ms."""
    wanted, took = list(steps), 0.0
    for at in range(run.pp):
        draw = random.Random(f"{cluster.seed} {start} {run} {at}")
        rank = SmallRank(cluster, run, at, draw, again)
        number = at * run.ranks // run.pp
        place = folder / f"host_{number}_20261129000000000_ascend_pt"
        output = place / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        (place / f"profiler_info_{number}.json").write_text(json.dumps({"rank_id": number}))
        rank.step()
        lines = [(step, rank.step()) for step in wanted]
        took = max(took, rank.elapsed / 1e6)
        _write_kernels(output, lines, rank, at)
        _write_memory(output, len(wanted), rank)
    return took


def _write_kernels(output: Path, steps: list[tuple[int, list[Line]]], rank: SmallRank, at: int) -> None:
    table, number = [], 0
    facts: dict[str, dict[str, dict[str, object]]] = {}
    for step, lines in steps:
        places = facts.setdefault(f"step{step}", {"p2p": {}, "collective": {}})
        for line in lines:
            number += 1
            begin, took = f"{EPOCH + line.start / 1e3:.3f}\t", f"{line.took / 1e3:.3f}"
            if line.exchange is not None:
                kind = HCOM[line.exchange.kind]
                group = random.Random(f"{group_ranks(line.exchange.group, rank.run)} {at}").randrange(10**15, 10**16)
                name = f"{kind}_{group % 1000:03d}_{number}_1"
                table.append([step, 0, 4294967295, "N/A", 30 + line.exchange.beside, name, kind, "N/A", "HCCL", begin,
                              took, "0", 0, *["N/A"] * 9])  # fmt: skip
                where = "p2p" if line.exchange.kind in ("send", "receive") else "collective"
                places[where][f"{name}@{group}"] = _exchange_facts(line, rank)
                continue
            kernel = line.kernel
            assert kernel is not None
            inputs, dtypes = ";".join(map(_shape, kernel.inputs)), ";".join([kernel.dtype] * len(kernel.inputs))
            formats = ";".join(["ND"] * len(kernel.inputs))
            table.append([step, 0, 4294967295, number, 2, f"aclnn{kernel.kind}_{number}", kernel.kind, "dynamic",
                          "MIX_AIC" if "MatMul" in kernel.kind else "AI_VECTOR_CORE", begin, took, "0.4", 24, 0, "NO",
                          f'"{inputs}"', dtypes, formats, f'"{_shape(kernel.output)}"', kernel.dtype, "ND",
                          "N/A"])  # fmt: skip
    with open(output / "kernel_details.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(KERNELS)
        writer.writerows(table)
    (output / "communication.json").write_text(json.dumps(facts))


def _shape(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _exchange_facts(line: Line, rank: SmallRank) -> dict[str, object]:
    one = line.exchange
    assert one is not None
    ranks, apart = group_ranks(one.group, rank.run)
    sent = bytes_sent(one.kind, ranks, one.buffer)
    # Of a ring over two nodes a rank's own link is as a rule one of its node.
    far = 0.0 if ranks * apart <= NODE else (1.0 if apart >= NODE else 0.5)
    near_mb, far_mb = sent * (1 - far) / 1e6, sent * far / 1e6
    links = {"RDMA": far_mb, "HCCS": near_mb, "PCIE": 0.0, "SDMA": near_mb, "SIO": 0.0}
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": EPOCH + line.start / 1e3,
            "Elapse Time(ms)": line.took / 1e6,
            "Transit Time(ms)": (line.took - line.waited) / 1e6,
            "Wait Time(ms)": line.waited / 1e6,
            "Synchronization Time(ms)": line.waited / 1e6,
            "Idle Time(ms)": 0.0,
        },
        "Communication Bandwidth Info": {name: {"Transit Size(MB)": size} for name, size in links.items()},
    }


def _write_memory(output: Path, steps: int, rank: SmallRank) -> None:
    """Every tensor of the steps, of which those that another stream used are given back late."""
    cluster, run = rank.cluster, rank.run
    ends = (rank.at == 0, rank.at == run.pp - 1)
    now = cluster.start(run, rank.stage)
    most, clock = now, EPOCH
    rows: list[list[object]] = []
    delays = random.Random(f"{cluster.seed} {run} {rank.at}")
    for _ in range(steps):
        for _ in range(run.pp):
            passes = Passes(cluster.design, run, rank.stage, ends)
            passes.forward()
            passes.backward()
            alive: dict[int, tuple[list[object], int]] = {}
            for one in late(passes.rank.events, partial(delays.randint, 0, LATE)):
                clock += 1.25
                if isinstance(one, Alloc):
                    now += one.size
                    most = max(most, now)
                    row: list[object] = [one.name, one.size / 1024, f"{clock:.3f}\t", "", "", "", "", now / 2**20,
                                         most / 2**20, now / 2**20]  # fmt: skip
                    alive[one.number] = row, one.size
                    rows.append(row)
                elif isinstance(one, Free):
                    row, size = alive.pop(one.number)
                    now -= size
                    row[3] = row[4] = f"{clock:.3f}\t"
                    row += [now / 2**20, most / 2**20, now / 2**20, 187650123, "NPU:0"]
    with open(output / "operator_memory.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(MEMORY)
        writer.writerows(rows)


def log_text(cluster: SecondCluster, run: RunSetting, iterations: int, step_ms: float, again: Again = True) -> str:
    """A run's log: a parameter a bucket, memory, and the time of each step."""
    lines = []
    draw = random.Random(f"{cluster.seed} {run} log")
    for at in range(run.pp):
        stage = small_stage(run, at, again)
        buckets: dict[bool, list[tuple[str, int]]] = {False: [], True: []}
        number = 0
        for block, _ in stage:
            for name, size in cluster.design.parameters(block, run).items():
                shown = name.replace("layers.0.", f"layers.{number}.")
                buckets[".experts." in name].append((shown, size))
            number += block in ("layer", "dense")
        for each in buckets.values():
            if each:
                lines.append(f"INFO: > Number of buckets for gradient all-reduce / reduce-scatter: {len(each)}")
            for place, (name, size) in enumerate(each, 1):
                lines += [f"Params for bucket {place} ({size} elements, {size} padded size):", f"\t{name}"]
        ends = (at == 0, at == run.pp - 1)
        peak = cluster.peak(run, stage, run.pp - at, ends) / 2**20
        lines.append(
            f"[Rank {at * run.ranks // run.pp}] (after 2 iterations) memory (MB) | allocated: {peak * 0.55:.3f} | "
            f"max allocated: {peak:.3f} | reserved: {peak * 1.02:.1f} | max reserved: {peak * 1.02:.1f}"
        )
    for number in range(iterations):
        took = step_ms * draw.gauss(1, 0.004) * (4 if number == 0 else 1)
        lines.append(f" iteration {number + 1:8d}/{iterations:8d} | elapsed time per iteration (ms): {took:.1f} |")
    return "\n".join(lines) + "\n"
