"""Files of a small run on a stand-in cluster: logs by Megatron-LM, profiles by torch_npu, with noise."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.standin_cluster import PAGE, Cluster, Stage, layer_names
from benchmarks.standin_machine import Task, group_of, sent_bytes
from benchmarks.standin_network import drawn_by
from taylor.parsers.small_run import RunSetting

KERNEL_COLUMNS = [
    "Step Id", "Model ID", "Task ID", "Stream ID", "Name", "Type", "OP State", "Accelerator Core", "Start Time(us)",
    "Duration(us)", "Wait Time(us)", "Block Dim", "Mix Block Dim", "HF32 Eligible", "Input Shapes", "Input Data Types",
    "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Context ID",
]  # fmt: skip
MEMORY_COLUMNS = [
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
    "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream Ptr", "Device Type",
]  # fmt: skip
TYPES = {"allGather": "hcom_allGather_", "reduceScatter": "hcom_reduceScatter_", "allReduce": "hcom_allReduce_",
         "allToAll": "hcom_alltoallv_", "send": "hcom_send_", "receive": "hcom_receive_"}  # fmt: skip
NOISE, STRAGGLERS = 0.03, 0.003
CLOCK = 1_736_408_883_704_643.0


@dataclass
class Row:
    """A kernel or collective of a profile: what it is, its start and duration in ns."""

    task: Task | None
    kind: str
    start: float
    took: float
    group: str = ""
    bytes: int = 0
    size: int = 0


class Rank:
    """One rank of a small run, step by step."""

    def __init__(self, cluster: Cluster, run: RunSetting, stage: int, draw: random.Random) -> None:
        self.cluster, self.run, self.draw = cluster, run, draw
        self.number = stage
        layers = run.layers // run.pp
        names = layer_names(run)[stage * layers : (stage + 1) * layers]
        blocks = [("embedding", False)] * (stage == 0) + [(name, True) for name in names]
        self.stage: Stage = (*blocks, *[("head", False)] * (stage == run.pp - 1))
        self.clock = self.second = 0.0

    def noisy(self, ns: float) -> float:
        """A time as measured."""
        slow = self.draw.uniform(2, 6) if self.draw.random() < STRAGGLERS else 1.0
        return ns * max(0.5, self.draw.gauss(1, NOISE)) * slow

    def step(self) -> list[Row]:
        """The kernels of one step in the order of their starts."""
        rows: list[Row] = []
        begin = self.clock
        machine, run = self.cluster.machine, self.run
        micro = run.pp
        order = ["F"] * micro + ["B"] * micro if self.number == 0 else ["F", "B"] * micro
        done = {"F": 0, "B": 0}
        for direction in order:
            done[direction] += 1
            if (direction == "F" and self.number > 0) or (direction == "B" and self.number < run.pp - 1):
                rows.append(self._collective("receive", "pp", self.cluster.hand_over_bytes(run)))
            blocks = list(self.stage) if direction == "F" else list(reversed(self.stage))
            for name, again in blocks:
                passes = [False, True] if direction == "B" and again else [direction == "B"]
                for backward in passes:
                    for task in self.cluster.tasks(name, run, backward):
                        rows.append(self._task(task))
                if direction == "B" and done["B"] == micro:
                    for parameter, size in self.cluster.blocks[name].parameters:
                        group = "edp" if "experts" in parameter else "dp"
                        if group_of(group, run)[0] > 1:
                            rows.append(self._collective("reduceScatter", group, 4 * size.of(run), beside=True))
            if (direction == "F" and self.number < run.pp - 1) or (direction == "B" and self.number > 0):
                rows.append(self._collective("send", "pp", self.cluster.hand_over_bytes(run)))
        self.clock = max(self.clock, self.second)
        dense, expert = self.cluster.elements(run, self.stage)
        for group, elements in (("dp", dense), ("edp", expert)):
            if not elements:
                continue
            shard = elements // group_of(group, run)[0]
            took = self.noisy(10_000 + machine.update * shard)
            rows.append(Row(None, "ApplyFusedAdam", self.clock, took, size=shard))
            self.clock += took + machine.gap
        for name, _ in self.stage:
            for parameter, size in self.cluster.blocks[name].parameters:
                group = "edp" if "experts" in parameter else "dp"
                if group_of(group, run)[0] > 1:
                    rows.append(self._collective("allGather", group, 2 * size.of(run)))
        self.elapsed = self.clock - begin
        return sorted(rows, key=lambda row: row.start)

    def _task(self, task: Task) -> Row:
        if task.group:
            return self._collective(task.kind, task.group, task.sizes(self.run)[0][0])
        took = self.noisy(self.cluster.machine.compute_ns(task, self.run))
        row = Row(task, task.kind, self.clock, took)
        self.clock += took + self.cluster.machine.gap
        return row

    def _collective(self, kind: str, group: str, size: int, beside: bool = False) -> Row:
        took = self.noisy(self.cluster.machine.collective_ns(kind, group, size, self.run))
        start = max(self.clock, self.second) if beside else self.clock
        if beside:
            self.second = start + took + self.cluster.machine.gap
        else:
            self.clock = start + took + self.cluster.machine.gap
        return Row(None, TYPES[kind], start, took, group, size)


def write_run(cluster: Cluster, run: RunSetting, folder: Path, steps: Iterable[int], seed: int = 0) -> float:
    """Leave the profiles of a small run's first ranks; returns the time of its last step, ms."""
    wanted = list(steps)
    took = 0.0
    for stage in range(run.pp):
        draw = random.Random(f"{cluster.seed} {seed} {drawn_by(run)} {stage}")
        rank = Rank(cluster, run, stage, draw)
        number = stage * run.ranks // run.pp
        output = folder / f"node_{number}_20260101000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        (output.parent / f"profiler_info_{number}.json").write_text(json.dumps({"rank_id": number}))
        rank.step()
        done = [(step, rank.step()) for step in wanted]
        took = max(took, rank.elapsed / 1e6)
        _write_kernels(output, done, rank)
        _write_memory(output, len(wanted), rank)
    return took


