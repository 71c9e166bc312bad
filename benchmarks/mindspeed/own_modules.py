"""Run one rank of the programs' own modules on torch's meta device, and count what autograd keeps of it.

Ranks that are not there answer with what torch's fake process group leaves in a buffer: sizes are right, and there are
no values. Stand-ins: the device's generator, and its fused RMSNorm, which keeps its input and an fp32 statistic a row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import MagicMock

import torch

from taylor.dryrun.torch_stage.counter import LiveCounter


class FusedNorm(torch.autograd.Function):
    """Keeps what ``torch_npu.npu_rms_norm`` keeps (its backward takes input, weight and the second result)."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight, x.new_empty(*x.shape[:-1], 1, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class Saved:
    """Storages that autograd keeps inside the block, without those of the given tensors."""

    def __init__(self, *known: torch.Tensor) -> None:
        self._known = {each.untyped_storage()._cdata for each in known}
        self._kept: dict[int, torch.Tensor] = {}

    def __enter__(self) -> Saved:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *words: Any) -> None:
        self._hooks.__exit__(*words)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in self._known:
            self._kept.setdefault(key, tensor)
        return tensor

    @property
    def bytes(self) -> int:
        """Sum of the storages."""
        return sum(each.untyped_storage().nbytes() for each in self._kept.values())


@contextlib.contextmanager
def rank_of(world: int, rank: int = 0, **degrees: int) -> Iterator[None]:
    """One rank of Megatron-LM's groups, for instance ``tensor_model_parallel_size=2``."""
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **degrees)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def stand_in_for_device() -> None:
    """Run on the meta device what asks for the program's."""
    import torch_npu
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    fused: Any = FusedNorm
    vars(torch.cuda).update(current_device=lambda: "meta")
    CudaRNGStatesTracker.fork = lambda *words, **named: contextlib.nullcontext()
    torch_npu.npu_rms_norm = lambda x, weight, epsilon=1e-6: (fused.apply(x, weight), MagicMock())


def backward_bytes(forward: Callable[[], torch.Tensor], *leaves: torch.Tensor) -> int:
    """Most bytes that a forward's backward needs beside what it kept and the gradient of its result."""
    with LiveCounter() as counter:
        out = forward()
        seed = torch.ones_like(out)
        before = counter.total
        counter.start_window()
        torch.autograd.grad(out, leaves, seed, allow_unused=True)
        return counter.window_peak - before
