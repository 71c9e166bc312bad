"""A hidden network to be found: operators whose dimensions follow laws written here, apart from the product's."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taylor.parsers.small_run import JobSizes, Machines, RunSetting

if TYPE_CHECKING:  # the training command, which is started often, goes without numpy
    from taylor.blackbox.blocks import RunOperators
    from taylor.parsers.profiles.operators import Operator


def upward(top: int, bottom: int) -> int:
    """A quotient rounded up."""
    return -(-top // bottom)


_DRAWN = ("tp", "cp", "ep", "mbs", "seq", "experts", "layers", "pp", "dp", "vpp", "dense")


def drawn_by(run: RunSetting) -> str:
    """A run's degrees as its random draws are seeded by them; networks here have weights in one copy alone."""
    return f"RunSetting({', '.join(f'{name}={getattr(run, name)}' for name in _DRAWN)})"


@dataclass(frozen=True)
class HiddenSize:
    """A dimension: a whole number times and over some of the run's own, rounded up to a unit."""

    number: int
    times: tuple[str, ...] = ()
    over: tuple[str, ...] = ()
    unit: int = 1

    def of(self, run: RunSetting) -> int:
        """Its value in a run."""
        top, bottom = self.number, 1
        for name in self.times:
            top *= getattr(run, name)
        for name in self.over:
            bottom *= getattr(run, name)
        return upward(top, bottom * self.unit) * self.unit


@dataclass(frozen=True)
class HiddenOperator:
    """An operator of the hidden network; `only` names what must be above one for it to run."""

    type: str
    shapes: tuple[tuple[HiddenSize, ...], ...]
    only: tuple[str, ...] = ()

    def runs(self, run: RunSetting) -> bool:
        """Return whether a run has this operator."""
        return all(getattr(run, name) > 1 for name in self.only)

    def shapes_of(self, run: RunSetting) -> list[tuple[int, ...]]:
        """Of the inputs, and last of the output."""
        return [tuple(size.of(run) for size in shape) for shape in self.shapes]

    def of(self, run: RunSetting) -> Operator:
        """The operator as a run's trace shows it."""
        from taylor.parsers.profiles.operators import Operator

        *inputs, output = self.shapes_of(run)
        return Operator(self.type, "AI_CORE", ("DT_BF16",) * len(inputs), tuple(inputs), (output,))


@dataclass(frozen=True)
class HiddenNetwork:
    """Blocks before the layers, in each layer, and after them."""

    before: tuple[HiddenOperator, ...]
    layer: tuple[HiddenOperator, ...]
    after: tuple[HiddenOperator, ...]

    def order(self, run: RunSetting) -> list[HiddenOperator]:
        """Operators of one step of a run."""
        return [one for one in (*self.before, *self.layer * run.layers, *self.after) if one.runs(run)]

    def step(self, run: RunSetting) -> RunOperators:
        """The operators of one step of a run."""
        from taylor.blackbox.blocks import RunOperators

        return RunOperators(run, tuple(one.of(run) for one in self.order(run)))


KINDS = ("MatMulV2", "RmsNorm", "SwiGlu", "Add", "Cast", "FlashAttentionScore", "RotaryMul", "GroupedMatmul")


def hidden_size(draw: random.Random) -> HiddenSize:
    """A dimension as networks have them."""
    tokens = HiddenSize(1, ("seq", "mbs"), ("cp",))
    return draw.choice(
        (
            tokens,
            HiddenSize(1, ("seq", "mbs"), ("cp", "tp")),
            HiddenSize(1, ("seq",), ("cp",)),
            HiddenSize(1, ("mbs",)),
            HiddenSize(64 * draw.randint(1, 160)),
            HiddenSize(1024 * draw.randint(1, 40), (), ("tp",)),
            HiddenSize(1, ("experts",), ("ep",)),
            HiddenSize(2, ("seq", "mbs"), ("cp", "tp", "experts")),
            HiddenSize(draw.randint(30_000, 160_000), (), ("tp",), 128),
            HiddenSize(draw.choice((64, 80, 128, 192))),
        )
    )


def hidden_network(seed: int) -> HiddenNetwork:
    """A network of its own for each seed."""
    draw = random.Random(seed)

    def operators(count: int, only: tuple[str, ...] = (), tag: str = "") -> tuple[HiddenOperator, ...]:
        return tuple(
            HiddenOperator(
                draw.choice(KINDS) + tag,
                tuple(tuple(hidden_size(draw) for _ in range(draw.randint(1, 3))) for _ in range(draw.randint(2, 4))),
                only,
            )
            for _ in range(count)
        )

    layer = [*operators(draw.randint(8, 30))]
    for only in (("cp",), ("ep",), ("tp",), ("cp", "ep")):
        for one in operators(draw.randint(0, 3), only, f"Of{''.join(only).title()}"):
            layer.insert(draw.randint(0, len(layer)), one)
    # The loss and the optimizer use types that layers lack as well as theirs.
    return HiddenNetwork(operators(3, tag="Embedding"), tuple(layer), operators(6, tag="Loss"))


JOB = JobSizes(
    RunSetting(tp=8, ep=16, seq=16384, experts=64, layers=61, pp=16, dp=64), tp_ways=32, top_k=4, nodes=1024, per_node=8
)
"""A large job."""
CARDS = Machines(2, 8)

LARGE = [
    RunSetting(tp=tp, cp=cp, ep=ep, mbs=mbs, seq=16384, experts=64, layers=2, pp=1, dp=64)
    for tp in (1, 4, 8, 16)
    for cp in (1, 8)
    for ep in (1, 16, 64)
    for mbs in (1, 4)
]
"""Runs at a thousand ranks, of which none is among the small ones."""
