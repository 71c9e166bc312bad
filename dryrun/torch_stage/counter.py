"""Counter of the bytes of live tensor storages, by category, while a stage runs."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

ALLOCATION_UNIT = 512
"""Multiple to which CUDA's caching allocator, and this count, round every allocation, bytes."""

TRANSIENT = "workspace"
"""Category of tensors that live for a moment and are charged to no other."""

Function = TypeVar("Function", bound=Callable[..., Any])


def rounded(size: int) -> int:
    """Bytes as they are allocated."""
    return -(-size // ALLOCATION_UNIT) * ALLOCATION_UNIT


class _Storage:
    """One live storage: its size and the category it is charged to."""

    __slots__ = ("size", "category", "reference", "counted")

    def __init__(self, size: int, category: str) -> None:
        self.size = size
        self.category = category
        self.reference: Any = None
        self.counted = False


class LiveCounter(TorchDispatchMode):
    """Counter that follows every storage from the operator that makes it until its last tensor is freed.

    A storage counts once, however many tensors are views of it, until a weak reference says that it is
    freed. Inside `kernel`, what an operator makes and drops again does not count, because a fused kernel
    has no such tensors; what outlives the kernel counts when the kernel ends.

    Parameters
    ----------
    see_kernels : bool
        Count the inside of kernels too, as the allocator does when the operators really run.
    """

    def __init__(self, see_kernels: bool = False) -> None:
        super().__init__()
        self.see_kernels = see_kernels
        self.live: dict[str, int] = {}
        self.total = 0
        self.peak = 0
        self.window_peak = 0
        self._peak_live: dict[str, int] = {}
        self._stale = False
        self._storages: dict[int, _Storage] = {}
        self._category = TRANSIENT
        self._born: list[_Storage] | None = None
        self._kernel_depth = 0
        self._in_kernel: list[_Storage] = []

    @property
    def at_peak(self) -> dict[str, int]:
        """Bytes by category at the highest moment so far."""
        self._keep_peak()
        return dict(self._peak_live)

    def start_window(self) -> None:
        """Measure `window_peak` from here on."""
        self.window_peak = self.total

    @contextmanager
    def category(self, name: str) -> Iterator[None]:
        """Charge what is made inside to a category."""
        before, self._category = self._category, name
        try:
            yield
        finally:
            self._category = before

    def switch(self, name: str) -> str:
        """Charge all that follows to a category; return the one before."""
        before, self._category = self._category, name
        return before

    @contextmanager
    def survivors(self, name: str) -> Iterator[None]:
        """Charge to a category, at the block's end, the transient tensors that were made in it and still live."""
        before, self._born = self._born, []
        try:
            yield
        finally:
            born, self._born = self._born, before
            assert born is not None
            self.charge(name, born)

    def charge(self, name: str, storages: Sequence[_Storage]) -> None:
        """Move living, transient storages to a category."""
        for storage in storages:
            if storage.counted and storage.category == TRANSIENT:
                self._change(storage.category, -storage.size)
                storage.category = name
                self._change(name, storage.size)

    def move(self, tensor: torch.Tensor, name: str) -> None:
        """Charge the storage of one tensor to a category from here on."""
        storage = self._storages[tensor.untyped_storage()._cdata]
        self._change(storage.category, -storage.size)
        storage.category = name
        self._change(name, storage.size)

    @contextmanager
    def kernel(self) -> Iterator[None]:
        """Count only what outlives the block: a fused kernel runs."""
        if self.see_kernels:
            yield
            return
        self._kernel_depth += 1
        try:
            yield
        finally:
            self._kernel_depth -= 1
            if not self._kernel_depth:
                made, self._in_kernel = self._in_kernel, []
                for storage in made:
                    if storage.reference() is not None:
                        self._count(storage)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self._see(out)
        else:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self._see(leaf)
        return out

    def _see(self, tensor: torch.Tensor) -> None:
        raw = tensor.untyped_storage()
        key = raw._cdata
        if key in self._storages:
            return
        storage = _Storage(rounded(raw.nbytes()), self._category)
        storage.reference = weakref.ref(raw, lambda _: self._free(key))
        self._storages[key] = storage
        if self._kernel_depth:
            self._in_kernel.append(storage)
        else:
            self._count(storage)

    def _count(self, storage: _Storage) -> None:
        storage.counted = True
        if self._born is not None:
            self._born.append(storage)
        self.total += storage.size
        self._change(storage.category, storage.size)
        self.window_peak = max(self.window_peak, self.total)
        if self.total > self.peak:
            self.peak = self.total
            self._stale = True

    def _free(self, key: int) -> None:
        storage = self._storages.pop(key)
        if storage.counted:
            self._keep_peak()
            storage.counted = False
            self.total -= storage.size
            self._change(storage.category, -storage.size)

    def _keep_peak(self) -> None:
        # The breakdown is copied only when memory is about to fall below the peak.
        if self._stale and self.total == self.peak:
            self._peak_live = {name: size for name, size in self.live.items() if size}
            self._stale = False

    def _change(self, name: str, size: int) -> None:
        self.live[name] = self.live.get(name, 0) + size


def active_counter() -> LiveCounter | None:
    """The counter of the current thread, if any."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, LiveCounter):
            return mode
    return None


class Charged(torch.autograd.Function):
    """Boundary between two categories, which forward and backward cross in opposite directions.

    Parameters
    ----------
    forward_category, backward_category : str
        Category to charge from here on in either direction.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_category: str, backward_category: str) -> torch.Tensor:
        ctx.category = backward_category
        _switch(forward_category)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:  # type: ignore[override]
        _switch(ctx.category)
        return dy, None, None


def _switch(category: str) -> None:
    counter = active_counter()
    if counter is not None:
        counter.switch(category)


def only_shapes(x: torch.Tensor) -> bool:
    """Return whether a kernel may omit its arithmetic: no values to compute, and no one counts its inside."""
    counter = active_counter()
    return isinstance(x, FakeTensor) and counter is not None and not counter.see_kernels


def empty_of(x: torch.Tensor, shape: tuple[int, ...] | None = None) -> torch.Tensor:
    """A contiguous tensor of x's type, in its shape unless another is given."""
    return torch.empty(x.shape if shape is None else shape, dtype=x.dtype, device=x.device)


def fused(function: Function) -> Function:
    """Mark a function whose operators are one kernel on the device: see `LiveCounter.kernel`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        counter = active_counter()
        if counter is None:
            return function(*args, **kwargs)
        with counter.kernel():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
