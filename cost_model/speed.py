"""A device's speeds as kernels reach them: time of arithmetic, of memory traffic, of GEMMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from taylor.cost_model.overlap import SLOWED_BESIDE
from taylor.cost_model.strategy import TrainingRules
from taylor.cost_model.strategy_table import Quantity
from taylor.register.device import DeviceSpec

ASSUMED_EFFICIENCY: Mapping[str, float] = {
    "matmul": 0.7,
    "attention": 0.5,
    "memory": 0.8,
    "operands": 1.85,
    "results": 0.61,
    "network": 0.7,
    "expert_operands": 1.85,
    "expert_results": 0.61,
    "softmax_flops": 0.0,
    "tensor_shown_forward": 1.0,
    "tensor_shown_backward": 0.5,
    "data_shown": SLOWED_BESIDE,
    "data_shown_in_pipeline": SLOWED_BESIDE,
    "layer_us": 0.0,
    "step_ms": 0.0,
}
"""Values of a device registration's `efficiency`, and their defaults.

Fractions of the peak: of the arithmetic of GEMMs, of memory bandwidth by element-wise kernels (a low one stands for
unfused ones, which move more than is counted), and of link bandwidth. Registered devices carry fitted ones. Those of
GEMMs' operands (above 1: most of the reading runs beside arithmetic) and results, of dense layers and of routed
experts: `cost_model.product_times`.

Credits, the exposed fraction of a time:

- ``tensor_shown_forward``, ``tensor_shown_backward``: tensor-parallel communication; backward overlaps the rest with
the weight gradients' GEMMs as far as these last (Korthikanti et al. 2022 §4.2.2; Megatron's asynchronous all-reduce).
- ``data_shown``, ``data_shown_in_pipeline``: gradient reduction and weight gathering that computation runs beside, in
  frameworks known to overlap them, without a pipeline and in one.

Costs: ``softmax_flops``, the cost of the softmax of one attention score beside its GEMMs, in FLOPs at attention's
speed (exponentials run on slower units: Shah et al. 2024, arXiv:2407.08608 §1); ``layer_us``, of a layer's forward
beside its kernels, twice in backward; ``step_ms``, of a step beside its micro-batches."""


@dataclass(frozen=True)
class Speed:
    """A device's speeds with its efficiencies applied."""

    device: DeviceSpec
    peak_tflops: float
    product_tflops: float
    shares: Mapping[str, float]

    @classmethod
    def of(cls, device: DeviceSpec, rules: TrainingRules, *, in_layer: bool = False) -> Speed:
        """A device's registered efficiencies, completed by the assumed ones, of the peak of a job's precision.

        torch multiplies fp32 as fp32 unless a setting selects TF32. `in_layer`: GEMMs run in the job's narrow type,
        where it has one; attention, and what is outside the layers, does not.
        """
        peak = products = device.peak(rules.precision)
        if in_layer and rules.narrow is not None:
            products = device.peak(rules.narrow.precision)
        return cls(device, peak, products, {**ASSUMED_EFFICIENCY, **device.efficiency})

    @property
    def network(self) -> float:
        """Fraction of the link bandwidth that collectives reach."""
        return self.shares["network"]

    def flops(self, group: str, amount: Quantity) -> Quantity:
        """Time of matrix work, ms."""
        peak = self.product_tflops if group == "matmul" else self.peak_tflops
        return amount / (peak * self.shares[group] * 1e9)

    def bytes(self, amount: Quantity, group: str = "memory") -> Quantity:
        """Time of memory traffic, ms."""
        return amount / (self.device.memory_gb_s * self.shares[group] * 1e6)

    def product(self, flops: Quantity, read_bytes: Quantity, written_bytes: Quantity) -> Quantity:
        """Time of a dense GEMM, ms: its arithmetic, its operands, its results."""
        return self.flops("matmul", flops) + self.bytes(read_bytes, "operands") + self.bytes(written_bytes, "results")

    def grouped(self, flops: Quantity, read_bytes: Quantity, written_bytes: Quantity) -> Quantity:
        """Time of a grouped GEMM of experts, ms, likewise."""
        read, written = self.bytes(read_bytes, "expert_operands"), self.bytes(written_bytes, "expert_results")
        return self.flops("matmul", flops) + read + written