def _write_kernels(output: Path, steps: list[tuple[int, list[Row]]], rank: Rank) -> None:
    communication: dict[str, dict[str, dict[str, object]]] = {}
    lines = []
    number = 0
    for step, rows in steps:
        for row in rows:
            number += 1
            start, took = f"{CLOCK + row.start / 1e3:.3f}\t", f"{row.took / 1e3:.3f}"
            if row.group:
                identity = _identity(rank, row.group)
                name = f"{row.kind}_{identity % 1000}_{number}_1"
                lines.append([step, 4294967295, "N/A", "N/A", name, row.kind, "N/A", "HCCL", start, took, "0.0", 0,
                              *["N/A"] * 9])  # fmt: skip
                kinds = communication.setdefault(f"step{step}", {"p2p": {}, "collective": {}})
                where = "p2p" if row.kind in ("hcom_send_", "hcom_receive_") else "collective"
                kinds[where][f"{name}@{identity}"] = _reported(row, rank)
                continue
            inputs: list[tuple[int, ...]]
            shape: tuple[int, ...]
            if row.task is None:
                inputs, shape, kind = [(row.size,), (row.size,)], (row.size,), "FLOAT"
            else:
                *inputs, shape = row.task.sizes(rank.run)
                kind = row.task.dtype
            lines.append([step, 4294967295, number, 2, f"aclnn{row.kind}_{number}", row.kind, "dynamic", "AI_CORE",
                          start, took, "0.5", 24, 0, "NO", _shapes(inputs), ";".join([kind] * len(inputs)),
                          ";".join(["ND"] * len(inputs)), _shapes([shape]), kind, "ND", "N/A"])  # fmt: skip
    with open(output / "kernel_details.csv", "w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\r\n")
        table.writerow(KERNEL_COLUMNS)
        table.writerows(lines)
    (output / "communication.json").write_text(json.dumps(communication))


def _identity(rank: Rank, group: str) -> int:
    """The number under which a profile knows a group of ranks: one for the same ranks."""
    return 10**16 + random.Random(f"{group_of(group, rank.run)} {rank.number}").randrange(10**16)


