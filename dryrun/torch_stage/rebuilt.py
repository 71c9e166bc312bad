"""Selective recompute: outputs that are dropped and made again, and results that are kept instead."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class SavedResults:
    """Results of the operators that a recomputed block saves: its first run keeps them, its second one takes them.

    Every second dense GEMM is not among them (`cost_model.memory.saved_operators`).
    """

    def __init__(self) -> None:
        self._kept: deque[Any] = deque()
        self._again = False
        self._products = 0

    def start(self, again: bool) -> None:
        """Begin a run of the block: the first, which keeps, or the second, which takes."""
        self._again, self._products = again, 0

    def kept(self, make: Callable[[], Result]) -> Result:
        """The result of a saved operator."""
        if self._again:
            taken: Result = self._kept.popleft()
            return taken
        made = make()
        self._kept.append(made)
        return made

    def product(self, make: Callable[[], Tensor]) -> Tensor:
        """The result of a dense GEMM: the first is saved, the second made again, and so on."""
        self._products += 1
        return self.kept(make) if self._products % 2 else make()


class _Part:
    """A part of a layer whose outputs are dropped after forward and made again when backward asks for them.

    An input that another such part gave is dropped too, and made again by that part (Megatron-LM core_v0.16.0
    megatron/core/tensor_parallel/random.py, ``CheckpointWithoutOutput.discard_output_and_register_recompute``: it
    empties the storage that both saved).

    Parameters
    ----------
    pack, unpack : callable
        From a tensor to what is kept of it, and back.
    """

    def __init__(
        self,
        run: Callable[..., tuple[Tensor, ...]],
        pack: Callable[[Tensor], Any],
        unpack: Callable[[Any], Tensor],
    ) -> None:
        self.run, self.pack, self.unpack = run, pack, unpack
        self.kept: list[Any] = []
        self.inputs: list[Tensor] = []
        self.outputs: tuple[Tensor, ...] = ()

    def keep_inputs(self, inputs: tuple[Tensor, ...]) -> None:
        self.kept = [self.pack(x.detach()) for x in inputs]

    def rebuild(self) -> tuple[Tensor, ...]:
        if not self.outputs:
            found = [self.unpack(each).detach() for each in self.kept]
            self.inputs = [x.requires_grad_(x.is_floating_point()) for x in found]
            self.kept = []
            with torch.enable_grad():
                self.outputs = self.run(*self.inputs)
        return self.outputs


class _GivenUp(torch.autograd.Function):
    """Part run without a graph; backward uses the part that was made again."""

    @staticmethod
    def forward(ctx: Any, part: _Part, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.part = part
        part.keep_inputs(inputs)
        with torch.no_grad():
            return part.run(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        part = ctx.part
        outputs = part.rebuild()
        edges = [torch.autograd.graph.get_gradient_edge(y) for y in outputs]
        inputs, part.outputs, part.inputs = part.inputs, (), []
        del outputs
        torch.autograd.backward(edges, gradients)
        return None, *(x.grad for x in inputs)


class GivenUpOutputs:
    """Parts of one layer whose outputs no later operator keeps (Megatron's ``CheckpointWithoutOutput``).

    Inside `saving`, an operator that saves an output of such a part saves the way to rebuild it.
    """

    def __init__(self) -> None:
        self._parts: dict[int, tuple[_Part, int]] = {}
        self._alive: dict[int, Any] = {}

    def run(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of a part; they are dropped once the layer's forward is over."""
        part = _Part(function, self._pack, self._unpack)
        outputs: tuple[Tensor, ...] = _GivenUp.apply(part, *inputs)
        for place, output in enumerate(outputs):
            storage = output.untyped_storage()
            self._parts[storage._cdata] = part, place
            # Another storage may take the address of one that is freed.
            self._alive[storage._cdata] = weakref.ref(storage, partial(self._forget, storage._cdata))
        return outputs

    def _forget(self, address: int, _: Any) -> None:
        self._parts.pop(address, None)
        self._alive.pop(address, None)

    def _pack(self, tensor: Tensor) -> Any:
        found = self._parts.get(tensor.untyped_storage()._cdata)
        if found is None:
            return tensor
        return *found, tensor.shape, tensor.stride(), tensor.storage_offset()

    def _unpack(self, saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        part, place, shape, stride, offset = saved
        made: Tensor = part.rebuild()[place].detach()
        return made.as_strided(shape, stride, offset)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Region in which the layer's operators run forward."""

        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield
