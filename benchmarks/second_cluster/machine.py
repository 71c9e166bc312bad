"""Hidden laws of time: waves of tiles over cores, bandwidth that grows with size, a host that launches operators.

Written apart from `benchmarks.standin_machine`; no law here is a product of powers or a straight line.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from benchmarks.second_cluster.program import WIDTH, Event, Exchange, Kernel, Wait
from taylor.parsers.small_run import RunSetting

NODE = 8
CARD, BESIDE, WAIT = range(3)
Task = tuple[int, float, float]
"""What runs: on the card or beside it, or a wait for what runs beside; the host's time for it, and its own, ns."""
CORES = 24


def group_ranks(group: str, run: RunSetting) -> tuple[int, int]:
    """(ranks, distance) of a group: neighbours differ in TP, then CP, then DP; experts spread over CP and DP."""
    return {
        "tp": (run.tp, 1),
        "cp": (run.cp, run.tp),
        "ep": (run.ep, run.tp),
        "dp": (run.dp * run.cp, run.tp),
        "edp": (run.dp * run.cp // run.ep, run.tp * run.ep),
        "pp": (2, run.ranks // run.pp),
    }[group]


def bytes_sent(kind: str, ranks: int, buffer: int) -> float:
    """Bytes that one rank sends."""
    if kind in ("send", "receive"):
        return float(buffer)
    return (2 if kind == "allReduce" else 1) * buffer * (ranks - 1) / ranks


@dataclass(frozen=True)
class Machine:
    """One machine's own numbers.

    Parameters
    ----------
    flops, bandwidth : float
        Of a card, each ns.
    host : float
        ns that the host needs for an operator, by its kind some more or less.
    pause : float
        ns between two operators that wait for nothing.
    near, far : (float, float, float)
        Start, each doubling of ranks, bytes each ns: inside a node and between nodes.
    limit : float
        Bytes of a card.
    """

    seed: int
    flops: float
    bandwidth: float
    host: float
    pause: float
    near: tuple[float, float, float]
    far: tuple[float, float, float]
    limit: float = math.inf
    _skill: dict[str, tuple[float, float, float]] = field(default_factory=dict, compare=False, repr=False)

    def _of(self, kind: str) -> tuple[float, float, float]:
        """Launch, fraction of memory's bandwidth, and host time of a kind."""
        if kind not in self._skill:
            draw = random.Random(f"{self.seed} {kind}")
            host = self.host * draw.uniform(0.7, 1.3)
            self._skill[kind] = draw.uniform(1.5e3, 6e3), draw.uniform(0.45, 0.9), host
        return self._skill[kind]

    def kernel_ns(self, one: Kernel) -> float:
        """Time of an operator on the card."""
        launch, share, _ = self._of(one.kind)
        moved = (sum(map(prod, one.inputs)) + prod(one.output)) * WIDTH[one.dtype]
        memory = moved / (self.bandwidth * share * moved / (moved + 2e6)) if moved else 0.0
        return launch + max(memory, self._cube_ns(one))

    def _cube_ns(self, one: Kernel) -> float:
        """Time of matrix multiplications: whole waves of tiles over all cores."""
        if one.kind.startswith("MatMul"):
            rows, columns, inner = one.output[0], one.output[-1], one.inputs[0][-1]
            tiles = math.ceil(rows / 128) * math.ceil(columns / 256)
        elif one.kind == "GroupedMatmulAdd":
            experts, rows, columns = one.output
            inner = one.inputs[0][0] // experts
            tiles = experts * math.ceil(rows / 128) * math.ceil(columns / 256)
        elif one.kind.startswith("GroupedMatmul"):
            rows, columns, inner = one.output[0], one.output[-1], one.inputs[0][-1]
            experts = one.inputs[1][0]
            tiles = experts * math.ceil(rows / experts / 128) * math.ceil(columns / 256)
        elif one.kind.startswith("FlashAttention"):
            query, key = one.inputs[0], one.inputs[1]
            factor = 2.5 if one.kind.endswith("Grad") else 1.0
            causal = 0.5 if query[0] == key[0] else 1.0
            work = 4 * prod(query) * key[0] * factor * causal
            return work / (self.flops * 0.55 * query[0] / (query[0] + 300))
        else:
            return 0.0
        waves = math.ceil(tiles / CORES)
        return waves * CORES * 2 * 128 * 256 * inner / (self.flops * 0.8)

    def exchange_ns(self, kind: str, group: str, buffer: int, run: RunSetting) -> float:
        """Time of a collective once all ranks are there."""
        ranks, apart = group_ranks(group, run)
        far = ranks * apart > NODE
        start, double, rate = self.far if far else self.near
        sent = bytes_sent(kind, ranks, buffer)
        if kind == "allToAll" and far:
            sent *= 1.15
        return start + double * math.log2(max(2, ranks)) + sent / (rate * sent / (sent + 4e5)) if sent else start

    def host_ns(self, kind: str) -> float:
        """Time in which the host launches one operator."""
        return self._of(kind)[2]


@dataclass
class Clock:
    """Plays a rank's record on a machine: the host launches, the card runs, exchanges may run beside."""

    machine: Machine
    run: RunSetting
    noise: random.Random | None = None
    slow: float = 0.0
    now: float = 0.0
    host: float = 0.0
    beside: float = 0.0
    last_sync: float = 0.0
    pair: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def noisy(self, ns: float) -> float:
        """A time as measured: 2 % of noise, and one operator of 150 a straggler."""
        if self.noise is None:
            return ns
        slow = self.noise.uniform(2, 5) if self.noise.random() < 1 / 150 else 1.0
        return ns * max(0.7, self.noise.gauss(1, 0.02)) * slow

    def kernel(self, one: Kernel) -> tuple[float, float]:
        """(start, duration) of an operator."""
        self.host += self.machine.host_ns(one.kind)
        start = max(self.now + self.machine.pause, self.host)
        took = self.noisy(self.machine.kernel_ns(one))
        self.now = start + took
        return start, took

    def exchange(self, one: Exchange) -> tuple[float, float, float]:
        """(start, duration, of which waiting) of a collective; what is received comes while the same is sent."""
        if one.kind == "receive":
            return self.pair
        self.host += self.machine.host_ns("hccl")
        ready = max(self.now + self.machine.pause, self.host)
        start = max(ready, self.beside + self.machine.pause) if one.beside else ready
        if one.beside and self.noise is not None:
            # Another stream: it starts a little before or after the operator beside it.
            start += self.noise.uniform(-0.9, 0.9) * self.machine.pause
        took = self.noisy(self.machine.exchange_ns(one.kind, one.group, one.buffer, self.run))
        waited = 0.0
        ranks, apart = group_ranks(one.group, self.run)
        if self.slow and ranks * apart > NODE:
            # The other node is late by what it was slower since both met last.
            waited = self.slow * max(0.0, start - self.last_sync)
            self.last_sync = start + waited + took
        end = start + waited + took
        if one.beside:
            self.beside = end
        else:
            self.now = end
        self.pair = start, waited + took, waited
        return self.pair

    def wait(self) -> None:
        """Wait for what runs beside."""
        self.now = max(self.now, self.beside)

    def play(self, tasks: Sequence[Task]) -> float:
        """Time of a record without noise, as `kernel`, `exchange` and `wait` would play it."""
        now, host, beside, pause = self.now, self.host, self.beside, self.machine.pause
        for lane, launch, took in tasks:
            if lane == WAIT:
                now = max(now, beside)
                continue
            host += launch
            start = max(now + pause, host)
            if lane == BESIDE:
                beside = max(start, beside + pause) + took
            else:
                now = start + took
        self.now, self.host, self.beside = max(now, beside), host, beside
        return self.now


def tasks_of(machine: Machine, run: RunSetting, events: Sequence[Event]) -> tuple[Task, ...]:
    """A record's tasks without noise; what is received comes while the same is sent."""
    found = list[Task]()
    for one in events:
        if isinstance(one, Kernel):
            found.append((CARD, machine.host_ns(one.kind), machine.kernel_ns(one)))
        elif isinstance(one, Wait):
            found.append((WAIT, 0.0, 0.0))
        elif isinstance(one, Exchange) and one.kind != "receive":
            took = machine.exchange_ns(one.kind, one.group, one.buffer, run)
            found.append((BESIDE if one.beside else CARD, machine.host_ns("hccl"), took))
    return tuple(found)


def hidden_machine(seed: int) -> Machine:
    """A machine of its own for each seed."""
    draw = random.Random(f"machine {seed}")
    near = draw.uniform(6e3, 1.5e4), draw.uniform(1e3, 4e3), draw.uniform(60, 160)
    far = draw.uniform(1.5e4, 3e4), draw.uniform(4e3, 9e3), draw.uniform(12, 30)
    flops = draw.uniform(220e3, 340e3)
    return Machine(seed, flops, draw.uniform(1000, 1600), draw.uniform(1.5e4, 6e4), draw.uniform(600, 1400), near, far)