def _reported(row: Row, rank: Rank) -> dict[str, object]:
    kind = next(name for name, text in TYPES.items() if text == row.kind)
    ranks, stride = group_of(row.group, rank.run)
    _, sent = sent_bytes(kind, ranks, row.bytes)
    link = rank.cluster.machine.link(ranks, stride)
    far = {"in": 0.0, "between": 1.0, "mixed": 0.5}[link]
    wait = rank.draw.uniform(0, 0.2) * row.took / 1e6
    sizes = {"RDMA": sent * far, "HCCS": sent * (1 - far), "PCIE": 0.0, "SDMA": sent * (1 - far), "SIO": 0.0}
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": CLOCK + row.start / 1e3,
            "Elapse Time(ms)": row.took / 1e6 + wait,
            "Transit Time(ms)": row.took / 1e6,
            "Wait Time(ms)": wait,
            "Synchronization Time(ms)": wait,
            "Idle Time(ms)": 0.0,
        },
        "Communication Bandwidth Info": {name: {"Transit Size(MB)": size / 1e6} for name, size in sizes.items()},
    }


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return '"' + ";".join(",".join(map(str, shape)) for shape in shapes) + '"'


def _write_memory(output: Path, steps: int, rank: Rank) -> None:
    """Every tensor of the steps: of one micro-batch a stage, or of two where there are two stages."""
    ends = (rank.number == 0, rank.number == rank.run.pp - 1)
    now = rank.cluster.start(rank.run, rank.stage)
    lines: list[list[object]] = []
    clock = CLOCK
    most = now
    for _ in range(steps):
        for batch in range(rank.run.pp):
            alive: dict[object, list[object]] = {}
            for direction in "FB":
                for key, size in rank.cluster.events(rank.run, rank.stage, direction, ends):
                    clock += 1.5
                    if size:
                        size = -(-size // PAGE) * PAGE
                        now += size
                        most = max(most, now)
                        alive[batch, key] = ["aten::empty", size / 1024, f"{clock:.3f}\t", "", "", "", "",
                                             now / 2**20, most / 2**20, now / 2**20]  # fmt: skip
                        lines.append(alive[batch, key])
                    else:
                        row = alive.pop((batch, key))
                        now -= round(float(str(row[1])) * 1024)
                        row[3] = row[4] = f"{clock:.3f}\t"
                        row += [now / 2**20, most / 2**20, now / 2**20, 897357296, "NPU:0"]
    with open(output / "operator_memory.csv", "w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\r\n")
        table.writerow(MEMORY_COLUMNS)
        table.writerows(lines)


def log_lines(cluster: Cluster, run: RunSetting, iterations: int, step_ms: float, seed: int = 0) -> str:
    """A run's log: buckets of gradients, one a parameter, memory, and the time of each step."""
    lines = []
    draw = random.Random(f"{cluster.seed} {drawn_by(run)} {seed} log")
    for stage in range(run.pp):
        rank = Rank(cluster, run, stage, draw)
        for experts in (False, True):
            names = list[tuple[str, int]]()
            for at, (name, _) in enumerate(rank.stage):
                number = at - (rank.stage[0][0] == "embedding")
                for parameter, size in cluster.blocks[name].parameters:
                    if ("experts" in parameter) == experts:
                        names.append((parameter.replace("layers.0.", f"layers.{number}."), size.of(run)))
            if names:
                prefix = "INFO:megatron.core.distributed.param_and_grad_buffer:"
                lines.append(f"{prefix}Number of buckets for gradient all-reduce / reduce-scatter: {len(names)}")
            for number, (parameter, elements) in enumerate(names):
                lines.append(f"Params for bucket {number + 1} ({elements} elements, {elements} padded size):")
                lines.append(f"\t{parameter}")
        ends = (stage == 0, stage == run.pp - 1)
        peak = cluster.peak(run, rank.stage, run.pp - stage, ends) / 2**20
        lines.append(
            f"[Rank {stage * run.ranks // run.pp}] (after 2 iterations) memory (MB) | allocated: {peak * 0.6:.6f} | "
            f"max allocated: {peak:.6f} | reserved: {peak:.1f} | max reserved: {peak:.1f}"
        )
    for step in range(iterations):
        took = step_ms * draw.gauss(1, 0.005) * (3 if step == 0 else 1)
        lines.append(f" iteration {step + 1:8d}/{iterations:>8} | elapsed time per iteration (ms): {took:.1f} |")
    return "\n".join(lines) + "\n"
