"""Execution of a hidden network on one rank: operators, collectives and the lives of tensors, recorded in order.

A tensor's storage is given back when the last reference to it goes, as in PyTorch: nothing here states when that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from taylor.parsers.small_run import RunSetting

PAGE = 512
WIDTH = {"DT_BF16": 2, "FLOAT": 4, "INT64": 8, "BOOL": 1}
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """An operator that ran."""

    kind: str
    inputs: tuple[Shape, ...]
    output: Shape
    dtype: str


@dataclass(frozen=True)
class Exchange:
    """A collective that began: its whole buffer in bytes, and whether it runs beside what follows until `Wait`."""

    kind: str
    group: str
    buffer: int
    beside: bool = False


@dataclass(frozen=True)
class Wait:
    """What follows waits for the collectives that run beside."""


@dataclass(frozen=True)
class Alloc:
    """Storage taken: its number, bytes, and the name of what took it."""

    number: int
    size: int
    name: str


@dataclass(frozen=True)
class Free:
    """Storage given back."""

    number: int


@dataclass(frozen=True)
class Ready:
    """A parameter's gradient is complete."""

    parameter: str


Event = Kernel | Exchange | Wait | Alloc | Free | Ready


class Storage:
    """Memory of a tensor, given back with its last reference."""

    __slots__ = ("number", "rank")

    def __init__(self, rank: Rank, size: int, name: str) -> None:
        self.rank, self.number = rank, rank.taken
        rank.taken += 1
        rank.events.append(Alloc(self.number, -(-size // PAGE) * PAGE, name))

    def __del__(self) -> None:
        self.rank.events.append(Free(self.number))


class Tensor:
    """A shape over a storage."""

    __slots__ = ("dtype", "shape", "storage")

    def __init__(self, storage: Storage, shape: Shape, dtype: str) -> None:
        self.storage, self.shape, self.dtype = storage, shape, dtype

    def view(self, *shape: int) -> Tensor:
        """The same memory under another shape."""
        return Tensor(self.storage, shape, self.dtype)


Backward = Callable[[Tensor], Tensor]


class Rank:
    """One rank: what ran on it, and the tape of the backward pass."""

    def __init__(self, run: RunSetting) -> None:
        self.run = run
        self.events: list[Event] = []
        self.taken = 0
        self.tape: list[Backward] | None = None
        self.modules: frozenset[str] = frozenset()
        """Modules of the block now running that run again in its backward pass."""

    def empty(self, shape: Shape, dtype: str = "DT_BF16", name: str = "aten::empty") -> Tensor:
        """A new tensor."""
        return Tensor(Storage(self, prod(shape) * WIDTH[dtype], name), shape, dtype)

    def kernel(
        self, kind: str, inputs: Sequence[Tensor | Shape], shape: Shape, dtype: str = "DT_BF16", name: str = ""
    ) -> Tensor:
        """Run an operator into a new tensor."""
        out = self.empty(shape, dtype, name or f"aten::{kind.lower()}")
        shapes = tuple(one.shape if isinstance(one, Tensor) else one for one in inputs)
        self.events.append(Kernel(kind, shapes, shape, dtype))
        return out

    def in_place(self, kind: str, inputs: Sequence[Tensor | Shape], shape: Shape, dtype: str = "DT_BF16") -> None:
        """Run an operator into memory that is there already."""
        shapes = tuple(one.shape if isinstance(one, Tensor) else one for one in inputs)
        self.events.append(Kernel(kind, shapes, shape, dtype))

    def exchange(self, kind: str, group: str, buffer: int, beside: bool = False) -> None:
        """Begin a collective."""
        self.events.append(Exchange(kind, group, buffer, beside))

    def wait(self) -> None:
        """Wait for what runs beside."""
        self.events.append(Wait())

    def ready(self, parameter: str) -> None:
        """Complete a parameter's gradient."""
        self.events.append(Ready(parameter))

    def record(self, backward: Backward) -> None:
        """Put a step of the backward pass on the tape, where there is one."""
        if self.tape is not None:
            self.tape.append(backward)

    def runs_again(self, module: str) -> bool:
        """Return whether a module keeps nothing for its backward pass but what it is given."""
        return self.tape is not None and module in self.modules

    def checkpointed(self, module: str, inner: Callable[[Rank, Tensor], Tensor], x: Tensor) -> Tensor:
        """Run a module, which runs again in the backward pass where it is one of `modules`.

        Its input is what the norm before it makes (Megatron-LM d98e8a64 megatron/core/transformer/
        transformer_layer.py:992-1010, moe/moe_layer.py:701).
        """
        if not self.runs_again(module):
            return inner(self, x)
        outer, self.tape = self.tape, None
        out = inner(self, x)
        self.tape = outer

        def backward(gradient: Tensor) -> Tensor:
            before, mine = self.tape, list[Backward]()
            self.tape = mine
            inner(self, x)
            self.tape = before
            return backward_of(self, mine, gradient)

        self.record(backward)
        return out

    # Collectives that give tensors of their own; over one rank they give back what they were given -----------------

    def gathered(self, one: Tensor, group: str, beside: bool = False) -> Tensor:
        """All ranks' parts along the first dimension."""
        ranks = getattr(self.run, group)
        if ranks == 1:
            return one
        out = self.empty((one.shape[0] * ranks, *one.shape[1:]), one.dtype, "c10d::_allgather_base_")
        self.exchange("allGather", group, prod(out.shape) * WIDTH[one.dtype], beside)
        return out

    def scattered(self, one: Tensor, group: str, beside: bool = False) -> Tensor:
        """The sum over ranks, of which each gets a part along the first dimension."""
        ranks = getattr(self.run, group)
        if ranks == 1:
            return one
        out = self.empty((one.shape[0] // ranks, *one.shape[1:]), one.dtype, "c10d::_reduce_scatter_base_")
        self.exchange("reduceScatter", group, prod(one.shape) * WIDTH[one.dtype], beside)
        return out

    def exchanged(self, one: Tensor, group: str, shape: Shape | None = None) -> Tensor:
        """Parts sent from each rank to each."""
        if getattr(self.run, group) == 1:
            return one
        out = self.empty(shape or one.shape, one.dtype, "c10d::alltoall_base_")
        self.exchange("allToAll", group, prod(one.shape) * WIDTH[one.dtype])
        return out


def backward_of(rank: Rank, tape: list[Backward], gradient: Tensor) -> Tensor:
    """Run a tape backwards."""
    while tape:
        step = tape.pop()
        gradient = step(gradient)
        del step
    return gradient
