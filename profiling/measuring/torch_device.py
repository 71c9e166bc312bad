"""The device that torch finds for a rank: a GPU, an NPU, or the processor with gloo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taylor.profiling.measuring.plan import ATTENTION, COPY, HOST_LINK, PRODUCTS

_HEAD = 128


@dataclass(frozen=True)
class TorchDevice:
    """A device with its backend of collectives.

    Parameters
    ----------
    module : module
        ``torch.cuda``, ``torch.npu``, or None of the processor.
    half : torch.dtype
        Of what is sent and multiplied.
    """

    torch: Any
    device: Any
    backend: str
    module: Any
    half: Any

    @classmethod
    def here(cls, local_rank: int) -> TorchDevice:
        """The device of a local rank."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank)
            return cls(torch, torch.device("cuda", local_rank), "nccl", torch.cuda, torch.bfloat16)
        try:
            import torch_npu  # noqa: F401 - gives torch its npu

            npu: Any = getattr(torch, "npu")  # noqa: B009 - unknown to torch without it
            npu.set_device(local_rank)
            return cls(torch, torch.device("npu", local_rank), "hccl", npu, torch.bfloat16)
        except (ImportError, AttributeError):
            torch.set_num_threads(1)
            return cls(torch, torch.device("cpu"), "gloo", None, torch.bfloat16)

    @property
    def facts(self) -> dict[str, str]:
        """Facts of the device and the software."""
        name = "cpu" if self.module is None else str(self.module.get_device_name(self.device))
        return {"device": name, "backend": self.backend, "torch": str(self.torch.__version__)}

    def wait(self) -> None:
        """Until the device is done."""
        if self.module is not None:
            self.module.synchronize()

    def memory_free(self) -> float:
        """Fraction of the memory that no other process uses; 1 for the processor."""
        if self.module is None:
            return 1.0
        free, total = self.module.mem_get_info()
        return float((free + self.module.memory_reserved()) / total)

    def work(self, kind: str, width: int) -> tuple[float, Callable[[], object] | None]:
        """FLOP or bytes of one operation, and the operation; None where there is nothing to measure."""
        torch = self.torch
        if kind == PRODUCTS:
            a, b = (torch.randn(width, width, device=self.device, dtype=self.half) for _ in range(2))
            return 2.0 * width**3, lambda: a @ b
        if kind == ATTENTION:
            heads, tokens = max(1, width // _HEAD), max(256, width // 2)
            q, k, v = (torch.randn(1, heads, tokens, _HEAD, device=self.device, dtype=self.half) for _ in range(3))
            attend = torch.nn.functional.scaled_dot_product_attention
            return 2.0 * heads * tokens**2 * _HEAD, lambda: attend(q, k, v, is_causal=True)
        elements = 16 * width * width
        source = torch.zeros(elements, device=self.device, dtype=self.half)
        if kind == COPY:
            target = torch.empty_like(source)
            # Read and written.
            return 2.0 * 2 * elements, lambda: target.copy_(source)
        assert kind == HOST_LINK
        if self.module is None:
            return 0.0, None
        host = torch.empty(elements, dtype=self.half, pin_memory=True)
        return 2.0 * elements, lambda: host.copy_(source, non_blocking=True)
