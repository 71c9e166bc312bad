"""The hidden laws of time: operators by a roofline with rounded tiles, collectives by links of growing bandwidth.

Nothing here is the product's: sizes are quotients of the run's own numbers (`standin_network.HiddenSize`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from benchmarks.standin_network import HiddenSize
from taylor.parsers.small_run import RunSetting

PER_NODE = 8
BYTES = {"DT_BF16": 2, "FLOAT": 4}
Shape = tuple[HiddenSize, ...]


@dataclass(frozen=True)
class Task:
    """An operator or a collective of one pass.

    Parameters
    ----------
    kind : str
        Type of the operator, or kind of the collective.
    shapes : tuple of Shape
        Inputs, and the output last; of a collective its buffer's bytes alone.
    group : str
        Of a collective: the degree that it runs over. Empty for operators.
    only : tuple of str
        Degrees that must be above one for it to run.
    kept : bool
        Backward needs the output.
    name, frees : str
        Its own name; of a task of the backward pass the one whose kept output it is done with.
    """

    kind: str
    shapes: tuple[Shape, ...]
    group: str = ""
    only: tuple[str, ...] = ()
    kept: bool = False
    dtype: str = "DT_BF16"
    name: str = ""
    frees: str = ""

    def runs(self, run: RunSetting) -> bool:
        """Return whether a run has it."""
        return all(getattr(run, name) > 1 for name in (*self.only, *([self.group] if self.group else ())))

    def sizes(self, run: RunSetting) -> list[tuple[int, ...]]:
        """Shapes in a run."""
        return [tuple(size.of(run) for size in shape) for shape in self.shapes]

    def output_bytes(self, run: RunSetting) -> int:
        """Of what it allocates."""
        return 0 if self.group else prod(self.sizes(run)[-1]) * BYTES[self.dtype]


@dataclass(frozen=True)
class Link:
    """One kind of link: start, each step's latency, most bytes a ns, and the message at which half of that is had."""

    start: float
    step: float
    rate: float
    half: float

    def ns(self, steps: int, sent: float) -> float:
        """Time of a collective of `steps` steps."""
        return self.start + steps * self.step + (sent + steps * self.half) / self.rate


def group_of(name: str, run: RunSetting) -> tuple[int, int]:
    """(ranks, distance of their numbers) of a group in the order tp, cp, dp, pp."""
    edp = run.dp * run.cp // run.ep
    return {
        "tp": (run.tp, 1),
        "cp": (run.cp, run.tp),
        "ep": (run.ep, run.tp),
        "dp": (run.dp * run.cp, run.tp),
        "edp": (edp, run.tp * run.ep),
        "pp": (2, run.ranks // run.pp),
    }[name]


def sent_bytes(kind: str, ranks: int, buffer: int) -> tuple[int, float]:
    """(steps, bytes that one rank sends) of a collective by rings."""
    if kind in ("send", "receive"):
        return 1, float(buffer)
    rounds = 2 if kind == "allReduce" else 1
    return rounds * (ranks - 1), rounds * buffer * (ranks - 1) / ranks


@dataclass(frozen=True)
class Machine:
    """The hidden laws of time.

    Parameters
    ----------
    launch, peak, share : dict
        By type of operator: ns to start; fraction of the chip's FLOP/s and of its memory's speed that it reaches.
    """

    launch: dict[str, float]
    peak: dict[str, float]
    share: dict[str, float]
    links: dict[str, Link]
    gap: float
    update: float
    limit: float

    def compute_ns(self, task: Task, run: RunSetting) -> float:
        """Time of an operator without noise."""
        shapes = task.sizes(run)
        moved = sum(map(prod, shapes)) * BYTES[task.dtype]
        by_memory = moved / (1200 * self.share[task.kind])
        by_products = products(task.kind, shapes) / (300_000 * self.peak[task.kind])
        return float(self.launch[task.kind] + (by_memory**4 + by_products**4) ** 0.25)

    def collective_ns(self, kind: str, group: str, buffer: int, run: RunSetting) -> float:
        """Time of a collective without noise."""
        ranks, stride = group_of(group, run)
        steps, sent = sent_bytes(kind, ranks, buffer)
        return self.links[self.link(ranks, stride)].ns(steps, sent)

    @staticmethod
    def link(ranks: int, stride: int) -> str:
        """Links that a group uses."""
        if (ranks - 1) * stride < PER_NODE:
            return "in"
        return "between" if stride >= PER_NODE else "mixed"

    def ns(self, task: Task, run: RunSetting) -> float:
        """Time of a task and the gap behind it."""
        if task.group:
            return self.collective_ns(task.kind, task.group, task.sizes(run)[0][0], run) + self.gap
        return self.compute_ns(task, run) + self.gap


def products(kind: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Multiplications of an operator, matrices rounded up to tiles of 128."""

    def tiles(size: int) -> int:
        return -(-size // 128) * 128

    first, second = shapes[0], shapes[1] if len(shapes) > 2 else ()
    if kind.startswith("MatMul"):
        return float(tiles(first[0]) * first[1] * tiles(shapes[-1][1]))
    if kind.startswith("GroupedMatmul"):
        return float(tiles(first[0]) * first[1] * tiles(shapes[-1][-1]))
    if kind.startswith("FlashAttention"):
        return prod(first) * second[0] * (5.0 if kind.endswith("Grad") else 2.0)
    return 0.0


def hidden_machine(draw: random.Random, kinds: set[str]) -> Machine:
    """A machine of its own for each seed, which runs these types of operators."""
    heavy = ("MatMul", "Grouped", "Flash")
    ordered = sorted(kinds)
    links = {
        "in": Link(draw.uniform(8e3, 2e4), draw.uniform(1e3, 3e3), draw.uniform(80, 200), draw.uniform(1e4, 2e5)),
        "between": Link(draw.uniform(2e4, 4e4), draw.uniform(3e3, 9e3), draw.uniform(15, 40), draw.uniform(1e4, 2e5)),
        "mixed": Link(draw.uniform(2e4, 5e4), draw.uniform(3e3, 9e3), draw.uniform(20, 45), draw.uniform(1e4, 2e5)),
    }
    return Machine(
        {kind: draw.uniform(3e3, 12e3) for kind in ordered},
        {kind: draw.uniform(0.5, 0.85) if kind.startswith(heavy) else 1.0 for kind in ordered},
        {kind: draw.uniform(0.4, 0.9) for kind in ordered},
        links,
        draw.uniform(500, 1500),
        draw.uniform(0.02, 0.06),
        float("inf"),
    )
