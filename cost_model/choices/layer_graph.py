"""A layer as its operators see it: the tensors that each saves for its backward, makes, and makes again.

Operators run forward in their order and backward in reverse. What an operator saves lives from its forward to its
backward. The gradient of a tensor lives from the backward of its last reader to that of the operator that made it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

CORE, GROUPED, EXCHANGE, PLAIN = "core", "grouped", "exchange", "plain"
"""Groups of operators by what takes their time: an attention's core or a scan, experts' GEMMs, exchanges of experts'
tokens; GEMMs and element-wise operators."""


@dataclass(frozen=True)
class OperatorWork:
    """What an operator does.

    Parameters
    ----------
    group : str
        `CORE`, `GROUPED`, `EXCHANGE` or `PLAIN`.
    flops : float
        Of its GEMMs.
    read, written : float
        Bytes.
    gathers : int
        Collectives over TP.
    """

    group: str = PLAIN
    flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    gathers: int = 0

    def with_traffic(self, other: OperatorWork) -> OperatorWork:
        """This and the traffic of an operator that changes its result in place."""
        return replace(self, read=self.read + other.read, written=self.written + other.written)


@dataclass(frozen=True)
class Operator:
    """One operator of a layer.

    Parameters
    ----------
    name : str
    inputs, outputs : tuple of int
        Tensors that it reads and makes; a tensor that several make in place belongs to the first of them.
    saves : tuple of int
        Tensors that its backward reads.
    ms : float
        Time in which it runs again.
    work : OperatorWork
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saves: tuple[int, ...]
    ms: float = 0.0
    work: OperatorWork = OperatorWork()


@dataclass(frozen=True)
class LayerGraph:
    """A layer's operators in forward order, and its tensors.

    Parameters
    ----------
    sizes, gradients : tuple of float
        MiB of each tensor, and of its gradient, 0 where it has none.
    """

    operators: tuple[Operator, ...]
    sizes: tuple[float, ...]
    gradients: tuple[float, ...]

    def __post_init__(self) -> None:
        for place, one in enumerate(self.operators):
            if any(self.producer.get(tensor, -1) >= place for tensor in one.inputs):
                raise ValueError(f"operator {place} ({one.name}) reads a tensor before it is made")

    @cached_property
    def producer(self) -> dict[int, int]:
        """Operator that makes a tensor; of the layer's inputs there is none."""
        return {tensor: place for place, one in enumerate(self.operators) for tensor in one.outputs}

    @cached_property
    def saved(self) -> tuple[int, ...]:
        """Tensors that some backward reads, by their numbers."""
        return tuple(sorted({tensor for one in self.operators for tensor in one.saves}))

    @cached_property
    def readers(self) -> dict[int, tuple[int, int]]:
        """First and last operator, in forward order, whose backward reads a saved tensor."""
        found: dict[int, tuple[int, int]] = {}
        for place, one in enumerate(self.operators):
            for tensor in one.saves:
                found[tensor] = (found.get(tensor, (place, place))[0], place)
        return found

    @property
    def kept_mib(self) -> float:
        """All that one micro-batch keeps, MiB."""
        return sum(self.sizes[tensor] for tensor in self.saved)

    @property
    def entering_mib(self) -> float:
        """Saved tensors that no operator of the layer makes, MiB: all that full recompute keeps."""
        return sum(self.sizes[tensor] for tensor in self.saved if tensor not in self.producer)

    @cached_property
    def gradient_mib(self) -> tuple[float, ...]:
        """Gradients alive in the backward of each operator, MiB."""
        last = {tensor: place for place, one in enumerate(self.operators) for tensor in one.inputs}
        alive = [0.0] * len(self.operators)
        for tensor, size in enumerate(self.gradients):
            begin = self.producer.get(tensor, 0)
            for place in range(begin, last.get(tensor, len(alive) - 1) + 1):
                alive[place] += size
        return tuple(alive)

    @cached_property
    def workspace_mib(self) -> float:
        """Most that lives in the backward after full recompute, MiB, beyond what that keeps.

        The static memory of every stage has it, for any of its layers may be recomputed.
        """
        live = [
            gradients + sum(self.sizes[tensor] for tensor in self.saved if self.readers[tensor][0] <= place)
            for place, gradients in enumerate(self.gradient_mib)
        ]
        return max(live, default=0.0) - self.entering_mib
